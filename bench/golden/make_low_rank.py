"""Writes golden trajectories of GaLore and APOLLO: losses of the tiny llama of make_trajectory.py in 30 steps.

    python make_low_rank.py crates/oarlock/tests/golden            # writes low_rank.json

Needs torch 2.13, transformers, galore_torch 1.0 and apollo_torch 1.0.3. All weights are trained in f32 on one thread, in the
groups of LLaMA-Factory. Two things are given to the packages, since they are arbitrary in them: the signs of singular
vectors (the number furthest from 0 of each left vector is positive), and the random projections, which are those of
oarlock_kernels::random.
"""
import json
import math
import os
import sys

import numpy
import torch

# What the packages ask of older versions of transformers.
import transformers
from apollo_torch import APOLLOAdamW
from apollo_torch.random_projector import GradientProjector
from galore_torch import GaLoreAdamW
from transformers import AutoModelForCausalLM

STEPS, LR, DECAY, RANK, INTERVAL = 30, 5e-3, 0.1, 4, 8
GALORE = {name: dict(proj_type=name, scale=2.0) for name in ["std", "reverse_std", "left", "right", "full"]}
APOLLO = {
    "random": dict(proj="random", proj_type="std", scale=32.0, scale_type="channel"),
    "tensor": dict(proj="svd", proj_type="std", scale=4.0, scale_type="tensor"),
    "front": dict(proj="svd", proj_type="std", scale=8.0, scale_type="channel", scale_front=True),
}


def bits(stream, seed, n_blocks):
    """Philox4x32-10 with the counters 0..n_blocks of a stream."""
    mask = numpy.uint64(0xFFFFFFFF)
    a = numpy.arange(n_blocks, dtype=numpy.uint64)
    b = numpy.zeros_like(a)
    c, d = numpy.full_like(a, stream & 0xFFFFFFFF), numpy.full_like(a, stream >> 32)
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        p, q = numpy.uint64(0xD2511F53) * a, numpy.uint64(0xCD9E8D57) * c
        shift = numpy.uint64(32)
        a, b, c, d = (q >> shift) ^ b ^ numpy.uint64(key[0]), q & mask, (p >> shift) ^ d ^ numpy.uint64(key[1]), p & mask
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return [a, b, c, d]


def normal(stream, seed, n):
    """The first numbers of a stream."""
    groups = -(-n // 64)
    words = [w.reshape(groups, 16) for w in bits(stream, seed, groups * 16)]
    out = []
    for first, second in [(words[0], words[1]), (words[2], words[3])]:
        radius = numpy.sqrt(-2 * numpy.log(((first >> numpy.uint64(1)).astype(float) + 0.5) / 2**31))
        angle = second.astype(float) / 2**32 * 2 * math.pi
        out += [radius * numpy.cos(angle), radius * numpy.sin(angle)]
    return numpy.stack(out, 1).reshape(-1)[:n].astype(numpy.float32)


def update_ortho_matrix(self, grad, proj_type):
    rows, cols = grad.shape
    length = cols if proj_type == "right" else rows
    numbers = torch.from_numpy(normal(self.svd_count, rows << 32 | cols, self.rank * length))
    self.svd_count += 1
    matrix = numbers.reshape(self.rank, length) / math.sqrt(self.rank)
    self.ortho_matrix = matrix if proj_type == "right" else matrix.t()


GradientProjector.update_ortho_matrix = update_ortho_matrix
plain_svd = torch.linalg.svd


def svd(matrix, full_matrices=True):
    u, s, v = plain_svd(matrix.double(), full_matrices=full_matrices)
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
    return (u * signs).float(), s.float(), (v * signs.t()).float()


torch.linalg.svd = svd


def train(path, rows, optimizer_class, settings, eps=1e-8, more=None):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()
    linear = {id(m.weight) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"}
    params = list(model.parameters())
    groups = [
        dict(params=[p for p in params if p.ndim < 2], weight_decay=0.0),
        dict(params=[p for p in params if p.ndim == 2 and id(p) not in linear], weight_decay=DECAY),
        dict(params=[p for p in params if id(p) in linear], weight_decay=DECAY, rank=RANK, update_proj_gap=INTERVAL,
             **settings),
    ]
    optimizer = optimizer_class(groups, lr=LR, betas=(0.9, 0.95), eps=eps, **(more or {}))
    losses = []
    for step in range(STEPS):
        batch = rows[step % 2 * 4:][:4]
        loss = model(batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main(out):
    torch.set_num_threads(1)
    path = os.path.join(out, "train-llama")
    rows = torch.randint(3, 300, (8, 24), generator=torch.Generator().manual_seed(3))
    found = {}
    for name, settings in GALORE.items():
        # A gradient between both of its bases is diagonal at first, and what rounding leaves beside the diagonal is not a step.
        found["galore_" + name] = train(path, rows, GaLoreAdamW, settings, 1e-4 if name == "full" else 1e-8)
    for name, settings in APOLLO.items():
        settings = dict(settings)
        # The package reads it here, LLaMA-Factory writes it into the group.
        more = dict(scale_front=settings.pop("scale_front", False))
        found["apollo_" + name] = train(path, rows, APOLLOAdamW, settings, more=more)
    with open(os.path.join(out, "low_rank.json"), "w") as file:
        json.dump({"learning_rate": LR, "weight_decay": DECAY, "rows": rows.tolist(), "losses": found}, file)


if __name__ == "__main__":
    main(sys.argv[1])
