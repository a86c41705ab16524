"""Weights of 4 and 8 bits as bitsandbytes quantizes them: writes crates/kernels/tests/golden/quantized.json.

usage: python bench/golden/make_quantized.py   (needs torch and bitsandbytes; made with 2.13.0 and 0.50.2)
"""
import json
from pathlib import Path

import bitsandbytes.functional as F
import torch


def weight(rows, cols):
    """Values that any language computes without rounding."""
    i = torch.arange(rows * cols, dtype=torch.int64)
    return (((i * 7919 + i // 64 * 31) % 4001 - 2000).float() / 512).reshape(rows, cols)


def case(rows, cols, kind):
    w = weight(rows, cols)
    codes, plain = F.quantize_4bit(w, blocksize=64, quant_type=kind)
    same, nested = F.quantize_4bit(w, blocksize=64, quant_type=kind, compress_statistics=True)
    assert torch.equal(codes, same)
    return {
        "rows": rows,
        "cols": cols,
        "kind": kind,
        "codes": codes.flatten().numpy().tobytes().hex(),
        "absmax": plain.absmax.tolist(),
        "nested_codes": nested.absmax.numpy().tobytes().hex(),
        "nested_absmax": nested.state2.absmax.tolist(),
        "nested_offset": nested.offset.item(),
        "dequantized": F.dequantize_4bit(codes, plain).flatten()[::37].tolist(),
        "nested_dequantized": F.dequantize_4bit(codes, nested).flatten()[::37].tolist(),
    }


def spread():
    """A weight whose blocks have scales of many sizes, so that most codes of scales are in use."""
    w = weight(64, 512)
    block = torch.arange(w.numel(), dtype=torch.int64) // 64
    w = w * ((block * 2477 % 8191 + 1).float() / 8192).reshape(w.shape)
    _, nested = F.quantize_4bit(w, blocksize=64, quant_type="nf4", compress_statistics=True)
    codes = nested.absmax.numpy().tobytes().hex()
    return {"rows": 64, "cols": 512, "nested_codes": codes, "nested_absmax": nested.state2.absmax.tolist(), "nested_offset": nested.offset.item()}


def int8(rows, cols):
    w = weight(rows, cols)
    # A row of zeros, and rows of many sizes.
    w = w * (torch.arange(rows) % 5).reshape(-1, 1).float() / 4
    codes, absmax, _ = F.int8_vectorwise_quant(w.half())
    as_in_products = lambda dtype: codes.to(dtype).mul_(absmax.unsqueeze(1).mul(1.0 / 127.0)).float().flatten()[::37].tolist()
    return {
        "rows": rows,
        "cols": cols,
        "codes": codes.flatten().numpy().tobytes().hex(),
        "absmax": absmax.tolist(),
        "f32": as_in_products(torch.float32),
        "bf16": as_in_products(torch.bfloat16),
    }


cases = [case(*size, kind) for size in [(37, 100), (40, 512)] for kind in ["nf4", "fp4"]]
golden = {"map": F.create_dynamic_map().tolist(), "cases": cases, "spread": spread(), "int8": [int8(37, 100), int8(40, 512)]}
path = Path(__file__).parents[2] / "crates/kernels/tests/golden/quantized.json"
path.write_text(json.dumps(golden) + "\n")
