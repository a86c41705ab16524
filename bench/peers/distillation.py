"""Times the step of a distillation with accelerate and DeepSpeed on the CPU: what examples/distillation_cost.rs does.

    DS_ACCELERATOR=cpu torchrun --nproc-per-node 2 distillation.py student-stage=2 [key=value …]

bench/distillation runs it; the keys and the sizes of the models are those of the example.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin
from transformers import AutoModelForCausalLM, LlamaConfig

N_VOCAB, ALPHA, TEMPERATURE = 6400, 0.5, 2.0
given = dict(word.split("=", 1) for word in sys.argv[1:])


def number(key, default):
    return int(given.get(key, default))


def model(who, hidden, layers):
    hidden, layers = number(f"{who}-hidden", hidden), number(f"{who}-layers", layers)
    heads = max(hidden // 64, 1)
    config = LlamaConfig(
        vocab_size=N_VOCAB, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=max(hidden // 256, 1), tie_word_embeddings=True, use_cache=False)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def plugin(stage):
    settings = {
        "train_micro_batch_size_per_gpu": number("batch", 4), "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": stage}, "bf16": {"enabled": given.get("dtype") == "bf16"}}
    return DeepSpeedPlugin(hf_ds_config=settings)


def main():
    torch.set_num_threads(number("threads", 1))
    plugins = {"student": plugin(number("student-stage", 2)), "teacher": plugin(3)}
    accelerator = Accelerator(deepspeed_plugins=plugins)
    student = model("student", 256, 4)
    student, optimizer = accelerator.prepare(student, torch.optim.AdamW(student.parameters(), lr=1e-3))
    accelerator.state.select_deepspeed_plugin("teacher")
    teacher = accelerator.prepare(model("teacher", 512, 8))
    teacher.eval()
    student.train()
    batch, seq, warmup = number("batch", 4), number("seq", 128), number("warmup", 3)
    rank = int(os.environ["RANK"])
    for step in range(warmup + number("steps", 10)):
        tokens = torch.tensor([((i * 7919 + rank * 31 + step) * 104729) % N_VOCAB for i in range(batch * seq + 1)])
        ids, labels = tokens[:-1].view(batch, seq), tokens[1:]
        dist.barrier()
        begin = time.perf_counter()
        with torch.no_grad():
            taught = teacher(input_ids=ids).logits.flatten(0, 1)
        logits = student(input_ids=ids).logits.flatten(0, 1)
        soft = F.kl_div(
            F.log_softmax(logits / TEMPERATURE, dim=-1), F.softmax(taught / TEMPERATURE, dim=-1), reduction="batchmean")
        loss = (1 - ALPHA) * F.cross_entropy(logits, labels) + ALPHA * TEMPERATURE**2 * soft
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if rank == 0 and step >= warmup:
            print(f"seconds of a step: {time.perf_counter() - begin:.6f}", flush=True)


if __name__ == "__main__":
    main()
