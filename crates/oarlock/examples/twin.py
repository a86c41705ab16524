"""What the PyTorch twins of the examples share: the initial weights, the digits, the order of a shuffled loader, and the
command line."""
import argparse, json, os, struct

import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def run(train, *models):
    """`python NAME.py INITIAL.safetensors`, with a file for each model that has not read its weights itself: prints the
    losses as a JSON list."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("weights", nargs=len(models) or "*")
    arguments.add_argument("--steps", type=int, default=20)
    arguments = arguments.parse_args()
    for model, path in zip(models, arguments.weights):
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        missing, unexpected = model.load_state_dict(weights(path), strict=False)
        # Files of Oarlock leave out what is frozen.
        assert frozen.issuperset(missing) and not unexpected, (missing, unexpected)
    print(json.dumps(train(*models, arguments.steps)))


def weights(path):
    """The tensors of a safetensors file, all of them f32."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(length)), bytearray(file.read())
    header.pop("__metadata__", None)
    every = torch.frombuffer(data, dtype=torch.float32)
    place = lambda entry: slice(*(offset // 4 for offset in entry["data_offsets"]))
    return {name: every[place(entry)].reshape(entry["shape"]) for name, entry in header.items()}


def digits():
    """The images of data/digits.csv, as 64 pixels between 0 and 1, and their digits."""
    with open(os.path.join(HERE, "data/digits.csv")) as file:
        rows = torch.tensor([[int(number) for number in line.split(",")] for line in file])
    return rows[:, 1:] / 16, rows[:, 0]


class Shuffled(torch.utils.data.Sampler):
    """The order of a shuffled loader of Oarlock, which is that of Accelerate's seedable sampler: a permutation for each
    epoch from a generator that is seeded with 42 + epoch."""

    def __init__(self, samples):
        self.n, self.epoch = len(samples), 0

    def __len__(self):
        return self.n

    def __iter__(self):
        generator = torch.Generator().manual_seed(42 + self.epoch)
        self.epoch += 1
        return iter(torch.randperm(self.n, generator=generator).tolist())
