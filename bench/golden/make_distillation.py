#!/usr/bin/env python3
"""Writes the golden values of examples/distillation.rs: the same program with accelerate and DeepSpeed, on the CPU.

    DS_ACCELERATOR=cpu python bench/golden/make_distillation.py

Needs torch, accelerate, deepspeed and transformers, at the versions of ../peers/requirements.txt. It makes two tiny llamas,
trains the teacher for a while, saves both (student/, teacher/), distils in f32 on one rank and writes the loss and learning
rate of every step (golden.json). One thread, so that the sums have one order.
"""

import json
import os
import pathlib
import shutil

import hjson
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, DeepSpeedPlugin, DummyOptim, DummyScheduler
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig

ROOT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "oarlock"
OUT = ROOT / "tests" / "golden" / "distillation"
LEN, BATCH, EPOCHS = 32, 8, 3
LR, WEIGHT_DECAY, WARMUP = 1e-2, 0.01, 5
# The loss is (1 - ALPHA) * cross-entropy + ALPHA * TEMPERATURE**2 * KL(teacher || student).
ALPHA, TEMPERATURE = 0.5, 2.0
SHARED = dict(
    vocab_size=257, max_position_embeddings=64, rms_norm_eps=1e-6, initializer_range=0.08, tie_word_embeddings=True,
    pad_token_id=None, bos_token_id=None, eos_token_id=None, num_key_value_heads=2, num_attention_heads=4,
)
STUDENT = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1)
TEACHER = dict(hidden_size=40, intermediate_size=80, num_hidden_layers=2)


def rows():
    """The texts one after the other, 0 after each, bytes from 1 on, in rows of LEN; as many as fill batches."""
    lines = (ROOT / "examples" / "reviews" / "train.jsonl").read_text().splitlines()
    ids = [token for line in lines for token in [byte + 1 for byte in json.loads(line)["text"].encode()] + [0]]
    n = len(ids) // LEN // BATCH * BATCH
    return [{"input_ids": torch.tensor(ids[LEN * i : LEN * (i + 1)])} for i in range(n)]


def make_models():
    torch.manual_seed(11)
    for name, settings in [("student", STUDENT), ("teacher", TEACHER)]:
        model = AutoModelForCausalLM.from_config(
            LlamaConfig(**SHARED, **settings), attn_implementation="eager", dtype=torch.float32
        )
        if name == "teacher":
            optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
            for batch in list(DataLoader(rows(), batch_size=BATCH)) * 20:
                model(batch["input_ids"], labels=batch["input_ids"]).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        shutil.rmtree(OUT / name, ignore_errors=True)
        model.save_pretrained(OUT / name)


def model_of(name):
    return AutoModelForCausalLM.from_pretrained(OUT / name, attn_implementation="eager", dtype=torch.float32)


def plugin_of(name):
    return DeepSpeedPlugin(hf_ds_config=hjson.loads((ROOT / "examples" / "distillation" / f"{name}.json").read_text()))


def distil():
    plugins = {"student": plugin_of("student"), "teacher": plugin_of("teacher")}
    accelerator = Accelerator(
        deepspeed_plugins=plugins, dataloader_config=DataLoaderConfiguration(split_batches=True)
    )
    student_model = model_of("student")
    train_dataloader = DataLoader(rows(), batch_size=BATCH)
    optimizer = DummyOptim(student_model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    scheduler = DummyScheduler(optimizer, total_num_steps=EPOCHS * len(train_dataloader), warmup_num_steps=WARMUP)
    student_model, optimizer, scheduler, train_dataloader = accelerator.prepare(
        student_model, optimizer, scheduler, train_dataloader
    )
    accelerator.state.select_deepspeed_plugin("teacher")
    teacher_model = accelerator.prepare(model_of("teacher"))
    teacher_model.eval()
    student_model.train()
    losses, rates = [], []
    for _ in range(EPOCHS):
        for batch in train_dataloader:
            ids = batch["input_ids"]
            with torch.no_grad():
                taught = teacher_model(input_ids=ids).logits
            output = student_model(input_ids=ids, labels=ids)
            soft = F.kl_div(
                F.log_softmax(output.logits / TEMPERATURE, dim=-1).flatten(0, 1),
                F.softmax(taught / TEMPERATURE, dim=-1).flatten(0, 1),
                reduction="batchmean",
            )
            loss = (1 - ALPHA) * output.loss + ALPHA * TEMPERATURE**2 * soft
            rates.append(optimizer.param_groups[0]["lr"])
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return {"losses": losses, "rates": rates}


def main():
    torch.set_num_threads(1)
    # A world of one, where nobody launched this program.
    for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0").items():
        os.environ.setdefault(key, value)
    make_models()
    golden = distil()
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")
    print(golden["losses"][0], golden["losses"][-1])


if __name__ == "__main__":
    main()
