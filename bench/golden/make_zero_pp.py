"""Trajectories of ZeRO++ (qwZ, qgZ, hpZ) in numpy, with the formulas of DeepSpeed 0.19.8.

Follows csrc/quantization/{quantize,swizzled_quantize,quant_reduce}.cu, CUDAQuantizer in runtime/zero/partition_parameters.py
and all_to_all_quant_reduce in runtime/comm/coalesced_collectives.py, with three differences, which Oarlock has: numbers are
f32 where DeepSpeed's kernels have f16, blocks are 4096 elements of weights and 512 of gradients counted from the beginning of
a parameter, and the sum over the ranks of a machine enters the mean like that over machines (DeepSpeed divides by the machines
alone). Writes crates/oarlock/tests/golden/zero_pp.json. Needs numpy alone: python3 bench/golden/make_zero_pp.py
"""

import json
from pathlib import Path

import numpy as np

f32 = np.float32
SIZES = [3 * 4096 + 100, 5000]  # outputs of two units, which have a weight and a bias each
STEPS = 12
SHOWN = [1, 6, 12]
RATE = f32(2.0**-5)
BLOCKS = {8: 4096, 4: 512}

# name: ranks, ranks of a machine, ranks of the second copy, and what is quantized
RUNS = {
    "qwz 2": (2, 2, 2, {"weights"}),
    "qwz 4": (4, 4, 4, {"weights"}),
    "frozen 2": (2, 2, 2, {"frozen"}),
    "qgz 2": (2, 1, 2, {"gradients"}),
    "qgz 4": (4, 2, 4, {"gradients"}),
    "all 4": (4, 2, 2, {"weights", "gradients"}),
}


def values(salt, n):
    i = np.arange(n, dtype=np.int64)
    return ((i * 7919 + salt * 104729) % 2003).astype(f32) / f32(1000) - f32(1)


def quantized(x, bits):
    """What is left of x on its way."""
    limit, out = f32(2 ** (bits - 1)), np.empty_like(x)
    for first in range(0, len(x), BLOCKS[bits]):
        block = x[first:first + BLOCKS[bits]]
        largest = np.abs(block).max()
        scale = f32(1) if largest == 0 else limit / largest
        codes = np.clip(np.rint(block * scale), -limit, limit - f32(1))
        out[first:first + BLOCKS[bits]] = codes * (f32(1) / scale)
    return out


def tree(of_ranks):
    """The sum in pairs of neighbors."""
    while len(of_ranks) > 1:
        of_ranks = [a + b for a, b in zip(of_ranks[::2], of_ranks[1::2])]
    return of_ranks[0]


def in_turn(of_ranks):
    total = of_ranks[0]
    for x in of_ranks[1:]:
        total = total + x
    return total


def two_hops(of_ranks, per_machine):
    sums = []
    for first in range(0, len(of_ranks), per_machine):
        sums.append(in_turn([quantized(g, 4) for g in of_ranks[first:first + per_machine]]))
    return in_turn([quantized(g, 4) for g in sums])


def run(n, per_machine, second, what):
    weights = [[values(7 + 2 * u, size), values(8 + 2 * u, size)] for u, size in enumerate(SIZES)]
    for step in range(1, STEPS + 1):
        for unit, (w, b) in enumerate(weights):
            seen_w, seen_b = w, b
            if "weights" in what:
                seen_w, seen_b = quantized(w, 8), quantized(b, 8)
                # Recomputed with what the second copy sends. The last unit stays from forward to backward.
                if second < n and unit + 1 < len(SIZES):
                    seen_w, seen_b = quantized(seen_w, 8), quantized(seen_b, 8)
            if "frozen" in what and unit == 0:
                seen_w = quantized(w, 8)
            y = seen_w + seen_b
            # The loss is the sum of factor * y * y.
            grads = [f32(2) * (values(31 * unit + 7 * rank + 101 * step + 1, SIZES[unit]) * y) for rank in range(n)]
            of_bias = tree(grads) * f32(1 / n)
            of_weight = two_hops(grads, per_machine) * f32(1 / n) if "gradients" in what else of_bias
            if not ("frozen" in what and unit == 0):
                weights[unit][0] = w - RATE * of_weight
            weights[unit][1] = b - RATE * of_bias
        yield step, weights


def shown(x):
    """Some elements, and a sum of all bits."""
    bits = x.view(np.uint32).astype(np.uint64) * (np.arange(len(x), dtype=np.uint64) + np.uint64(1))
    return {"some": [float(f"{v:.9g}") for v in x[::997]], "bits": str(int(bits.sum(dtype=np.uint64)))}


def main():
    golden = {}
    for name, (n, per_machine, second, what) in RUNS.items():
        golden[name] = {
            step: [shown(x) for unit in weights for x in unit]
            for step, weights in run(n, per_machine, second, what) if step in SHOWN
        }
    path = Path(__file__).parents[2] / "crates/oarlock/tests/golden/zero_pp.json"
    text = json.dumps(golden, separators=(",", ":"))
    path.write_text(text.replace("},{", "},\n{") + "\n")
    print(path, path.stat().st_size, "bytes")


main()
