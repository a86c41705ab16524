"""All-reduce by PyTorch's Gloo, as crates/comm/benches/collectives.rs measures ours: a rank of a launcher's variables."""

import os
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")


def report(what, tensor, runs, each):
    times = []
    for _ in range(runs):
        dist.barrier()
        began = time.perf_counter()
        for _ in range(each):
            dist.all_reduce(tensor)
        times.append((time.perf_counter() - began) / each * 1e6)
    if dist.get_rank() == 0:
        print(f"  {what:28} least {min(times):10.1f} us   mean {sum(times) / runs:10.1f} us", flush=True)


runs = int(os.environ.get("RUNS", "20"))
report("all_reduce 103 MB f32", torch.zeros(103_000_000 // 4), runs, 1)
report("all_reduce 4 KB f32", torch.zeros(1024), 20, 200)
dist.destroy_process_group()
