#!/usr/bin/env python3
"""Writes crates/oarlock/tests/golden/sparse_layouts.json: layouts of DeepSpeed's sparse attention.

    python bench/golden/make_sparse_layouts.py [FOLDER OF DEEPSPEED'S SOURCE]

Needs torch, and deepspeed or its source (0.16 and before have the module; the file of layouts stands for itself). Each case
has the settings under their names in DeepSpeed's JSON, heads, tokens, and the rows of all layouts as hexadecimal numbers, a
bit for each block of keys, block 0 the lowest. Random blocks are those behind `random.seed(seed)`.
"""

import importlib.util
import json
import pathlib
import random
import sys

PATH = "ops/sparse_attention/sparsity_config.py"
OUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "oarlock" / "tests" / "golden" / "sparse_layouts.json"

LATER = {"attention": "unidirectional"}
CASES = [
    # Settings, heads, tokens, seed.
    ({"mode": "dense"}, 2, 96, 0),
    ({"mode": "fixed"}, 1, 400, 0),
    ({"mode": "fixed", "block": 32, **LATER}, 1, 416, 0),
    ({"mode": "fixed", "num_local_blocks": 6, "num_global_blocks": 2, **LATER}, 1, 320, 0),
    ({"mode": "fixed", "num_local_blocks": 6, "num_global_blocks": 3, "horizontal_global_attention": True}, 1, 304, 0),
    ({"mode": "fixed", "num_local_blocks": 8, "num_global_blocks": 2, "different_layout_per_head": True,
      "num_different_global_patterns": 4}, 5, 272, 0),
    ({"mode": "fixed", "num_local_blocks": 4, "num_global_blocks": 4, **LATER}, 1, 48, 0),
    ({"mode": "fixed", "num_local_blocks": 8, "num_global_blocks": 4, **LATER}, 1, 48, 0),
    ({"mode": "fixed", "num_local_blocks": 8, "num_global_blocks": 4, "horizontal_global_attention": True}, 1, 16, 0),
    ({"mode": "variable"}, 1, 352, 0),
    ({"mode": "variable", "num_random_blocks": 2, "local_window_blocks": [2, 1, 5], "global_block_indices": [0, 7, 90],
      "horizontal_global_attention": True}, 1, 368, 3),
    ({"mode": "variable", "num_random_blocks": 1, "different_layout_per_head": True, "local_window_blocks": [3],
      "global_block_indices": [1, 6], "global_block_end_indices": [3, 30], **LATER}, 3, 256, 42),
    ({"mode": "variable", "local_window_blocks": [40, 2], "global_block_indices": []}, 1, 128, 0),
    ({"mode": "bigbird", "num_random_blocks": 1}, 1, 512, 1234),
    ({"mode": "bigbird", "num_random_blocks": 3, "num_sliding_window_blocks": 5, "num_global_blocks": 2,
      "different_layout_per_head": True}, 3, 384, 7),
    ({"mode": "bigbird", "num_random_blocks": 1, **LATER}, 1, 512, 42),
    ({"mode": "bigbird", "num_random_blocks": 1, "different_layout_per_head": True, **LATER}, 4, 192, 2**32 + 9),
    ({"mode": "bigbird", "num_random_blocks": 7, "num_sliding_window_blocks": 1}, 1, 1600, 11),
    ({"mode": "bigbird", "num_random_blocks": 0}, 1, 256, 0),
    ({"mode": "bslongformer"}, 1, 320, 0),
    ({"mode": "bslongformer", "num_sliding_window_blocks": 6, "global_block_indices": [2, 5], "block": 64}, 1, 768, 0),
    ({"mode": "bslongformer", "global_block_indices": [0, 11], "global_block_end_indices": [2, 60], **LATER}, 1, 240, 0),
]


def module():
    if len(sys.argv) < 2:
        from deepspeed.ops.sparse_attention import sparsity_config
        return sparsity_config
    spec = importlib.util.spec_from_file_location("sparsity_config", pathlib.Path(sys.argv[1]) / PATH)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def main():
    deepspeed = module()
    classes = {
        "dense": deepspeed.DenseSparsityConfig,
        "fixed": deepspeed.FixedSparsityConfig,
        "variable": deepspeed.VariableSparsityConfig,
        "bigbird": deepspeed.BigBirdSparsityConfig,
        "bslongformer": deepspeed.BSLongformerSparsityConfig,
    }
    cases = []
    for settings, heads, tokens, seed in CASES:
        random.seed(seed)
        arguments = {name: value for name, value in settings.items() if name != "mode"}
        config = classes[settings["mode"]](num_heads=heads, **arguments)
        layout = config.make_layout(tokens).tolist()
        layouts = layout if settings.get("different_layout_per_head") else layout[:1]
        rows = [[f"{sum(kept << column for column, kept in enumerate(row)):x}" for row in head] for head in layouts]
        rows = [" ".join(head) for head in rows]
        cases.append({"settings": settings, "heads": heads, "tokens": tokens, "seed": seed, "layouts": rows})
    OUT.write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    main()
