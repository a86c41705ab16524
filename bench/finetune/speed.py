"""Fine-tunes with Oarlock and with LLaMA-Factory from the same file on the same cores: tokens a second and memory.

    python speed.py OARLOCK LLAMAFACTORY-CLI MODEL DATA [--methods lora,full,dpo] [--dtypes f32,bf16] [--rows 48]

MODEL is a folder of Hugging Face, DATA a folder with dataset_info.json, in which alpaca_en_demo and dpo_en_demo are named.
All rows are trained once, so both programs train the same tokens; padding does not count. LLAMAFACTORY-CLI may be `-`,
which runs Oarlock alone. Needs a quiet machine: ../README.md says how the figures are kept fair.
"""
import argparse
import json
import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from report import Report, head, in_turn
from subjects import Command, Failed, Machine
from watch import descendants

METHODS = {
    "lora": {"stage": "sft", "dataset": "alpaca_en_demo", "finetuning_type": "lora", "lora_rank": 8, "lora_target": "all"},
    "full": {"stage": "sft", "dataset": "alpaca_en_demo", "finetuning_type": "full"},
    "dpo": {"stage": "dpo", "dataset": "dpo_en_demo", "finetuning_type": "lora", "lora_rank": 8, "lora_target": "all",
            "pref_beta": 0.1, "pref_loss": "sigmoid"},
}


class PeakOfRanks(threading.Thread):
    """The largest peak of resident memory of a process below `root`, which the kernel keeps: reading it costs nothing.
    Memory that ranks share counts for each of them."""

    def __init__(self, root):
        super().__init__(daemon=True)
        self.root, self.ended, self.mb = root, threading.Event(), 0

    def run(self):
        while not self.ended.wait(0.5):
            for pid in descendants(self.root):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                    kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
                except (OSError, StopIteration):
                    continue
                self.mb = max(self.mb, kb / 1024)


class Subject:
    def __init__(self, name, program, args, method, dtype):
        self.name, self.program, self.args, self.method, self.dtype = name, program, args, method, dtype

    def start(self, folder):
        args = self.args
        keys = {
            "model_name_or_path": str(args.model), "dataset_dir": str(args.data), "template": args.template, "do_train": True,
            **METHODS[self.method], "cutoff_len": 1024, "max_samples": args.rows, "preprocessing_num_workers": 1,
            "per_device_train_batch_size": args.batch, "gradient_accumulation_steps": 1, "num_train_epochs": 1.0,
            "learning_rate": 1e-4, "disable_shuffling": True, "lr_scheduler_type": "cosine", "logging_steps": 1, "save_strategy": "no", "report_to": "none",
            "bf16": self.dtype == "bf16", "use_cpu": True, "ddp_backend": "gloo", "gradient_checkpointing": False,
            "disable_gradient_checkpointing": True, "output_dir": str(folder), "overwrite_output_dir": True}
        file = folder.with_suffix(".yaml")
        # YAML reads JSON.
        file.write_text(json.dumps(keys, indent=1))
        environment = {
            "FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(args.machine.ranks), "CUDA_VISIBLE_DEVICES": "", "DISABLE_VERSION_CHECK": "1",
            "PATH": f"{Path(self.program[0]).parent}:{os.environ['PATH']}"}
        return Command([*self.program, "train", file], args.machine, environment, folder.with_suffix(".log"))

    def measure(self):
        """Tokens a second over all steps, and the largest peak of a rank in MB."""
        folder = self.args.folder / f"{self.name}-{self.method}-{self.dtype}"
        command = self.start(folder)
        peak = PeakOfRanks(command.process.pid)
        peak.start()
        command.wait()
        peak.ended.set()
        results = json.loads((folder / "train_results.json").read_text())
        self.seconds = results["train_runtime"]
        self.tokens = results.get("num_input_tokens_seen", 0)
        losses = [json.loads(line)["loss"] for line in (folder / "trainer_log.jsonl").read_text().splitlines() if '"loss"' in line]
        self.losses = losses
        return self.seconds, peak.mb


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oarlock", type=Path)
    parser.add_argument("llamafactory")
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--template", default="default")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["f32", "bf16"])
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--batch", type=int, default=4, help="rows of a rank and step")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600, help="seconds that a run may take")
    parser.add_argument("--folder", type=Path, default=Path("target/bench/finetune"))
    parser.add_argument("--write", type=Path, help="write the report here, too")
    args = parser.parse_args()
    args.seq, args.threads, args.engines, args.oarlock = 1024, 1, [], args.oarlock.resolve()
    args.model, args.data, args.folder = args.model.resolve(), args.data.resolve(), args.folder.resolve()
    args.machine = Machine(args.ranks, 1, tuple(sorted(os.sched_getaffinity(0))[: args.ranks]), args.timeout)
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def main():
    args, report = arguments(), Report()
    head(args, report)
    rows = []
    for method in args.methods:
        for dtype in args.dtypes:
            ours = Subject("oarlock", [args.oarlock], args, method, dtype)
            peer = Subject("llamafactory", [args.llamafactory], args, method, dtype)
            subjects = [ours] if args.llamafactory == "-" else [ours, peer]
            found = in_turn(subjects, args.rounds, report, f"{method} {dtype}, seconds and MB", Subject.measure)
            best = {name: (min(s for s, _ in runs), max(mb for _, mb in runs)) for name, runs in found.items() if runs}
            if "oarlock" not in best:
                raise Failed(f"{method} {dtype}")
            # The rows are the same, and so are their tokens.
            seconds, mb = best["oarlock"]
            row = [method, dtype, f"{ours.tokens / seconds:.0f}", f"{mb:.0f}"]
            if "llamafactory" in best:
                peer_seconds, peer_mb = best["llamafactory"]
                row += [f"{ours.tokens / peer_seconds:.0f}", f"{peer_mb:.0f}", f"{peer_seconds / seconds:.2f}", f"{100 * mb / peer_mb:.0f} %"]
                report.note(f"{method} {dtype}, losses of oarlock", ours.losses)
                report.note(f"{method} {dtype}, losses of llamafactory", peer.losses)
            rows.append(row + [""] * (8 - len(row)))
    report.table(["", "", "oarlock, tok/s", "MB", "LLaMA-Factory, tok/s", "MB", "times faster", "memory"], rows)
    if args.write:
        report.write(args.write)


if __name__ == "__main__":
    main()
