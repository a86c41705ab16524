"""Writes a golden trajectory of supervised fine-tuning: LLaMA-Factory encodes conversations, transformers + torch train.

    python make_sft_trajectory.py LLaMA-Factory/src crates/oarlock/tests/golden

It trains the model of train-llama, which make_trajectory.py writes, on conversations of its own, under the template
`default`, for 30 steps of four padded rows in f32. Some rows are cut to cutoff_len. The folder sft-llama holds the
conversations in LLaMA-Factory's format, and trajectory.json.
"""
import copy
import json
import os
import random
import sys

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import original_chat
from make_trajectory import DEEDS, ENDS, PLACES, ROWERS

STEPS, BATCH, LR, CLIP, CUTOFF = 30, 4, 1e-3, 1.0, 56


def conversations(n):
    draw = random.Random("sft")
    for _ in range(n):
        turns = []
        for _ in range(draw.choice([1, 1, 1, 2])):
            place = draw.choice(PLACES)
            turns += [("human", f"Who was at {place}?"),
                      ("gpt", draw.choice(ROWERS) + (" " + draw.choice(DEEDS).format(3) + " it." if draw.random() < .3 else "."))]
        if draw.random() < .2:
            turns.insert(0, ("system", draw.choice(ENDS).format(5, 3)))
        yield {"conversations": [{"from": role, "value": text} for role, text in turns]}


def encode(module, supervised, tokenizer, row):
    template = copy.deepcopy(module.TEMPLATES["default"])
    turns = [(turn["from"], turn["value"]) for turn in row["conversations"]]
    system = turns.pop(0)[1] if turns[0][0] == "system" else ""
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles[role], "content": text} for role, text in turns]
    return original_chat.encoded(supervised, template, tokenizer, messages, system, cutoff_len=CUTOFF)


def mean_of_targets(outputs, labels):
    summed = torch.nn.functional.cross_entropy(
        outputs["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum")
    return summed / (labels != -100).sum()


def train(folder, rows, pad, loss_of=mean_of_targets):
    """The loss and the norm of the gradient at each step."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        batch = rows[step * BATCH : (step + 1) * BATCH]
        longest = max(len(ids) for ids, _ in batch)
        def padded(lists, value):
            return torch.tensor([list + [value] * (longest - len(list)) for list in lists])
        ids, labels = padded([ids for ids, _ in batch], pad), padded([labels for _, labels in batch], -100)
        mask = padded([[1] * len(ids) for ids, _ in batch], 0)
        loss = loss_of({"logits": model(input_ids=ids, attention_mask=mask).logits}, labels)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"loss": losses, "grad_norm": norms}


def main(source, golden):
    module, supervised = original_chat.load(source)
    model = os.path.join(golden, "train-llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(model, "tokenizer.json"),
                                        bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>")
    talks = list(conversations(STEPS * BATCH))
    rows = [encode(module, supervised, tokenizer, talk) for talk in talks]
    full = sum(len(ids) == CUTOFF for ids, _ in rows)
    assert 10 < full < 60
    run = train(model, rows, tokenizer.pad_token_id)
    folder = os.path.join(golden, "sft-llama")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "conversations.jsonl"), "w", encoding="utf-8") as out:
        out.writelines(json.dumps(talk, ensure_ascii=False) + "\n" for talk in talks)
    with open(os.path.join(folder, "trajectory.json"), "w") as out:
        settings = {"cutoff_len": CUTOFF, "batch": BATCH, "learning_rate": LR, "max_grad_norm": CLIP}
        trained = sum(label != -100 for _, labels in rows for label in labels)
        counts = {"tokens": sum(len(ids) for ids, _ in rows), "trained": trained}
        json.dump({**settings, **counts, **run}, out, indent=1)
        out.write("\n")
    losses, norms = run["loss"], run["grad_norm"]
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, norms {min(norms):.2f} to {max(norms):.2f}, {full} full rows")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
