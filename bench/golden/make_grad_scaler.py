"""Writes crates/oarlock/tests/golden/grad_scaler.json: torch's one GradScaler over two optimizers.

    python make_grad_scaler.py crates/oarlock/tests/golden/grad_scaler.json

Each turn both optimizers run a backward pass that may overflow, step, and update the scale, as Accelerate's
`AcceleratedOptimizer.step` does. `steps` has, for each of these, whether it was skipped and the scale behind it. The
scale begins at 256 and never grows, so that it says of DeepSpeed's rule what it says of torch's.
"""
import itertools, json, sys
import torch


def run(turns):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=10**6)
    parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in parameters]
    steps = []
    for turn in turns:
        for parameter, optimizer, overflows in zip(parameters, optimizers, turn):
            optimizer.zero_grad()
            scaler.scale((parameter * (float("inf") if overflows else 1.0)).sum()).backward()
            before = parameter.item()
            scaler.step(optimizer)
            scaler.update()
            steps.append([parameter.item() == before, scaler.get_scale()])
    return steps


cases = [list(turns) for turns in itertools.product(itertools.product([False, True], repeat=2), repeat=2)]
with open(sys.argv[1], "w") as file:
    lines = [json.dumps({"overflows": turns, "steps": run(turns)}) for turns in cases]
    file.write("[\n" + ",\n".join(lines) + "\n]\n")
