//! Every key of an FSDP configuration, without its prefix `fsdp_`, with its default there and its meaning here.

use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{Bool, Int, List, Map, Text};
use crate::settings::keys::{Row, Status};
use crate::settings::node::Entry;

const MAPPED: Status = NoEffect("every rank maps the file of the weights");
const ORIGINAL: Status = NoEffect("parameters keep their names and shapes");
const BOTH_PASSES: Status = NoEffect("both passes gather ahead");
const OF_XLA: Status = Later("ranks are CPU processes");

crate::settings::keys::key_table! {
    /// The keys, by their paths.
    pub const KEYS = [
        SHARDING_STRATEGY: Option<String> = Row::flag(Text, "sharding_strategy", "", Used, "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or its number from 1"),
        RESHARD_AFTER_FORWARD: Option<String> = Row::flag(Text, "reshard_after_forward", "", Used, "true: FULL_SHARD; false: SHARD_GRAD_OP; a number: ranks that shard a second copy; or a strategy"),
        VERSION: usize = Row::flag(Int(1), "version", "2", NoEffect("there is one engine"), "Version of FSDP"),
        OFFLOAD_PARAMS: bool = Row::flag(Bool, "offload_params", "false", Used, "States and parameters in main memory, where CPU ranks have them anyway"),
        CPU_OFFLOAD: bool = Row::flag(Bool, "cpu_offload", "false", Used, "The same"),
        STATE_DICT_TYPE: Option<String> = Row::flag(Text, "state_dict_type", "", Used, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT; unset: sharded, which any number of ranks reads"),
        ACTIVATION_CHECKPOINTING: bool = Row::flag(Bool, "activation_checkpointing", "false", Used, "Recompute every unit, as gradient_checkpointing: true does"),
        ACTIVATION_CHECKPOINTING_OFFLOAD: bool = Row::flag(Bool, "activation_checkpointing_offload", "false", NoEffect("what CPU ranks keep is in main memory"), "Keep inputs of recomputed units in main memory"),
        BACKWARD_PREFETCH: Option<String> = Row::flag(Text, "backward_prefetch", "", Used, "NO_PREFETCH: gather nothing ahead; BACKWARD_PRE and BACKWARD_POST: gather units ahead, up to 5e7 parameters"),
        FORWARD_PREFETCH: bool = Row::flag(Bool, "forward_prefetch", "false", BOTH_PASSES, "Gather ahead in the forward pass, too"),
        LIMIT_ALL_GATHERS: bool = Row::flag(Bool, "limit_all_gathers", "true", NoEffect("gathered parameters have a limit, always"), "Limit what is gathered"),
        MIXED_PRECISION_POLICY_REDUCE_DTYPE: Option<String> = Row::flag(Text, "mixed_precision_policy.reduce_dtype", "", Used, "What gradients are reduced in"),
        MIXED_PRECISION_POLICY_PARAM_DTYPE: Option<String> = Row::flag(Text, "mixed_precision_policy.param_dtype", "", NoEffect("bf16 and fp16 say it"), "What parameters are computed in"),
        MIXED_PRECISION_POLICY_BUFFER_DTYPE: Option<String> = Row::flag(Text, "mixed_precision_policy.buffer_dtype", "", NoEffect("bf16 and fp16 say it"), "What buffers are computed in"),
        MIXED_PRECISION_POLICY_OUTPUT_DTYPE: Option<String> = Row::flag(Text, "mixed_precision_policy.output_dtype", "", NoEffect("bf16 and fp16 say it"), "What outputs are computed in"),
        MIXED_PRECISION_POLICY_CAST_FORWARD_INPUTS: bool = Row::flag(Bool, "mixed_precision_policy.cast_forward_inputs", "true", NoEffect("inputs are tokens"), "Cast inputs"),
        AUTO_WRAP_POLICY: Option<String> = Row::flag(Text, "auto_wrap_policy", "", Used, "What becomes a unit: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"),
        TRANSFORMER_LAYER_CLS_TO_WRAP: Vec<String> = Row::flag(List, "transformer_layer_cls_to_wrap", "", Used, "Classes whose modules become units; unset: all units that the model has"),
        TRANSFORMER_CLS_NAMES_TO_WRAP: Vec<String> = Row::flag(List, "transformer_cls_names_to_wrap", "", Used, "The same"),
        MIN_NUM_PARAMS: usize = Row::flag(Int(0), "min_num_params", "1e8", Used, "Least size of a unit of SIZE_BASED_WRAP; 0: one unit, as there"),
        CPU_RAM_EFFICIENT_LOADING: bool = Row::flag(Bool, "cpu_ram_efficient_loading", "false", MAPPED, "Only rank 0 reads the weights"),
        SYNC_MODULE_STATES: bool = Row::flag(Bool, "sync_module_states", "true", MAPPED, "Send the weights of rank 0"),
        USE_ORIG_PARAMS: bool = Row::flag(Bool, "use_orig_params", "true", ORIGINAL, "Keep the model's parameters"),
        IGNORED_MODULES: Vec<String> = Row::flag(List, "ignored_modules", "", Later("every unit is treated alike"), "Modules that stay whole"),
        PARALLELISM_CONFIG: Vec<Entry> = Row::flag(Map, "parallelism_config", "", Later("write fsdp_config, sequence_parallel_size or pipeline_model_parallel_size"), "Other kinds of parallel ranks"),
        XLA: bool = Row::flag(Bool, "xla", "false", OF_XLA, "FSDP of XLA"),
        XLA_FSDP_V2: bool = Row::flag(Bool, "xla_fsdp_v2", "false", OF_XLA, "FSDP of XLA"),
        XLA_FSDP_SETTINGS: Vec<Entry> = Row::flag(Map, "xla_fsdp_settings", "", OF_XLA, "Settings of XLA"),
        XLA_FSDP_GRAD_CKPT: bool = Row::flag(Bool, "xla_fsdp_grad_ckpt", "false", OF_XLA, "Recomputation of XLA"),
    ];
}
