"""Writes golden losses of fine-tuning in bf16: what PEFT and torch compute on the tiny llama of make_trajectory.py, with the first
adapter of make_adapters.py.

    python make_low_precision.py crates/oarlock/tests/golden

adapters/low_precision.json has the losses of 30 steps of AdamW on the rows of adapters/train.json: LoRA in f32 beside a base in
bf16, under autocast, as LLaMA-Factory trains with `bf16: true`. The versions are torch 2.13 and PEFT 0.18.1, on a CPU.
"""
import json
import os
import sys

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

STEPS = 30


def train(out, settings):
    base = AutoModelForCausalLM.from_pretrained(os.path.join(out, "train-llama"), dtype=torch.bfloat16)
    model = PeftModel.from_pretrained(base, os.path.join(out, "adapters", "first_lora"), is_trainable=True).train()
    params = [param for param in model.parameters() if param.requires_grad]
    for param in params:
        param.data = param.data.float()
    adamw, losses = torch.optim.AdamW(params, lr=settings["learning_rate"], weight_decay=settings["weight_decay"]), []
    for step in range(STEPS):
        batch = torch.tensor(settings["rows"])[step % 2 * 4:][:4]
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(batch).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses


def main(out):
    torch.set_num_threads(1)
    with open(os.path.join(out, "adapters", "train.json")) as file:
        settings = json.load(file)
    with open(os.path.join(out, "adapters", "low_precision.json"), "w") as file:
        json.dump({"lora_bf16": train(out, settings)}, file)


if __name__ == "__main__":
    main(sys.argv[1])
