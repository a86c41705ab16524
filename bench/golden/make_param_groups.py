#!/usr/bin/env python3
"""Writes crates/oarlock/tests/golden/param_groups: one network trained by optimizers with parameter groups.

    DS_ACCELERATOR=cpu python bench/golden/make_param_groups.py

Needs torch, transformers, deepspeed and safetensors, at the versions of ../peers/requirements.txt. net.safetensors has the
first weights; golden.json the learning rates of all groups before every step, the losses, and the last weights, for AdamW
and SGD under schedules of torch, transformers and DeepSpeed ("loops"), and for an engine of DeepSpeed ("engines").
"""

import json
import os
import pathlib

import deepspeed
import torch
from deepspeed.runtime import lr_schedules as ds
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_linear_schedule_with_warmup, get_polynomial_decay_schedule_with_warmup

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "oarlock" / "tests" / "golden" / "param_groups"
STEPS, ROWS = 10, 8

SCHEDULES = {
    "none": lambda o: None,
    "lambda": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "lambdas": lambda o: LambdaLR(o, [lambda s: 1 / (1 + s), lambda s: 0.5**s, lambda s: 1.0]),
    "linear": lambda o: get_linear_schedule_with_warmup(o, 3, 12),
    "polynomial": lambda o: get_polynomial_decay_schedule_with_warmup(o, 2, 12, lr_end=0.004),
    "WarmupLR": lambda o: ds.WarmupLR(o, warmup_num_steps=4),
    "WarmupLR to one rate": lambda o: ds.WarmupLR(o, warmup_max_lr=0.03, warmup_num_steps=4),
    "WarmupLR between lists": lambda o: ds.WarmupLR(
        o, warmup_min_lr=[0.001, 0.0, 0.002], warmup_max_lr=[0.03, 0.02, 0.01], warmup_num_steps=4),
    "WarmupCosineLR": lambda o: ds.WarmupCosineLR(o, total_num_steps=12, warmup_num_steps=3),
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 16)
        self.down = torch.nn.Linear(16, 2)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def batch(step):
    """The same numbers as in the tests."""
    x = [(i * 37 % 101) / 50.0 - 1.0 for i in range(step * ROWS * 4, (step + 1) * ROWS * 4)]
    return torch.tensor(x, dtype=torch.float32).view(ROWS, 4)


def loss_of(model, step):
    return (model(batch(step)) - 1).square().mean()


def net():
    model = Net()
    model.load_state_dict(load_file(OUT / "net.safetensors"))
    return model


def groups(model, **head):
    """The body by the optimizer's numbers; the head and the biases by their own."""
    return [
        {"params": [model.up.weight]},
        {"params": [model.down.weight], **head},
        {"params": [model.up.bias, model.down.bias], "weight_decay": 0.0},
    ]


def optimizer(rule, model):
    if rule == "adamw":
        return torch.optim.AdamW(groups(model, lr=0.05, weight_decay=0.3, betas=(0.8, 0.95)), lr=0.01, weight_decay=0.1)
    return torch.optim.SGD(groups(model, lr=0.05, weight_decay=0.3, momentum=0.5), lr=0.02, momentum=0.9, weight_decay=0.1)


def end(model):
    return {name: parameter.detach().flatten().tolist() for name, parameter in model.named_parameters()}


def loop(rule, schedule):
    model = net()
    opt = optimizer(rule, model)
    scheduler = SCHEDULES[schedule](opt)
    losses, rates = [], []
    for step in range(STEPS):
        rates.append([group["lr"] for group in opt.param_groups])
        loss = loss_of(model, step)
        loss.backward()
        opt.step()
        if scheduler is not None:
            scheduler.step()
        opt.zero_grad()
        losses.append(loss.item())
    return {"rule": rule, "schedule": schedule, "rates": rates, "losses": losses, "end": end(model)}


def engine(title, config, client):
    config = {"train_batch_size": ROWS, "gradient_clipping": 0.0, "zero_optimization": {"stage": 2}, **config}
    model = net()
    if client:
        given = {"optimizer": optimizer("adamw", model)}
    else:
        given = {"model_parameters": groups(model, lr=0.05, weight_decay=0.3, betas=(0.8, 0.95))}
    engine, _, _, _ = deepspeed.initialize(model=model, config=json.loads(json.dumps(config)), **given)
    losses, rates = [], []
    for step in range(STEPS):
        rates.append(engine.get_lr())
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return {"title": title, "config": config, "client": client, "rates": rates, "losses": losses, "end": end(model)}


def main():
    torch.set_num_threads(1)
    # A world of one, where nobody launched this program.
    for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0").items():
        os.environ.setdefault(key, value)
    OUT.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(7)
    save_file({name: value.clone() for name, value in Net().state_dict().items()}, OUT / "net.safetensors")
    loops = [loop(rule, schedule) for rule in ["adamw", "sgd"] for schedule in SCHEDULES]
    adamw = {"optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "torch_adam": True}}}
    warmup = lambda **params: {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, **params}}}
    cosine = {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 12, "warmup_num_steps": 3}}}
    engines = [
        engine("groups of the configuration's optimizer", adamw, False),
        engine("rising to each group's rate", {**adamw, **warmup()}, False),
        engine("rising to one rate", {**adamw, **warmup(warmup_max_lr=0.03)}, False),
        engine("shares of each group's rate", {**adamw, **cosine}, False),
        engine("an optimizer of the code", warmup(), True),
    ]
    (OUT / "golden.json").write_text(json.dumps({"loops": loops, "engines": engines}) + "\n")
    for run in loops + engines:
        print(run.get("title", (run.get("rule"), run.get("schedule"))), run["rates"][3], run["losses"][::3])


if __name__ == "__main__":
    main()
