"""Compares token ids and labels of `oarlock data show --json` with LLaMA-Factory's own, on real tokenizers and records.

    python encoding.py OARLOCK LLaMA-Factory/src TOKENIZERS ROWS.json [template[@tokenizer] …]

TOKENIZERS is a folder of tokenizer folders. Each template is tried with each tokenizer that has its end token; 200 rows of
an alpaca file each, and a few of them joined to conversations of three turns.
"""
import copy
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../golden"))
import original_chat
from transformers import PreTrainedTokenizerFast


def tokenizer_of(folder):
    config = json.load(open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8"))
    def name(key):
        value = config.get(key)
        return value["content"] if isinstance(value, dict) else value
    names = {key: name(key) for key in ("bos_token", "eos_token", "pad_token") if name(key)}
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), **names)


def talks(path):
    rows = [row for row in json.load(open(path, encoding="utf-8"))][:200]
    for i, row in enumerate(rows):
        turns = []
        for row in rows[i : i + (3 if i % 10 == 0 else 1)]:
            question = "\n".join(part for part in (row["instruction"], row["input"]) if part)
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": row["output"]}]
        yield turns


def ours(oarlock, folder, model, template, turns, cutoff_len):
    rows = os.path.join(folder, "rows.jsonl")
    with open(rows, "w", encoding="utf-8") as out:
        out.writelines(json.dumps({"messages": messages}) + "\n" for messages in turns)
    config = os.path.join(folder, "config.yaml")
    with open(config, "w") as out:
        json.dump({"stage": "sft", "model_config": {"model_type": "qwen3"}, "tokenizer_path": model, "dataset": rows,
                   "template": template, "cutoff_len": cutoff_len, "output_dir": os.path.join(folder, "out")}, out)
    shown = subprocess.run([oarlock, "data", "show", config, "--json", "--rows", "100000"], capture_output=True, text=True)
    if shown.returncode:
        return shown.stdout + shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def main(oarlock, source, tokenizers, path, *names):
    module, supervised = original_chat.load(source)
    turns = list(talks(path))
    total = same = 0
    for name in names or ["default", "alpaca", "vicuna", "llama2", "mistral", "deepseek", "deepseek3", "deepseekr1", "empty",
                          "qwen", "qwen3", "qwen3_nothink", "chatml", "yi", "llama3", "gemma", "gemma2", "gemma3", "glm4",
                          "phi4", "zephyr", "intern2", "mistral_small", "smollm2"]:
        name, _, only = name.partition("@")
        for model in [only] if only else sorted(os.listdir(tokenizers)):
            folder = os.path.join(tokenizers, model)
            tokenizer = tokenizer_of(folder)
            template = copy.deepcopy(module.TEMPLATES[name])
            if template.replace_eos:
                if template.stop_words[0] not in tokenizer.get_vocab():
                    continue
                tokenizer.eos_token = template.stop_words[0]
            for cutoff_len in (1024, 96):
                with tempfile.TemporaryDirectory() as scratch:
                    got = ours(oarlock, scratch, folder, name, turns, cutoff_len)
                if isinstance(got, str):
                    print(f"{name} {model}: {got[:300]}")
                    continue
                expected = [original_chat.encoded(supervised, template, tokenizer, messages, cutoff_len=cutoff_len)
                            for messages in copy.deepcopy(turns)]
                # A row of which no answer is left is dropped; the original trains on nothing of it.
                expected = [(ids, labels) for ids, labels in expected if any(label != -100 for label in labels)]
                equal = sum(row["input_ids"] == ids and row["labels"] == labels
                            for row, (ids, labels) in zip(got, expected)) if len(got) == len(expected) else 0
                total, same = total + len(expected), same + equal
                if equal < len(expected):
                    first = next((i for i, (row, (ids, labels)) in enumerate(zip(got, expected))
                                  if row["input_ids"] != ids or row["labels"] != labels), None)
                    print(f"{name} {model} {cutoff_len}: {equal} of {len(expected)} ({len(got)}), first {first}")
                    if first is not None:
                        print("  ", got[first]["input_ids"][:40], "\n  ", expected[first][0][:40])
                        print("  ", got[first]["labels"][:40], "\n  ", expected[first][1][:40])
        print(f"{name}: {same} of {total} so far", flush=True)
    print(f"{same} of {total} rows are equal in ids and labels")


if __name__ == "__main__":
    main(*sys.argv[1:])
