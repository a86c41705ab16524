#!/usr/bin/env python3
"""Writes the golden values of optimizers whose states have 8 bits.

    python bench/golden/make_eight_bit.py

Needs torch 2.13 and bitsandbytes 0.50. Its optimizers take 30 steps on a CPU in f32, on weights and gradients that both sides
make from the same integers. On a CPU bitsandbytes rounds to one of 65,536 even steps before it looks for a code, which
GPUs do not do: here it takes the nearest code, as on GPUs and in its own reference in PyTorch.
"""

import pathlib

import bitsandbytes as bnb
import torch
from bitsandbytes.backends.cpu import ops

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The last block is not whole.
N, STEPS, EVERY = 4096 + 300, 30, 29
I = torch.arange(N)


def weights():
    return ((I * 37) % 101 - 50).float() / 40


def gradient(step):
    even = ((I * 53 + step * 29 + I**2 % 31) % 97).float() / 64 - 0.75
    # Small and large ones in a block, for codes of all magnitudes.
    return even * torch.tensor([1.0, 0.125, 0.015625, 0.0009765625])[I // 7 % 4]


def quantize_to_nearest(values, code, absmax_out, codes_out, blocksize):
    blocks = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % blocksize)).reshape(-1, blocksize)
    absmax = blocks.abs().amax(1)
    shares = blocks / absmax.where(absmax > 0, torch.ones(()))[:, None]
    nearest = (shares[:, :, None] - code).abs().argmin(2).to(torch.uint8)
    codes_out.copy_(nearest.flatten()[: values.numel()].reshape(values.shape))
    absmax_out.copy_(absmax)


ops._quant_blockwise_fp32_direct = quantize_to_nearest

OPTIMIZERS = {
    "adamw_8bit": lambda p: bnb.optim.AdamW8bit(p, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
    "lion_8bit": lambda p: bnb.optim.Lion8bit(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1),
    "rmsprop_8bit": lambda p: bnb.optim.RMSprop8bit(p, lr=1e-3, alpha=0.99, eps=1e-8, weight_decay=0.1),
    "ademamix_8bit": lambda p: bnb.optim.AdEMAMix8bit(
        p, lr=1e-3, betas=(0.9, 0.999, 0.9999), alpha=5.0, eps=1e-8, weight_decay=0.1
    ),
}


def main():
    lines = ["// Written by bench/golden/make_eight_bit.py.\n", "&[\n"]
    for name, make in OPTIMIZERS.items():
        p = torch.nn.Parameter(weights())
        optimizer = make([p])
        for step in range(1, STEPS + 1):
            p.grad = gradient(step)
            optimizer.step()
        state = optimizer.state[p]
        assert state["state1"].dtype == torch.uint8
        # The first state: of AdEMAMix the fast mean.
        codes, absmax = state["state1"].reshape(-1, N)[0], state["absmax1"].reshape(-1, -(-N // 256))[0]
        values = ", ".join(str(x) for x in p.detach()[::EVERY].numpy())
        scales = ", ".join(str(x) for x in absmax.numpy())
        some = ", ".join(str(int(x)) for x in codes[::EVERY].numpy())
        lines.append(f'    ("{name}", &[{values}], &[{scales}], &[{some}]),\n')
    lines.append("]\n")
    (ROOT / "crates/tensor/tests/golden/eight_bit.in").write_text("".join(lines))


main()
