"""Makes processes.json with Accelerate: shares of lists, and the weights of local SGD, on three processes.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 3 processes.py     (needs accelerate, torch)
"""

import json
import pathlib

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import gather_object

LISTS = ["abcdefg", "abcdef", "ab", "a"]
START, LR, STEPS, EVERY = [0.25, -0.125], 0.1, 11, 4


def sample(rank, step):
    x = [((rank * 13 + step * 5 + i * 3) % 11) / 5.0 - 1.0 for i in range(3)]
    return x[:2], x[2]


def shares(accelerator):
    found = {}
    for letters in LISTS:
        found[letters] = []
        for padding in (False, True):
            with accelerator.split_between_processes(list(letters), apply_padding=padding) as share:
                found[letters].append("".join(share))
    return found


def local_sgd(accelerator):
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([START]))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=LR))
    trace = []
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=EVERY) as local:
        for step in range(STEPS):
            x, y = sample(accelerator.process_index, step)
            loss = ((model(torch.tensor([x])) - torch.tensor([[y]])) ** 2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            local.step()
            trace.append(accelerator.unwrap_model(model).weight.tolist()[0])
    trace[-1] = accelerator.unwrap_model(model).weight.tolist()[0]
    return trace


def main():
    accelerator = Accelerator(cpu=True)
    ranks = gather_object([{"shares": shares(accelerator), "local_sgd": local_sgd(accelerator)}])
    if accelerator.is_main_process:
        golden = {"start": START, "lr": LR, "steps": STEPS, "every": EVERY, "ranks": ranks}
        pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps(golden, indent=1) + "\n")
    accelerator.end_training()


main()
