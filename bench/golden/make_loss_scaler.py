"""Writes golden traces of the dynamic loss scale, as DeepSpeed's own class gives them.

    python make_loss_scaler.py crates/oarlock/tests/golden

loss_scaler.json holds cases: the settings, which steps overflow ("1"), and after each update the scale, the hysteresis
left and the line that was logged for an overflow. A case that ends at the least scale ends with an error. The version is
that of ../peers/requirements.txt.
"""
import json
import os
import random
import sys
from types import SimpleNamespace

from deepspeed.runtime.fp16 import loss_scaler

# power, window, hysteresis, consecutive, least scale, and steps as text or (number of steps, chance of an overflow)
CASES = [
    (16, 3, 2, False, 1, "11100000000"),
    (16, 3, 2, False, 1, "0000000000"),
    (16, 1, 1, False, 1, (40, 0.3)),
    (16, 1, 3, True, 1, (40, 0.4)),
    (16, 2, 2, True, 1, (40, 0.4)),
    (16, 2, 2, False, 1, (40, 0.4)),
    (12, 4, 4, False, 1, (60, 0.3)),
    (12, 4, 4, True, 1, (60, 0.5)),
    (20, 5, 1, False, 1024, (40, 0.2)),
    (4, 2, 1, False, 3, "110001101"),
    (3, 7, 2, False, 1, "1" * 12),
    (2, 7, 1, True, 0.25, "1" * 12),
]


def trace(power, window, hysteresis, consecutive, least, steps, chooser):
    if not isinstance(steps, str):
        steps = "".join("1" if chooser.random() < steps[1] else "0" for _ in range(steps[0]))
    lines = []
    loss_scaler.logger = SimpleNamespace(info=lines.append)
    scaler = loss_scaler.DynamicLossScaler(2.0**power, window, least, hysteresis, consecutive)
    case = dict(power=power, window=window, hysteresis=hysteresis, consecutive=consecutive, least=least, steps=steps,
                scales=[], left=[], lines=[], fails=False)
    for step in steps:
        lines.clear()
        try:
            scaler.update_scale(step == "1")
        except Exception:
            case["fails"] = True
            break
        case["scales"].append(scaler.cur_scale)
        case["left"].append(scaler.cur_hysteresis)
        case["lines"].extend(line for line in lines if "OVERFLOW" in line)
    return case


def main(folder):
    loss_scaler.dist = SimpleNamespace(get_rank=lambda: 0)
    chooser = random.Random(7)
    cases = [trace(*case, chooser) for case in CASES]
    with open(os.path.join(folder, "loss_scaler.json"), "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
