"""Trajectories of DeepSpeed's 1-bit optimizers (0.16.9, the last release that has them) in numpy, on 2 and 4 ranks.

Follows deepspeed/runtime/fp16/onebit/{adam,zoadam,lamb}.py and runtime/comm/compressed.py step by step in f32, with the
first call that only prepares, which FP16_Optimizer makes with gradients of zero. Writes
crates/oarlock/tests/golden/one_bit.json. Needs numpy alone: python3 bench/golden/make_one_bit.py
"""

import json
from math import gcd
from pathlib import Path

import numpy as np

f32 = np.float32
SIZES = [7 * 5, 37, 3]  # w, a (decay) and b (none)
DECAYS = [0.1, 0.1, 0.0]
STEPS = 30
SHOWN = [1, 5, 6, 12, 13, 20, 29, 30]
BETA1, BETA2, EPS = 0.9, 0.99, 1e-6


def rate(step):
    return 0.01 * (1 + step % 3)


def values(salt, n):
    i = np.arange(n, dtype=np.int64)
    return ((i * 7919 + salt * 104729) % 2003).astype(f32) / f32(1000) - f32(1)


def gradient(param, rank, step):
    return values(31 * param + 7 * rank + 101 * step + 1, SIZES[param])


def norm(x):
    return f32(np.sqrt(np.sum(x.astype(np.float64) ** 2)))


def sign(x):
    return np.where(x < 0, f32(-1), f32(1))


class Exchange:
    """compressed_allreduce of one tensor, for all ranks at once."""

    def __init__(self, n, n_elems):
        self.n = n
        divider = n * 8 // gcd(n, 8)
        self.size = -(-n_elems // (n * divider)) * n * divider
        self.worker = [np.zeros(self.size, f32) for _ in range(n)]
        self.server = [np.zeros(self.size // n, f32) for _ in range(n)]

    def mean(self, of_ranks):
        n, n_elems = self.n, len(of_ranks[0])
        if n == 1:
            return of_ranks[0]
        signs, scales = [], []
        for rank, x in enumerate(of_ranks):
            c = np.concatenate([x, np.zeros(self.size - n_elems, f32)]) + self.worker[rank]
            scale = f32(norm(c) / np.sqrt(self.size))
            self.worker[rank] = c - scale * sign(c)
            signs.append(sign(c).reshape(n, -1))
            scales.append(scale)
        out = []
        for server in range(n):
            total = np.zeros(self.size // n, f32)
            for rank in range(n):
                total = total + signs[rank][server] * (scales[rank] * f32(1 / n))
            c = total + self.server[server]
            scale = f32(norm(c) / np.sqrt(len(c)))
            self.server[server] = c - scale * sign(c)
            out.append(scale * sign(c))
        return np.concatenate(out)[:n_elems]


def start():
    return [values(7 + p, n) for p, n in enumerate(SIZES)]


def mean_gradient(n, param, step):
    total = gradient(param, 0, step)
    for rank in range(1, n):
        total = total + gradient(param, rank, step)
    return total * f32(1 / n)


def blend(m, g, beta):
    return m * f32(beta) + f32(1 - beta) * g


def squares(v, g):
    return v * f32(BETA2) + f32(1 - BETA2) * g * g


def direction(w, m, v, decay):
    return m / (np.sqrt(v) + f32(EPS)) + f32(decay) * w


def onebit_adam(n, freeze_step=6):
    ws, count, frozen = start(), 1, False
    ms, vs = [[np.zeros_like(w) for w in ws] for _ in range(2)]
    exchanges = [Exchange(n, size) for size in SIZES]
    for step in range(1, STEPS + 1):
        count += 1
        for p, w in enumerate(ws):
            if not frozen:
                g = mean_gradient(n, p, step)
                ms[p], vs[p] = blend(ms[p], g, BETA1), squares(vs[p], g)
            else:
                ms[p] = exchanges[p].mean([blend(ms[p], gradient(p, r, step), BETA1) for r in range(n)])
            ws[p] = w - f32(rate(step)) * direction(w, ms[p], vs[p], DECAYS[p])
        frozen = frozen or count >= freeze_step
        yield step, [ws]


def zero_one_adam(n, var_freeze_step=12, var_update_scaler=2, local_step_scaler=4, local_step_clipper=4):
    ws = [start() for _ in range(n)]
    ms = [[np.zeros(s, f32) for s in SIZES] for _ in range(n)]
    sums = [[np.zeros(s, f32) for s in SIZES] for _ in range(n)]
    vs = [np.zeros(s, f32) for s in SIZES]
    exchanges = [Exchange(n, size) for size in SIZES]
    count, frozen, reset = 1, False, False
    var_interval, var_counter, local_interval, local_counter, lrs = 1, 0, 1, 0, 0.0
    for step in range(1, STEPS + 1):
        count += 1
        lr = rate(step)
        if frozen:
            lrs += lr
        for p in range(len(SIZES)):
            if not frozen:
                if count % var_interval == 0:
                    g = mean_gradient(n, p, step)
                    vs[p] = squares(vs[p], g)
                else:
                    g = exchanges[p].mean([gradient(p, r, step) for r in range(n)])
            for r in range(n):
                own = gradient(p, r, step) if frozen else g
                ms[r][p] = blend(ms[r][p], own, BETA1)
                move = f32(lr) * direction(ws[r][p], ms[r][p], vs[p], DECAYS[p])
                ws[r][p] = ws[r][p] - move
                if frozen:
                    sums[r][p] = sums[r][p] - move
            if frozen and count % local_interval == 0:
                root = np.sqrt(vs[p]) + f32(EPS)
                mean = exchanges[p].mean([sums[r][p] * root for r in range(n)])
                for r in range(n):
                    ws[r][p] = ws[r][p] - sums[r][p] + mean / root
                    ms[r][p] = -(mean / f32(lrs))
                    sums[r][p] = np.zeros_like(mean)
        if frozen and count % local_interval == 0:
            lrs = 0.0
        if not frozen:
            if count % var_interval == 0:
                var_counter += 1
                if var_counter == var_update_scaler:
                    var_counter, var_interval = 0, var_interval * 2
        else:
            local_counter += 1
            if local_counter == local_step_scaler:
                local_counter, local_interval = 0, min(local_step_clipper, local_interval * 2)
        frozen = frozen or count > var_freeze_step
        if frozen and not reset:
            exchanges, reset = [Exchange(n, size) for size in SIZES], True
        yield step, ws


def onebit_lamb(n, freeze_step=6, max_coeff=10.0, min_coeff=0.01, coeff_beta=0.9, factor_max=4.0, factor_min=0.5,
                factor_threshold=0.1):
    ws, count, frozen = start(), 1, False
    ms, vs, fresh = [[np.zeros_like(w) for w in ws] for _ in range(3)]
    coefficients, factors, scales = [0.0] * 3, [1.0] * 3, None
    exchange = Exchange(n, sum(SIZES))
    # Parameters of the first group come first.
    order = sorted(range(len(SIZES)), key=lambda p: DECAYS[p] == 0.0)
    for step in range(1, STEPS + 1):
        count += 1
        lr = rate(step)
        if not frozen:
            for p, w in enumerate(ws):
                g = mean_gradient(n, p, step)
                ms[p], vs[p] = blend(ms[p], g, BETA1), squares(vs[p], g)
                if count == freeze_step:
                    fresh[p] = vs[p].copy()
                u = direction(w, ms[p], vs[p], DECAYS[p])
                weight_norm, update_norm = norm(w), norm(u)
                coefficient = 1.0
                if weight_norm != 0 and update_norm != 0:
                    coefficient = max(min(float(weight_norm / update_norm), max_coeff), min_coeff)
                if coefficient != 1.0:
                    coefficients[p] = coeff_beta * coefficients[p] + (1 - coeff_beta) * coefficient
                ws[p] = w - f32(lr * coefficient) * u
        else:
            last = [m.copy() for m in ms]
            if scales is None:
                sizes = [float(norm(m)) / np.sqrt(len(m)) for m in ms]
                scales = [sum(sizes) / len(sizes) / size for size in sizes]
            of_ranks = []
            for r in range(n):
                own = [blend(ms[p], gradient(p, r, step), BETA1) * f32(scales[p]) for p in order]
                of_ranks.append(np.concatenate(own))
            mean, at = exchange.mean(of_ranks), 0
            for p in order:
                m = mean[at:at + SIZES[p]] / f32(scales[p])
                at += SIZES[p]
                ms[p] = m
                g = (m - last[p] * f32(BETA1)) / f32(1 - BETA1)
                fresh[p] = squares(fresh[p], g)
                denom = np.sqrt(vs[p]) + f32(EPS)
                plain = m / denom
                u = plain + f32(DECAYS[p]) * ws[p]
                factor = float((denom / (np.sqrt(fresh[p]) + f32(EPS))).max())
                if DECAYS[p] > 0:
                    ratio = min(1.0, float(norm(plain) / norm(u)))
                    factor = factor * ratio + (1 - ratio)
                factor = max(min(factor, factor_max), factor_min)
                factor = min(factor, factors[p] * (1 + factor_threshold))
                factor = max(factor, factors[p] * (1 - factor_threshold))
                factors[p] = factor
                ws[p] = ws[p] - f32(lr * coefficients[p] * factor) * u
        frozen = frozen or count >= freeze_step
        yield step, [ws]


def main():
    golden = {}
    for name, run in [("onebit_adam", onebit_adam), ("zero_one_adam", zero_one_adam), ("onebit_lamb", onebit_lamb)]:
        for n in [1, 2, 4]:
            if n == 1 and name == "zero_one_adam":
                continue  # DeepSpeed leaves the first moment out there.
            steps = {}
            for step, ranks in run(n):
                if step in SHOWN:
                    # Of the first and of the last rank, which differ between two exchanges of 0/1 Adam.
                    shown = [0, -1] if len(ranks) > 1 else [0]
                    steps[step] = [[float(f"{x:.9g}") for w in ranks[r] for x in w] for r in shown]
            golden[f"{name} {n}"] = steps
    path = Path(__file__).parents[2] / "crates/oarlock/tests/golden/one_bit.json"
    text = json.dumps(golden, separators=(",", ":"))
    path.write_text(text.replace("],[", "],\n[") + "\n")
    print(path, path.stat().st_size, "bytes")


main()
