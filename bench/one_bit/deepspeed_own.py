"""DeepSpeed's own 1-bit optimizers (0.16.9, the last release that has them) on the CPU, in processes over torch's Gloo.

    python deepspeed_own.py golden [NAME ...]         # against crates/oarlock/tests/golden/one_bit.json
    python deepspeed_own.py losses WEIGHTS RANKS ...  # the losses of crates/oarlock/examples/one_bit.rs, as JSON

The optimizers and their compressed backend are called as FP16_Optimizer calls them: first with gradients of zero. Two things
are put in their place, which exist for XPUs alone: the packing of bits, and the shape of a gathered scale. Needs torch and
deepspeed==0.16.9, with DS_ACCELERATOR=cpu.
"""
import json
import os
import sys
import warnings
from pathlib import Path
from queue import Empty

os.environ.setdefault("DS_ACCELERATOR", "cpu")
REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "crates/oarlock/tests/golden/one_bit.json"

import torch
import torch.multiprocessing as mp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from distance import largest, largest_difference  # noqa: E402

SIZES, DECAYS, STEPS = [35, 37, 3], [0.1, 0.1, 0.0], 30
N_TRAIN, ROWS = 400, 20


class Packer:
    """What PackbitsBuilder loads: eight signs a byte."""

    places = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8)

    def packbits(self, x, _size, _rank):
        return ((~torch.signbit(x)).view(-1, 8).to(torch.uint8) * self.places).sum(1).to(torch.uint8)

    def unpackbits(self, bits, _size, _rank):
        return ((bits.view(-1, 1) & self.places) != 0).float().view(-1) * 2 - 1

    def load(self):
        return self


class Engine:
    """What the optimizers use of DeepSpeed's engine."""

    mpu, local_rank, enable_backward_allreduce = None, 0, True


def begin(rank, n, port):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(n), LOCAL_RANK="0")
    import deepspeed
    import deepspeed.comm as dist
    from deepspeed.runtime.comm import compressed

    assert deepspeed.__version__.startswith("0.16.9"), deepspeed.__version__
    # Gloo carries all of it; the extension in shared memory would have to be compiled.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed("gloo", verbose=False)
    compressed.PackbitsBuilder = Packer
    gather = dist.all_gather

    def all_gather(into, x, group=None):
        return gather(into, x.reshape(into[0].shape), group=group)

    compressed.dist.all_gather = all_gather
    return dist


def optimizer(name, groups, engine, arguments):
    from deepspeed.runtime.fp16.onebit.adam import OnebitAdam
    from deepspeed.runtime.fp16.onebit.lamb import OnebitLamb
    from deepspeed.runtime.fp16.onebit.zoadam import ZeroOneAdam

    kind = {"onebit_adam": OnebitAdam, "zero_one_adam": ZeroOneAdam, "onebit_lamb": OnebitLamb}[name]
    made = kind(groups, deepspeed=engine, comm_backend_name="compressed", **arguments)
    for group in groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    made.step()
    return made


def reduce(dist, engine, parameters, n):
    """DeepSpeed's engine sums gradients after a backward pass as long as the optimizer lets it."""
    if engine.enable_backward_allreduce:
        for parameter in parameters:
            dist.all_reduce(parameter.grad)
            parameter.grad.mul_(1 / n)


def values(salt, n):
    i = torch.arange(n, dtype=torch.int64)
    return ((i * 7919 + salt * 104729) % 2003).float() / 1000 - 1


def toy(rank, n, port, name, queue):
    dist = begin(rank, n, port)
    engine = Engine()
    ws = [torch.nn.Parameter(values(7 + p, size)) for p, size in enumerate(SIZES)]
    groups = [{"params": ws[:2], "weight_decay": DECAYS[0]}, {"params": ws[2:], "weight_decay": 0.0}]
    arguments = {"betas": (0.9, 0.99), "eps": 1e-6}
    if name == "zero_one_adam":
        arguments |= {"var_freeze_step": 12, "var_update_scaler": 2, "local_step_scaler": 4, "local_step_clipper": 4}
    else:
        arguments |= {"freeze_step": 6}
    made = optimizer(name, groups, engine, arguments)
    shown = {}
    for step in range(1, STEPS + 1):
        for p, w in enumerate(ws):
            w.grad = values(31 * p + 7 * rank + 101 * step + 1, SIZES[p])
        reduce(dist, engine, ws, n)
        for group in made.param_groups:
            group["lr"] = 0.01 * (1 + step % 3)
        for padding in getattr(made, "dummy_exp_avg", {}).values():
            # DeepSpeed leaves there what the last exchange has brought; see docs/less-communication.md.
            padding.zero_()
        made.step()
        shown[step] = [x for w in ws for x in w.tolist()]
    queue.put((rank, shown))


def against_golden(names):
    golden = json.loads(GOLDEN.read_text())
    for at, (name, steps) in enumerate(golden.items()):
        name, n = name.split()
        if n == "1" or names and name not in names:
            continue
        ranks = start(toy, int(n), 29600 + at, name)
        found = []
        for step, shown in steps.items():
            for rank, expected in zip([0, int(n) - 1], shown, strict=True):
                found.append(largest_difference(ranks[rank][int(step)], expected) / largest(expected))
        print(f"{name}, {n} ranks: largest relative difference {largest(found):.2e}", flush=True)


def losses_of(rank, n, port, name, weights, steps, freeze, queue):
    dist = begin(rank, n, port)
    sys.path.insert(0, str(REPOSITORY / "crates/oarlock/examples"))
    import twin

    images, labels = twin.digits()
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 10))
    model.load_state_dict(twin.weights(weights))
    engine = Engine()
    parameters = list(model.parameters())
    rates = {"lr": 0.02 if name == "onebit_lamb" else 0.002, "weight_decay": 0.0}
    if name == "zero_one_adam":
        rates |= {"var_freeze_step": freeze, "local_step_scaler": 50, "local_step_clipper": 4}
    else:
        rates |= {"freeze_step": freeze}
    made = optimizer(name, [{"params": parameters}], engine, rates)
    losses = []
    for step in range(steps):
        first = (step * n + rank) * ROWS % N_TRAIN
        loss = torch.nn.functional.cross_entropy(model(images[first:first + ROWS]), labels[first:first + ROWS].long())
        made.zero_grad()
        loss.backward()
        reduce(dist, engine, parameters, n)
        made.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / n)
    queue.put((rank, losses))


def start(work, n, port, *arguments):
    context = mp.get_context("spawn")
    queue = context.Queue()
    ranks = [context.Process(target=work, args=(rank, n, port, *arguments, queue), daemon=True) for rank in range(n)]
    for rank in ranks:
        rank.start()
    told = {}
    while len(told) < n:
        try:
            told.update([queue.get(timeout=1)])
        except Empty:
            if any(rank.exitcode for rank in ranks):
                sys.exit("a rank failed")
    for rank in ranks:
        rank.join()
    return told


def main():
    match sys.argv[1:]:
        case ["golden", *names]:
            against_golden(names)
        case ["losses", weights, n, steps, freeze]:
            names = ["onebit_adam", "zero_one_adam", "onebit_lamb"]
            run = lambda at, name: start(losses_of, int(n), 29700 + at, name, weights, int(steps), int(freeze))[0]
            print(json.dumps({name: run(at, name) for at, name in enumerate(names)}))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
