"""Times the step of a GPT written in PyTorch, trained under Accelerate: what examples/own_model_cost.rs does.

    torchrun --nproc-per-node 2 own_model.py dtype=bf16 [key=value …]

bench/own_model runs it; the keys, the sizes and the layers are those of the example.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

N_VOCAB, MAX_GRAD_NORM, LR = 6400, 1.0, 5e-4
given = dict(word.split("=", 1) for word in sys.argv[1:])


def number(key, default):
    return int(given.get(key, default))


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, dim, seq):
        super().__init__()
        self.in_proj, self.out_proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        angles = torch.outer(torch.arange(seq), 10_000.0 ** (-torch.arange(0, 64, 2) / 64)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, 64)).transpose(1, 2) for part in self.in_proj(x).chunk(3, dim=-1))
        q, k = rotated(q, self.cos, self.sin).type_as(v), rotated(k, self.cos, self.sin).type_as(v)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, dim, seq):
        super().__init__()
        self.norm_1, self.attention, self.norm_2 = nn.LayerNorm(dim), Attention(dim, seq), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim, bias=False), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim, bias=False))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


def gpt(dim, layers, seq):
    embed = nn.Embedding(N_VOCAB, dim)
    nn.init.normal_(embed.weight, std=0.02)
    head = nn.Linear(dim, N_VOCAB, bias=False)
    return nn.Sequential(embed, *(Block(dim, seq) for _ in range(layers)), nn.LayerNorm(dim), head)


def main():
    torch.set_num_threads(number("threads", 1))
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if given.get("dtype") == "bf16" else "no")
    batch, seq = number("batch", 4), number("seq", 512)
    model = gpt(number("hidden", 512), number("layers", 8), seq)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=LR, fused=True))
    rank, warmup = int(os.environ["RANK"]), number("warmup", 2)
    tokens = torch.tensor([((i * 7919 + rank * 31) * 104729) % N_VOCAB for i in range(batch * seq + 1)])
    ids, labels = tokens[:-1].view(batch, seq), tokens[1:]
    for step in range(warmup + number("steps", 5)):
        dist.barrier()
        begin = time.perf_counter()
        loss = F.cross_entropy(model(ids).flatten(0, 1), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if rank == 0 and step >= warmup:
            print(f"seconds of a step: {time.perf_counter() - begin:.6f}", flush=True)


if __name__ == "__main__":
    main()
