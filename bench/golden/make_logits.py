"""Writes the golden models of crates/oarlock/tests/golden: tiny folders with random weights, and the logits that
transformers + torch compute for a few tokens.

    python make_logits.py crates/oarlock/tests/golden

Each folder holds config.json, model.safetensors (f32 or bf16) and logits.json {"ids", "logits"}. The minimind models are
computed as the llama or qwen3 model that they equal: the newest is a qwen3 with tied embeddings, that of 2025 a llama, and
the seed era a llama whose rotary pairs are neighboring channels instead of the two halves of a head.
"""
import json, os, sys
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SIZES = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
             initializer_range=0.3)
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
IDS = [[1, 5, 17, 60, 33, 33, 8, 0, 44, 2, 57, 12, 9, 40, 26, 3, 51, 7, 29, 14]]


def model_of(**config):
    torch.manual_seed(sum(map(ord, json.dumps(config))))
    config = AutoConfig.for_model(**{**SIZES, **config})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def logits_of(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor(IDS)).logits[0]


def write(folder, logits):
    rows = [[round(x, 6) for x in row] for row in logits[[0, 7, -1]].tolist()]
    with open(os.path.join(folder, "logits.json"), "w") as out:
        json.dump({"ids": IDS[0], "positions": [0, 7, len(IDS[0]) - 1], "logits": rows}, out)


def minimind(folder, config, weights, logits):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as out:
        json.dump({"architectures": ["MiniMindForCausalLM"], "model_type": "minimind", **config}, out, indent=2)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()},
              os.path.join(folder, "model.safetensors"), {"format": "pt"})
    write(folder, logits)


def neighbors(weight, heads):
    """Rows of a projection reordered so that the pair (j, j + D/2) of each head becomes (2j, 2j + 1)."""
    return weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


SEED_ERA = {"self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
            "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
            "model.layers": "layers", "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output"}


def seed_era(state):
    out = {}
    for name, tensor in state.items():
        if "q_proj" in name or "k_proj" in name:
            tensor = neighbors(tensor, 4 if "q_proj" in name else 2)
        for ours, theirs in SEED_ERA.items():
            name = name.replace(ours, theirs)
        out[name] = tensor
    return out


def main(root):
    plain = {
        "llama": dict(model_type="llama", rms_norm_eps=1e-5, head_dim=8, rope_scaling=LLAMA3,
                      rope_theta=500.0),
        "llama-biased": dict(model_type="llama", attention_bias=True, mlp_bias=True, head_dim=12,
                             rope_scaling={"rope_type": "linear", "factor": 2.0}),
        "qwen2": dict(model_type="qwen2", num_attention_heads=2, num_key_value_heads=1, rope_scaling=YARN, tie_word_embeddings=True),
        "qwen3": dict(model_type="qwen3", head_dim=12, rope_theta=1e6),
    }
    for name, config in plain.items():
        folder = os.path.join(root, name)
        model = model_of(**config)
        if name in ("qwen3", "llama-biased"):
            # Weights that bf16 holds exactly, so that the stored file is half the size.
            for parameter in model.parameters():
                parameter.data = parameter.data.bfloat16().float()
            logits = logits_of(model)
            model.bfloat16().save_pretrained(folder)
        else:
            logits = logits_of(model)
            model.save_pretrained(folder, max_shard_size="15KB" if name == "llama" else "5GB")
        write(folder, logits)

    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id")
    shared = {name: SIZES[name] for name in names}

    model = model_of(model_type="qwen3", head_dim=12, rope_theta=1e6, tie_word_embeddings=True)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    config = {**shared, "head_dim": 12, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu", "dropout": 0.0,
              "flash_attn": True, "inference_rope_scaling": False, "rope_scaling": None, "use_moe": False,
              "num_experts": 4, "num_experts_per_tok": 1}
    minimind(os.path.join(root, "minimind"), config, weights, logits_of(model))

    model = model_of(model_type="llama", rope_theta=1e6, rms_norm_eps=1e-5, tie_word_embeddings=True)
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "model.embed_tokens.weight"}
    config = {**shared, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "use_moe": False, "n_routed_experts": 4,
              "n_shared_experts": 1, "dropout": 0.0}
    minimind(os.path.join(root, "minimind-2025"), config, weights, logits_of(model))

    weights = seed_era({name: t for name, t in model.state_dict().items() if name != "model.embed_tokens.weight"})
    config = {"dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 61, "hidden_dim": 24,
              "multiple_of": 8, "norm_eps": 1e-5, "max_seq_len": 64, "rope_theta": 1000000.0, "dropout": 0.0,
              "flash_attn": True, "use_moe": False, "n_routed_experts": 4}
    minimind(os.path.join(root, "minimind-seed"), config, weights, logits_of(model))


if __name__ == "__main__":
    main(sys.argv[1])
