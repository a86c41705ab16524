"""Folders of quantized models as transformers and bitsandbytes write them, upon the tiny llama of make_trajectory.py.

    python make_quantized_folders.py crates/oarlock/tests/golden         # writes quantized/
    python make_quantized_folders.py --check BASE FOLDER IDS.json        # logits of a folder that another program wrote

Each folder quantized/NAME is what save_pretrained writes; logits.json has the logits of the weights that bitsandbytes
dequantizes, in f32 (its own products on the CPU need more columns than this model has, and those of 8 bits round their
inputs). Made with transformers 5.23.0 and bitsandbytes 0.50.2.
"""
import json
import os
import sys

import bitsandbytes.functional as F
import bitsandbytes.nn as bnb
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

FORMATS = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage=torch.bfloat16),
    "int8": dict(load_in_8bit=True, llm_int8_threshold=0.0),
}


def quantized(path, **settings):
    config = BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float32, **settings) if settings else None
    return AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, quantization_config=config, device_map="cpu"
    ).eval()


def dequantized(model, path):
    """The weights of a quantized model in a model that has none."""
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    state = {}
    for name, module in model.named_modules():
        if isinstance(module, bnb.Linear4bit):
            state[f"{name}.weight"] = F.dequantize_4bit(module.weight.data, module.weight.quant_state).float()
        elif isinstance(module, bnb.Linear8bitLt):
            state[f"{name}.weight"] = F.int8_vectorwise_dequant(module.weight.data, module.weight.SCB)
    assert len(state) == 14
    plain.load_state_dict(state, strict=False)
    return plain


def logits(model, ids):
    with torch.no_grad():
        return model(ids).logits


def numbers(tensor):
    return [round(x, 6) for x in tensor.flatten().tolist()]


def main(out):
    base = os.path.join(out, "train-llama")
    ids = torch.randint(3, 300, (1, 24), generator=torch.Generator().manual_seed(11))
    golden = {"ids": ids.tolist()}
    for name, settings in FORMATS.items():
        folder = os.path.join(out, "quantized", name)
        model = quantized(base, **settings)
        golden[name] = numbers(logits(dequantized(model, base), ids)[0, -1])
        model.save_pretrained(folder)
        generation = os.path.join(folder, "generation_config.json")
        os.path.exists(generation) and os.remove(generation)
    with open(os.path.join(out, "quantized", "logits.json"), "w") as file:
        json.dump(golden, file)


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        ids = torch.tensor(json.load(open(sys.argv[4])))
        model = dequantized(quantized(sys.argv[3]), sys.argv[2])
        print(json.dumps(numbers(logits(model, ids)[0, -1])))
    else:
        main(sys.argv[1])
