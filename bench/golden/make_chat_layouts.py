"""Writes what LLaMA-Factory makes of conversations under each of its text templates, by its own code.

    python make_chat_layouts.py LLaMA-Factory/src crates/lm/src/data/layout/layouts.json \\
        crates/oarlock/tests/golden/chat_layouts.json

The tokenizer is a stub: each special token is one token, every other character another. A result is a text, in which « »
stand around the supervised tokens, and «token→end» where a token learns the end token instead of itself.
"""
import copy
import json
import re
import sys

import original_chat

SPECIAL = ["<s>", "</s>"]
TALK = [("user", "Hi"), ("assistant", "Hello"), ("user", "1+1?"), ("assistant", "2")]
THOUGHT = [("user", "Hi"), ("assistant", "<think>\na\n</think>\n\nHello"), ("user", "1+1?"), ("assistant", "<think>\nb\n</think>\n\n2")]
TOOLS = [{"name": "tide", "description": "Tells the tide.", "parameters": {"type": "object", "properties": {
    "place": {"type": "string", "description": "Where", "enum": ["weir", "lock"]},
    "hours": {"type": "array", "items": {"type": "integer"}}}, "required": ["place"]}}]
CALL = [("user", "Tide?"), ("function", '{"name": "tide", "arguments": {"place": "weir", "hours": [1, 2]}}'),
        ("observation", '{"level": 2.5}'), ("assistant", "低潮。")]


class Stub:
    """Characters as tokens, and special tokens as one each."""

    chat_template = None

    def __init__(self):
        self.bos_token, self.eos_token, self.pad_token = "<s>", "</s>", "</s>"
        self.tokens = list(SPECIAL)

    def id(self, token):
        if token not in self.tokens:
            self.tokens.append(token)
        return self.tokens.index(token)

    bos_token_id = property(lambda self: self.id(self.bos_token))
    eos_token_id = property(lambda self: self.id(self.eos_token))
    pad_token_id = property(lambda self: self.id(self.pad_token))

    def add_special_tokens(self, tokens, **_):
        self.eos_token = tokens.get("eos_token", self.eos_token)
        return 0

    def convert_tokens_to_ids(self, token):
        return self.id(token)

    def encode(self, text, add_special_tokens=False):
        return [self.id(part) for part in re.findall("<s>|</s>|.", text, re.DOTALL)]


def shown(tokenizer, ids, labels):
    out, learns = [], False
    assert len(ids) == len(labels)
    for id, label in zip(ids, labels):
        token = tokenizer.tokens[id]
        other = label not in (id, original_chat.IGNORED)
        if (label == id) != learns:
            out.append("«" if label == id else "»")
            learns = label == id
        out.append(f"«{token}→end»" if other else token)
        assert not other or label == tokenizer.eos_token_id
    return "".join(out) + ("»" if learns else "")


def cases(template, name):
    yield "plain", TALK, {}, {}
    yield "system", TALK, {"system": "Be brief."}, {}
    yield "last", TALK, {}, {"mask_history": True}
    yield "cut", TALK, {"system": "Be brief."}, {"cutoff_len": 40}
    if not template.efficient_eos:
        yield "prompt", TALK, {}, {"train_on_prompt": True}
    if type(template).__name__ == "ReasoningTemplate" and name != "gpt_oss":
        for thinking in (False, None):
            yield f"thinking {thinking}", TALK, {"thinking": thinking}, {}
        yield "thoughts", THOUGHT, {}, {}
        yield "thoughts thinking False", THOUGHT, {"thinking": False}, {}
        yield "thoughts last", THOUGHT, {}, {"mask_history": True}
    if template.format_tools.tool_format in ("qwen", "glm4", "mistral") or name in ("alpaca", "gemma2"):
        yield "tools", CALL, {"tools": json.dumps(TOOLS)}, {}


def main(source, layouts, target):
    module, supervised = original_chat.load(source)
    out = {}
    for name in json.load(open(layouts, encoding="utf-8")):
        for case, messages, row, settings in cases(module.TEMPLATES[name], name):
            template, tokenizer = copy.deepcopy(module.TEMPLATES[name]), Stub()
            template.enable_thinking = row.get("thinking", True)
            if template.replace_eos:
                tokenizer.eos_token = template.stop_words[0]
            # As one of its tokens, an end token is one wherever it stands.
            tokenizer.encode = lambda text, add_special_tokens=False, end=tokenizer.eos_token, self=tokenizer: [
                self.id(part) for part in re.findall(f"<s>|</s>|{re.escape(end)}|.", text, re.DOTALL)]
            messages = [{"role": role, "content": content} for role, content in messages]
            row = {key: value for key, value in row.items() if key != "thinking"}
            ids, labels = original_chat.encoded(supervised, template, tokenizer, messages, **row, **settings)
            # Masked history: the original still learns the ends of the answers that it masks. Those are left out.
            if "mask_history" in settings:
                labels = [label if label == id else original_chat.IGNORED for id, label in zip(ids, labels)]
            out.setdefault(name, {})[case] = shown(tokenizer, ids, labels)
    with open(target, "w", encoding="utf-8") as file:
        json.dump(out, file, ensure_ascii=False, indent=0)
        file.write("\n")
    print(f"{len(out)} templates, {sum(map(len, out.values()))} cases")


if __name__ == "__main__":
    main(*sys.argv[1:])
