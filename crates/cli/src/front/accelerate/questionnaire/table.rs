//! The questions of `accelerate config`, in the order of the original, and what follows from their answers.

use super::answers::Answers;
use super::item::Item::{self, Join, Repeat, Set, Stop, When};
use super::item::{
    Choice, absolute, call, count, from_home, menu, named, no, number, pieces, port, rank, real, whole, word,
    words, yes,
};
use crate::front::accelerate::cluster::Literal;

/// All questions. A key with a dot is one inside another. A key that begins with `?` is not written; it only decides
/// which questions follow.
pub const QUESTIONS: &[Item] = &[
    Set("compute_environment", Literal::Text("LOCAL_MACHINE")),
    menu("?environment", "Where will the training run?", ENVIRONMENTS, 0),
    When(
        |a| a.is("?environment", "AMAZON_SAGEMAKER"),
        &[Stop("SageMaker is a service, and nothing is started there; choose this machine")],
    ),
    menu("distributed_type", "What will it run on?", MACHINES, 0),
    Set("num_machines", Literal::Int(1)),
    Set("machine_rank", Literal::Int(0)),
    Set("rdzv_backend", Literal::Text("static")),
    Set("same_network", Literal::Bool(true)),
    Set("debug", Literal::Bool(false)),
    Set("num_processes", Literal::Int(1)),
    Set("downcast_bf16", Literal::Text("no")),
    Set("tpu_env", Literal::EmptyList),
    Set("use_cpu", Literal::Bool(false)),
    Set("enable_cpu_affinity", Literal::Bool(false)),
    Set("main_training_function", Literal::Text("main")),
    When(Answers::is_multi, NODES),
    When(
        |a| a.is("distributed_type", "NO"),
        &[no("use_cpu", "Train on the CPU alone, also where there is a GPU or another accelerator?")],
    ),
    When(|a| a.is("distributed_type", "MULTI_CPU"), MPI),
    no("?dynamo", "Compile the script with torch dynamo?"),
    When(|a| a.yes("?dynamo"), DYNAMO),
    When(
        |a| (a.is_multi() && !a.is("distributed_type", "MULTI_CPU")) || a.is("distributed_type", "NO"),
        DEEPSPEED,
    ),
    When(|a| a.is_multi() && !a.is("distributed_type", "MULTI_CPU"), FSDP),
    When(|a| a.int("fsdp_config.fsdp_version") == 2, PARALLELISM),
    When(|a| a.is("distributed_type", "MULTI_GPU"), MEGATRON),
    When(|a| !a.is("distributed_type", "NO"), &[count("num_processes", "How many {devices} in all?")]),
    When(
        |a| {
            a.is("distributed_type", "MULTI_GPU")
                && !a.more_than_one("num_machines")
                && !a.more_than_one("num_processes")
        },
        &[Stop("one GPU of one machine is not a distributed training; choose that for the kind of machine")],
    ),
    When(
        |a| {
            (a.is_multi() && !a.is("distributed_type", "MULTI_CPU"))
                || (a.is("distributed_type", "NO") && !a.yes("use_cpu"))
        },
        &[word("gpu_ids", "Which GPUs of this machine, by number, separated by commas?", "all")],
    ),
    When(
        |a| a.is("distributed_type", "MULTI_GPU") || (a.is("distributed_type", "NO") && !a.yes("use_cpu")),
        &[no("enable_cpu_affinity", "Keep each process on the cores near its GPU (NVIDIA only)?")],
    ),
    When(|a| a.is("distributed_type", "XLA"), TPU),
    When(
        |a| !a.is("distributed_type", "XLA") && !a.yes("?deepspeed_file"),
        &[
            menu("mixed_precision", "In which mixed precision?", PRECISIONS, 0),
            When(|a| a.is("mixed_precision", "fp8"), FP8),
        ],
    ),
];

const ENVIRONMENTS: &[Choice] =
    &[call("This machine", "LOCAL_MACHINE"), call("AWS (Amazon SageMaker)", "AMAZON_SAGEMAKER")];

const MACHINES: &[Choice] = &[
    call("No distributed training", "NO"),
    call("multi-CPU", "MULTI_CPU"),
    call("multi-XPU", "MULTI_XPU"),
    call("multi-HPU", "MULTI_HPU"),
    call("multi-GPU", "MULTI_GPU"),
    call("multi-NPU", "MULTI_NPU"),
    call("multi-MLU", "MULTI_MLU"),
    call("multi-SDAA", "MULTI_SDAA"),
    call("multi-MUSA", "MULTI_MUSA"),
    call("multi-NEURON", "MULTI_NEURON"),
    call("TPU", "XLA"),
];

const NODES: &[Item] = &[
    count("num_machines", "How many machines?"),
    When(
        |a| a.more_than_one("num_machines"),
        &[
            rank("machine_rank", "Which of them is this one?", "num_machines"),
            words("main_process_ip", "What is the address of the machine of the main process?"),
            port("main_process_port", "At which port does the main process listen?"),
            yes("same_network", "Are the machines in one local network?"),
            When(
                |a| !a.yes("same_network"),
                &[word("rdzv_backend", "By which rendezvous do they meet (static, c10d, …)?", "static")],
            ),
        ],
    ),
    no(
        "debug",
        "Check every distributed operation during the run? It is slower, and a mismatch is reported at once",
    ),
];

const MPI: &[Item] = &[
    Set("use_cpu", Literal::Bool(true)),
    no("?mpirun", "Start the processes with mpirun?"),
    When(
        |a| a.yes("?mpirun"),
        &[from_home("mpirun_config.mpirun_hostfile", "Where is the hostfile of mpirun?", "~/hostfile")],
    ),
];

const DYNAMO: &[Item] = &[
    menu("dynamo_config.dynamo_backend", "With which backend of dynamo?", BACKENDS, 2),
    no("?dynamo_custom", "Change the defaults of torch.compile?"),
    When(
        |a| a.yes("?dynamo_custom"),
        &[
            menu("dynamo_config.dynamo_mode", "In which mode?", MODES, 0),
            no("dynamo_config.dynamo_use_fullgraph", "Insist on one graph for the whole model?"),
            no("dynamo_config.dynamo_use_dynamic", "Trace shapes as dynamic?"),
            no("dynamo_config.dynamo_use_regional_compilation", "Compile repeated blocks once?"),
        ],
    ),
];

const BACKENDS: &[Choice] = &[
    call("eager", "EAGER"),
    call("aot_eager", "AOT_EAGER"),
    call("inductor", "INDUCTOR"),
    call("aot_ts_nvfuser", "AOT_TS_NVFUSER"),
    call("nvprims_nvfuser", "NVPRIMS_NVFUSER"),
    call("cudagraphs", "CUDAGRAPHS"),
    call("ofi", "OFI"),
    call("fx2trt", "FX2TRT"),
    call("onnxrt", "ONNXRT"),
    call("tensorrt", "TENSORRT"),
    call("aot_torchxla_trace_once", "AOT_TORCHXLA_TRACE_ONCE"),
    call("torhchxla_trace_once", "TORHCHXLA_TRACE_ONCE"),
    call("tvm", "TVM"),
];

const MODES: &[Choice] = &[named("default"), named("reduce-overhead"), named("max-autotune")];

const DEEPSPEED: &[Item] = &[
    no("?deepspeed", "Use DeepSpeed?"),
    When(
        |a| a.yes("?deepspeed"),
        &[
            When(
                |a| a.is("distributed_type", "MULTI_NEURON"),
                &[Stop("there is no DeepSpeed for NEURON; choose other devices, or go on without DeepSpeed")],
            ),
            Set("distributed_type", Literal::Text("DEEPSPEED")),
            no("?deepspeed_file", "Is there a JSON file with DeepSpeed's configuration?"),
            When(
                |a| a.yes("?deepspeed_file"),
                &[word("deepspeed_config.deepspeed_config_file", "Where is it?", "none")],
            ),
            When(|a| !a.yes("?deepspeed_file"), ZERO),
            no(
                "deepspeed_config.zero3_init_flag",
                "Build the model in parts with deepspeed.zero.Init (stage 3)?",
            ),
            no("?moe", "Train a mixture of experts?"),
            When(
                |a| a.yes("?moe"),
                &[words(
                    "deepspeed_config.deepspeed_moe_layer_cls_names",
                    "Which classes are its layers, separated by commas (such as MixtralSparseMoeBlock)?",
                )],
            ),
            When(|a| a.more_than_one("num_machines"), LAUNCHER),
        ],
    ),
];

const ZERO: &[Item] = &[
    menu("deepspeed_config.zero_stage", "Which stage of ZeRO?", STAGES, 2),
    When(
        |a| a.int("deepspeed_config.zero_stage") >= 2,
        &[
            menu("deepspeed_config.offload_optimizer_device", "Where is optimizer state kept?", DEVICES, 0),
            menu("deepspeed_config.offload_param_device", "Where are parameters kept?", DEVICES, 0),
            When(
                |a| a.is("deepspeed_config.offload_param_device", "nvme"),
                &[word(
                    "deepspeed_config.offload_param_nvme_path",
                    "In which folder are parameters kept?",
                    "/nvme",
                )],
            ),
            When(
                |a| a.is("deepspeed_config.offload_optimizer_device", "nvme"),
                &[word(
                    "deepspeed_config.offload_optimizer_nvme_path",
                    "In which folder is optimizer state kept?",
                    "/nvme",
                )],
            ),
        ],
    ),
    count(
        "deepspeed_config.gradient_accumulation_steps",
        "How many steps of gradient accumulation does the script make?",
    ),
    no("?clipping", "Clip gradients?"),
    When(|a| a.yes("?clipping"), &[real("deepspeed_config.gradient_clipping", "At which norm?", 1.0)]),
    When(
        |a| a.int("deepspeed_config.zero_stage") == 3,
        &[no("deepspeed_config.zero3_save_16bit_model", "Save whole 16-bit weights with stage 3?")],
    ),
];

const STAGES: &[Choice] = &[number("0", 0), number("1", 1), number("2", 2), number("3", 3)];

const DEVICES: &[Choice] = &[named("none"), named("cpu"), named("nvme")];

const LAUNCHER: &[Item] = &[
    menu(
        "deepspeed_config.deepspeed_multinode_launcher",
        "By what are the other machines reached?",
        LAUNCHERS,
        0,
    ),
    When(
        |a| !a.is("deepspeed_config.deepspeed_multinode_launcher", "standard"),
        &[
            words(
                "deepspeed_config.deepspeed_hostfile",
                "Where is the hostfile (a line for each machine, such as `worker-1 slots=8`)?",
            ),
            no("?exclude", "Leave machines or GPUs of it out?"),
            When(
                |a| a.yes("?exclude"),
                &[words("deepspeed_config.deepspeed_exclusion_filter", "Which (such as worker-1:0,2)?")],
            ),
            no("?include", "Take only some machines or GPUs of it?"),
            When(
                |a| a.yes("?include"),
                &[words(
                    "deepspeed_config.deepspeed_inclusion_filter",
                    "Which (such as worker-1@worker-2:0,2)?",
                )],
            ),
        ],
    ),
];

const LAUNCHERS: &[Choice] = &[
    named("pdsh"),
    named("standard"),
    named("openmpi"),
    named("mvapich"),
    named("mpich"),
    named("nossh"),
    named("slurm"),
];

const FSDP: &[Item] = &[
    no("?fsdp", "Use FSDP (FullyShardedDataParallel)?"),
    When(
        |a| a.yes("?fsdp"),
        &[
            When(
                |a| a.is("distributed_type", "MULTI_NEURON"),
                &[Stop("there is no FSDP for NEURON; choose other devices, or go on without FSDP")],
            ),
            Set("distributed_type", Literal::Text("FSDP")),
            menu("fsdp_config.fsdp_version", "Which version of FSDP?", &[number("1", 1), number("2", 2)], 1),
            When(
                first_version,
                &[menu("fsdp_config.fsdp_reshard_after_forward", "Which sharding strategy?", STRATEGIES, 0)],
            ),
            When(
                |a| !first_version(a),
                &[yes(
                    "fsdp_config.fsdp_reshard_after_forward",
                    "Divide parameters again after the forward pass?",
                )],
            ),
            no("fsdp_config.fsdp_offload_params", "Keep parameters and gradients in the memory of the CPU?"),
            menu("fsdp_config.fsdp_auto_wrap_policy", "How is the model cut into units?", WRAPS, 0),
            When(
                |a| a.is("fsdp_config.fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
                &[
                    no("?no_split", "Take the classes that the model itself names (_no_split_modules)?"),
                    When(
                        |a| !a.yes("?no_split"),
                        &[words(
                            "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
                            "Which classes are layers, separated by commas (such as LlamaDecoderLayer)?",
                        )],
                    ),
                ],
            ),
            When(
                |a| a.is("fsdp_config.fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"),
                &[whole(
                    "fsdp_config.fsdp_min_num_params",
                    "How many parameters has a unit at least?",
                    100_000_000,
                )],
            ),
            When(
                first_version,
                &[
                    menu(
                        "fsdp_config.fsdp_backward_prefetch",
                        "When is the next unit fetched?",
                        PREFETCHES,
                        0,
                    ),
                    menu("fsdp_config.fsdp_state_dict_type", "In which form are weights saved?", STATES_1, 0),
                    no("fsdp_config.fsdp_forward_prefetch", "Fetch ahead in the forward pass, too?"),
                    yes(
                        "fsdp_config.fsdp_use_orig_params",
                        "Keep the model's own parameters (use_orig_params)?",
                    ),
                ],
            ),
            When(
                |a| !first_version(a),
                &[menu("fsdp_config.fsdp_state_dict_type", "In which form are weights saved?", STATES_2, 0)],
            ),
            yes("fsdp_config.fsdp_cpu_ram_efficient_loading", "Let one process alone read the weights?"),
            When(
                |a| first_version(a) && a.yes("fsdp_config.fsdp_cpu_ram_efficient_loading"),
                &[Set("fsdp_config.fsdp_sync_module_states", Literal::Bool(true))],
            ),
            When(
                |a| first_version(a) && !a.yes("fsdp_config.fsdp_cpu_ram_efficient_loading"),
                &[yes(
                    "fsdp_config.fsdp_sync_module_states",
                    "Send the weights of rank 0 to all others at the start?",
                )],
            ),
            no(
                "fsdp_config.fsdp_activation_checkpointing",
                "Compute activations again in the backward pass?",
            ),
        ],
    ),
];

fn first_version(answers: &Answers) -> bool {
    answers.int("fsdp_config.fsdp_version") == 1
}

const STRATEGIES: &[Choice] = &[
    named("FULL_SHARD"),
    named("SHARD_GRAD_OP"),
    named("NO_SHARD"),
    named("HYBRID_SHARD"),
    named("HYBRID_SHARD_ZERO2"),
];

const WRAPS: &[Choice] = &[named("TRANSFORMER_BASED_WRAP"), named("SIZE_BASED_WRAP"), named("NO_WRAP")];

const PREFETCHES: &[Choice] = &[named("BACKWARD_PRE"), named("BACKWARD_POST"), named("NO_PREFETCH")];

const STATES_1: &[Choice] =
    &[named("FULL_STATE_DICT"), named("LOCAL_STATE_DICT"), named("SHARDED_STATE_DICT")];

const STATES_2: &[Choice] = &[named("SHARDED_STATE_DICT"), named("FULL_STATE_DICT")];

const PARALLELISM: &[Item] = &[
    no("?parallelism", "Divide the work in several dimensions (parallelism config)?"),
    When(
        |a| a.yes("?parallelism"),
        &[
            count("parallelism_config.parallelism_config_dp_replicate_size", "How many replicas?"),
            count("parallelism_config.parallelism_config_dp_shard_size", "How many shards of each?"),
            count("parallelism_config.parallelism_config_tp_size", "How many parts of each tensor?"),
            count("parallelism_config.parallelism_config_cp_size", "How many parts of each sequence?"),
            When(
                |a| a.more_than_one("parallelism_config.parallelism_config_cp_size"),
                &[menu(
                    "parallelism_config.parallelism_config_cp_comm_strategy",
                    "How do the parts of a sequence meet?",
                    &[named("allgather"), named("alltoall")],
                    0,
                )],
            ),
        ],
    ),
];

const MEGATRON: &[Item] = &[
    no("?megatron", "Use Megatron-LM?"),
    When(
        |a| a.yes("?megatron"),
        &[
            Set("distributed_type", Literal::Text("MEGATRON_LM")),
            count("megatron_lm_config.megatron_lm_tp_degree", "How many parts of each tensor?"),
            When(
                |a| a.more_than_one("megatron_lm_config.megatron_lm_tp_degree"),
                &[yes("megatron_lm_config.megatron_lm_sequence_parallelism", "Divide sequences, too?")],
            ),
            count("megatron_lm_config.megatron_lm_pp_degree", "How many stages of a pipeline?"),
            When(
                |a| a.more_than_one("megatron_lm_config.megatron_lm_pp_degree"),
                &[count("megatron_lm_config.megatron_lm_num_micro_batches", "How many micro batches?")],
            ),
            yes("megatron_lm_config.megatron_lm_recompute_activations", "Compute some activations again?"),
            yes(
                "megatron_lm_config.megatron_lm_use_distributed_optimizer",
                "Divide optimizer state and gradients?",
            ),
            real(
                "megatron_lm_config.megatron_lm_gradient_clipping",
                "Clip gradients at which norm (0: never)?",
                1.0,
            ),
        ],
    ),
];

const TPU: &[Item] = &[
    Set("mixed_precision", Literal::Text("no")),
    word("main_training_function", "Which function of the script runs in every process?", "main"),
    no("tpu_use_cluster", "Is it a cluster of TPUs?"),
    When(
        |a| a.yes("tpu_use_cluster"),
        &[
            words("tpu_name", "What is the name of the cluster?"),
            words("tpu_zone", "In which zone is it?"),
            no("tpu_use_sudo", "Start scripts with sudo?"),
            no("?startup", "Are there commands to run at the start of each pod?"),
            When(
                |a| a.yes("?startup"),
                &[
                    no("?startup_file", "Are they in a script?"),
                    When(|a| a.yes("?startup_file"), &[absolute("command_file", "Where is it?")]),
                    When(
                        |a| !a.yes("?startup_file"),
                        &[Repeat { key: "commands", text: "Which command?", again: "Another one?" }],
                    ),
                ],
            ),
            pieces("tpu_vm", "Which virtual machines, separated by commas, where they are not a group?"),
            pieces("tpu_env", "Which environment variables in each pod, separated by commas?"),
        ],
    ),
];

const PRECISIONS: &[Choice] = &[named("no"), named("fp16"), named("bf16"), named("fp8")];

const FP8: &[Item] = &[
    menu(
        "fp8_config.backend",
        "By which library?",
        &[call("ao", "AO"), call("te", "TE"), call("msamp", "MSAMP")],
        0,
    ),
    When(
        |a| a.is("fp8_config.backend", "TE"),
        &[
            no(
                "fp8_config.use_autocast_during_eval",
                "In FP8 during evaluation, too? Without it metrics are mostly better",
            ),
            whole("fp8_config.margin", "Which margin has the scale of gradients?", 0),
            whole("fp8_config.interval", "Every how many steps is the scale computed?", 1),
            menu(
                "fp8_config.fp8_format",
                "In which format?",
                &[named("HYBRID"), named("E4M3"), named("E5M2")],
                0,
            ),
            whole("fp8_config.amax_history_length", "Over how many steps is the largest value known?", 1024),
            menu(
                "fp8_config.amax_compute_algorithm",
                "Which of them counts?",
                &[named("max"), named("most_recent")],
                0,
            ),
            no("?higher", "Some matrix products in a higher precision?"),
            When(
                |a| a.yes("?higher"),
                &[
                    no("?fprop", "Those of the forward pass?"),
                    no("?dgrad", "Those of the gradients of activations?"),
                    no("?wgrad", "Those of the gradients of weights?"),
                ],
            ),
            Join("fp8_config.override_linear_precision", &["?fprop", "?dgrad", "?wgrad"]),
        ],
    ),
    When(
        |a| a.is("fp8_config.backend", "MSAMP"),
        &[menu("fp8_config.optimization_level", "At which level?", &[named("O1"), named("O2")], 1)],
    ),
    When(
        |a| a.is("fp8_config.backend", "AO"),
        &[
            yes("fp8_config.enable_fsdp_float8_all_gather", "Gather parameters in FP8 (FSDP 2)?"),
            yes(
                "fp8_config.pad_inner_dim",
                "Pad inner dimensions as FP8 products need them? It takes memory",
            ),
        ],
    ),
];
