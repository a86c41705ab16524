"""Compares token ids and labels of `oarlock data show --json` with LLaMA-Factory's own, on real tokenizers and records.

    python encoding.py OARLOCK LLaMA-Factory/src TOKENIZERS ROWS.json … [--templates default,qwen3] [--cutoffs 1024,96]

TOKENIZERS is a folder of tokenizer folders; ROWS.json are files in alpaca's format or in sharegpt's, with system texts and
tools. The first 200 rows are compared under every template that is named, by default all of LLaMA-Factory. Where a tokenizer
lacks a token of the template, LLaMA-Factory adds it, and Oarlock refuses the template or reads the token as text; here it is
added for both. Rows with tools are left out where Oarlock lacks the template's tool format.
"""
import argparse
import copy
import json
import os
import shutil
import subprocess
import sys
import tempfile
from types import SimpleNamespace

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../golden"))
import original_chat
from transformers import PreTrainedTokenizerFast

ROLES = {"human": "user", "gpt": "assistant", "function_call": "function", "observation": "observation", "system": "system"}


def tokenizer_of(folder):
    config = json.load(open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8"))
    def name(key):
        value = config.get(key)
        return value["content"] if isinstance(value, dict) else value
    names = {key: name(key) for key in ("bos_token", "eos_token", "pad_token") if name(key)}
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"), **names)


def talks(paths):
    """The rows in sharegpt's format."""
    for row in (row for path in paths for row in json.load(open(path, encoding="utf-8"))):
        if "conversations" not in row:
            question = "\n".join(part for part in (row["instruction"], row.get("input")) if part)
            row = {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": row["output"]}]}
        yield {"system": "", "tools": "", **row}


def ours(oarlock, model, template, rows, cutoff_len):
    """The encoded rows, or what the program says instead."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "rows.json"), "w", encoding="utf-8") as out:
            json.dump(rows, out)
        columns = {"messages": "conversations", "system": "system", "tools": "tools"}
        with open(os.path.join(folder, "dataset_info.json"), "w") as out:
            json.dump({"rows": {"file_name": "rows.json", "formatting": "sharegpt", "columns": columns}}, out)
        config = os.path.join(folder, "config.yaml")
        with open(config, "w") as out:
            json.dump({"stage": "sft", "model_config": {"model_type": "qwen3"}, "tokenizer_path": model, "dataset": "rows",
                       "dataset_dir": folder, "template": template, "cutoff_len": cutoff_len,
                       "output_dir": os.path.join(folder, "out")}, out)
        shown = subprocess.run([oarlock, "data", "show", config, "--json", "--rows", "100000"], capture_output=True, text=True)
    if shown.returncode:
        return shown.stdout + shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def fixed(module, model, name):
    """The template and the tokenizer of the original, to which it adds tokens that the tokenizer lacks, and whether it did."""
    tokenizer = tokenizer_of(model)
    size = len(tokenizer)
    settings = SimpleNamespace(template=name, train_on_prompt=False, tool_format=None, default_system=None,
                               enable_thinking=True, preserve_thinking=False)
    return module.get_template_and_fix_tokenizer(tokenizer, settings), tokenizer, len(tokenizer) > size


def with_tokens(model, tokenizer, folder):
    """The tokenizer with the tokens that were added. The model would have no row for them: this is for comparison only."""
    shutil.copy(os.path.join(model, "tokenizer_config.json"), folder)
    tokenizer.backend_tokenizer.save(os.path.join(folder, "tokenizer.json"))
    return folder


def theirs(supervised, template, tokenizer, rows, cutoff_len):
    found = []
    for row in copy.deepcopy(rows):
        messages = [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else row["system"]
        found.append(original_chat.encoded(supervised, template, tokenizer, messages, system, row["tools"], cutoff_len=cutoff_len))
    return found


def compared(got, expected):
    """How many rows are equal, of how many, and the first that is not."""
    # A row of which no answer is left is dropped; the original trains on nothing of it.
    expected = [(ids, labels) for ids, labels in expected if any(label != -100 for label in labels)]
    same = [row["input_ids"] == ids and row["labels"] == labels for row, (ids, labels) in zip(got, expected)]
    if len(got) != len(expected):
        return 0, len(expected), f"{len(got)} rows instead of {len(expected)}"
    if all(same):
        return len(same), len(same), None
    i = same.index(False)
    ids, labels = expected[i]
    for name, one, other in (("id", got[i]["input_ids"], ids), ("label", got[i]["labels"], labels)):
        if one != other:
            at = next((j for j, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), min(len(one), len(other)))
            near = slice(max(at - 3, 0), at + 6)
            return sum(same), len(same), f"row {i}, {name} {at}: {one[near]} instead of {other[near]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oarlock")
    parser.add_argument("source")
    parser.add_argument("tokenizers")
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--templates", type=lambda text: text.split(","))
    parser.add_argument("--cutoffs", type=lambda text: [int(part) for part in text.split(",")], default=[100_000])
    args = parser.parse_args()
    module, supervised = original_chat.load(args.source)
    rows, total, equal, refused = list(talks(args.rows))[:200], 0, 0, 0
    for name in args.templates or sorted(module.TEMPLATES):
        for model in sorted(os.listdir(args.tokenizers)):
            folder = os.path.join(args.tokenizers, model)
            template, tokenizer, added = fixed(module, folder, name)
            for cutoff_len in args.cutoffs:
                with tempfile.TemporaryDirectory() as scratch:
                    read = with_tokens(folder, tokenizer, scratch) if added else folder
                    kept = rows
                    got = ours(args.oarlock, read, name, kept, cutoff_len)
                    if isinstance(got, str) and "the tool format" in got:
                        kept = [row for row in rows if not row["tools"]]
                        got = ours(args.oarlock, read, name, kept, cutoff_len)
                refused += len(rows) if isinstance(got, str) else len(rows) - len(kept)
                if isinstance(got, str):
                    print(f"{name} {model}: {got.strip()[-300:]}", flush=True)
                    continue
                same, of, why = compared(got, theirs(supervised, template, tokenizer, kept, cutoff_len))
                total, equal = total + of, equal + same
                if why:
                    print(f"{name} {model} cutoff_len {cutoff_len}: {same} of {of} are equal; {why}", flush=True)
    print(f"{equal} of {total} rows are equal in ids and labels; {refused} rows are refused")


if __name__ == "__main__":
    main()
