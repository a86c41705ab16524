"""Writes which samples each rank gets from accelerate's BatchSamplerShard and torch's DistributedSampler.

Needs: pip install torch==2.13.0 accelerate==1.15.0
Usage: python bench/golden/make_samplers.py > crates/oarlock/tests/golden/samplers.txt

One line a case and rank: kind, its numbers, what len() says, then the batches (samples joined by commas, batches by
semicolons) or `error`.
"""

from itertools import product

from accelerate.data_loader import BatchSamplerShard
from torch.utils.data import BatchSampler, DistributedSampler

print("# accelerate 1.15.0, torch 2.13.0; written by bench/golden/make_samplers.py")
print("# batch len batch_size world rank drop_last split even -> len() batches")
flags = [False, True]
for n, size, world, drop, split, even in product(range(14), range(1, 5), range(1, 5), flags, flags, flags):
    for rank in range(world):
        head = f"batch {n} {size} {world} {rank} {drop:d} {split:d} {even:d}"
        try:
            shard = BatchSamplerShard(BatchSampler(range(n), size, drop), world, rank, split, even)
        except ValueError:
            print(head, "error")
            break
        batches = [",".join(map(str, batch)) for batch in shard]
        print(head, len(shard), ";".join(batches) or "-")

print("# distributed len world rank drop_last -> len() samples")
for n, world, drop in product(range(1, 14), range(1, 5), flags):
    for rank in range(world):
        sampler = DistributedSampler(range(n), world, rank, shuffle=False, drop_last=drop)
        try:
            samples = ",".join(map(str, sampler))
        except (AssertionError, ZeroDivisionError):
            samples = "error"
        print("distributed", n, world, rank, int(drop), len(sampler), samples or "-")

print("# shuffled len world rank seed epoch -> samples")
for n, world, seed, epoch in [(10, 3, 0, 0), (10, 3, 0, 1), (10, 3, 5, 7), (1000, 4, 42, 3), (1, 1, 0, 0)]:
    for rank in range(world):
        sampler = DistributedSampler(range(n), world, rank, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        print("shuffled", n, world, rank, seed, epoch, ",".join(map(str, sampler)))
