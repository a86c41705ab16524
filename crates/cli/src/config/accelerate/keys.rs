//! THE table of Accelerate: every flag of `accelerate launch` and every key of its configuration file, each declared
//! once, and the variables by which it hands them on to the processes that it starts.

use oarlock::settings::keys::Range::{NotNegative, Positive};
use oarlock::settings::keys::Status::{Later, NoEffect, Used};
use oarlock::settings::keys::ValueType::{Bool, Choice, Float, Int, List, Path, Secret, Text};
use oarlock::settings::keys::{Key, Status, ValueType, row};

pub use oarlock::settings::accelerate::{FSDP_FLAGS, OF_FSDP, Variable, lower, variable};

const TPU: Status = NoEffect("there is no TPU");
const DYNAMO: Status = NoEffect("the kernels are compiled already");
const FP8: Status = NoEffect("an Oarlock run computes in f32, bf16 or f16");
const MEGATRON: Status = NoEffect("the engine of Megatron is not there");
const AWS: Status = Later("it starts processes on this machine, not in SageMaker");
const MPI: Status = Later(
    "start it with `mpirun -n RANKS --hostfile FILE`; an Oarlock run then needs a build with `--features mpi`",
);

const PRECISIONS: ValueType = Choice(&["no", "fp16", "bf16", "fp8"]);

/// The distributed types of a file.
pub const DISTRIBUTED_TYPES: &[&str] = &[
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_HPU",
    "MULTI_NEURON",
    "DEEPSPEED",
    "FSDP",
    "XLA",
    "MEGATRON_LM",
];

/// The flags, by the names that blocks of the file know them by, too.
#[rustfmt::skip]
pub const FLAGS: &[Key] = &[
    Key::flag(Path, "config_file", "", Used, "The configuration file; unset: default_config.yaml in the cache of Hugging Face, if it is there"),
    Key::flag(Bool, "quiet", "false", Used, "Say nothing that is not an error"),
    Key::flag(Bool, "module", "false", Used, "The script is a Python module"),
    Key::flag(Bool, "no_python", "false", Used, "The script is a program of its own"),
    Key::flag(Bool, "debug", "false", Used, "Check collectives while running (ACCELERATE_DEBUG_MODE)"),
    Key::flag(Bool, "cpu", "false", Used, "Ranks on the CPU, whatever shards the states"),
    Key::flag(Bool, "multi_gpu", "false", Used, "Data parallel ranks on GPUs"),
    Key::flag(Bool, "tpu", "false", Later("ranks run on cores or GPUs, not on TPUs"), "Ranks on TPUs"),
    Key::flag(PRECISIONS, "mixed_precision", "", Used, "Precision of the training, over what its own settings say [no]"),
    Key::flag(Int(-1), "num_processes", "", Used, "Ranks of all machines together"),
    Key::flag(Int(1), "num_machines", "", Used, "Machines [1]"),
    Key::flag(Int(1), "num_cpu_threads_per_process", "", Used, "Threads of a rank (OMP_NUM_THREADS)"),
    Key::flag(Bool, "enable_cpu_affinity", "false", Used, "Each rank keeps to its share of the cores"),
    Key::flag(Text, "dynamo_backend", "", DYNAMO, "Compiler of torch [no]"),
    Key::flag(Choice(&["default", "reduce-overhead", "max-autotune"]), "dynamo_mode", "default", DYNAMO, "Its mode"),
    Key::flag(Bool, "dynamo_use_fullgraph", "false", DYNAMO, "Whether a model is one graph"),
    Key::flag(Bool, "dynamo_use_dynamic", "false", DYNAMO, "Whether shapes may change"),
    Key::flag(Bool, "dynamo_use_regional_compilation", "false", DYNAMO, "Whether repeated blocks are compiled once"),
    Key::flag(Bool, "use_deepspeed", "false", Used, "Shard states as DeepSpeed does"),
    Key::flag(Bool, "use_fsdp", "false", Used, "Shard states as FSDP does"),
    Key::flag(Bool, "use_parallelism_config", "false", Used, "Use the parallelism_config_ flags (with FSDP 2)"),
    Key::flag(Bool, "use_megatron_lm", "false", Used, "Megatron-LM, for programs that use it"),
    Key::flag(Text, "gpu_ids", "", Used, "GPUs of this machine, such as 0,1 (CUDA_VISIBLE_DEVICES) [all]"),
    Key::flag(Bool, "same_network", "false", Used, "The machines reach each other under main_process_ip"),
    Key::flag(Int(0), "machine_rank", "", Used, "Which of the machines this is, from 0"),
    Key::flag(Text, "main_process_ip", "", Used, "Address of machine 0"),
    Key::flag(Int(0), "main_process_port", "", Used, "Port on machine 0; 0 takes a free one [29500]"),
    Key::flag(Text, "tee", "0", Used, "Output into files as well: 0 nothing, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,1:1"),
    Key::flag(Path, "log_dir", "", Used, "Folder of these files"),
    Key::flag(Text, "role", "default", Used, "Name of the role of the ranks"),
    Key::flag(Choice(&["static", "c10d", "etcd", "etcd-v2"]), "rdzv_backend", "static", Used, "How machines meet: static or c10d"),
    Key::flag(Text, "rdzv_conf", "", Used, "Settings of the rendezvous, as in timeout=900,join_timeout=60"),
    Key::flag(Int(0), "max_restarts", "0", Used, "Starts after a failure"),
    Key::flag(Float(Positive), "monitor_interval", "0.1", Used, "Seconds between looks at the ranks"),
    Key::flag(Bool, "tpu_cluster", "false", TPU, "A pod of TPUs"),
    Key::flag(Bool, "no_tpu_cluster", "false", TPU, "No pod of TPUs"),
    Key::flag(Bool, "tpu_use_sudo", "false", TPU, "sudo on TPUs"),
    Key::flag(Text, "vm", "", TPU, "Machines of TPUs"),
    Key::flag(Text, "env", "", TPU, "Variables on the machines of TPUs"),
    Key::flag(Text, "main_training_function", "", TPU, "The function that TPUs run"),
    Key::flag(Bool, "downcast_bf16", "false", TPU, "bf16 of TPUs"),
    Key::flag(Path, "deepspeed_config_file", "", Used, "DeepSpeed configuration"),
    Key::flag(Int(0), "zero_stage", "", Used, "What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters [2]"),
    Key::flag(Text, "offload_optimizer_device", "", Used, "Where states lie: none, cpu or nvme"),
    Key::flag(Text, "offload_param_device", "", Used, "Where parameters lie: none, cpu or nvme"),
    Key::flag(Path, "offload_optimizer_nvme_path", "", Used, "Folder of the files of states"),
    Key::flag(Path, "offload_param_nvme_path", "", Used, "Folder of the files of parameters"),
    Key::flag(Int(1), "gradient_accumulation_steps", "", Used, "Accumulation; must agree with the script's"),
    Key::flag(Float(NotNegative), "gradient_clipping", "", Used, "Largest norm of the gradient; must agree with the script's"),
    Key::flag(Text, "zero3_init_flag", "", Used, "Build the model sharded, for programs that ask for it; an Oarlock run always does"),
    Key::flag(Text, "zero3_save_16bit_model", "", Used, "Write whole weights into every checkpoint"),
    Key::flag(Path, "deepspeed_hostfile", "", Used, "Hostfile of the multi-node launchers"),
    Key::flag(Text, "deepspeed_exclusion_filter", "", Used, "Machines and GPUs that they leave out"),
    Key::flag(Text, "deepspeed_inclusion_filter", "", Used, "Machines and GPUs that they use"),
    Key::flag(Choice(&["pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"]), "deepspeed_multinode_launcher", "", Used, "How several machines are started: standard, by this command on each of them"),
    Key::flag(List, "deepspeed_moe_layer_cls_names", "", Used, "Classes of mixtures of experts, for programs that have any"),
    row(FSDP_FLAGS, "fsdp_version"),
    row(FSDP_FLAGS, "fsdp_offload_params"),
    row(FSDP_FLAGS, "fsdp_min_num_params"),
    row(FSDP_FLAGS, "fsdp_sharding_strategy"),
    row(FSDP_FLAGS, "fsdp_reshard_after_forward"),
    row(FSDP_FLAGS, "fsdp_auto_wrap_policy"),
    row(FSDP_FLAGS, "fsdp_transformer_layer_cls_to_wrap"),
    row(FSDP_FLAGS, "fsdp_backward_prefetch"),
    row(FSDP_FLAGS, "fsdp_state_dict_type"),
    row(FSDP_FLAGS, "fsdp_forward_prefetch"),
    row(FSDP_FLAGS, "fsdp_use_orig_params"),
    row(FSDP_FLAGS, "fsdp_cpu_ram_efficient_loading"),
    row(FSDP_FLAGS, "fsdp_sync_module_states"),
    row(FSDP_FLAGS, "fsdp_activation_checkpointing"),
    row(FSDP_FLAGS, "fsdp_activation_checkpointing_offload"),
    Key::flag(Int(1), "megatron_lm_tp_degree", "1", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_use_custom_fsdp", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_no_load_optim", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_eod_mask_loss", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_overlap_cpu_optimizer_d2h_h2d", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_no_save_optim", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_optimizer_cpu_offload", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_use_precision_aware_optimizer", "False", MEGATRON, "Megatron-LM"),
    Key::flag(Int(0), "megatron_lm_decoder_last_pipeline_num_layers", "", MEGATRON, "Megatron-LM"),
    Key::flag(Int(1), "megatron_lm_pp_degree", "1", MEGATRON, "Megatron-LM"),
    Key::flag(Int(0), "megatron_lm_num_micro_batches", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_sequence_parallelism", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_recompute_activations", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_use_distributed_optimizer", "", MEGATRON, "Megatron-LM"),
    Key::flag(Float(NotNegative), "megatron_lm_gradient_clipping", "1", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_recompute_granularity", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_recompute_method", "", MEGATRON, "Megatron-LM"),
    Key::flag(Int(0), "megatron_lm_recompute_num_layers", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_attention_backend", "", MEGATRON, "Megatron-LM"),
    Key::flag(Int(1), "megatron_lm_expert_model_parallel_size", "", MEGATRON, "Megatron-LM"),
    Key::flag(Int(1), "megatron_lm_context_parallel_size", "", MEGATRON, "Megatron-LM"),
    Key::flag(Float(NotNegative), "megatron_lm_attention_dropout", "", MEGATRON, "Megatron-LM"),
    Key::flag(Float(NotNegative), "megatron_lm_hidden_dropout", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_attention_softmax_in_fp32", "", MEGATRON, "Megatron-LM"),
    Key::flag(Int(1), "megatron_lm_expert_tensor_parallel_size", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_calculate_per_token_loss", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "megatron_lm_use_rotary_position_embeddings", "", MEGATRON, "Megatron-LM"),
    Key::flag(Text, "fp8_backend", "", FP8, "Library of FP8"),
    Key::flag(Bool, "fp8_use_autocast_during_eval", "false", FP8, "FP8"),
    Key::flag(Int(0), "fp8_margin", "0", FP8, "FP8"),
    Key::flag(Int(0), "fp8_interval", "1", FP8, "FP8"),
    Key::flag(Text, "fp8_format", "HYBRID", FP8, "FP8"),
    Key::flag(Int(1), "fp8_amax_history_len", "1024", FP8, "FP8"),
    Key::flag(Text, "fp8_amax_compute_algo", "most_recent", FP8, "FP8"),
    Key::flag(List, "fp8_override_linear_precision", "false, false, false", FP8, "FP8"),
    Key::flag(Text, "fp8_opt_level", "O2", FP8, "FP8"),
    Key::flag(Text, "fp8_enable_fsdp_float8_all_gather", "True", FP8, "FP8"),
    Key::flag(Text, "fp8_pad_inner_dim", "True", FP8, "FP8"),
    Key::flag(Text, "aws_access_key_id", "", AWS, "SageMaker"),
    Key::flag(Secret, "aws_secret_access_key", "", AWS, "SageMaker"),
    Key::flag(Path, "mpirun_hostfile", "", MPI, "Start by mpirun on these machines"),
    Key::flag(Int(1), "parallelism_config_dp_replicate_size", "1", Used, "Groups of ranks that hold the same"),
    Key::flag(Int(1), "parallelism_config_dp_shard_size", "1", Used, "Ranks that shard the state"),
    Key::flag(Int(1), "parallelism_config_tp_size", "1", Used, "Tensor parallel ranks, for programs that have them"),
    Key::flag(Int(1), "parallelism_config_cp_size", "1", Used, "Context parallel ranks, for programs that have them"),
    Key::flag(Text, "parallelism_config_cp_backend", "torch", Used, "Library of context parallel ranks"),
    Key::flag(Text, "parallelism_config_cp_comm_strategy", "allgather", Used, "How context parallel ranks communicate"),
    Key::flag(Int(1), "parallelism_config_sp_size", "1", Used, "Ranks over which each sequence is divided"),
    Key::flag(Text, "parallelism_config_sp_backend", "deepspeed", Used, "Library of sequence parallel ranks"),
    Key::flag(Text, "parallelism_config_sp_seq_length", "", Used, "Length of all sequences"),
    Key::flag(Text, "parallelism_config_sp_seq_length_is_variable", "True", Used, "Whether lengths differ"),
    Key::flag(Text, "parallelism_config_sp_attn_implementation", "sdpa", Used, "Attention of sequence parallel ranks"),
];

/// The keys that only a file has.
#[rustfmt::skip]
pub const FILE_ONLY: &[Key] = &[
    Key::flag(Choice(&["LOCAL_MACHINE", "AMAZON_SAGEMAKER"]), "compute_environment", "LOCAL_MACHINE", Used, "Where processes start"),
    Key::flag(Choice(DISTRIBUTED_TYPES), "distributed_type", "", Used, "What ranks run on and what shards their states"),
    Key::flag(Bool, "use_cpu", "false", Used, "Ranks on the CPU"),
    Key::flag(Bool, "fp16", "false", Used, "mixed_precision: fp16, in older files"),
    Key::flag(Text, "tpu_name", "", TPU, "Name of the TPU"),
    Key::flag(Text, "tpu_zone", "", TPU, "Zone of the TPU"),
    Key::flag(Bool, "tpu_use_cluster", "false", TPU, "A pod of TPUs"),
    Key::flag(Text, "command_file", "", TPU, "Commands on the machines of TPUs"),
    Key::flag(List, "commands", "", TPU, "Commands on the machines of TPUs"),
    Key::flag(List, "tpu_vm", "", TPU, "Machines of TPUs"),
    Key::flag(List, "tpu_env", "", TPU, "Variables on the machines of TPUs"),
    Key::flag(List, "fsdp_ignored_modules", "", Later("every unit is treated alike"), "Modules that stay whole"),
    Key::flag(Bool, "mpirun_ccl", "false", NoEffect("this command starts no mpirun"), "Libraries of Intel for mpirun"),
];

/// The flags that stand at the top of a file.
pub const TOP: &[&str] = &[
    "mixed_precision",
    "num_processes",
    "num_machines",
    "machine_rank",
    "gpu_ids",
    "main_process_ip",
    "main_process_port",
    "rdzv_backend",
    "same_network",
    "main_training_function",
    "enable_cpu_affinity",
    "debug",
    "downcast_bf16",
    "tpu_use_sudo",
    // Of older files.
    "dynamo_backend",
];

/// The blocks of a file: what the names of their keys begin with. The prefix may be missing where it says nothing.
pub const BLOCKS: &[(&str, &str)] = &[
    ("deepspeed_config", ""),
    ("fsdp_config", "fsdp_"),
    ("megatron_lm_config", "megatron_lm_"),
    ("mpirun_config", "mpirun_"),
    ("fp8_config", "fp8_"),
    ("dynamo_config", "dynamo_"),
    ("parallelism_config", "parallelism_config_"),
];

/// The keys of `deepspeed_config`.
pub const DEEPSPEED: &[&str] = &[
    "deepspeed_config_file",
    "zero_stage",
    "offload_optimizer_device",
    "offload_param_device",
    "offload_optimizer_nvme_path",
    "offload_param_nvme_path",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "zero3_init_flag",
    "zero3_save_16bit_model",
    "deepspeed_hostfile",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_multinode_launcher",
    "deepspeed_moe_layer_cls_names",
];

/// The variable that says how a training computes.
pub const PRECISION: &str = "ACCELERATE_MIXED_PRECISION";

/// What a process of DeepSpeed finds, beside ACCELERATE_USE_DEEPSPEED.
pub const OF_DEEPSPEED: &[Variable] = &[
    variable("zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    variable("gradient_accumulation_steps", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    lower("gradient_clipping", "ACCELERATE_GRADIENT_CLIPPING"),
    lower("offload_optimizer_device", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"),
    lower("offload_param_device", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"),
    variable("offload_optimizer_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"),
    variable("offload_param_nvme_path", "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"),
    lower("zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    lower("zero3_save_16bit_model", "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"),
    variable("deepspeed_config_file", "ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    variable("deepspeed_moe_layer_cls_names", "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
];
