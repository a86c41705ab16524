#!/usr/bin/env python3
"""Writes the golden values of examples/text_classifier.rs: the same program with accelerate and transformers.

    python bench/golden/make_text_classifier.py

Needs torch, accelerate and transformers, at the versions of ../peers/requirements.txt. It makes a tiny llama with a classification
head, saves it as it is before the first step (model/), trains it in f32 on one process, and writes the loss and learning
rate of every step and the predictions after every epoch (golden.json). One thread, so that the sums have one order.
"""

import json
import pathlib
import shutil

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, LlamaConfig, get_scheduler

ROOT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "oarlock"
OUT = ROOT / "tests" / "golden" / "text_classifier"
PAD = 0
EPOCHS, BATCH, LR = 5, 8, 5e-3


def rows(name):
    lines = (ROOT / "examples" / "reviews" / name).read_text().splitlines()
    return [json.loads(line) for line in lines]


def collate(samples):
    """Bytes are tokens, from 1 on; 0 fills short rows up."""
    ids = [[byte + 1 for byte in sample["text"].encode()] for sample in samples]
    longest = max(map(len, ids))
    return {
        "input_ids": torch.tensor([row + [PAD] * (longest - len(row)) for row in ids]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids]),
        "labels": torch.tensor([sample["label"] for sample in samples]),
    }


def checkpoint():
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, initializer_range=0.08, pad_token_id=PAD,
        bos_token_id=None, eos_token_id=None, num_labels=2,
    )
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager", dtype=torch.float32)
    shutil.rmtree(OUT / "model", ignore_errors=True)
    model.save_pretrained(OUT / "model")
    return OUT / "model"


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    model = AutoModelForSequenceClassification.from_pretrained(
        checkpoint(), num_labels=2, attn_implementation="eager", dtype=torch.float32
    )
    train_dataloader = DataLoader(rows("train.jsonl"), batch_size=BATCH, collate_fn=collate)
    eval_dataloader = DataLoader(rows("eval.jsonl"), batch_size=BATCH, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    num_training_steps = EPOCHS * len(train_dataloader)
    lr_scheduler = get_scheduler(
        "linear", optimizer=optimizer, num_warmup_steps=0, num_training_steps=num_training_steps
    )
    train_dataloader, eval_dataloader, model, optimizer, lr_scheduler = accelerator.prepare(
        train_dataloader, eval_dataloader, model, optimizer, lr_scheduler
    )
    losses, rates, predictions, accuracy = [], [], [], []
    for _ in range(EPOCHS):
        model.train()
        for batch in train_dataloader:
            rates.append(optimizer.param_groups[0]["lr"])
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        said, right = [], []
        for batch in eval_dataloader:
            with torch.no_grad():
                logits = model(**batch).logits
            best, labels = accelerator.gather_for_metrics((logits.argmax(dim=-1), batch["labels"]))
            said += best.tolist()
            right += labels.tolist()
        predictions.append(said)
        accuracy.append(sum(a == b for a, b in zip(said, right)) / len(right))
    golden = {"losses": losses, "rates": rates, "predictions": predictions, "accuracy": accuracy}
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")
    print(losses[0], losses[-1], accuracy)


if __name__ == "__main__":
    main()
