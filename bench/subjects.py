"""The subjects of the bench: how ours and each peer is started, and what its output says."""
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from watch import Watch, descendants, parents

HERE = Path(__file__).resolve().parent
ENGINES = ("accelerate", "ddp", "fsdp2", "zero1", "zero2", "zero3")
OURS = "oarlock"
# Of a DeepSpeed configuration, what does not depend on the stage.
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"}}


@dataclass(frozen=True)
class Work:
    """What is trained: the model, its dtype, and how many sequences of which length a rank takes a step."""

    model: str
    dtype: str
    batch: int
    seq: int
    warmup: int
    steps: int


@dataclass(frozen=True)
class Machine:
    """Where it is trained: every rank has `threads` threads; all ranks share `cores`, of which they use one instruction set."""

    ranks: int
    threads: int
    cores: tuple
    timeout_s: float
    cpu_path: str = "auto"

    def peer_environment(self):
        """What holds the kernels of PyTorch, oneDNN and MKL to the instructions of `cpu_path`."""
        if self.cpu_path == "auto":
            return {}
        return {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}


class Failed(Exception):
    """A run that did not end well; the text is the last of what it said."""


def last_words(text):
    """The end of an output on one line, without frames around messages."""
    return " ".join(re.sub(r"[\u2500-\u257f\u00b7]|\x1b\[[\d;]*m", " ", text).split())[-300:] or "it said nothing"


class Command:
    """A running command on the given cores; its output goes to a file."""

    def __init__(self, arguments, machine, environment, log):
        self.begin, self.log, self.deadline = time.time(), log, time.monotonic() + machine.timeout_s
        environment = {**os.environ, **environment, "OMP_NUM_THREADS": str(machine.threads)}
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                [str(a) for a in arguments], stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=environment, preexec_fn=lambda: os.sched_setaffinity(0, machine.cores))

    def wait(self):
        """Waits for a good end and gives the output."""
        try:
            code = self.process.wait(self.deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            code = "none: it took too long"
        finally:
            if self.process.returncode is None:
                self.kill()
        text = self.log.read_text(errors="replace")
        if code != 0:
            raise Failed(f"exit code {code}: " + last_words(text))
        return text

    def kill(self):
        """Ends the command, and whatever of it does not end by itself."""
        tree = descendants(self.process.pid)
        self.process.terminate()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            pass
        for pid in tree & set(parents()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def until_line(self, file, text):
        """The seconds from the command to the moment at which a line with `text` is in `file`."""
        while self.process.poll() is None and time.monotonic() < self.deadline:
            if file.exists() and text in file.read_text(errors="replace"):
                return time.time() - self.begin
            time.sleep(0.002)
        raise Failed(f"{file} has no line with {text!r}")


class Peer:
    """One of the PyTorch engines."""

    def __init__(self, engine, python):
        self.name, self.python = engine, Path(python)

    def _start(self, work, machine, log, more=()):
        size = json.loads((HERE / "models" / work.model / "config.json").read_text())
        dtype = {"f32": "fp32", "bf16": "bf16"}[work.dtype]
        # Programs of the environment (a compiler driver of DeepSpeed's) are found beside its Python.
        environment = {
            "DS_ACCELERATOR": "cpu", "PATH": f"{self.python.parent}:{os.environ['PATH']}", **machine.peer_environment()}
        return Command(
            [self.python, "-m", "torch.distributed.run", "--nproc-per-node", machine.ranks, HERE / "peers/throughput.py",
             "--engine", self.name, "--dtype", dtype, "--batch", work.batch, "--seq", work.seq,
             "--hidden", size["hidden_size"], "--inter", size["intermediate_size"], "--layers", size["num_hidden_layers"],
             "--warmup", work.warmup, "--steps", work.steps, "--started", time.time(), *more],
            machine, environment, log)

    def _result(self, text):
        lines = [line for line in text.splitlines() if line.startswith("{") and '"tok_s"' in line]
        if not lines:
            raise Failed("no result in its output")
        return json.loads(lines[-1])

    def speed(self, work, machine, folder):
        return self._result(self._start(work, machine, folder / f"{self.name}.log").wait())["tok_s"]

    def startup(self, work, machine, folder):
        """Seconds from the command to the end of the first step."""
        return self._result(self._start(work, machine, folder / f"{self.name}.log").wait())["first_step_s"]

    def memory(self, work, machine, folder):
        return watched(self._start(work, machine, folder / f"{self.name}.log"))

    def save(self, work, machine, folder, n_saves):
        """The median seconds of a checkpoint in DeepSpeed's own form, and its bytes."""
        target = folder / f"out-{self.name}-saves"
        result = self._result(self._start(work, machine, folder / f"{self.name}-save.log", ("--save-to", target, "--saves", n_saves)).wait())
        shutil.rmtree(target)
        return result["save_s"], result["save_bytes"]


class Ours:
    """`oarlock train`; with a stage of ZeRO, given as DeepSpeed's configuration file."""

    def __init__(self, program, dataset, stage=None):
        self.program, self.dataset, self.stage = program, dataset, stage
        self.name = OURS if stage is None else f"{OURS} {'ddp' if stage == 0 else f'zero{stage}'}"

    def model(self, folder, name):
        """The folder of a model: its configuration, and a tokenizer learned from the example corpus."""
        model, tokenizer = folder / "models" / name, folder / "tokenizer"
        if not (tokenizer / "tokenizer.json").exists():
            corpus = HERE.parent / "recipes/corpus/pretrain.jsonl"
            subprocess.run([self.program, "tokenizer", "train", "--dataset", corpus, "--output-dir", tokenizer],
                           check=True, stdout=subprocess.DEVNULL)
        shutil.copytree(tokenizer, model, dirs_exist_ok=True)
        shutil.copy(HERE / "models" / name / "config.json", model)
        return model

    def _start(self, work, machine, folder, output, more=()):
        keys = {
            "model_name_or_path": self.model(folder, work.model), "dataset": self.dataset, "cutoff_len": work.seq,
            "per_device_train_batch_size": work.batch, "max_steps": work.warmup + work.steps,
            "bf16": str(work.dtype == "bf16").lower(), "num_processes": machine.ranks,
            "num_threads_per_process": machine.threads, "cpu_path": machine.cpu_path, "output_dir": output}
        for old in ("trainer_log.jsonl", "running_log.txt"):
            (output / old).unlink(missing_ok=True)
        if self.stage is not None:
            keys["deepspeed"] = folder / f"stage{self.stage}.json"
            keys["deepspeed"].write_text(json.dumps(DEEPSPEED | {"zero_optimization": {"stage": self.stage}}))
        arguments = [self.program, "train", HERE / "train.yaml", *(f"{key}={value}" for key, value in keys.items())]
        return Command([*arguments, *more], machine, {}, folder / f"{self.name.replace(' ', '-')}.log")

    def speed(self, work, machine, folder):
        """The median over the steps; the rate of a step is that of all ranks, data and logging included."""
        output = folder / f"out-{work.model}"
        self._start(work, machine, folder, output).wait()
        lines = map(json.loads, (output / "trainer_log.jsonl").read_text().splitlines())
        rates = [line["throughput"] for line in lines if "loss" in line and "throughput" in line]
        if len(rates) != work.warmup + work.steps:
            raise Failed(f"trainer_log.jsonl has {len(rates)} steps instead of {work.warmup + work.steps}")
        return statistics.median(rates[work.warmup :])

    def startup(self, work, machine, folder, until="startup: first step", cold=True):
        """Seconds from the command to a line of running_log.txt; `cold`: with the token cache yet to be built."""
        output = folder / f"out-{work.model}-startup"
        if cold:
            shutil.rmtree(output, ignore_errors=True)
        command = self._start(work, machine, folder, output)
        try:
            return command.until_line(output / "running_log.txt", until)
        finally:
            command.kill()

    def memory(self, work, machine, folder):
        return watched(self._start(work, machine, folder, folder / f"out-{work.model}"))

    def wall(self, work, machine, folder, more):
        """The seconds of a whole run with `more` keys, and the checkpoints that it left."""
        output = folder / f"out-{work.model}-saves"
        for old in output.glob("checkpoint-*"):
            shutil.rmtree(old)
        command = self._start(work, machine, folder, output, more)
        command.wait()
        return time.time() - command.begin, sorted(output.glob("checkpoint-*"))

    def estimate(self, work, machine, folder):
        """The bytes of a rank that `oarlock estimate-memory` expects."""
        command = [self.program, "estimate-memory", self.model(folder, work.model), "--batch", work.batch, "--cutoff-len", work.seq,
                   "--dtype", work.dtype, "--num-processes", machine.ranks, "--threads", machine.threads, "--stage", self.stage or 0, "--json"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}: " + last_words(done.stderr))
        return next(stage["rank"] for stage in json.loads(done.stdout)["stages"] if stage["stage"] == (self.stage or 0))


@dataclass(frozen=True)
class Program:
    """A loop of its own: an example of ours under our torchrun, or one of peers/ under the original; both take the same
    `key=value` words and tell `seconds of a step: X`."""

    name: str
    program: str
    is_peer: bool
    settings: tuple = ()

    def start(self, args):
        words = [f"{key}={value}" for key, value in self.settings]
        if self.is_peer:
            launcher = [args.python, "-m", "torch.distributed.run", "--nproc-per-node", args.ranks]
            program = HERE / "peers" / f"{self.program}.py"
        else:
            launcher = [args.oarlock, "torchrun", "--nproc-per-node", args.ranks, "--no-python"]
            program = args.oarlock.parent / "examples" / self.program
        # Programs of the environment (a compiler driver of DeepSpeed's) are found beside its Python.
        environment = {"DS_ACCELERATOR": "cpu", "PATH": f"{Path(args.python).parent}:{os.environ['PATH']}"} if self.is_peer else {}
        return Command([*launcher, program, *words], args.machine, environment, args.folder / (re.sub(r"[ ,]+", "-", self.name) + ".log"))

    def seconds(self, args):
        """The median over the steps of a run, from barrier to barrier."""
        said = self.start(args).wait()
        times = [float(line.rpartition(" ")[2]) for line in said.splitlines() if "seconds of a step:" in line]
        if len(times) != args.steps:
            raise Failed(f"it told the time of {len(times)} steps instead of {args.steps}")
        return statistics.median(times)

    def memory_mb(self, args):
        """The largest peak PSS of a rank."""
        return max(watched(self.start(args)).of_ranks_mb(args.ranks))


def program_arguments(parser, **defaults):
    """The words of a bench of programs, checked; `defaults` are those of its work."""
    parser.add_argument("--python", default="", help="Python of an environment with peers/requirements.txt; without it ours is measured alone")
    parser.add_argument("--oarlock", type=Path, default=HERE.parent / "target/release/oarlock", help="its examples lie beside it")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of a rank")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600, help="seconds that a run may take")
    parser.add_argument("--folder", type=Path, default=HERE.parent / "target/bench", help="for logs")
    parser.add_argument("--write", type=Path, help="write the report here, too")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < args.ranks * args.threads:
        parser.error(f"{args.ranks} ranks of {args.threads} threads need more than the {len(cores)} cores that there are")
    args.machine = Machine(args.ranks, args.threads, tuple(cores[: args.ranks * args.threads]), args.timeout)
    if not (args.oarlock.parent / "examples").is_dir() or not args.oarlock.exists():
        parser.error(f"{args.oarlock} is not there; run cargo build --release && cargo build --release --examples, or give --oarlock")
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def watched(command):
    """Waits for the end of a command; gives the watch that sampled its memory."""
    watch = Watch(command.process.pid)
    watch.start()
    try:
        command.wait()
    finally:
        watch.stop()
    return watch


def profile(example, work, machine, folder):
    """Our time by op on rank 0 in the last step: rows of (op, calls, ms, share in %, GFLOP/s, GB/s), and the raw lines."""
    arguments = [example, work.dtype, machine.ranks, work.warmup + work.steps]
    size = json.loads((HERE / "models" / work.model / "config.json").read_text())
    arguments += [size["hidden_size"], size["num_hidden_layers"], work.batch, work.seq]
    text = Command(arguments, machine, {}, folder / "profile.log").wait()
    number = r"\s+([\d.]+|NaN|inf)"
    line = re.compile(rf"^(\S.*?)\s+(\d+) x{number} ms{number} %{number} GFLOP/s{number} GB/s$")
    return [(m[1], int(m[2]), *(float(m[i]) for i in range(3, 7))) for m in map(line.match, text.splitlines()) if m], text
