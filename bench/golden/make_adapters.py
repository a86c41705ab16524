"""Writes golden adapters: what PEFT computes, trains and writes upon the tiny llama of make_trajectory.py.

    python make_adapters.py crates/oarlock/tests/golden            # writes adapters/
    python make_adapters.py --check BASE ADAPTER IDS.json          # logits of an adapter that another program wrote

Each folder adapters/NAME is an adapter as PEFT saves it, with random values in all of its parameters; logits.json has the
logits of the base, of the base with each adapter, and after merging it. train.json has the first adapters and the losses of
30 steps of AdamW for LoRA, DoRA, PiSSA and OFT, in f32 on one thread. fused/FAMILY has the same of families whose q, k and v,
or gate and up, are one layer, upon their models of make_families.py, with 10 steps. The version of PEFT is 0.18.1.
"""
import json
import os
import shutil
import sys

import torch
from peft import LoraConfig, OFTConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

STEPS, LR = 30, 1e-2
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS = {
    "lora": dict(r=4, lora_alpha=8, target_modules=ALL),
    "rslora": dict(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"], use_rslora=True,
                   rank_pattern={"layers.1.self_attn.q_proj": 2}, alpha_pattern={"v_proj": 3}),
    "dora": dict(r=4, lora_alpha=8, target_modules=ALL, use_dora=True),
    "pissa": dict(r=4, lora_alpha=8, target_modules=ALL, init_lora_weights="pissa"),
    "oft": dict(r=0, oft_block_size=10, target_modules=ALL),
    "oft_blocks": dict(r=4, oft_block_size=0, target_modules=["q_proj", "down_proj"]),
}
# LLaMA-Factory's `lora_target: all`.
FUSED = {
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "glm4": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
}


def settings(name, **more):
    kind = OFTConfig if name.startswith("oft") else LoraConfig
    return kind(task_type="CAUSAL_LM", **{**ADAPTERS[name], **more})


def base(path):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def rows(n, seed, vocab=300):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, vocab, (n, 24), generator=draw)


def numbers(tensor):
    return [round(x, 6) for x in tensor.flatten().tolist()]


def save(model, folder, base="train-llama"):
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as file:
        config = json.load(file)
    # Sets have no order, and the folder is that of whoever runs this.
    config["target_modules"] = sorted(config["target_modules"])
    config["base_model_name_or_path"] = base
    with open(path, "w") as file:
        json.dump(config, file, indent=2, sort_keys=True)


def randomize(model):
    with torch.no_grad():
        for key, param in model.named_parameters():
            if "lora_A" in key or "lora_B" in key:
                param.normal_(std=0.2)
            elif "oft_R" in key:
                param.normal_(std=0.1)
            elif "magnitude" in key:
                param.mul_(1 + 0.3 * torch.rand_like(param))


def losses_of(model, batches, steps):
    params = [param for param in model.parameters() if param.requires_grad]
    adamw, losses = torch.optim.AdamW(params, lr=LR, weight_decay=0.01), []
    for step in range(steps):
        batch = torch.tensor(batches)[step % 2 * 4:][:4]
        loss = model(batch, labels=batch).loss
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        losses.append(loss.item())
    return losses


def fused(out):
    for family, targets in FUSED.items():
        path, folder = os.path.join(out, "families", family), os.path.join(out, "adapters", "fused", family)
        batches, ids = rows(8, 5, 72).tolist(), rows(2, 6, 72)[:, :9]
        places = [0, 4, 8]
        found = {"ids": ids.tolist(), "places": places, "base": numbers(logits(base(path), ids)[:, places]), "rows": batches,
                 "learning_rate": LR, "weight_decay": 0.01, "losses": {}}
        for name in ["lora", "dora", "pissa", "oft"]:
            more = {"target_modules": targets} | ({"oft_block_size": 8} if name == "oft" else {"r": 2})
            torch.manual_seed(13)
            model = get_peft_model(base(path), settings(name, **more)).train()
            if name != "pissa":
                save(model, os.path.join(folder, "first_" + name), family)
            found["losses"][name] = losses_of(model, batches, 10)
            torch.manual_seed(7)
            model = get_peft_model(base(path), settings(name, **more)).eval()
            randomize(model)
            save(model, os.path.join(folder, name), family)
            found[name] = numbers(logits(model, ids)[:, places])
            found[name + "_merged"] = numbers(logits(model.merge_and_unload(), ids)[:, places])
        with open(os.path.join(folder, "numbers.json"), "w") as file:
            json.dump(found, file)


def main(out):
    torch.set_num_threads(1)
    path, folder = os.path.join(out, "train-llama"), os.path.join(out, "adapters")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    ids = rows(2, 1)[:, :9]
    places = [0, 4, 8]
    found = {"ids": ids.tolist(), "places": places, "base": numbers(logits(base(path), ids)[:, places])}
    for name in ADAPTERS:
        torch.manual_seed(7)
        model = get_peft_model(base(path), settings(name)).eval()
        randomize(model)
        save(model, os.path.join(folder, name))
        found[name] = numbers(logits(model, ids)[:, places])
        found[name + "_merged"] = numbers(logits(model.merge_and_unload(), ids)[:, places])
    # Two adapters, merged one after the other.
    for first, second in [("lora", "dora"), ("dora", "oft")]:
        model = base(path)
        for name in [first, second]:
            model = PeftModel.from_pretrained(model, os.path.join(folder, name)).merge_and_unload()
        found[f"{first}_then_{second}"] = numbers(logits(model, ids)[:, places])
    with open(os.path.join(folder, "logits.json"), "w") as file:
        json.dump(found, file)
    train = {"learning_rate": LR, "weight_decay": 0.01, "rows": rows(8, 3).tolist(), "losses": {}}
    for name in ["lora", "dora", "pissa", "oft"]:
        torch.manual_seed(11)
        model = get_peft_model(base(path), settings(name)).train()
        save(model, os.path.join(folder, "first_" + name))
        train["losses"][name] = losses_of(model, train["rows"], STEPS)
    with open(os.path.join(folder, "train.json"), "w") as file:
        json.dump(train, file)
    fused(out)


def check(path, adapter, ids):
    with open(ids) as file:
        ids = torch.tensor(json.load(file))
    model = PeftModel.from_pretrained(base(path), adapter).eval()
    print(json.dumps(numbers(logits(model, ids))))


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else check(*sys.argv[2:])
