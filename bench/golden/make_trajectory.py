"""Writes golden trajectories: tiny models, and the loss and gradient norm of every step as transformers + torch train them.

    python make_trajectory.py crates/oarlock/tests/golden

Each folder train-NAME is a Hugging Face folder with a tokenizer and a text of its own, and trajectory.json: the settings
and three runs of 30 steps: f32, f32 with weight decay (not on biases and norms), and bf16 autocast. The records are joined
in file order, one end-of-text token after each, and chopped into blocks of `cutoff_len` tokens that are taken in this
order. One thread, so that the sums have one order. The versions are those of ../peers/requirements.txt.
"""
import json
import os
import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from distance import largest_difference  # noqa: E402

STEPS, BATCH, LR, CLIP = 30, 4, 1e-3, 1.0
BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SHARED = dict(num_hidden_layers=2, max_position_embeddings=64, bos_token_id=1, eos_token_id=2, pad_token_id=0,
              initializer_range=0.08)
# name: (tokens of the tokenizer, cutoff_len, dtype in the file, config)
MODELS = {
    "llama": (300, 40, torch.float32, dict(
        model_type="llama", vocab_size=300, hidden_size=32, intermediate_size=80, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True)),
    "qwen3": (288, 33, torch.bfloat16, dict(
        model_type="qwen3", vocab_size=320, hidden_size=40, intermediate_size=72, num_attention_heads=2,
        num_key_value_heads=1, head_dim=24, rms_norm_eps=1e-6, tie_word_embeddings=False, rope_theta=1e6)),
    "qwen2": (263, 48, torch.float32, dict(
        model_type="qwen2", vocab_size=263, hidden_size=32, intermediate_size=60, num_attention_heads=4,
        num_key_value_heads=4, rms_norm_eps=1e-6, tie_word_embeddings=True)),
}
PLACES = ["the weir", "the old mill", "Sluice Lane", "the boathouse", "the north bank", "the lock", "the reed beds"]
ROWERS = ["Ida", "Tomas", "Wren", "Old Bram", "the cox", "two children", "the ferryman"]
DEEDS = ["mended an oar at", "counted {} swans near", "waited {} minutes by", "painted a skiff red at", "found a rope below",
         "sang beside", "lost a shoe at", "carried {} buckets to"]
ENDS = ["It rained.", "Nobody saw it!", "“Again,” said the heron.", "Die Möwen schrien.", "河水很慢。", "天黑了，船回来了。",
        "Then it was quiet…", "The lamp was lit at {}:{}0."]


def records(seed, n_bytes):
    draw = random.Random(seed)
    texts = []
    while sum(len(text.encode()) for text in texts) < n_bytes:
        said = []
        for _ in range(draw.randint(1, 4)):
            deed = draw.choice(DEEDS).format(draw.randint(2, 12))
            end = draw.choice(ENDS).format(draw.randint(5, 9), draw.randint(0, 5))
            said.append(f"{draw.choice(ROWERS)} {deed} {draw.choice(PLACES)}. {end}")
        texts.append(" ".join(said))
    return texts


def tokenizer_of(texts, n_tokens):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=n_tokens, special_tokens=[PAD, BOS, EOS], initial_alphabet=alphabet, show_progress=False))
    return tokenizer


def model_of(name, config, dtype):
    torch.manual_seed(sum(map(ord, name)))
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**{**SHARED, **config}), dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "norm" in key or "bias" in key:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype)


def groups_of(model, weight_decay):
    """Trainer's two groups: biases and norms do not decay."""
    return [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]


def train(folder, blocks, weight_decay, bf16):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(groups_of(model, weight_decay), lr=LR)
    losses, norms = [], []
    for step in range(STEPS):
        ids = blocks[step * BATCH : (step + 1) * BATCH]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"weight_decay": weight_decay, "bf16": bf16, "loss": losses, "grad_norm": norms}


def write(folder, name, n_tokens, cutoff_len, dtype, config):
    os.makedirs(folder, exist_ok=True)
    texts = records(name, 3 * STEPS * BATCH * cutoff_len)
    tokenizer = tokenizer_of(texts, n_tokens)
    assert tokenizer.get_vocab_size() == n_tokens
    ids = [id for text in texts for id in tokenizer.encode(text).ids + [tokenizer.token_to_id(EOS)]]
    n_blocks = STEPS * BATCH
    assert len(ids) >= n_blocks * cutoff_len, f"{name}: {len(ids)} tokens are too few"
    while len(ids) - len(tokenizer.encode(texts[-1]).ids) - 1 >= n_blocks * cutoff_len:
        del ids[-(len(tokenizer.encode(texts.pop()).ids) + 1) :]
    blocks = torch.tensor(ids[: n_blocks * cutoff_len]).view(n_blocks, cutoff_len)

    model_of(name, config, dtype).save_pretrained(folder)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as out:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "pad_token": PAD}, out, indent=2)
        out.write("\n")
    with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as out:
        out.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    runs = [train(folder, blocks, 0.0, False), train(folder, blocks, 0.1, False), train(folder, blocks, 0.0, True)]
    apart = largest_difference(runs[0]["loss"], runs[2]["loss"])
    norms = runs[0]["grad_norm"]
    assert apart < 2e-2, f"{name}: bf16 is {apart} from f32"
    assert max(norms) > CLIP, f"{name}: no step is clipped"
    settings = {"cutoff_len": cutoff_len, "batch": BATCH, "learning_rate": LR, "max_grad_norm": CLIP}
    with open(os.path.join(folder, "trajectory.json"), "w") as out:
        json.dump({**settings, "runs": runs}, out, indent=1)
        out.write("\n")
    print(f"{name}: loss {runs[0]['loss'][0]:.3f} to {runs[0]['loss'][-1]:.3f}, norms {min(norms):.2f} to {max(norms):.2f}, "
          f"decay moves the last loss by {runs[1]['loss'][-1] - runs[0]['loss'][-1]:.1e}, bf16 any by {apart:.1e}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, settings in MODELS.items():
        write(os.path.join(sys.argv[1], f"train-{name}"), name, *settings)
