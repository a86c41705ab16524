//! THE table of Accelerate: every flag of `accelerate launch` and every key of its configuration file, each declared
//! once, and the variables by which it hands them on to the processes that it starts.

use oarlock_config::dialect::accelerate;
use oarlock_config::settings::keys::Range::{NotNegative, Positive};
use oarlock_config::settings::keys::Status::{Later, NoEffect, Used};
use oarlock_config::settings::keys::ValueType::{Bool, Choice, Float, Int, List, Path, Text};
use oarlock_config::settings::keys::{Row, Status, ValueType, row};
use oarlock_config::settings::secret::Secret;

pub use oarlock_config::dialect::accelerate::{OF_FSDP, Variable, lower, variable};

const NO_TPU: Status = NoEffect("there is no TPU");
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

oarlock_config::key_table! {
    /// The flags, by the names that blocks of the file know them by, too.
    pub const FLAGS = [
        CONFIG_FILE: Option<String> = Row::flag(Path, "config_file", "", Used, "The configuration file; unset: default_config.yaml in the cache of Hugging Face, if it is there"),
        QUIET: bool = Row::flag(Bool, "quiet", "false", Used, "Say nothing that is not an error"),
        MODULE: bool = Row::flag(Bool, "module", "false", Used, "The script is a Python module"),
        NO_PYTHON: bool = Row::flag(Bool, "no_python", "false", Used, "The script is a program of its own"),
        DEBUG: bool = Row::flag(Bool, "debug", "false", Used, "Check collectives while running (ACCELERATE_DEBUG_MODE)"),
        CPU: bool = Row::flag(Bool, "cpu", "false", Used, "Ranks on the CPU, whatever shards the states"),
        MULTI_GPU: bool = Row::flag(Bool, "multi_gpu", "false", Used, "Data parallel ranks on GPUs"),
        TPU: bool = Row::flag(Bool, "tpu", "false", Later("ranks run on cores or GPUs, not on TPUs"), "Ranks on TPUs"),
        MIXED_PRECISION: Option<String> = Row::flag(PRECISIONS, "mixed_precision", "", Used, "Precision of the run, over what its own settings say [no]"),
        NUM_PROCESSES: Option<i64> = Row::flag(Int(-1), "num_processes", "", Used, "Ranks of all machines together"),
        NUM_MACHINES: Option<usize> = Row::flag(Int(1), "num_machines", "", Used, "Machines [1]"),
        NUM_CPU_THREADS_PER_PROCESS: Option<usize> = Row::flag(Int(1), "num_cpu_threads_per_process", "", Used, "Threads of a rank (OMP_NUM_THREADS)"),
        ENABLE_CPU_AFFINITY: bool = Row::flag(Bool, "enable_cpu_affinity", "false", Used, "Each rank keeps to its share of the cores"),
        DYNAMO_BACKEND: Option<String> = Row::flag(Text, "dynamo_backend", "", DYNAMO, "Compiler of torch [no]"),
        DYNAMO_MODE: String = Row::flag(Choice(&["default", "reduce-overhead", "max-autotune"]), "dynamo_mode", "default", DYNAMO, "Its mode"),
        DYNAMO_USE_FULLGRAPH: bool = Row::flag(Bool, "dynamo_use_fullgraph", "false", DYNAMO, "Whether a model is one graph"),
        DYNAMO_USE_DYNAMIC: bool = Row::flag(Bool, "dynamo_use_dynamic", "false", DYNAMO, "Whether shapes may change"),
        DYNAMO_USE_REGIONAL_COMPILATION: bool = Row::flag(Bool, "dynamo_use_regional_compilation", "false", DYNAMO, "Whether repeated blocks are compiled once"),
        USE_DEEPSPEED: bool = Row::flag(Bool, "use_deepspeed", "false", Used, "Shard states as DeepSpeed does"),
        USE_FSDP: bool = Row::flag(Bool, "use_fsdp", "false", Used, "Shard states as FSDP does"),
        USE_PARALLELISM_CONFIG: bool = Row::flag(Bool, "use_parallelism_config", "false", Used, "Use the parallelism_config_ flags (with FSDP 2)"),
        USE_MEGATRON_LM: bool = Row::flag(Bool, "use_megatron_lm", "false", Used, "Megatron-LM, for programs that use it"),
        GPU_IDS: Option<String> = Row::flag(Text, "gpu_ids", "", Used, "GPUs of this machine, such as 0,1 (CUDA_VISIBLE_DEVICES) [all]"),
        SAME_NETWORK: bool = Row::flag(Bool, "same_network", "false", Used, "The machines reach each other under main_process_ip"),
        MACHINE_RANK: Option<usize> = Row::flag(Int(0), "machine_rank", "", Used, "Which of the machines this is, from 0"),
        MAIN_PROCESS_IP: Option<String> = Row::flag(Text, "main_process_ip", "", Used, "Address of machine 0"),
        MAIN_PROCESS_PORT: Option<i64> = Row::flag(Int(0), "main_process_port", "", Used, "Port on machine 0; 0 takes a free one [29500]"),
        TEE: String = Row::flag(Text, "tee", "0", Used, "Output into files as well: 0 nothing, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,1:1"),
        LOG_DIR: Option<String> = Row::flag(Path, "log_dir", "", Used, "Folder of these files"),
        ROLE: String = Row::flag(Text, "role", "default", Used, "Name of the role of the ranks"),
        RDZV_BACKEND: String = Row::flag(Choice(&["static", "c10d", "etcd", "etcd-v2"]), "rdzv_backend", "static", Used, "How machines meet: static or c10d"),
        RDZV_CONF: Option<String> = Row::flag(Text, "rdzv_conf", "", Used, "Settings of the rendezvous, as in timeout=900,join_timeout=60"),
        MAX_RESTARTS: i64 = Row::flag(Int(0), "max_restarts", "0", Used, "Starts after a failure"),
        MONITOR_INTERVAL: f64 = Row::flag(Float(Positive), "monitor_interval", "0.1", Used, "Seconds between looks at the ranks"),
        TPU_CLUSTER: bool = Row::flag(Bool, "tpu_cluster", "false", NO_TPU, "A pod of TPUs"),
        NO_TPU_CLUSTER: bool = Row::flag(Bool, "no_tpu_cluster", "false", NO_TPU, "No pod of TPUs"),
        TPU_USE_SUDO: bool = Row::flag(Bool, "tpu_use_sudo", "false", NO_TPU, "sudo on TPUs"),
        VM: Option<String> = Row::flag(Text, "vm", "", NO_TPU, "Machines of TPUs"),
        ENV: Option<String> = Row::flag(Text, "env", "", NO_TPU, "Variables on the machines of TPUs"),
        MAIN_TRAINING_FUNCTION: Option<String> = Row::flag(Text, "main_training_function", "", NO_TPU, "The function that TPUs run"),
        DOWNCAST_BF16: bool = Row::flag(Bool, "downcast_bf16", "false", NO_TPU, "bf16 of TPUs"),
        DEEPSPEED_CONFIG_FILE: Option<String> = Row::flag(Path, "deepspeed_config_file", "", Used, "DeepSpeed configuration"),
        ZERO_STAGE: Option<usize> = Row::flag(Int(0), "zero_stage", "", Used, "What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters [2]"),
        OFFLOAD_OPTIMIZER_DEVICE: Option<String> = Row::flag(Text, "offload_optimizer_device", "", Used, "Where states lie: none, cpu or nvme"),
        OFFLOAD_PARAM_DEVICE: Option<String> = Row::flag(Text, "offload_param_device", "", Used, "Where parameters lie: none, cpu or nvme"),
        OFFLOAD_OPTIMIZER_NVME_PATH: Option<String> = Row::flag(Path, "offload_optimizer_nvme_path", "", Used, "Folder of the files of states"),
        OFFLOAD_PARAM_NVME_PATH: Option<String> = Row::flag(Path, "offload_param_nvme_path", "", Used, "Folder of the files of parameters"),
        GRADIENT_ACCUMULATION_STEPS: Option<usize> = Row::flag(Int(1), "gradient_accumulation_steps", "", Used, "Accumulation; must agree with the script's"),
        GRADIENT_CLIPPING: Option<f64> = Row::flag(Float(NotNegative), "gradient_clipping", "", Used, "Largest norm of the gradient; must agree with the script's"),
        ZERO3_INIT_FLAG: Option<String> = Row::flag(Text, "zero3_init_flag", "", Used, "Build the model sharded, for programs that ask for it; an Oarlock run always does"),
        ZERO3_SAVE_16BIT_MODEL: Option<String> = Row::flag(Text, "zero3_save_16bit_model", "", Used, "Write whole weights into every checkpoint"),
        DEEPSPEED_HOSTFILE: Option<String> = Row::flag(Path, "deepspeed_hostfile", "", Used, "Hostfile of the multi-node launchers"),
        DEEPSPEED_EXCLUSION_FILTER: Option<String> = Row::flag(Text, "deepspeed_exclusion_filter", "", Used, "Machines and GPUs that they leave out"),
        DEEPSPEED_INCLUSION_FILTER: Option<String> = Row::flag(Text, "deepspeed_inclusion_filter", "", Used, "Machines and GPUs that they use"),
        DEEPSPEED_MULTINODE_LAUNCHER: Option<String> = Row::flag(Choice(&["pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm"]), "deepspeed_multinode_launcher", "", Used, "How several machines are started: standard, by this command on each of them"),
        DEEPSPEED_MOE_LAYER_CLS_NAMES: Vec<String> = Row::flag(List, "deepspeed_moe_layer_cls_names", "", Used, "Classes of mixtures of experts, for programs that have any"),
        FSDP_VERSION: String = row(accelerate::FSDP_VERSION),
        FSDP_OFFLOAD_PARAMS: String = row(accelerate::FSDP_OFFLOAD_PARAMS),
        FSDP_MIN_NUM_PARAMS: usize = row(accelerate::FSDP_MIN_NUM_PARAMS),
        FSDP_SHARDING_STRATEGY: String = row(accelerate::FSDP_SHARDING_STRATEGY),
        FSDP_RESHARD_AFTER_FORWARD: String = row(accelerate::FSDP_RESHARD_AFTER_FORWARD),
        FSDP_AUTO_WRAP_POLICY: Option<String> = row(accelerate::FSDP_AUTO_WRAP_POLICY),
        FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP: Vec<String> = row(accelerate::FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP),
        FSDP_BACKWARD_PREFETCH: Option<String> = row(accelerate::FSDP_BACKWARD_PREFETCH),
        FSDP_STATE_DICT_TYPE: Option<String> = row(accelerate::FSDP_STATE_DICT_TYPE),
        FSDP_FORWARD_PREFETCH: String = row(accelerate::FSDP_FORWARD_PREFETCH),
        FSDP_USE_ORIG_PARAMS: String = row(accelerate::FSDP_USE_ORIG_PARAMS),
        FSDP_CPU_RAM_EFFICIENT_LOADING: String = row(accelerate::FSDP_CPU_RAM_EFFICIENT_LOADING),
        FSDP_SYNC_MODULE_STATES: String = row(accelerate::FSDP_SYNC_MODULE_STATES),
        FSDP_ACTIVATION_CHECKPOINTING: String = row(accelerate::FSDP_ACTIVATION_CHECKPOINTING),
        FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD: String = row(accelerate::FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD),
        MEGATRON_LM_TP_DEGREE: usize = Row::flag(Int(1), "megatron_lm_tp_degree", "1", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_USE_CUSTOM_FSDP: String = Row::flag(Text, "megatron_lm_use_custom_fsdp", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_NO_LOAD_OPTIM: String = Row::flag(Text, "megatron_lm_no_load_optim", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_EOD_MASK_LOSS: String = Row::flag(Text, "megatron_lm_eod_mask_loss", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_OVERLAP_CPU_OPTIMIZER_D2H_H2D: String = Row::flag(Text, "megatron_lm_overlap_cpu_optimizer_d2h_h2d", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_NO_SAVE_OPTIM: String = Row::flag(Text, "megatron_lm_no_save_optim", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_OPTIMIZER_CPU_OFFLOAD: String = Row::flag(Text, "megatron_lm_optimizer_cpu_offload", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_USE_PRECISION_AWARE_OPTIMIZER: String = Row::flag(Text, "megatron_lm_use_precision_aware_optimizer", "False", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_DECODER_LAST_PIPELINE_NUM_LAYERS: Option<usize> = Row::flag(Int(0), "megatron_lm_decoder_last_pipeline_num_layers", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_PP_DEGREE: usize = Row::flag(Int(1), "megatron_lm_pp_degree", "1", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_NUM_MICRO_BATCHES: Option<usize> = Row::flag(Int(0), "megatron_lm_num_micro_batches", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_SEQUENCE_PARALLELISM: Option<String> = Row::flag(Text, "megatron_lm_sequence_parallelism", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_RECOMPUTE_ACTIVATIONS: Option<String> = Row::flag(Text, "megatron_lm_recompute_activations", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_USE_DISTRIBUTED_OPTIMIZER: Option<String> = Row::flag(Text, "megatron_lm_use_distributed_optimizer", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_GRADIENT_CLIPPING: f64 = Row::flag(Float(NotNegative), "megatron_lm_gradient_clipping", "1", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_RECOMPUTE_GRANULARITY: Option<String> = Row::flag(Text, "megatron_lm_recompute_granularity", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_RECOMPUTE_METHOD: Option<String> = Row::flag(Text, "megatron_lm_recompute_method", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_RECOMPUTE_NUM_LAYERS: Option<usize> = Row::flag(Int(0), "megatron_lm_recompute_num_layers", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_ATTENTION_BACKEND: Option<String> = Row::flag(Text, "megatron_lm_attention_backend", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_EXPERT_MODEL_PARALLEL_SIZE: Option<usize> = Row::flag(Int(1), "megatron_lm_expert_model_parallel_size", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_CONTEXT_PARALLEL_SIZE: Option<usize> = Row::flag(Int(1), "megatron_lm_context_parallel_size", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_ATTENTION_DROPOUT: Option<f64> = Row::flag(Float(NotNegative), "megatron_lm_attention_dropout", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_HIDDEN_DROPOUT: Option<f64> = Row::flag(Float(NotNegative), "megatron_lm_hidden_dropout", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_ATTENTION_SOFTMAX_IN_FP32: Option<String> = Row::flag(Text, "megatron_lm_attention_softmax_in_fp32", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_EXPERT_TENSOR_PARALLEL_SIZE: Option<usize> = Row::flag(Int(1), "megatron_lm_expert_tensor_parallel_size", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS: Option<String> = Row::flag(Text, "megatron_lm_calculate_per_token_loss", "", MEGATRON, "Megatron-LM"),
        MEGATRON_LM_USE_ROTARY_POSITION_EMBEDDINGS: Option<String> = Row::flag(Text, "megatron_lm_use_rotary_position_embeddings", "", MEGATRON, "Megatron-LM"),
        FP8_BACKEND: Option<String> = Row::flag(Text, "fp8_backend", "", FP8, "Library of FP8"),
        FP8_USE_AUTOCAST_DURING_EVAL: bool = Row::flag(Bool, "fp8_use_autocast_during_eval", "false", FP8, "FP8"),
        FP8_MARGIN: usize = Row::flag(Int(0), "fp8_margin", "0", FP8, "FP8"),
        FP8_INTERVAL: usize = Row::flag(Int(0), "fp8_interval", "1", FP8, "FP8"),
        FP8_FORMAT: String = Row::flag(Text, "fp8_format", "HYBRID", FP8, "FP8"),
        FP8_AMAX_HISTORY_LEN: usize = Row::flag(Int(1), "fp8_amax_history_len", "1024", FP8, "FP8"),
        FP8_AMAX_COMPUTE_ALGO: String = Row::flag(Text, "fp8_amax_compute_algo", "most_recent", FP8, "FP8"),
        FP8_OVERRIDE_LINEAR_PRECISION: Vec<String> = Row::flag(List, "fp8_override_linear_precision", "false, false, false", FP8, "FP8"),
        FP8_OPT_LEVEL: String = Row::flag(Text, "fp8_opt_level", "O2", FP8, "FP8"),
        FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER: String = Row::flag(Text, "fp8_enable_fsdp_float8_all_gather", "True", FP8, "FP8"),
        FP8_PAD_INNER_DIM: String = Row::flag(Text, "fp8_pad_inner_dim", "True", FP8, "FP8"),
        AWS_ACCESS_KEY_ID: Option<String> = Row::flag(Text, "aws_access_key_id", "", AWS, "SageMaker"),
        AWS_SECRET_ACCESS_KEY: Option<Secret> = Row::flag(ValueType::Secret, "aws_secret_access_key", "", AWS, "SageMaker"),
        MPIRUN_HOSTFILE: Option<String> = Row::flag(Path, "mpirun_hostfile", "", MPI, "Start by mpirun on these machines"),
        PARALLELISM_CONFIG_DP_REPLICATE_SIZE: usize = Row::flag(Int(1), "parallelism_config_dp_replicate_size", "1", Used, "Groups of ranks that hold the same"),
        PARALLELISM_CONFIG_DP_SHARD_SIZE: usize = Row::flag(Int(1), "parallelism_config_dp_shard_size", "1", Used, "Ranks that shard the state"),
        PARALLELISM_CONFIG_TP_SIZE: usize = Row::flag(Int(1), "parallelism_config_tp_size", "1", Used, "Tensor parallel ranks, for programs that have them"),
        PARALLELISM_CONFIG_CP_SIZE: usize = Row::flag(Int(1), "parallelism_config_cp_size", "1", Used, "Context parallel ranks, for programs that have them"),
        PARALLELISM_CONFIG_CP_BACKEND: String = Row::flag(Text, "parallelism_config_cp_backend", "torch", Used, "Library of context parallel ranks"),
        PARALLELISM_CONFIG_CP_COMM_STRATEGY: String = Row::flag(Text, "parallelism_config_cp_comm_strategy", "allgather", Used, "How context parallel ranks communicate"),
        PARALLELISM_CONFIG_SP_SIZE: usize = Row::flag(Int(1), "parallelism_config_sp_size", "1", Used, "Ranks over which each sequence is divided"),
        PARALLELISM_CONFIG_SP_BACKEND: String = Row::flag(Text, "parallelism_config_sp_backend", "deepspeed", Used, "Library of sequence parallel ranks"),
        PARALLELISM_CONFIG_SP_SEQ_LENGTH: Option<String> = Row::flag(Text, "parallelism_config_sp_seq_length", "", Used, "Length of all sequences"),
        PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE: String = Row::flag(Text, "parallelism_config_sp_seq_length_is_variable", "True", Used, "Whether lengths differ"),
        PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION: String = Row::flag(Text, "parallelism_config_sp_attn_implementation", "sdpa", Used, "Attention of sequence parallel ranks"),
    ];
}

oarlock_config::key_table! {
    /// The keys that only a file has.
    pub const FILE_ONLY = [
        COMPUTE_ENVIRONMENT: String = Row::flag(Choice(&["LOCAL_MACHINE", "AMAZON_SAGEMAKER"]), "compute_environment", "LOCAL_MACHINE", Used, "Where processes start"),
        DISTRIBUTED_TYPE: Option<String> = Row::flag(Choice(DISTRIBUTED_TYPES), "distributed_type", "", Used, "What ranks run on and what shards their states"),
        USE_CPU: bool = Row::flag(Bool, "use_cpu", "false", Used, "Ranks on the CPU"),
        FP16: bool = Row::flag(Bool, "fp16", "false", Used, "mixed_precision: fp16, in older files"),
        TPU_NAME: Option<String> = Row::flag(Text, "tpu_name", "", NO_TPU, "Name of the TPU"),
        TPU_ZONE: Option<String> = Row::flag(Text, "tpu_zone", "", NO_TPU, "Zone of the TPU"),
        TPU_USE_CLUSTER: bool = Row::flag(Bool, "tpu_use_cluster", "false", NO_TPU, "A pod of TPUs"),
        COMMAND_FILE: Option<String> = Row::flag(Text, "command_file", "", NO_TPU, "Commands on the machines of TPUs"),
        COMMANDS: Vec<String> = Row::flag(List, "commands", "", NO_TPU, "Commands on the machines of TPUs"),
        TPU_VM: Vec<String> = Row::flag(List, "tpu_vm", "", NO_TPU, "Machines of TPUs"),
        TPU_ENV: Vec<String> = Row::flag(List, "tpu_env", "", NO_TPU, "Variables on the machines of TPUs"),
        FSDP_IGNORED_MODULES: Vec<String> = Row::flag(List, "fsdp_ignored_modules", "", Later("every unit is treated alike"), "Modules that stay whole"),
        MPIRUN_CCL: bool = Row::flag(Bool, "mpirun_ccl", "false", NoEffect("this command starts no mpirun"), "Libraries of Intel for mpirun"),
    ];
}

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

/// The variable that says how a training run computes.
pub const PRECISION: &str = "ACCELERATE_MIXED_PRECISION";

/// What a process of DeepSpeed finds, beside ACCELERATE_USE_DEEPSPEED.
pub const OF_DEEPSPEED: &[Variable] = &[
    variable(ZERO_STAGE, "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
    variable(GRADIENT_ACCUMULATION_STEPS, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
    lower(GRADIENT_CLIPPING, "ACCELERATE_GRADIENT_CLIPPING"),
    lower(OFFLOAD_OPTIMIZER_DEVICE, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"),
    lower(OFFLOAD_PARAM_DEVICE, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"),
    variable(OFFLOAD_OPTIMIZER_NVME_PATH, "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"),
    variable(OFFLOAD_PARAM_NVME_PATH, "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"),
    lower(ZERO3_INIT_FLAG, "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
    lower(ZERO3_SAVE_16BIT_MODEL, "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"),
    variable(DEEPSPEED_CONFIG_FILE, "ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    variable(DEEPSPEED_MOE_LAYER_CLS_NAMES, "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES"),
];
