#!/usr/bin/env python3
"""Writes the golden values of optimizers and of DeepSpeed's learning-rate schedules.

    python bench/golden/make_optimizers.py

Needs torch 2.13, transformers 5.23, bitsandbytes 0.50 and deepspeed 0.19.8. Optimizers take 20 steps in f32 on weights and gradients that both sides make
from the same integers. Lion is the CPU kernel of DeepSpeed, which it compiles with
g++. Lamb has no CPU implementation to run: its formula is written out below. Muon's iteration runs in f32 here. Schedules are stepped after each optimizer step, as DeepSpeed's engine does.
"""

import json
import logging
import pathlib

import torch
from bitsandbytes.optim.ademamix import _ReferenceAdEMAMix
from deepspeed.ops.lion import DeepSpeedCPULion
from transformers.optimization import Adafactor

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = [(6, 10), (11, 3), (9,), (1, 7), (2, 3, 4)]
STEPS = 20


def weights(shape):
    n = torch.Size(shape).numel()
    return (((torch.arange(n) * 37) % 101 - 50).float() / 40).reshape(shape)


def gradient(shape, step):
    n = torch.Size(shape).numel()
    return (((torch.arange(n) * 53 + step * 29 + torch.arange(n) ** 2 % 31) % 97 - 48).float() / 64).reshape(shape)


class Lamb(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, eps, weight_decay, eps_inside_sqrt=False, bias_correction=True,
                 max_coeff=10.0, min_coeff=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))
        self.inside, self.corrected, self.range = eps_inside_sqrt, bias_correction, (min_coeff, max_coeff)

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, (beta1, beta2) = self.state[p], group["betas"]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                m, v = state["m"], state["v"]
                m.mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                root = (v + group["eps"]).sqrt() if self.inside else v.sqrt() + group["eps"]
                direction = m / root + group["weight_decay"] * p.data
                length, size = direction.norm().item(), p.data.norm().item()
                ratio = min(max(size / length, self.range[0]), self.range[1]) if size and length else 1.0
                lr = group["lr"]
                if self.corrected:
                    lr *= (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
                p.data.sub_(lr * ratio * direction)


def zeropower_in_f32(grad, coefficients, steps, eps):
    a, b, c = coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if grad.size(0) > grad.size(1) else x


torch.optim._muon._zeropower_via_newtonschulz = zeropower_in_f32


def adafactor_of_transformers(params, **arguments):
    """As the Trainer of transformers makes it."""
    return Adafactor(params, scale_parameter=False, relative_step=False, **arguments)


def muon(params, lr, weight_decay, **arguments):
    if params[0].dim() == 2:
        return torch.optim.Muon(params, lr=lr, weight_decay=weight_decay, **arguments)
    return torch.optim.AdamW(params, lr=0.5 * lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=weight_decay)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3, betas=(0.8, 0.999), eps=1e-6, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, dampening=0.2, weight_decay=0.01),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "adagrad_arguments": lambda p: torch.optim.Adagrad(
        p, lr=1e-2, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-6),
    "lion": lambda p: DeepSpeedCPULion(p, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1),
    "lamb": lambda p: Lamb(p, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
    "lamb_arguments": lambda p: Lamb(p, lr=1e-3, betas=(0.8, 0.99), eps=1e-4, weight_decay=0.0, eps_inside_sqrt=True,
                                     bias_correction=False, max_coeff=1.5, min_coeff=0.8),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "adafactor_arguments": lambda p: torch.optim.Adafactor(
        p, lr=0.5, beta2_decay=-0.5, eps=(1e-3, 1e-2), d=1.2, weight_decay=0.1),
    "muon": lambda p: muon(p, lr=2e-2, weight_decay=0.1),
    "muon_arguments": lambda p: muon(p, lr=2e-3, weight_decay=0.0, momentum=0.9, nesterov=False, ns_steps=3,
                                     adjust_lr_fn="match_rms_adamw"),
    "adafactor_transformers": lambda p: adafactor_of_transformers(p, lr=1e-2),
    "adafactor_transformers_arguments": lambda p: adafactor_of_transformers(
        p, lr=3e-3, decay_rate=-0.5, clip_threshold=1.2, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.9, momentum=0.8, weight_decay=0.1),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=1e-3, centered=True, momentum=0.5),
    "ademamix": lambda p: _ReferenceAdEMAMix(p, lr=1e-3, weight_decay=0.1),
    "ademamix_arguments": lambda p: _ReferenceAdEMAMix(
        p, lr=1e-3, betas=(0.8, 0.99, 0.999), alpha=3.0, weight_decay=0.0, t_alpha=30, t_beta3=15),
}


def optimizers():
    lines = ["// Written by bench/golden/make_optimizers.py: weights after 20 steps, (optimizer, sizes, weights).", "&["]
    for name, make in OPTIMIZERS.items():
        for shape in SHAPES if name.split("_")[0] in ("lamb", "adafactor", "muon") else SHAPES[:1]:
            p = torch.nn.Parameter(weights(shape))
            optimizer = make([p])
            for step in range(1, STEPS + 1):
                p.grad = gradient(shape, step)
                optimizer.step()
            values = ", ".join(f"{x:.7g}" if "." in f"{x:.7g}" else f"{x:.7g}.0" for x in p.flatten().tolist())
            lines.append(f'    ("{name}", &{list(shape)}, &[{values}]),')
    path = ROOT / "crates/tensor/tests/golden/optimizers.in"
    path.write_text("\n".join(lines + ["]", ""]))


SCHEDULES = [
    ("WarmupLR", 1e-3, {"warmup_num_steps": 10}),
    ("WarmupLR", 3e-4, {"warmup_min_lr": 1e-5, "warmup_max_lr": 1.0, "warmup_num_steps": 7, "warmup_type": "linear"}),
    ("WarmupLR", 1e-3, {"warmup_num_steps": 1}),
    ("WarmupDecayLR", 1e-3, {"total_num_steps": 40, "warmup_max_lr": 2e-3, "warmup_num_steps": 10}),
    ("WarmupDecayLR", 1e-3, {"total_num_steps": 5, "warmup_max_lr": 1e-3, "warmup_num_steps": 10,
                             "warmup_type": "linear"}),
    ("WarmupCosineLR", 1e-3, {"total_num_steps": 40, "warmup_num_steps": 10}),
    ("WarmupCosineLR", 3e-4, {"total_num_steps": 40, "warmup_num_steps": 8, "warmup_min_ratio": 0.2,
                              "cos_min_ratio": 0.1, "warmup_type": "linear"}),
    ("LRRangeTest", 1e-3, {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 6}),
    ("LRRangeTest", 1e-3, {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 6, "lr_range_test_step_rate": 2.5,
                           "lr_range_test_staircase": True}),
    ("OneCycle", 1e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 8}),
    ("OneCycle", 1e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 8,
                        "cycle_second_step_size": 13, "cycle_first_stair_count": 4, "cycle_second_stair_count": 3,
                        "decay_step_size": 5, "decay_lr_rate": 0.5, "cycle_min_mom": 0.85, "cycle_max_mom": 0.95,
                        "decay_mom_rate": 0.01}),
    ("OneCycle", 1e-3, {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 8,
                        "decay_step_size": 4, "decay_lr_rate": 1.0, "cycle_momentum": False}),
]


def schedules():
    from deepspeed.runtime import lr_schedules

    logging.disable(logging.WARNING)
    steps = [0, 1, 2, 5, 7, 8, 9, 10, 11, 15, 16, 17, 20, 21, 22, 25, 39, 40, 41, 50]
    cases = []
    for name, lr, kwargs in SCHEDULES:
        optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=lr)
        schedule = getattr(lr_schedules, name)(optimizer, **kwargs)
        points = []
        for step in range(max(steps) + 1):
            group = optimizer.param_groups[0]
            if step in steps:
                points.append([step, group["lr"], *group["betas"]])
            optimizer.step()
            schedule.step()
        cases.append({"name": name, "lr": lr, "kwargs": kwargs, "points": points})
    path = ROOT / "crates/cli/tests/golden/deepspeed_schedules.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    optimizers()
    schedules()
