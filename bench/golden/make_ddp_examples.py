"""Writes crates/oarlock/tests/golden/ddp: the programs of examples/ddp_minimal.rs and examples/ddp_trainer.rs with torch,
in two processes: their initial weights, and the losses over the rows of all processes.

    python make_ddp_examples.py crates/oarlock/tests/golden/ddp
"""
import json, os, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORLD_SIZE = 2
ROWS = 40
BATCH_SIZE = 32
EPOCHS = 2


def numbers(count, shift=0):
    return ((torch.arange(count) * 37 + shift) % 101).float() / 50.0 - 1.0


def mean(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return (loss / WORLD_SIZE).item()


def minimal(rank, folder):
    model = nn.Linear(10, 10)
    model.load_state_dict(load_file(f"{folder}/minimal.safetensors"))
    ddp_model = DDP(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.001)
    rows = ROWS // WORLD_SIZE
    mine = slice(rank * rows, (rank + 1) * rows)
    x, labels = numbers(ROWS * 10).view(ROWS, 10)[mine], numbers(ROWS * 10, 13).view(ROWS, 10)[mine]
    loss_fn = nn.MSELoss()
    loss = loss_fn(ddp_model(x), labels)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        after = loss_fn(ddp_model(x), labels)
    return [mean(loss), mean(after)]


def trainer(rank, folder):
    model = nn.Linear(20, 1)
    model.load_state_dict(load_file(f"{folder}/trainer.safetensors"))
    model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = numbers(2048 * 20).view(2048, 20)
    train_set = TensorDataset(x, 0.5 * x[:, 0:1] - 0.25 * x[:, 5:6] + 0.1)
    train_data = DataLoader(
        train_set, batch_size=BATCH_SIZE // WORLD_SIZE, shuffle=False, sampler=DistributedSampler(train_set)
    )
    losses = []
    for epoch in range(EPOCHS):
        train_data.sampler.set_epoch(epoch)
        for source, targets in train_data:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(source), targets)
            loss.backward()
            optimizer.step()
            losses.append(mean(loss))
    return losses


def main(rank, folder):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29517"
    dist.init_process_group("gloo", rank=rank, world_size=WORLD_SIZE)
    losses = {"minimal": minimal(rank, folder), "trainer": trainer(rank, folder)}
    if rank == 0:
        with open(f"{folder}/losses.json", "w") as file:
            json.dump(losses, file, indent=1)
            file.write("\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(3)
    save_file(nn.Linear(10, 10).state_dict(), f"{folder}/minimal.safetensors")
    save_file(nn.Linear(20, 1).state_dict(), f"{folder}/trainer.safetensors")
    mp.spawn(main, args=(folder,), nprocs=WORLD_SIZE)
