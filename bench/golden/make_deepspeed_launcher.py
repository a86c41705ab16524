#!/usr/bin/env python3
"""Writes what DeepSpeed's launcher makes of hostfiles, filters and launchers, for the tests of `oarlock deepspeed`.

    DS_ACCELERATOR=cpu python bench/golden/make_deepspeed_launcher.py

Needs deepspeed 0.19.8. Every outcome comes from the original's own functions. In commands, PYTHON, HELPER, DIRECTORY
and WORLD stand for what differs from one machine to the next; the world is beside them.
"""

import base64
import contextlib
import io
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
from types import SimpleNamespace

from deepspeed.launcher import multinode_runner, runner

OUT = pathlib.Path(__file__).resolve().parents[2] / "crates/cli/tests/golden/deepspeed_launcher.json"

HOSTFILES = [
    "worker-0 slots=4\nworker-1 slots=4\n",
    "worker-0 slots=4",
    "# two\n\nworker-0 slots=2\n  # indented\nworker-1   slots=3\n",
    "worker-0\tslots=2\r\nworker-1 slots=2\r\n",
    "   worker-0 slots=2   \n",
    "worker-0 slots=2 # inline\n",
    "worker-0 slots=2 max_slots=4\n",
    "worker-0 slots=2x\n",
    "worker-0 slots=0\nworker-1 slots=1\n",
    "worker-0 slots=08\n",
    "10.0.0.1 slots=8\nfe80::1 slots=8\nhost.example.org slots=1\n",
    "a:b slots=1\n",
    "", "\n\n", "# nothing\n",
    "worker-0 slots=4\nworker-0 slots=4\n",
    "worker-0 slots=4\nworker-1 slots=4\nworker-0 slots=2\n",
    "worker-0\n", "worker-0 slots=\n", "worker-0 slots=four\n", "worker-0 slots = 4\n", "worker-0 slots =4\n",
    "slots=4\n", "worker-0slots=4\n", "worker-0 4\n", "worker-0 Slots=4\n", "worker-0 slots=-1\n",
    "worker-0 gpus=4 slots=4\n", "worker-0 slots=4\nbad\n", "worker-0,worker-1 slots=4\n", "#worker-0 slots=4\nworker-1 slots=1",
]

POOLS = {"two": [["worker-0", 4], ["worker-1", 4]], "one": [["localhost", 2]],
         "three": [["b", 2], ["a", 1], ["c", 0]]}

FILTERS = {
    "two": ["worker-0@worker-1:0,2", "worker-1:0", "worker-1", "worker-1:9", "worker-1@worker-0", "worker-0:3,1,2",
            "worker-0:1,1", "worker-0:0@worker-0:2", "worker-0@worker-0:1", "worker-0:1@worker-0", "worker-2",
            "worker-2:0", "worker-0:0,1,2,3", "worker-0:0,1,2,3@worker-1", "worker-0@worker-1", "worker-0:",
            "worker-0:a", "worker-0:0,", "worker-0:-1", "worker-0:0:1", ":0", "@", "worker-0@", "@worker-0",
            "worker-0:0-2", "worker-0: 1", "worker-0:1 ", " worker-0", "worker-0 ", "WORKER-0", "worker-0:4",
            "worker-0:+1", "worker-0:01", "worker-0:0@worker-2:0", "worker-0:1.0", "worker", "worker-*",
            "worker-0:3@worker-1:3", "worker-1:3,0@worker-0:2"],
    "one": ["localhost", "localhost:0", "localhost:1", "localhost:0,1", "localhost:1,0", "localhost:2", "127.0.0.1:0"],
    "three": ["a", "a:0", "b", "b:1", "c", "c:0", "b@a", "a@b", "b@a@c", "a:0@b:0", "b:0,1@a:0"],
}

TRIMS = [(-1, -1), (0, 0), (1, -1), (2, -1), (3, -1), (-1, 1), (-1, 8), (1, 2), (2, 8)]


def outcome(function):
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return {"hosts": [[host, slots] for host, slots in function().items()]}
    except Exception as error:
        return {"error": str(error)}


def hostfiles():
    cases = []
    for text in HOSTFILES:
        with tempfile.NamedTemporaryFile("w", suffix=".txt", newline="") as file:
            file.write(text)
            file.flush()
            cases.append({"text": text, **outcome(lambda: runner.fetch_hostfile(file.name))})
    return cases


def filters():
    cases = []
    for name, pool in POOLS.items():
        specs = [("", "")] + [(spec, "") for spec in FILTERS[name]] + [("", spec) for spec in FILTERS[name]]
        specs += [(FILTERS[name][0], FILTERS[name][1])]
        for include, exclude in specs:
            result = outcome(lambda: runner.parse_inclusion_exclusion(dict(pool), include, exclude))
            cases.append({"pool": pool, "include": include, "exclude": exclude, **result})
    return cases


def trims():
    cases = []
    for (_, pool), (nodes, gpus) in itertools.product(POOLS.items(), TRIMS):
        slots = {host: list(range(n)) for host, n in pool}
        cases.append({"pool": pool, "num_nodes": nodes, "num_gpus": gpus,
                      **outcome(lambda: runner.apply_num_nodes_and_gpus(slots, nodes, gpus))})
    return cases


EXPORTS = [["NCCL_DEBUG", "INFO"], ["PYTHONPATH", "DIRECTORY"], ["UCX_NET_DEVICES", "mlx5_0:1"],
           ["MLFLOW_TRACKING_URI", "http://a b"], ["MV2_X", "a;b "]]

COMMANDS = [
    ("two", ["--launcher", "pdsh"]),
    ("two", ["--num_nodes", "1", "--force_multi"]),
    ("two", ["--num_gpus", "8", "--num_nodes", "2"]),
    ("two", ["--include", "worker-0@worker-1:0,2"]),
    ("two", ["--exclude", "worker-1:0", "--ssh_port", "2222"]),
    ("two", ["--launcher_args", "-R exec", "--module"]),
    ("two", ["--no_python", "--no_local_rank", "--save_pid"]),
    ("two", ["--enable_each_rank_log", "logs", "--venv_script", "venv/bin/activate"]),
    ("two", ["--launcher", "PDSH", "--force_multi"]),
    ("two", ["--launcher", "openmpi"]),
    ("two", ["--launcher", "OpenMPI", "--launcher_args", "--mca btl_tcp_if_include ib0"]),
    ("two", ["--launcher", "openmpi", "--module", "--launcher_args", "--tag-output -x 'A=b c'"]),
    ("two", ["--launcher", "openmpi", "--no_python"]),
    ("two", ["--launcher", "openmpi", "--include", "worker-0@worker-1"]),
    ("two", ["--launcher", "openmpi", "--num_gpus", "2"]),
    ("three", ["--launcher", "openmpi"]),
    ("two", ["--launcher", "mpich"]),
    ("two", ["--launcher", "mpich", "--module", "--launcher_args", "-v -l"]),
    ("two", ["--launcher", "mpich", "--no_python"]),
    ("two", ["--launcher", "mpich", "--num_nodes", "2"]),
    ("three", ["--launcher", "mpich"]),
    ("two", ["--launcher", "impi"]),
    ("two", ["--launcher", "impi", "--module"]),
    ("two", ["--launcher", "impi", "--no_python", "--launcher_args", "-v -l"]),
    ("two", ["--launcher", "impi", "--exclude", "worker-1"]),
    ("three", ["--launcher", "impi"]),
    ("two", ["--launcher", "mvapich"]),
    ("two", ["--launcher", "mvapich", "--module", "--launcher_args", "-v -l"]),
    ("two", ["--launcher", "mvapich", "--no_python"]),
    ("two", ["--launcher", "mvapich", "--num_gpus", "2"]),
    ("three", ["--launcher", "mvapich"]),
    ("two", ["--launcher", "slurm"]),
    ("two", ["--launcher", "slurm", "--num_gpus", "2", "--num_nodes", "2"]),
    ("two", ["--launcher", "slurm", "--include", "worker-0@worker-1"]),
    ("two", ["--launcher", "slurm", "--include", "worker-0:0,1@worker-1:0,1", "--launcher_args", "-p main"]),
    ("two", ["--launcher", "slurm", "--include", "worker-0@worker-1:1"]),
    ("two", ["--launcher", "slurm", "--exclude", "worker-1:3"]),
    ("three", ["--launcher", "slurm"]),
]


class Cuda:
    """What the runners ask of an accelerator."""

    def device_name(self):
        return "cuda"


def command(pool_name, flags):
    pool = dict(POOLS[pool_name])
    hostfile = ["--hostfile", "HOSTFILE", "--master_addr", "10.0.0.1"]
    args = runner.parse_args(hostfile + flags + ["SCRIPT", "--lr", "1e-4", "--name", "two words", "--x", "say \"a b\""])
    args.launcher = args.launcher.lower()
    case = {"pool": POOLS[pool_name], "argv": flags}
    try:
        active = runner.parse_inclusion_exclusion(pool, args.include, args.exclude)
        active = runner.apply_num_nodes_and_gpus(active, args.num_nodes, args.num_gpus)
        runner_class = runner.LAUNCHER_CLASSES[args.launcher]
        runner_class.validate_active_resources(active)
        world = runner.encode_world_info(active)
        one = runner_class(args, world) if args.launcher == "pdsh" else runner_class(args, world, pool)
        for key, value in EXPORTS:
            one.add_export(key, value)
        environment = {}
        with contextlib.redirect_stdout(io.StringIO()):
            made = one.get_cmd(environment, active)
        made = made[0] if args.launcher == "pdsh" else made
    except (ValueError, NotImplementedError) as error:
        return case | {"error": str(error)}
    here = os.path.abspath(".")
    helper = os.path.dirname(os.path.realpath(multinode_runner.__file__)) + "/launcher_helper.py"
    swaps = [(helper, "HELPER"), (sys.executable, "PYTHON"), (world, "WORLD"), (here, "DIRECTORY"),
             (str(os.getpid()), "PID")]
    for old, new in swaps:
        made = [word.replace(old, new) for word in made]
    return case | {"command": made, "environment": environment,
                   "world": json.loads(base64.urlsafe_b64decode(world))}


def flags():
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        runner.parse_args(["--help"])
    options = text.getvalue().split("\noptions:\n")[1]
    return sorted(set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*(?=[ ,\n])", "\n".join(
        line for line in options.splitlines() if re.match(r"  -", line)))))


def main():
    multinode_runner.get_accelerator = Cuda
    everything = {"flags": flags(), "exports": EXPORTS, "hostfiles": hostfiles(), "filters": filters(),
                  "trims": trims(), "commands": [command(*case) for case in COMMANDS]}
    lists = {key: value if key == "flags" else [json.dumps(one) for one in value] for key, value in everything.items()}
    # A case a line.
    parts = [f' "{key}": [\n  ' + ",\n  ".join(json.dumps(one) if key == "flags" else one for one in value) + "\n ]"
             for key, value in lists.items()]
    OUT.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    print({key: len(value) for key, value in everything.items()})


if __name__ == "__main__":
    main()
