"""Writes the golden models of crates/oarlock/tests/golden/families: a tiny folder a family with random weights, and what
transformers + torch compute with it.

    python make_families.py crates/oarlock/tests/golden/families [family ..]

Each folder is as transformers saves it, with weights that bf16 holds exactly, and `golden.safetensors`: token `ids`,
`logits` of the first row, the `losses` of 20 steps of AdamW on the rows two by two, and of each weight after them some
elements that lie evenly apart, named by the names of the folder.

    python make_families.py --check target/tmp/families crates/oarlock/tests/golden/families

loads folders that Oarlock wrote (cargo test -p oarlock --test families) with transformers, and compares their logits.

    python make_families.py --dynamic crates/oarlock/tests/golden/dynamic_rope

writes a llama with dynamic rotary scaling whose rows are longer than its `max_position_embeddings`, with `cached` besides:
the logits of passes with a cache, the first of 9 tokens, the others of one each.
"""
import os, sys
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

SHARED = dict(vocab_size=72, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
              initializer_range=0.1)
ROWS, LEN, BATCH, STEPS, LR, EPS, SAMPLES = 8, 24, 2, 20, 2e-3, 1e-4, 48
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.25, 1.5],
            "long_factor": [1.0, 3.0, 6.5], "partial_rotary_factor": 0.75}
DYNAMIC = dict(max_position_embeddings=16, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})
MODELS = {
    "mistral": dict(sliding_window=7),
    # Rows are longer than the trained length, so that the long divisors count.
    "phi3": dict(sliding_window=11, original_max_position_embeddings=16, rope_parameters=LONGROPE),
    "gemma2": dict(head_dim=12, sliding_window=6, query_pre_attn_scalar=20, attn_logit_softcapping=0.7,
                   final_logit_softcapping=1.5),
    "gemma3_text": dict(num_hidden_layers=3, head_dim=12, sliding_window=5, query_pre_attn_scalar=10,
                        intermediate_size=24, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "glm4": dict(head_dim=12, partial_rotary_factor=0.5),
    "olmo2": dict(attention_bias=True),
}


def model_of(name, config):
    torch.manual_seed(sum(map(ord, name)))
    config = AutoConfig.for_model(name, **{**SHARED, **config}, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or "bias" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(parameter.bfloat16().float())
    return model


def logits_of(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids[:1]).logits[0]


def cached_of(model, ids):
    found, cache, at = [], None, 0
    with torch.no_grad():
        for n in [9] + [1] * (LEN - 9):
            out = model.eval()(input_ids=ids[:1, at:at + n], past_key_values=cache, use_cache=True)
            cache, at = out.past_key_values, at + n
            found.append(out.logits[0, -1].clone())
    model.train()
    return torch.stack(found)


def samples(tensor):
    flat = tensor.detach().flatten()
    n = min(SAMPLES, len(flat))
    return flat[[i * len(flat) // n for i in range(n)]].clone()


def write(folder, name, config):
    model = model_of(name, config)
    # Not the padding token, whose embedding torch does not train.
    ids = torch.randint(1, SHARED["vocab_size"], (ROWS, LEN))
    golden = {"ids": ids.int(), "logits": logits_of(model, ids).clone()}
    model.bfloat16().save_pretrained(folder)
    # Loaded anew: the model's buffers are bf16 now.
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    if name == "llama":
        golden["cached"] = cached_of(model, ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, eps=EPS, weight_decay=0.0)
    losses = []
    for step in range(STEPS):
        rows = ids[[(step * BATCH + row) % ROWS for row in range(BATCH)]]
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    golden["losses"] = torch.tensor(losses, dtype=torch.float64)
    golden |= {f"after.{key}": samples(parameter) for key, parameter in model.named_parameters()}
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    bytes = sum(os.path.getsize(os.path.join(folder, file)) for file in os.listdir(folder))
    print(f"{name}: logits up to {golden['logits'].abs().max():.2f}, loss {losses[0]:.4f} to {losses[-1]:.4f}, {bytes} bytes")


def check(written, root):
    for name in sorted(os.listdir(written)):
        model = AutoModelForCausalLM.from_pretrained(os.path.join(written, name), dtype=torch.float32,
                                                     attn_implementation="eager")
        golden = load_file(os.path.join(root, name.split(".")[0], "golden.safetensors"))
        far = (logits_of(model, golden["ids"].long()) - golden["logits"]).abs().max().item()
        print(f"{name}: {type(model).__name__} of transformers, logits {far:.1e} from those before")
        assert far < 1e-5, name


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--check":
        check(sys.argv[2], sys.argv[3])
    elif sys.argv[1] == "--dynamic":
        write(sys.argv[2], "llama", DYNAMIC)
    else:
        for name in sys.argv[2:] or MODELS:
            write(os.path.join(sys.argv[1], name), name, MODELS[name])
