"""Writes which samples each rank gets from a loader that accelerate prepared.

Needs: pip install torch==2.13.0 accelerate==1.15.0
Usage: python bench/golden/make_dataloader.py > crates/oarlock/tests/golden/dataloader.txt

One line a case: kind, its numbers, then the batches of all ranks as a hash, or `error`. The hash is FNV-1a with 64 bits
over the samples as decimal words, each followed by a comma, each batch by a semicolon, each rank by a bar.
"""

from itertools import product

from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader, IterableDataset

FLAGS = [False, True]


def written(loader):
    """The batches of one rank."""
    return "".join("".join(f"{sample}," for sample in batch.tolist()) + ";" for batch in loader) + "|"


def fnv(text):
    """The hash."""
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


class Stream(IterableDataset):
    """The numbers below n, in a row."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


class Uneven:
    """Batches of 1, 2, 3, 1, 2, 3 .. samples."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        at, size = 0, 1
        while at < self.n:
            yield list(range(at, min(at + size, self.n)))
            at, size = at + size, size % 3 + 1

    def __len__(self):
        return len(list(iter(self)))


def ranks(make, world, **how):
    """The hash of all ranks."""
    text = ""
    for rank in range(world):
        try:
            loader = prepare_data_loader(make(), num_processes=world, process_index=rank, put_on_device=False, **how)
        except ValueError:
            return "error"
        text += written(loader)
    return fnv(text)


print("# accelerate 1.15.0, torch 2.13.0; written by bench/golden/make_dataloader.py")
print("# map len batch_size world drop_last split even -> hash")
lengths = [*range(16), 17, 23, 24, 31, 32, 33, 48, 60, 64, 99, 100, 101]
for n, size, world, drop, split, even in product(lengths, [1, 2, 3, 4, 6, 8], range(1, 5), FLAGS, FLAGS, FLAGS):
    make = lambda: DataLoader(range(n), batch_size=size, drop_last=drop)
    print(f"map {n} {size} {world} {drop:d} {split:d} {even:d}", ranks(make, world, split_batches=split, even_batches=even))

print("# stream len batch_size world drop_last split -> hash")
for n, size, world, drop, split in product([*range(14), 24, 25, 31], [1, 2, 3, 4], range(1, 5), FLAGS, FLAGS):
    if split and size % world:
        # The original divides a batch of 1 among more ranks into nothing.
        continue
    make = lambda: DataLoader(Stream(n), batch_size=size, drop_last=drop)
    print(f"stream {n} {size} {world} {drop:d} {split:d}", ranks(make, world, split_batches=split))

print("# batches len world even -> hash")
for n, world, even in product([*range(1, 14), 20, 33], range(1, 5), FLAGS):
    make = lambda: DataLoader(range(n), batch_sampler=Uneven(n))
    print(f"batches {n} {world} {even:d}", ranks(make, world, even_batches=even))

print("# shuffled len batch_size world seed epoch -> hash")
for n, size, world, seed, epoch in [(10, 2, 2, 42, 0), (10, 2, 2, 42, 1), (37, 4, 3, 7, 5), (1000, 16, 4, 1, 2)]:
    text = ""
    for rank in range(world):
        loader = DataLoader(range(n), batch_size=size, shuffle=True)
        loader = prepare_data_loader(
            loader,
            num_processes=world,
            process_index=rank,
            put_on_device=False,
            use_seedable_sampler=True,
            data_seed=seed,
        )
        loader.set_epoch(epoch)
        text += written(loader)
    print(f"shuffled {n} {size} {world} {seed} {epoch}", fnv(text))
