"""Writes what the commands of accelerate make of the same input, as accelerate itself gives it.

    python make_accelerate_cli.py crates/cli/tests/golden

accelerate_cli.json holds: `config`, the files that `accelerate config` writes for answers, one a line, menus by number,
with the lines that `accelerate env` shows of each; `read`, what is left of a file that was read and written; `default`, the
file of `accelerate config default` on a machine without GPUs; `fsdp2`, files before and after `accelerate to-fsdp2`;
`scalars`, texts as YAML; `memory`, the tables of `accelerate estimate-memory`; `flags`, those of each command. The version is that of
../peers/requirements.txt. Packages for FP8 are taken to be there.
"""
import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import types

import yaml
from accelerate.commands import env, estimate, merge, test, to_fsdp2
from accelerate.commands.config import cluster, config, config_args, default, get_config_parser, update
from accelerate.commands.menu import selection_menu

# Where a notebook has no keys, a menu is a number and the Enter key; so it can be driven from here.
selection_menu.in_colab = True
for name in ["fp8", "torchao", "transformer_engine", "msamp"]:
    setattr(cluster, f"is_{name}_available", lambda: True)

HERE, CPU, XPU, GPU, NEURON, TPU = ["0"], "1", "2", "4", "9", "10"
NODES = ["2", "1", "10.0.0.1", "29501", ""]  # two machines, this is the second, one network
# Answers up to the question for DeepSpeed: machines, debug, dynamo.
GPUS = [*HERE, GPU, "", "", ""]
MULTI = [*HERE, GPU, *NODES, "", ""]

CONFIGS = {
    "none": [*HERE, "0", "", "", "", "", "", "0"],
    "none on CPU": [*HERE, "0", "yes", "", "", "2"],
    "none with fp16": [*HERE, "0", "no", "NO", "no", "0,1", "YES", "1"],
    "CPU ranks": [*HERE, CPU, "", "", "", "", "4", "0"],
    "CPU ranks in bf16 on two machines": [*HERE, CPU, *NODES, "yes", "", "", "8", "2"],
    "mpirun": [*HERE, CPU, "1", "no", "yes", " hosts/all ", "", "16", "0"],
    "eight GPUs": [*GPUS, "", "", "", "8", "", "", "2"],
    "some GPUs with affinity": [*GPUS, "", "", "", "4", "0,1,2,3", "yes", "1"],
    "dynamo": [*HERE, GPU, "", "yes", "yes", "2", "yes", "1", "", "yes", "", "", "", "", "2", "", "", "2"],
    "dynamo as it comes": [*HERE, GPU, "", "", "yes", "", "", "", "", "", "2", "", "", "0"],
    "machines that do not share a network": [
        *HERE, GPU, "3", "0", "node-0", "29500", "no", "c10d", "", "", "", "", "", "24", "", "", "2"],
    "a file of DeepSpeed": [*GPUS, "yes", "yes", "ds_config.json", "", "", "4"],
    "a file of DeepSpeed with zero.Init": [*GPUS, "yes", "yes", "ds z3.json", "yes", "", "8"],
    "ZeRO-0": [*GPUS, "yes", "", "0", "", "", "", "", "2", "2"],
    "ZeRO-1": [*GPUS, "yes", "no", "1", "4", "yes", "", "", "", "2", "1"],
    "ZeRO-2 without offloading": [*GPUS, "yes", "", "2", "", "", "", "", "", "", "4", "2"],
    "ZeRO-2 with offloading": [*GPUS, "yes", "", "2", "1", "0", "8", "yes", "0.5", "", "", "4", "2"],
    "ZeRO-3 on disks": [*GPUS, "yes", "", "3", "2", "2", "/fast/param", "", "", "", "yes", "yes", "", "8", "2"],
    "ZeRO-3 with experts": [
        *GPUS, "yes", "", "3", "1", "1", "1", "yes", "1e-5", "", "yes", "yes", "MixtralSparseMoeBlock", "8", "2"],
    "DeepSpeed on one device": [*HERE, "0", "", "", "yes", "", "2", "", "", "", "", "", "", "1", "0"],
    "DeepSpeed, standard, two machines": [
        *MULTI, "yes", "", "3", "0", "0", "", "yes", "", "yes", "yes", "", "1", "16", "2"],
    "DeepSpeed, pdsh, two machines": [
        *MULTI, "yes", "", "2", "0", "0", "", "", "", "", "0", "/job/hostfile", "yes", "worker-1:0,2", "", "16", "1"],
    "DeepSpeed, slurm, two machines": [
        *MULTI, "yes", "yes", "ds.json", "", "", "6", "hosts", "", "yes", "worker-0@worker-1:0", "16"],
    "FSDP 1": [*GPUS, "", "yes", "0", "0", "", "0", "", "LlamaDecoderLayer", "0", "0", "", "", "", "", "2", "2"],
    "FSDP 1, the other way": [
        *GPUS, "", "yes", "0", "3", "yes", "1", "", "1", "2", "yes", "no", "no", "no", "yes", "4", "1"],
    "FSDP 1, small": [*GPUS, "", "yes", "0", "2", "", "2", "2", "1", "", "", "no", "", "", "4", "0"],
    "FSDP 2": [*GPUS, "", "yes", "1", "", "", "0", "yes", "0", "", "", "", "8", "2"],
    "FSDP 2, the other way": [
        *GPUS, "", "yes", "", "no", "yes", "0", "no", "A,B", "1", "no", "yes", "", "8", "0"],
    "FSDP 2 by size": [*GPUS, "", "yes", "1", "", "", "1", "1_000_000", "1", "", "", "", "8", "2"],
    "FSDP 2 on two machines": [*MULTI, "", "yes", "1", "", "", "2", "0", "", "", "", "16", "2"],
    "parallelism": [
        *GPUS, "", "yes", "1", "", "", "2", "0", "", "", "yes", "2", "4", "", "2", "1", "16", "2"],
    "Megatron": [*GPUS, "", "", "yes", "2", "no", "4", "8", "", "no", "0", "8", "1"],
    "Megatron, small": [*GPUS, "", "", "yes", "", "", "", "", "", "2", "2"],
    "debug, asked again": [*HERE, GPU, "one", "1", "maybe", "yes", "", "", "", "", "two", "2", "", "", "2"],
    "XPUs": [*HERE, XPU, "", "", "", "", "", "2", "", "2"],
    "NEURON": [*HERE, NEURON, "", "", "", "", "", "2", "", "2"],
    "FP8 of torchao": [*GPUS, "", "", "", "2", "", "", "3", "0", "", "no"],
    "FP8 of Transformer Engine": [
        *GPUS, "", "", "", "2", "", "", "3", "1", "yes", "1", "", "1", "512", "1", "yes", "yes", "", "yes"],
    "FP8 of Transformer Engine as it comes": [
        *GPUS, "", "", "", "2", "", "", "3", "1", "", "", "", "", "", "", ""],
    "FP8 of MS-AMP": [*GPUS, "", "", "", "2", "", "", "3", "2", ""],
    "TPU": [*HERE, TPU, "", "8", "", ""],
    "TPU pod": [
        *HERE, TPU, "", "8", "run", "yes", "pod", "zone-a", "", "yes", "", "echo one", "yes", "echo two", "", "a,b", "X=1"],
}
FAILS = {
    "one GPU": [*GPUS, "", "", "", "1"],
    "an end in the middle": GPUS,
    "no answers": [],
    "DeepSpeed on NEURON": [*HERE, NEURON, "", "", "", "yes"],
    "FSDP on NEURON": [*HERE, NEURON, "", "", "", "", "yes"],
}
READ = {
    "little": "distributed_type: 'NO'\n",
    "old": "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nfp16: true\nnum_processes: 4\n"
    "dynamo_backend: INDUCTOR\n",
    "old without dynamo": "distributed_type: MULTI_CPU\nfp16: false\ndynamo_backend: 'NO'\nnum_processes: 2\n",
    "of a guide": "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: DEEPSPEED\ndowncast_bf16: 'no'\n"
    "deepspeed_config:  # with stage 2\n  deepspeed_multinode_launcher: standard\n  gradient_accumulation_steps: 8\n"
    "  offload_optimizer_device: none\n  offload_param_device: none\n  zero3_init_flag: true\n  zero_stage: 2\n"
    "enable_cpu_affinity: false\nmachine_rank: 0\nmain_process_ip: '192.168.0.1'\nmain_process_port: 29500\n"
    "main_training_function: main\nmixed_precision: bf16\nnum_machines: 2\nnum_processes: 16\nrdzv_backend: static\n"
    "same_network: true\ntpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: false\n",
    "values of every kind": "distributed_type: FSDP\nnum_processes: 0x10\nmain_process_port: 29_500\nmain_process_ip: ~\n"
    "gpu_ids: 0,1\nsame_network: on\nfsdp_config: {fsdp_version: 1, fsdp_min_num_params: 1e8, x: 1.50, y: '1'}\n"
    "commands: [a, 'b c', 7]\nmpirun_config: {}\n",
}
FSDP2 = {
    name: "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n" + text
    for name, text in {
        "full": "fsdp_config:\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_backward_prefetch: BACKWARD_PRE\n"
        "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_forward_prefetch: false\n  fsdp_offload_params: true\n"
        "  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_state_dict_type: FULL_STATE_DICT\n  fsdp_sync_module_states: true\n"
        "  fsdp_use_orig_params: false\nmixed_precision: fp16\nnum_processes: 2\n",
        "grad op": "fsdp_config:\n  fsdp_version: 1\n  fsdp_sharding_strategy: SHARD_GRAD_OP\nnum_processes: 2\n",
        "hybrid": "fsdp_config: {fsdp_reshard_after_forward: HYBRID_SHARD, fsdp_min_num_params: 100}\n",
        "hybrid zero2": "fsdp_config: {fsdp_reshard_after_forward: HYBRID_SHARD_ZERO2, fsdp_activation_checkpointing: true}\n",
        "whole": "fsdp_config: {fsdp_sharding_strategy: NO_SHARD, fsdp_unknown: 'no'}\nsame_network: true\n",
        "by number": "fsdp_config: {fsdp_sharding_strategy: 1}\n",
        "two already": "fsdp_config: {fsdp_version: 2, fsdp_backward_prefetch: BACKWARD_PRE}\n",
        "no FSDP": "mixed_precision: 'no'\nnum_processes: 3\n",
    }.items()
}
SCALARS = [
    "", "no", "Yes", "on", "null", "~", "=", "<<", "1", "-1", "+1", "0x1F", "0b1", "017", "089", "1_000", "1:30", "1:30.5",
    "1.", ".5", "1.5", "1e5", "1.0e5", "1.0e+5", ".inf", ".nan", "-.INF", "1.2.3", "192.168.0.1", "2024-01-02",
    "2024-1-2 3:04:05", "a b", " a", "a ", "a: b", "a:b", "a:", ":a", "a #b", "a#b", "#a", "-", "- a", "-a", "--", "---", "---a",
    "...", "?", "? a", "?a", ",a", "[a", "]a", "{a", "}a", "a]", "&a", "*a", "!a", "|", ">", "'a", "a'b", "\"a", "a\"b", "%a",
    "@a", "`a", "it's: so", "bf16", "0,1,2", "all", "C:\\x", "c:\\a b", "yes, please", "true ", "word " * 40, "x: " + "word " * 40,
    "x: it's " + "word  word " * 12, "y" * 100, "a\tb", "straße", "模型", "\x07", "é " * 50,
]
MODELS = ["llama", "qwen2", "qwen3", "llama-biased", "train-llama"]


def quietly(run, *arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = run(*arguments)
    return result, out.getvalue()


def answered(answers, path):
    """The command with these answers; all of them must be asked for."""
    sys.stdin = io.StringIO("".join(f"{answer}\n" for answer in answers))
    quietly(config.config_command, types.SimpleNamespace(config_file=path))
    left = sys.stdin.read()
    assert not left, (answers, left)
    with open(path) as file:
        return file.read()


def shown(path):
    values = config_args.load_config_from_file(path).to_dict()
    return "".join(f"\t- {name}: {value}\n" for name, value in values.items())


def memory(name, dtypes):
    with open(os.path.join(name, "config.json")) as file:
        info = types.SimpleNamespace(library_name="transformers", config=json.load(file))
    estimate.verify_on_hub = lambda *_: info
    arguments = types.SimpleNamespace(
        model_name=name, library_name="transformers", dtypes=dtypes, trust_remote_code=False)
    return quietly(estimate.estimate_command, arguments)[1].split("...\n", 1)[1]


def flags():
    parsers = argparse.ArgumentParser().add_subparsers()
    build = [env.env_command_parser, estimate.estimate_command_parser, merge.merge_command_parser, test.test_command_parser,
             to_fsdp2.to_fsdp2_command_parser]
    for one in build:
        one(parsers)
    commands = dict(parsers.choices)
    configs = get_config_parser(parsers)
    commands["config"] = configs
    (below,) = [action for action in configs._actions if isinstance(action, argparse._SubParsersAction)]
    commands.update({f"config {name}": parser for name, parser in below.choices.items()})
    of = lambda parser: sorted({name for action in parser._actions for name in action.option_strings})
    return {name: of(parser) for name, parser in commands.items()}


def main(golden):
    golden = os.path.abspath(golden)
    os.chdir(tempfile.mkdtemp())
    result = {"config": {}, "fails": {}, "read": {}, "fsdp2": {}, "memory": {}}
    for name, answers in CONFIGS.items():
        text = answered(answers, "config.yaml")
        result["config"][name] = dict(answers=answers, file=text, shown=shown("config.yaml"))
    answers = CONFIGS["ZeRO-3 with experts"]
    result["json"] = dict(answers=answers, file=answered(answers, "config.json"))
    for name, answers in FAILS.items():
        try:
            answered(answers, "never.yaml")
            raise AssertionError(name)
        except (ValueError, EOFError, RuntimeError, NotImplementedError) as error:
            result["fails"][name] = dict(answers=answers, error=type(error).__name__)
    assert not os.path.exists("never.yaml")
    for name, text in READ.items():
        with open("read.yaml", "w") as file:
            file.write(text)
        lines = shown("read.yaml")
        update.update_config(types.SimpleNamespace(config_file="read.yaml"))
        with open("read.yaml") as file:
            result["read"][name] = dict(before=text, after=file.read(), shown=lines)
    quietly(default.write_basic_config, "bf16", "basic.yaml")
    with open("basic.yaml") as file:
        result["default"] = dict(mixed_precision="bf16", file=file.read())
    for name, text in FSDP2.items():
        with open("one.yaml", "w") as file:
            file.write(text)
        to_fsdp2.to_fsdp2_command(types.SimpleNamespace(config_file="one.yaml", output_file="two.yaml", overwrite=True))
        with open("two.yaml") as file:
            result["fsdp2"][name] = dict(before=text, after=file.read())
    result["scalars"] = [[text, yaml.safe_dump({"fsdp_config": {"key": text}})] for text in SCALARS]
    result["flags"] = flags()
    os.chdir(golden)
    for name in MODELS:
        result["memory"][name] = memory(name, ["float32", "float16", "int8", "int4"])
    result["memory_of_one"] = memory("llama", ["float16"])
    for name in ["../golden/../golden/./llama", "../golden/llama/../qwen3/../llama/../llama"]:
        result["memory"][name] = memory(name, ["float32", "float16", "int8", "int4"])
    with open(os.path.join(golden, "accelerate_cli.json"), "w") as file:
        json.dump(result, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main(sys.argv[1])
