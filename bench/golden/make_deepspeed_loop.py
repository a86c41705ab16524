#!/usr/bin/env python3
"""Writes the golden values of examples/deepspeed_loop.rs and examples/two_models.rs: the same programs with DeepSpeed and
Accelerate, on the CPU.

    DS_ACCELERATOR=cpu python bench/golden/make_deepspeed_loop.py

Needs torch, accelerate, deepspeed, safetensors and numpy, at the versions of ../peers/requirements.txt. It draws the weights
of two small networks (first.safetensors, second.safetensors) and trains them in f32 on one rank; the losses, learning rates
and gradient norms of every step go to golden.json.
"""

import json
import os
import pathlib

import deepspeed
import hjson
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

ROOT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "oarlock"
OUT = ROOT / "tests" / "golden" / "deepspeed_library"
WIDTH, HIDDEN = 4, 24
STEPS, BATCH, MICRO = 16, 8, 4


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, HIDDEN)
        self.down = torch.nn.Linear(HIDDEN, 1)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def rows(n):
    """Inputs between -1 and 1 and the sines of their sums, the same numbers as in the examples."""
    x = torch.tensor([(i * 37 % 101) / 50.0 - 1.0 for i in range(n * WIDTH)], dtype=torch.float32).view(n, WIDTH)
    return [(x[i], torch.sin(x[i].sum()).view(1)) for i in range(n)]


def net(name):
    model = Net()
    model.load_state_dict(load_file(OUT / f"{name}.safetensors"))
    return model


def make_weights():
    torch.manual_seed(5)
    for name in ["first", "second"]:
        save_file({key: value.clone() for key, value in Net().state_dict().items()}, OUT / f"{name}.safetensors")


def deepspeed_loop():
    config = hjson.loads((ROOT / "examples" / "deepspeed_loop" / "ds_config.json").read_text())
    model = net("first")
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses, rates, norms = [], [], []
    for x, y in DataLoader(rows(STEPS * BATCH), batch_size=MICRO):
        loss = ((engine(x) - y) ** 2).mean()
        engine.backward(loss)
        rates.append(engine.get_lr()[0])
        boundary = engine.is_gradient_accumulation_boundary()
        engine.step()
        if boundary:
            norms.append(float(engine.get_global_grad_norm()))
        losses.append(loss.item())
    return {"losses": losses, "rates": rates, "norms": norms}


def plugin(name):
    return DeepSpeedPlugin(hf_ds_config=hjson.loads((ROOT / "examples" / "two_models" / f"{name}.json").read_text()))


def two_models():
    plugins = {"first_model": plugin("first"), "second_model": plugin("second")}
    first_accelerator = Accelerator(deepspeed_plugins=plugins)
    second_accelerator = Accelerator()
    loader = DataLoader(rows(STEPS * BATCH), batch_size=BATCH)

    first = net("first")
    optimizer = DummyOptim(first.parameters(), lr=0.02, weight_decay=0.01)
    scheduler = DummyScheduler(optimizer, total_num_steps=STEPS, warmup_num_steps=4)
    first, first_optimizer, first_scheduler, train = first_accelerator.prepare(first, optimizer, scheduler, loader)

    second_accelerator.state.select_deepspeed_plugin("second_model")
    second = net("second")
    optimizer = torch.optim.AdamW(second.parameters(), lr=0.01, weight_decay=0.0)
    second, second_optimizer, _ = second_accelerator.prepare(second, optimizer, DataLoader(rows(BATCH), batch_size=BATCH))

    losses = {"first": [], "second": []}
    for x, y in train:
        loss = ((first(x) - y) ** 2).mean()
        first_accelerator.backward(loss)
        first_optimizer.step()
        first_scheduler.step()
        first_optimizer.zero_grad()
        losses["first"].append(loss.item())

        loss = ((second(x) - torch.cos(2.0 * y)) ** 2).mean()
        second_accelerator.backward(loss)
        second_optimizer.step()
        second_optimizer.zero_grad()
        losses["second"].append(loss.item())
    return losses


def main():
    torch.set_num_threads(1)
    # A world of one, where nobody launched this program.
    for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0").items():
        os.environ.setdefault(key, value)
    OUT.mkdir(parents=True, exist_ok=True)
    make_weights()
    golden = {"deepspeed_loop": deepspeed_loop(), "two_models": two_models()}
    (OUT / "golden.json").write_text(json.dumps(golden) + "\n")
    print(golden["deepspeed_loop"]["losses"][::8], golden["two_models"]["first"][::5], golden["two_models"]["second"][::5])


if __name__ == "__main__":
    main()
