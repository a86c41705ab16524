"""Times the training step of a MiniMind-class llama under one of the PyTorch engines, on CPU ranks.

    torchrun --nproc-per-node 2 throughput.py --engine fsdp2 --dtype bf16

Every rank trains on a fixed batch of random tokens: forward, backward, clipping, AdamW. Rank 0 prints one JSON line: the
median step, tokens per second of all ranks, the end of the first step (in seconds after --started, or after the start of
this script), and the memory of rank 0 at the end (PSS) and at its peak (RSS), in MB.
"""
import time

STARTED = time.time()

import argparse
import json
import os
import re
import shutil
import statistics

import torch
import torch.distributed as dist

ENGINES = ("accelerate", "ddp", "fsdp2", "zero1", "zero2", "zero3")
LR, MAX_GRAD_NORM, VOCAB = 5e-4, 1.0, 6400


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", choices=ENGINES, default="ddp")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a rank")
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--inter", type=int, default=1408)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=1, help="steps before those that are timed; at least 1")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--started", type=float, default=STARTED, help="when the command began, in seconds since 1970")
    parser.add_argument("--save-to", help="time checkpoints in this folder, too; engines of DeepSpeed only")
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--local_rank", type=int, default=0, help="set by some launchers; unused")
    return parser.parse_args()


def build_model(args):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=args.hidden, intermediate_size=args.inter, num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64, num_key_value_heads=max(1, args.hidden // 256),
        max_position_embeddings=1024, tie_word_embeddings=True, attn_implementation="sdpa")
    torch.manual_seed(0)
    return LlamaForCausalLM(config).train()


def deepspeed_step(model, args, ids):
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": args.batch, "gradient_accumulation_steps": 1,
        "gradient_clipping": MAX_GRAD_NORM, "steps_per_print": 10**9, "bf16": {"enabled": args.dtype == "bf16"},
        "zero_optimization": {"stage": int(args.engine[-1]), "overlap_comm": True, "contiguous_gradients": True},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step():
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss

    def save(folder, tag):
        engine.save_checkpoint(folder, tag)

    step.save = save
    return step


def accelerate_step(model, args, ids):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if args.dtype == "bf16" else "no")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    model, optimizer = accelerator.prepare(model, optimizer)

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def torch_step(model, args, ids):
    """DDP and FSDP2."""
    bf16 = args.dtype == "bf16"
    if args.engine == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy()
        for block in model.model.layers:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def timed_saves(save, folder, n_saves):
    """The median seconds of a checkpoint, from barrier to barrier, and its bytes. Each replaces the one before."""
    times = []
    for index in range(n_saves):
        dist.barrier()
        begin = time.perf_counter()
        save(folder, str(index))
        dist.barrier()
        times.append(time.perf_counter() - begin)
        if index and dist.get_rank() == 0:
            shutil.rmtree(os.path.join(folder, str(index - 1)))
    files = [os.path.join(at, name) for at, _, names in os.walk(os.path.join(folder, str(n_saves - 1))) for name in names]
    return {"save_s": round(statistics.median(times), 4), "save_bytes": sum(map(os.path.getsize, files))}


def kilobytes(path, key):
    with open(path) as file:
        return int(re.search(rf"^{key}:\s+(\d+) kB", file.read(), re.MULTILINE)[1])


def main():
    args = arguments()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    model = build_model(args)
    n_params = sum(parameter.numel() for parameter in model.parameters())
    torch.manual_seed(100 + rank)
    ids = torch.randint(0, VOCAB, (args.batch, args.seq))
    if args.engine in ("ddp", "fsdp2"):
        dist.init_process_group("gloo")
    make = {"accelerate": accelerate_step, "ddp": torch_step, "fsdp2": torch_step}.get(args.engine, deepspeed_step)
    step = make(model, args, ids)
    step()
    first_step = time.time() - args.started
    for _ in range(args.warmup - 1):
        step()
    times = []
    for _ in range(args.steps):
        if dist.is_initialized():
            dist.barrier()
        begin = time.perf_counter()
        loss = step()
        times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    saved = timed_saves(step.save, args.save_to, args.saves) if args.save_to else {}
    if rank == 0:
        print(json.dumps({
            "engine": args.engine, "dtype": args.dtype, "ranks": ranks, "params": n_params,
            "step_s": round(seconds, 4), "tok_s": round(ranks * args.batch * args.seq / seconds, 1),
            "first_step_s": round(first_step, 2), "pss_mb": kilobytes("/proc/self/smaps_rollup", "Pss") // 1024,
            "peak_rss_mb": kilobytes("/proc/self/status", "VmHWM") // 1024, "loss": round(loss.item(), 4), **saved}), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
