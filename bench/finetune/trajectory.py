"""Compares the loss of every step with LLaMA-Factory's own, which trains the same model from the same keys on the same rows.

    python trajectory.py OARLOCK PYTHON MODEL DATA [--methods lora,dpo] [--dtypes f32,bf16] [--steps 30]

PYTHON is the interpreter of an environment in which LLaMA-Factory is installed, MODEL a folder of Hugging Face, DATA a folder
with dataset_info.json, in which alpaca_en_demo and dpo_en_demo are named. The rows keep their order. LoRA and DoRA continue
from the same adapter, which PEFT writes; OFT starts from the identity, and PiSSA from each program's own exact decomposition.
Reward models begin with the same value head, and without its dropout. KTO trains on the chosen
and rejected answers of dpo_en_demo in turn.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from distance import differences, largest  # noqa: E402

LORA = {"finetuning_type": "lora", "lora_rank": 8, "lora_target": "all", "learning_rate": 1e-4}
PAIRS = {**LORA, "stage": "dpo", "dataset": "dpo_en_demo", "pref_beta": 0.1}
METHODS = {
    "full": {"finetuning_type": "full", "learning_rate": 1e-5},
    "lora": LORA,
    "dora": {**LORA, "use_dora": True},
    "pissa": {**LORA, "pissa_init": True, "pissa_iter": -1},
    "oft": {"finetuning_type": "oft", "oft_target": "all", "learning_rate": 1e-4},
    "qlora": {**LORA, "quantization_bit": 4, "quantization_type": "nf4"},
    "dpo": {**PAIRS, "pref_loss": "sigmoid"},
    "orpo": {**PAIRS, "pref_loss": "orpo"},
    "simpo": {**PAIRS, "pref_loss": "simpo"},
    "rm": {**PAIRS, "stage": "rm"},
    "kto": {**LORA, "stage": "kto", "dataset": "kto", "pref_beta": 0.1},
}
BOUNDS = {"f32": 1e-4, "bf16": 2e-2}


def keys_of(args, method, dtype, folder):
    keys = {
        "model_name_or_path": str(args.model), "dataset_dir": str(args.folder / "data"), "template": args.template,
        "stage": "sft", "dataset": "alpaca_en_demo", "do_train": True, "cutoff_len": args.cutoff, "max_steps": args.steps,
        "max_samples": args.steps * args.batch, "per_device_train_batch_size": args.batch, "gradient_accumulation_steps": 1,
        "lr_scheduler_type": "cosine", "warmup_steps": args.steps // 10, "disable_shuffling": True, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "bf16": dtype == "bf16", "use_cpu": True, "output_dir": str(folder),
        "overwrite_output_dir": True, "overwrite_cache": True, **METHODS[method]}
    if method not in ("full", "pissa", "oft"):
        keys["adapter_name_or_path"] = str(args.folder / ("adapter-dora" if method == "dora" else "adapter"))
    return keys


def data(args):
    """A copy of DATA to which the rows of KTO are added: both programs read the same files."""
    folder = args.folder / "data"
    folder.mkdir(exist_ok=True)
    names = json.loads((args.data / "dataset_info.json").read_text())
    kept = {name: names[name] for name in ("alpaca_en_demo", "dpo_en_demo")}
    for entry in kept.values():
        shutil.copy(args.data / entry["file_name"], folder)
    pairs = json.loads((args.data / kept["dpo_en_demo"]["file_name"]).read_text())
    rows = [{"conversations": [*pair["conversations"], pair["rejected" if i % 2 else "chosen"]], "label": i % 2 == 0}
            for i, pair in enumerate(pairs)]
    (folder / "kto.json").write_text(json.dumps(rows))
    kept["kto"] = {"file_name": "kto.json", "formatting": "sharegpt",
                   "columns": {"messages": "conversations", "kto_tag": "label"}}
    (folder / "dataset_info.json").write_text(json.dumps(kept))


def losses(folder):
    lines = [json.loads(line) for line in (folder / "trainer_log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line.get("loss") is not None]


def run(command, log):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DISABLE_VERSION_CHECK": "1", "TOKENIZERS_PARALLELISM": "false"}
    with open(log, "w") as out:
        failed = subprocess.run([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, env=environment).returncode
    return f"failed, see {log.name}" if failed else None


def compared(args, method, dtype):
    """The row of a table: the first and the last loss, and the largest difference of a step."""
    found = {}
    for name in ("llamafactory", "oarlock"):
        folder = args.folder / f"{name}-{method}-{dtype}"
        shutil.rmtree(folder, ignore_errors=True)
        file = folder.with_suffix(".yaml")
        # YAML reads JSON.
        file.write_text(json.dumps(keys_of(args, method, dtype, folder), indent=1))
        train = [args.oarlock, "train", file] if name == "oarlock" else [args.python, __file__, "--peer", file]
        failed = run(train, folder.with_suffix(".log"))
        if failed:
            return [method, dtype, name, failed]
        found[name] = losses(folder)
    ours, theirs = found["oarlock"], found["llamafactory"]
    if not len(ours) == len(theirs) == args.steps:
        return [method, dtype, f"{len(ours)} and {len(theirs)} losses", "failed"]
    apart = differences(ours, theirs)
    worst = largest(apart)
    return [method, dtype, f"{theirs[0]:.6f}", f"{theirs[-1]:.6f}", f"{worst:.1e}", str(1 + apart.index(worst)),
            "yes" if worst <= BOUNDS[dtype] else "NO"]


def peer(path):
    """In PYTHON: LLaMA-Factory trains by the file."""
    from llamafactory.train.tuner import run_exp
    run_exp(json.loads(Path(path).read_text()))


def adapters(model, folder):
    """In PYTHON: the first adapters of LoRA and DoRA on all projections, as PEFT initialises them."""
    import torch
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    for name, dora in (("adapter", False), ("adapter-dora", True)):
        torch.manual_seed(1)
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        config = LoraConfig(r=8, lora_alpha=16, target_modules=targets, use_dora=dora, task_type="CAUSAL_LM")
        get_peft_model(base, config).save_pretrained(os.path.join(folder, name))
    head = torch.nn.Linear(base.config.hidden_size, 1)
    save_file({"v_head.summary.weight": head.weight.detach(), "v_head.summary.bias": head.bias.detach()},
              os.path.join(folder, "adapter", "value_head.safetensors"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oarlock", type=Path)
    parser.add_argument("python", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--template", default="chatml")
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(METHODS))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=list(BOUNDS))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=2, help="rows (or pairs) of a step")
    parser.add_argument("--cutoff", type=int, default=64, help="tokens of the longest row")
    parser.add_argument("--folder", type=Path, default=Path("target/bench/trajectory"))
    args = parser.parse_args()
    # The interpreter of a virtual environment is a link and is to stay one.
    args.oarlock, args.model, args.folder = args.oarlock.resolve(), args.model.resolve(), args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def main():
    args = arguments()
    data(args)
    failed = run([args.python, __file__, "--adapters", args.model, args.folder], args.folder / "adapters.log")
    if failed:
        sys.exit(failed)
    print("| method | dtype | loss of step 1 | of the last | largest difference | at step | within the bound |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for method in args.methods:
        for dtype in args.dtypes:
            print("| " + " | ".join(compared(args, method, dtype)) + " |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peer"]:
        peer(sys.argv[2])
    elif sys.argv[1:2] == ["--adapters"]:
        adapters(*sys.argv[2:])
    else:
        main()
