"""Folders of quantized models as transformers and bitsandbytes write them, upon the tiny llama of make_trajectory.py.

    python make_quantized_folders.py crates/oarlock/tests/golden         # writes quantized/
    python make_quantized_folders.py --check BASE FOLDER IDS.json        # logits of a folder that another program wrote

Each folder quantized/NAME is what save_pretrained writes; logits.json has the logits of the weights that bitsandbytes
dequantizes, in f32 (its own products on the CPU need more columns than this model has, and those of 8 bits round their
inputs). Made with transformers 5.23.0 and bitsandbytes 0.50.2.
"""
import glob
import json
import os
import sys

import bitsandbytes.functional as F
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

FORMATS = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_quant_storage=torch.bfloat16),
    "int8": dict(load_in_8bit=True, llm_int8_threshold=0.0),
}


def quantized(path, **settings):
    more = {}
    if settings:
        more["quantization_config"] = BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float32, **settings)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, device_map="cpu", **more).eval()


def dequantized(folder, path):
    """The weights of a folder, dequantized by bitsandbytes, in a model that has none."""
    tensors, state = {}, {}
    for file in glob.glob(os.path.join(folder, "*.safetensors")):
        tensors.update(load_file(file))
    for name in [name for name in tensors if ".quant_state." in name]:
        weight = name.split(".quant_state.")[0]
        parts = {key: value for key, value in tensors.items() if key.startswith(f"{weight}.")}
        quant_state = F.QuantState.from_dict(parts, device="cpu")
        packed = tensors[weight].view(torch.uint8).reshape(-1, 1)
        # As one row: the kernel for the CPU is wrong where a row ends within a block.
        shape, quant_state.shape = quant_state.shape, torch.Size([1, quant_state.shape.numel()])
        state[weight] = F.dequantize_4bit(packed, quant_state).float().reshape(shape)
    for name in [name for name in tensors if name.endswith(".SCB")]:
        weight = name.replace(".SCB", ".weight")
        state[weight] = F.int8_vectorwise_dequant(tensors[weight], tensors[name])
    assert len(state) == 14
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
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
        model.save_pretrained(folder)
        golden[name] = numbers(logits(dequantized(folder, base), ids)[0, -1])
        generation = os.path.join(folder, "generation_config.json")
        os.path.exists(generation) and os.remove(generation)
    with open(os.path.join(out, "quantized", "logits.json"), "w") as file:
        json.dump(golden, file)


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        ids = torch.tensor(json.load(open(sys.argv[4])))
        # transformers reads it as well.
        kinds = {type(module).__name__ for module in quantized(sys.argv[3]).modules()}
        assert kinds & {"Linear4bit", "Linear8bitLt"}, kinds
        print(json.dumps(numbers(logits(dequantized(sys.argv[3], sys.argv[2]), ids)[0, -1])))
    else:
        main(sys.argv[1])
