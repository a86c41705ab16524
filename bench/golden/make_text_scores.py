"""Writes texts with the scores that LLaMA-Factory gives them: nltk's BLEU and rouge_chinese on jieba's words.

    python make_text_scores.py crates/oarlock/tests/golden
"""
import json
import os
import sys

import jieba
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
from rouge_chinese import Rouge

PAIRS = [
    ("The tide came in at noon.", "The tide came in at noon."),
    ("The tide came in at noon.", "The tide went out at seven."),
    ("", "Nothing was said."),
    ("Something was said.", ""),
    (" \n ", "a"),
    ("a", "a"),
    ("ab", "ab"),
    ("abc", "abd"),
    ("xyz", "abc"),
    ("the the the the", "the cat"),
    ("1. Row out.\n2. Row back.\n\n3. Rest.", "1. Row out.\n\n2. Rest.\n3. Row back."),
    ("Who? Me? Yes! No... maybe...... well", "Who? You? Yes! No... maybe...... fine"),
    ("fn main() { println!(\"{}\", 3.14); }", "fn main() { println!(\"{}\", 2.71); }"),
    ("Costs rose by 12.5% to $3,400.", "Costs rose by 12.5% to $3,500 in C++ and C#."),
    ("今天天气很好，我们去公园散步吧。", "今天天气不错，我们去公园走走吧。"),
    ("我来到北京清华大学", "我来到了北京的清华大学。"),
    ("他说：“你好。”然后走了。", "他说：“再见。”然后就走了。"),
    ("真的吗？真的！……好吧", "真的吗？不是！……算了"),
    ("机器学习是人工智能的一个分支。它让计算机从数据中学习。", "机器学习是人工智能的重要分支，使计算机能够从数据中学习。"),
    ("小明硕士毕业于中国科学院计算所，后在日本京都大学深造", "小明毕业于中国科学院，后来在京都大学学习"),
    ("使用 Python 3.10 训练 LLaMA 模型", "用 Python 3.11 训练一个 LLaMA 模型"),
    ("我们中出了一个叛徒", "我们之中有一个叛徒"),
    ("杭研大厦在网易", "他来到了网易杭研大厦"),
    ("これはペンです。", "これは本です。"),
    ("Привет, мир!", "Привет, море!"),
    ("Café au lait 😀 s'il vous plaît", "Café noir 😀 s'il te plaît"),
    ("结婚的和尚未结婚的\n\n都来了。\n", "结婚的和没有结婚的都来了"),
]


def scores(predict, label):
    words, reference = list(jieba.cut(predict)), list(jieba.cut(label))
    if not " ".join(words).split() or not " ".join(reference).split():
        rouge = {name: {"f": 0.0} for name in ("rouge-1", "rouge-2", "rouge-l")}
    else:
        rouge = Rouge().get_scores(" ".join(words), " ".join(reference))[0]
    bleu = sentence_bleu([list(label)], list(predict), smoothing_function=SmoothingFunction().method3)
    out = {"predict": predict, "label": label, "words": words, "bleu-4": round(bleu * 100, 4)}
    return out | {name: round(score["f"] * 100, 4) for name, score in rouge.items()}


if __name__ == "__main__":
    with open(os.path.join(sys.argv[1], "text_scores.json"), "w", encoding="utf-8") as file:
        json.dump([scores(*pair) for pair in PAIRS], file, ensure_ascii=False, indent=1)
        file.write("\n")
