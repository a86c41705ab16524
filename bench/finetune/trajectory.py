"""Compares all that is logged of a training run with LLaMA-Factory's own, which trains the same model from the same keys on the
same rows: losses, gradient norms, learning rates, epochs, evaluations and metrics.

    python trajectory.py OARLOCK PYTHON MODEL DATA [--cases lora,dpo] [--dtypes f32,bf16] [--steps 12]

PYTHON is the interpreter of an environment in which LLaMA-Factory is installed, MODEL a folder of Hugging Face, DATA a folder
with dataset_info.json, in which alpaca_en_demo and dpo_en_demo are named. The rows keep their order, also those that are held
out. LoRA and DoRA continue from the same adapter, which PEFT writes; OFT starts from the identity, and PiSSA from each
program's own exact decomposition. Reward models begin with the same value head, and without its dropout. KTO trains on the
chosen and rejected answers of dpo_en_demo in turn. `2ranks` in the name of a case means two ranks of each program.
Where LLaMA-Factory takes a token off cutoff_len (`packing: true`), Oarlock gets one less.

It prints a line for each case: the first and the last loss, the largest difference of a loss, and of everything else that
differs by more than a millionth of its size the largest difference. DIFFERENT says which cases are meant to differ, and why.
"""
import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from distance import differences, largest  # noqa: E402

FULL = {"finetuning_type": "full", "learning_rate": 1e-5}
LORA = {"finetuning_type": "lora", "lora_rank": 8, "lora_target": "all", "learning_rate": 1e-4}
PAIRS = {**LORA, "stage": "dpo", "dataset": "dpo_en_demo", "pref_beta": 0.1}
KTO = {**LORA, "stage": "kto", "dataset": "kto", "pref_beta": 0.1}
FREEZE = {"finetuning_type": "freeze", "learning_rate": 1e-4, "freeze_trainable_layers": 1}
# Learning rates large enough that a wrong step shows.
FAST = {**FULL, "learning_rate": 1e-3}
WARM = {**LORA, "learning_rate": 1e-3, "warmup_steps": 3}
ODD = {"max_samples": 23, "gradient_accumulation_steps": 3, "max_steps": 10}
EVEN = {"max_samples": 24, "gradient_accumulation_steps": 3, "max_steps": 10}
EVAL = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 3}
CASES = {
    "full": FULL,
    "lora": LORA,
    "dora": {**LORA, "use_dora": True},
    "rslora-loraplus": {**LORA, "use_rslora": True, "loraplus_lr_ratio": 8.0},
    "pissa": {**LORA, "pissa_init": True, "pissa_iter": -1},
    "oft": {"finetuning_type": "oft", "oft_target": "all", "learning_rate": 1e-4},
    "qlora": {**LORA, "quantization_bit": 4, "quantization_type": "nf4"},
    "freeze": {**FREEZE, "freeze_trainable_modules": "mlp", "freeze_extra_modules": "norm"},
    "freeze-first": {**FREEZE, "freeze_trainable_layers": -2, "freeze_trainable_modules": "mlp,self_attn"},
    "pretraining": {**FULL, "stage": "pt", "dataset": "texts"},
    # The loss mask.
    "cut": {**LORA, "cutoff_len": 24},
    "train-on-prompt": {**FULL, "train_on_prompt": True},
    "mask-history": {**LORA, "dataset": "talks", "mask_history": True},
    "talks": {**LORA, "dataset": "talks"},
    "label-smoothing": {**FULL, "label_smoothing_factor": 0.1},
    "dft": {**FULL, "use_dft_loss": True},
    "packing": {**FULL, "packing": True, "cutoff_len": 128},
    "neat-packing": {**FULL, "packing": True, "neat_packing": True, "cutoff_len": 128, "flash_attn": "sdpa"},
    "interleave": {**LORA, "dataset": "alpaca_en_demo,talks", "mix_strategy": "interleave_over", "interleave_probs": "0.6,0.4"},
    # How a step is divided.
    "accumulation-odd": {**LORA, **ODD},
    "accumulation-odd-2ranks": {**LORA, **ODD},
    "accumulation-odd-full-2ranks": {**FAST, **ODD},
    "dpo-accumulation-odd-2ranks": {**PAIRS, **ODD},
    "accumulation-2ranks": {**LORA, **EVEN},
    "dpo-accumulation-2ranks": {**PAIRS, **EVEN},
    "kto-accumulation-odd-2ranks": {**KTO, **ODD},
    "kto-accumulation": {**KTO, **EVEN},
    "logging-3": {**LORA, "logging_steps": 3, "max_samples": 23, "gradient_accumulation_steps": 3},
    # Evaluation.
    "eval": {**LORA, **EVAL, "eval_dataset": "talks"},
    "eval-2ranks": {**LORA, **EVAL, "eval_dataset": "talks"},
    "eval-each": {**LORA, **EVAL, "eval_dataset": "talks,alpaca_en_demo", "eval_on_each_dataset": True,
                  "compute_accuracy": True},
    "eval-split": {**LORA, **EVAL, "val_size": 0.3},
    "eval-split-count": {**LORA, **EVAL, "val_size": 7, "seed": 5},
    "eval-pretraining": {**FULL, **EVAL, "stage": "pt", "dataset": "texts", "val_size": 0.2},
    "eval-dpo": {**PAIRS, **EVAL, "eval_dataset": "dpo_en_demo"},
    "eval-kto": {**KTO, **EVAL, "eval_dataset": "kto"},
    "eval-rm": {**PAIRS, **EVAL, "stage": "rm", "eval_dataset": "dpo_en_demo"},
    # Pairs and unpaired preferences.
    "dpo": {**PAIRS, "pref_loss": "sigmoid"},
    "dpo-bco-ftx": {**PAIRS, "pref_bco_weight": 0.3, "pref_ftx": 0.2},
    "dpo-ld": {**PAIRS, "ld_alpha": 0.5},
    "orpo": {**PAIRS, "pref_loss": "orpo"},
    "simpo": {**PAIRS, "pref_loss": "simpo"},
    "rm": {**PAIRS, "stage": "rm"},
    "kto": KTO,
    "kto-cut": {**KTO, "cutoff_len": 24},
    "kto-ftx": {**KTO, "pref_ftx": 0.3, "kto_chosen_weight": 1.2},
    # Schedules.
    **{f"schedule-{name}": {**WARM, "lr_scheduler_type": name, **more} for name, more in {
        "linear": {}, "cosine": {}, "constant": {}, "constant_with_warmup": {}, "polynomial": {}, "inverse_sqrt": {},
        "cosine_with_restarts": {"lr_scheduler_kwargs": {"num_cycles": 3}},
        "cosine_with_min_lr": {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
        "warmup_stable_decay": {}}.items()},
    "schedule-wsd-decay": {**WARM, "lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 4}},
    "schedule-ratio": {**LORA, "learning_rate": 1e-3, "warmup_ratio": 0.13, "lr_scheduler_type": "linear"},
    # Optimizers.
    "adamw-numbers": {**FAST, "weight_decay": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "max_grad_norm": 0.3},
    **{f"optim-{name}": {**FAST, "weight_decay": 0.1, "optim": name, **more} for name, more in {
        "adafactor": {}, "sgd": {"learning_rate": 0.1}, "adagrad": {}, "rmsprop": {"learning_rate": 1e-4}}.items()},
    "optim-adafactor-lora": {**LORA, "optim": "adafactor", "learning_rate": 1e-3},
    "optim-rmsprop-args": {**FAST, "optim": "rmsprop", "learning_rate": 1e-4, "optim_args": "momentum=0.9,alpha=0.9"},
}
REPEATED = "transformers repeats rows of the beginning where the last batch of two ranks is not full"
FIRST_TOKENS = "transformers also divides by the first token of a row, which nothing predicts"
# What is meant to differ: the pages of the documentation say so.
DIFFERENT = {
    "train-on-prompt": FIRST_TOKENS, "pretraining": FIRST_TOKENS, "eval-pretraining": FIRST_TOKENS,
    "packing": "there, conversations that share a row see each other",
    "accumulation-odd-2ranks": REPEATED, "accumulation-odd-full-2ranks": REPEATED,
    "dpo-accumulation-odd-2ranks": REPEATED, "kto-accumulation-odd-2ranks": REPEATED,
    "kto-accumulation": "there, k is that of a micro-batch",
    "kto-ftx": "there, pref_ftx is divided by the share of wanted answers twice",
}
BOUNDS = {"f32": 1e-4, "bf16": 2e-2}
LEFT_OUT = ("runtime", "per_second", "total_flos", "step", "num_input_tokens_seen", "model_preparation_time", "perplexity")


def keys_of(args, name, case, dtype):
    folder = args.folder / f"{name}-{case}-{dtype}"
    keys = {
        "model_name_or_path": str(args.folder / "model"), "dataset_dir": str(args.folder / "data"), "template": args.template,
        "stage": "sft", "dataset": "alpaca_en_demo", "do_train": True, "cutoff_len": args.cutoff, "max_steps": args.steps,
        "max_samples": args.steps * args.batch, "per_device_train_batch_size": args.batch, "gradient_accumulation_steps": 1,
        "lr_scheduler_type": "cosine", "warmup_steps": args.steps // 10, "disable_shuffling": True, "logging_steps": 1,
        "save_strategy": "no", "report_to": "none", "bf16": dtype == "bf16", "use_cpu": True, "output_dir": str(folder),
        "overwrite_output_dir": True, "overwrite_cache": True, "preprocessing_num_workers": 1, **CASES[case]}
    if keys.get("packing") and name == "oarlock":
        keys["cutoff_len"] -= 1
    if "warmup_ratio" in keys:
        keys.pop("warmup_steps")
    # PiSSA makes its own adapter, and the others keep all they began with.
    if keys["finetuning_type"] == "lora" and case != "pissa":
        keys["adapter_name_or_path"] = str(args.folder / ("adapter-dora" if case == "dora" else "adapter"))
    return keys


def model(args):
    """The model, with a reward head that drops nothing."""
    folder = args.folder / "model"
    if not folder.exists():
        shutil.copytree(args.model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "summary_dropout_prob": 0.0}, indent=1))


def ranks_of(case):
    return 2 if case.endswith("2ranks") else 1


def data(args):
    """A copy of DATA to which the rows of KTO, texts and conversations are added: both programs read the same files."""
    folder = args.folder / "data"
    folder.mkdir(exist_ok=True)
    names = json.loads((args.data / "dataset_info.json").read_text())
    kept = {name: names[name] for name in ("alpaca_en_demo", "dpo_en_demo")}
    for entry in kept.values():
        shutil.copy(args.data / entry["file_name"], folder)
    pairs = json.loads((args.data / kept["dpo_en_demo"]["file_name"]).read_text())
    rows = [{"conversations": [*pair["conversations"], pair["rejected" if i % 2 else "chosen"]], "label": i % 2 == 0}
            for i, pair in enumerate(pairs)]
    single = json.loads((args.data / kept["alpaca_en_demo"]["file_name"]).read_text())
    said = [[{"from": role, "value": text} for row in single[i:i + 3] for role, text in
             (("human", row["instruction"]), ("gpt", row["output"]))] for i in range(100, 160, 3)]
    files = {"kto": (rows, {"messages": "conversations", "kto_tag": "label"}),
             "talks": ([{"conversations": talk} for talk in said], {"messages": "conversations"}),
             "texts": ([{"text": row["output"]} for row in single[200:300]], {"prompt": "text"})}
    for name, (records, columns) in files.items():
        (folder / f"{name}.json").write_text(json.dumps(records))
        kept[name] = {"file_name": f"{name}.json", "columns": columns}
        if name != "texts":
            kept[name]["formatting"] = "sharegpt"
    (folder / "dataset_info.json").write_text(json.dumps(kept))


def run(command, log, ranks=1):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DISABLE_VERSION_CHECK": "1", "TOKENIZERS_PARALLELISM": "false",
                   "FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(ranks)}
    with open(log, "w") as out:
        failed = subprocess.run([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT, env=environment).returncode
    return f"failed, see {log.name}" if failed else None


def history(folder):
    """All that a run has logged, and its results."""
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def compared(ours, theirs):
    """The first and the last loss, the largest difference of a loss, and for everything else the largest difference."""
    found = {}
    for at, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        names = [name for name in sorted(set(own) | set(other)) if not any(word in name for word in LEFT_OUT)]
        for name in names:
            if name in own and name in other:
                if not isinstance(own[name], (int, float)):
                    continue
                found.setdefault(name, []).append((abs(own[name] - other[name]), other[name], at + 1))
            elif name in other:
                found.setdefault(f"{name} is missing", []).append((math.inf, other[name], at + 1))
    return {name: max(values) for name, values in found.items()}


def row(args, case, dtype):
    """What there is to say of a case."""
    ours, theirs = (history(args.folder / f"{name}-{case}-{dtype}") for name in ("oarlock", "llamafactory"))
    try:
        found = compared(ours, theirs)
    except ValueError:
        return f"{len(ours)} records, and LLaMA-Factory has {len(theirs)}"
    losses = [entry["loss"] for entry in theirs if "loss" in entry]
    worst, _, at = found.pop("loss")
    rest = [f"{name} {apart:.1e} (of {size:.3g}) @{place}" for name, (apart, size, place) in sorted(found.items())
            if not apart <= 1e-6 * max(abs(size), 1e-3)]
    verdict = "" if worst <= BOUNDS[dtype] else f" ({DIFFERENT[case]})" if case in DIFFERENT else " TOO FAR"
    return f"loss {losses[0]:.5f} -> {losses[-1]:.5f}, {worst:.1e} @{at}{verdict}; " + "; ".join(rest)


def peers(files):
    """In PYTHON: LLaMA-Factory trains by each of the files, in one process, whose start takes longer than a case."""
    import traceback
    from llamafactory.train.tuner import run_exp
    for file in files:
        print("==", file, flush=True)
        try:
            run_exp(json.loads(Path(file).read_text()))
        except Exception:
            traceback.print_exc()


def adapters(model, folder):
    """In PYTHON: the first adapters of LoRA and DoRA on all projections, as PEFT initializes them."""
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
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["f32"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=2, help="rows (or pairs) of a step")
    parser.add_argument("--cutoff", type=int, default=64, help="tokens of the longest row")
    parser.add_argument("--folder", type=Path, default=Path("target/bench/trajectory"))
    parser.add_argument("--keep-peer", action="store_true", help="take what LLaMA-Factory has logged in an earlier call")
    args = parser.parse_args()
    # The interpreter of a virtual environment is a link and is to stay one.
    args.oarlock, args.model, args.folder = args.oarlock.resolve(), args.model.resolve(), args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    return args


def main():
    args = arguments()
    data(args)
    model(args)
    failed = None if (args.folder / "adapter").exists() else \
        run([args.python, __file__, "--adapters", args.model, args.folder], args.folder / "adapters.log")
    if failed:
        sys.exit(failed)
    cases = [(case, dtype) for case in args.cases for dtype in args.dtypes]
    files = {}
    for name in ("oarlock", "llamafactory"):
        for case, dtype in cases:
            folder = args.folder / f"{name}-{case}-{dtype}"
            if name == "llamafactory" and args.keep_peer and (folder / "trainer_state.json").exists():
                continue
            shutil.rmtree(folder, ignore_errors=True)
            # YAML reads JSON.
            folder.with_suffix(".yaml").write_text(json.dumps(keys_of(args, name, case, dtype), indent=1))
            files.setdefault((name, ranks_of(case)), []).append(folder.with_suffix(".yaml"))
    if (alone := files.get(("llamafactory", 1))):
        run([args.python, __file__, "--peers", *alone], args.folder / "llamafactory-1.log")
    for file in files.get(("llamafactory", 2), []):
        torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", 2]
        run([args.python, *torchrun, __file__, "--peers", file], file.with_suffix(".log"))
    for case, dtype in cases:
        file = args.folder / f"oarlock-{case}-{dtype}.yaml"
        failed = run([args.oarlock, "llamafactory-cli", "train", file], file.with_suffix(".log"), ranks_of(case))
        print(f"{case} {dtype}: " + (failed or row(args, case, dtype) if (
            args.folder / f"llamafactory-{case}-{dtype}" / "trainer_state.json").exists() else "LLaMA-Factory failed"), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peers"]:
        peers(sys.argv[2:])
    elif sys.argv[1:2] == ["--adapters"]:
        adapters(*sys.argv[2:])
    else:
        main()
