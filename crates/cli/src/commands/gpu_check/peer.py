"""Times training steps with transformers and Accelerate, torch.compile and SDPA, as one line of JSON.

The argument is JSON: the sizes of the model, `rows` and `seq` of a step, `seconds` to measure for, and `compile`. Without
an argument it says whether all of this is here. Steps are those of the program beside it: bf16, AdamW, clipping to 1.
"""
import json
import sys
import time

import torch
import transformers
from accelerate import Accelerator


def versions():
    cuda = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {"torch": torch.__version__, "transformers": transformers.__version__, "gpu": cuda}


def build(job):
    sizes = dict(
        vocab_size=job["vocab_size"], hidden_size=job["hidden_size"], intermediate_size=job["intermediate_size"],
        num_hidden_layers=job["num_hidden_layers"], num_attention_heads=job["num_attention_heads"],
        num_key_value_heads=job["num_key_value_heads"], head_dim=job["head_dim"], max_position_embeddings=job["seq"],
        attention_bias=job["attention_bias"], tie_word_embeddings=True, use_cache=False)
    config = transformers.LlamaConfig(**sizes)
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).train()


def main(job):
    accelerator = Accelerator(mixed_precision="bf16")
    on_gpu = accelerator.device.type == "cuda"
    torch.set_float32_matmul_precision("high")
    model = build(job).to(accelerator.device)
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=on_gpu)
    model, optimizer = accelerator.prepare(model, optimizer)
    if job["compile"]:
        model = torch.compile(model)
    ids = torch.arange(job["rows"] * job["seq"], device=accelerator.device) * 7919 % job["vocab_size"]
    ids = ids.view(job["rows"], job["seq"])

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def settle():
        if on_gpu:
            torch.cuda.synchronize()

    begin = time.perf_counter()
    for _ in range(3):
        step()
    settle()
    start, steps = time.perf_counter(), 0
    while steps < 3 or time.perf_counter() - start < job["seconds"]:
        step()
        settle()
        steps += 1
    seconds = (time.perf_counter() - start) / steps
    found = {
        "tokens_per_second": job["rows"] * job["seq"] / seconds,
        "milliseconds": 1e3 * seconds,
        "parameters": parameters,
        "bytes": torch.cuda.max_memory_reserved() if on_gpu else 0,
        "warm_seconds": start - begin,
        "loss": step().item(),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(json.loads(sys.argv[1]))
    else:
        print(json.dumps(versions()), flush=True)
