"""Writes launch_environment.json: what `accelerate launch` (1.15, torch 2.13) makes of commands and files.

Run it in an environment that holds accelerate and deepspeed, on a machine without GPUs:
    DS_ACCELERATOR=cpu python launch_environment.py
Each case starts a script that writes the variables by which its environment differs from that of the command.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import json, os
before = json.load(open("before.json"))
new = {k: v for k, v in os.environ.items() if before.get(k) != v}
json.dump(new, open("rank" + os.environ.get("RANK", "0") + ".json", "w"))
"""

# Variables of torchrun's own machinery, which name this run or its files.
LEFT_OUT = {
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "CUDA_MODULE_LOADING",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "LC_CTYPE",
    "_",
    "__PYVENV_LAUNCHER__",
}

SINGLE = """# a guide's file for one machine
compute_environment: LOCAL_MACHINE
debug: true
distributed_type: MULTI_GPU
downcast_bf16: 'no'
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
main_process_port: 29731
"""

DEEPSPEED = """compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 8
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: false
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_process_ip: '127.0.0.1'
main_process_port: 29732
main_training_function: main
mixed_precision: fp16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""

FSDP = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: false
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: true # offload may affect training speed
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
machine_rank: 0
main_process_port: 29733
main_training_function: main
mixed_precision: fp16 # or bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""

FSDP2 = """distributed_type: FSDP
fsdp_config:
  version: 2
  reshard_after_forward: false
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
  state_dict_type: SHARDED_STATE_DICT
  cpu_ram_efficient_loading: false
  activation_checkpointing: true
main_process_port: 29734
num_processes: 2
num_machines: 1
"""

MINIMIND = """compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 2
num_machines: 1
machine_rank: 0
main_process_port: 29735
deepspeed_config:
  deepspeed_config_file: ds_config.json
  zero3_init_flag: false
"""

BASIC = """{
  "compute_environment": "LOCAL_MACHINE",
  "debug": false,
  "distributed_type": "NO",
  "downcast_bf16": false,
  "enable_cpu_affinity": false,
  "machine_rank": 0,
  "main_training_function": "main",
  "mixed_precision": "no",
  "num_machines": 1,
  "num_processes": 1,
  "rdzv_backend": "static",
  "same_network": false,
  "tpu_use_cluster": false,
  "tpu_use_sudo": false,
  "use_cpu": true
}
"""

PARALLEL = """distributed_type: FSDP
fsdp_config:
  fsdp_version: 2
parallelism_config:
  parallelism_config_dp_replicate_size: 1
  parallelism_config_dp_shard_size: 2
  parallelism_config_cp_size: 2
  parallelism_config_cp_comm_strategy: alltoall
  parallelism_config_tp_size: 1
main_process_port: 29736
num_processes: 2
num_machines: 1
mixed_precision: bf16
"""

MEGATRON = """distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_gradient_clipping: 1.0
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: false
  megatron_lm_tp_degree: 1
  megatron_lm_use_distributed_optimizer: true
main_process_port: 29737
num_processes: 2
num_machines: 1
mixed_precision: bf16
"""

LEGACY = """distributed_type: MULTI_GPU
fp16: true
dynamo_backend: INDUCTOR
num_processes: 2
num_machines: 1
main_process_port: 29738
"""

DYNAMO = """distributed_type: 'NO'
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: max-autotune
  use_fullgraph: true
  dynamo_use_dynamic: false
mixed_precision: 'no'
num_machines: 1
num_processes: 1
use_cpu: true
"""

# name, file, words, further environment
CASES = [
    ("nothing said", None, "env.py", {}),
    ("on the CPU", None, "--cpu env.py a b", {}),
    ("precision on the CPU", None, "--cpu --mixed_precision bf16 --num_cpu_threads_per_process 3 env.py", {}),
    ("threads from the environment", None, "--cpu --num_processes 1 env.py", {"OMP_NUM_THREADS": "5"}),
    ("ranks on GPUs", None, "--multi_gpu --num_processes 2 --main_process_port 29740 env.py", {}),
    ("hyphens", None, "--multi-gpu --num-processes=2 --main-process-port=29741 --mixed-precision=bf16 env.py", {}),
    ("chosen GPUs", SINGLE, "--gpu_ids 0,1 env.py", {}),
    ("affinity and debug", None, "--multi_gpu --num_processes 2 --main_process_port 29742 --enable_cpu_affinity --debug env.py", {}),
    ("restarts", None, "--multi_gpu --num_processes 2 --main_process_port 29743 --max_restarts 3 --role trainer env.py", {}),
    ("a file for one machine", SINGLE, "env.py", {}),
    ("a flag over the file", SINGLE, "--mixed_precision bf16 --num_processes 3 env.py", {}),
    ("stage 3 by a file", DEEPSPEED, "env.py", {}),
    ("stage 2 over the file", DEEPSPEED, "--zero_stage 2 --offload_optimizer_device cpu --gradient_clipping 0.5 env.py", {}),
    ("stage by flags", None, "--use_deepspeed --num_processes 2 --zero_stage 2 --gradient_accumulation_steps 4 --gradient_clipping 1 --offload_param_device none --zero3_init_flag false --zero3_save_16bit_model true --main_process_port 29744 --mixed_precision bf16 env.py", {}),
    ("a DeepSpeed file by flags", None, "--use_deepspeed --num_processes 2 --deepspeed_config_file ds_config.json --deepspeed_moe_layer_cls_names MixtralSparseMoeBlock --main_process_port 29745 env.py", {}),
    ("MiniMind's file", MINIMIND, "env.py", {}),
    ("MiniMind's file and a flag", MINIMIND, "--mixed_precision bf16 env.py", {}),
    ("FSDP by a file", FSDP, "env.py", {}),
    ("FSDP 2 by a file, without prefixes", FSDP2, "env.py", {}),
    ("FSDP by flags", None, "--use_fsdp --num_processes 2 --fsdp_sharding_strategy SHARD_GRAD_OP --fsdp_offload_params true --fsdp_min_num_params 2000 --fsdp_auto_wrap_policy SIZE_BASED_WRAP --fsdp_activation_checkpointing true --main_process_port 29746 --mixed_precision fp16 env.py", {}),
    ("FSDP flags over the file", FSDP, "--fsdp_sharding_strategy NO_SHARD --fsdp_offload_params false env.py", {}),
    ("parallel in several ways", PARALLEL, "env.py", {}),
    ("Megatron", MEGATRON, "env.py", {}),
    ("an older file", LEGACY, "env.py", {}),
    ("the basic file", BASIC, "env.py", {}),
    ("dynamo", DYNAMO, "env.py", {}),
    ("dynamo by flags", None, "--cpu --dynamo_backend inductor --dynamo_mode reduce-overhead --dynamo_use_fullgraph env.py", {}),
    ("a module", None, "--multi_gpu --num_processes 2 --main_process_port 29747 -m env", {}),
    ("threads of GPUs", SINGLE, "--num_cpu_threads_per_process 4 env.py", {}),
]


def run(name, text, words, more):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "env.py").write_text(SCRIPT)
        (folder / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}}')
        arguments = words.split()
        if text is not None:
            (folder / "c.yaml").write_text(text)
            arguments = ["--config_file", "c.yaml", *arguments]
        given = {k: os.environ[k] for k in ("PATH", "HOME", "DS_ACCELERATOR") if k in os.environ}
        given = {**given, "HF_HOME": str(folder / "nowhere"), **more}
        (folder / "before.json").write_text(json.dumps(given))
        command = [sys.executable, "-m", "accelerate.commands.launch", *arguments]
        done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{name}: {done.stderr}")
        ranks = []
        for path in sorted(folder.glob("rank*.json")):
            new = json.loads(path.read_text().replace(str(folder), "FOLDER"))
            ranks.append({k: v for k, v in sorted(new.items()) if k not in LEFT_OUT})
        print(name, len(ranks), file=sys.stderr, flush=True)
        return {"name": name, "file": text, "words": arguments, "environment": more, "ranks": ranks}


if __name__ == "__main__":
    found = [run(*case) for case in CASES]
    Path(__file__).with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
