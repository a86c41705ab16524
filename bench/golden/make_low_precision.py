"""Writes golden losses of fine-tuning with fewer bits: what PEFT, bitsandbytes and torch compute on the tiny llama of
make_trajectory.py, with the first adapter of make_adapters.py.

    python make_low_precision.py crates/oarlock/tests/golden

adapters/low_precision.json has the losses of 30 steps of AdamW on the rows of adapters/train.json: LoRA in f32 beside a base in
bf16, under autocast, as LLaMA-Factory trains with `bf16: true`; and QLoRA beside a base that bitsandbytes has put into nf4, its
scales quantized as well, as LLaMA-Factory does with `quantization_bit: 4`, in f32 and in bf16. The versions are torch 2.13, PEFT 0.18.1 and
bitsandbytes 0.50.2, on a CPU.
"""
import json
import os
import sys

import bitsandbytes.functional as F
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

STEPS = 30


def base(out, dtype, bits):
    folder = os.path.join(out, "train-llama")
    model, full = (AutoModelForCausalLM.from_pretrained(folder, dtype=of) for of in [dtype, torch.float32])
    for name, layer in model.model.layers.named_modules() if bits == 4 else []:
        if isinstance(layer, torch.nn.Linear):
            weight = full.model.layers.get_submodule(name).weight.data
            # As one row: the kernel of bitsandbytes for the CPU is wrong where a row ends within a block.
            codes, state = F.quantize_4bit(weight.reshape(1, -1), blocksize=64, quant_type="nf4", compress_statistics=True)
            layer.weight.data = F.dequantize_4bit(codes, state).reshape(weight.shape).to(dtype)
    return model


def train(out, settings, dtype=torch.float32, bits=None):
    model = base(out, dtype, bits)
    model = PeftModel.from_pretrained(model, os.path.join(out, "adapters", "first_lora"), is_trainable=True).train()
    params = [param for param in model.parameters() if param.requires_grad]
    for param in params:
        param.data = param.data.float()
    adamw, losses = torch.optim.AdamW(params, lr=settings["learning_rate"], weight_decay=settings["weight_decay"]), []
    for step in range(STEPS):
        batch = torch.tensor(settings["rows"])[step % 2 * 4:][:4]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
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
    found = {
        "lora_bf16": train(out, settings, torch.bfloat16),
        "qlora": train(out, settings, bits=4),
        "qlora_bf16": train(out, settings, torch.bfloat16, bits=4),
    }
    with open(os.path.join(out, "adapters", "low_precision.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
