#!/usr/bin/env python3
"""Writes small checkpoints of DeepSpeed and what they hold, for the tests of `oarlock import-checkpoint`.

    DS_ACCELERATOR=cpu python bench/golden/make_deepspeed_checkpoints.py

Needs torch 2.13, deepspeed 0.19.8, transformers 5 and safetensors; no compiler. Two ranks train a tiny llama for three
steps in each case; arguments choose cases. The expected values (`expected.safetensors`: "kind/parameter", f32) do not come from the files: the
engines that wrote them are asked, parameter by parameter.
"""

import os
import pathlib
import shutil
import sys

import deepspeed
import torch
import torch.multiprocessing
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2] / "crates/cli/tests/golden/deepspeed"
RANKS = 2
STEPS = 3

# Sizes are odd where they can be, so that partitions are padded and parameters lie across ranks.
MODEL = dict(vocab_size=13, hidden_size=6, intermediate_size=7, num_hidden_layers=2, num_attention_heads=1,
             num_key_value_heads=1, max_position_embeddings=16)

# The scale has doubled once after three steps.
FP16 = dict(enabled=True, initial_scale_power=6, loss_scale_window=2, hysteresis=3)

CASES = {
    "stage1-bf16": dict(zero=dict(stage=1), bf16=True, tied=True),
    # Gradients in f32 make DeepSpeed take another optimizer, whose files say less.
    "stage1-bf16-f32-gradients": dict(zero=dict(stage=1), bf16=True, tied=False, grad_accum_dtype="fp32"),
    "stage2-f32": dict(zero=dict(stage=2), bf16=False, tied=False, frozen=["model.norm.weight"]),
    "stage3-bf16": dict(zero=dict(stage=3, stage3_param_persistence_threshold=0, sub_group_size=100), bf16=True,
                        tied=False, frozen=["model.norm.weight"]),
    # Their files also hold the loss scale.
    "stage2-fp16": dict(zero=dict(stage=2), fp16=FP16, tied=True),
    "stage3-fp16": dict(zero=dict(stage=3, stage3_param_persistence_threshold=0, sub_group_size=100), fp16=FP16,
                        tied=False, frozen=["model.norm.weight"]),
}


def train(rank, name, case, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port))
    torch.set_num_threads(1)
    # DeepSpeed refuses f16 on CPUs without instructions for it; torch computes it all the same.
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    torch.manual_seed(7)
    model = LlamaForCausalLM(LlamaConfig(**MODEL, tie_word_embeddings=case["tied"]))
    for parameter, tensor in model.named_parameters():
        tensor.requires_grad_(parameter not in case.get("frozen", []))
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [dict(params=[p for p in trained if p.dim() > 1], weight_decay=0.1),
              dict(params=[p for p in trained if p.dim() < 2], weight_decay=0.0)]
    config = dict(
        train_micro_batch_size_per_gpu=1,
        zero_optimization=case["zero"],
        bf16=dict(enabled=case.get("bf16", False)),
        fp16=case.get("fp16", dict(enabled=False)),
        optimizer=dict(type="AdamW", params=dict(lr=1e-2, torch_adam=True)),
        gradient_clipping=1.0,
        data_types=dict(grad_accum_dtype=case.get("grad_accum_dtype")),
    )
    engine, *_ = deepspeed.initialize(model=model, model_parameters=[g for g in groups if g["params"]], config=config)
    for step in range(STEPS):
        tokens = (torch.arange(8)[None] * (3 + step) + 5 * rank) % MODEL["vocab_size"]
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
    folder = ROOT / name
    engine.save_checkpoint(str(folder), client_state=dict(epoch_of_mine=2, note="mine"))
    if case["zero"]["stage"] < 3:
        # DeepSpeed had looked for the moments before the first step made them.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    expected = {}
    for parameter, tensor in model.named_parameters():
        if tensor.requires_grad:
            expected[f"master/{parameter}"] = safe_get_full_fp32_param(tensor)
            for kind in ("exp_avg", "exp_avg_sq"):
                expected[f"{kind}/{parameter}"] = safe_get_full_optimizer_state(tensor, kind)
        else:
            with deepspeed.zero.GatheredParameters([tensor], enabled=case["zero"]["stage"] == 3):
                expected[f"master/{parameter}"] = tensor.detach().clone()
    if rank == 0:
        expected = {key: value.float().contiguous().clone() for key, value in expected.items()}
        save_file(expected, folder / "expected.safetensors")
        model.config.save_pretrained(folder)
        # Scripts of DeepSpeed's that it copies into every folder.
        for script in folder.glob("zero_to_*.py"):
            script.unlink()
    deepspeed.comm.barrier()
    deepspeed.comm.destroy_process_group()


def main():
    for index, name in enumerate(sys.argv[1:] or CASES):
        shutil.rmtree(ROOT / name, ignore_errors=True)
        torch.multiprocessing.spawn(train, args=(name, CASES[name], 29610 + index), nprocs=RANKS)
        print(name, sum(path.stat().st_size for path in (ROOT / name).rglob("*") if path.is_file()), "bytes")


if __name__ == "__main__":
    main()
