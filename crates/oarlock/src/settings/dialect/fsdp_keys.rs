//! Every key of an FSDP configuration, without its prefix `fsdp_`, with its default there and its meaning here.

use super::super::keys::Status::{Later, NoEffect, Used};
use super::super::keys::ValueType::{Bool, Int, List, Map, Text};
use super::super::keys::{Key, Status};

const MAPPED: Status = NoEffect("every rank maps the file of the weights");
const ORIGINAL: Status = NoEffect("parameters keep their names and shapes");
const BOTH_PASSES: Status = NoEffect("both passes gather ahead");
const XLA: Status = Later("ranks are CPU processes");

/// The keys, by their paths.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    Key::flag(Text, "sharding_strategy", "", Used, "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or its number from 1"),
    Key::flag(Text, "reshard_after_forward", "", Used, "true: FULL_SHARD; false: SHARD_GRAD_OP; a number: ranks that shard a second copy; or a strategy"),
    Key::flag(Int(1), "version", "2", NoEffect("there is one engine"), "Version of FSDP"),
    Key::flag(Bool, "offload_params", "false", Used, "States and parameters in main memory, where CPU ranks have them anyway"),
    Key::flag(Bool, "cpu_offload", "false", Used, "The same"),
    Key::flag(Text, "state_dict_type", "", Used, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT; unset: sharded, which any number of ranks reads"),
    Key::flag(Bool, "activation_checkpointing", "false", Used, "Recompute every unit, as gradient_checkpointing: true does"),
    Key::flag(Bool, "activation_checkpointing_offload", "false", NoEffect("what CPU ranks keep is in main memory"), "Keep inputs of recomputed units in main memory"),
    Key::flag(Text, "backward_prefetch", "", Used, "NO_PREFETCH: gather nothing ahead; BACKWARD_PRE and BACKWARD_POST: gather units ahead, up to 5e7 parameters"),
    Key::flag(Bool, "forward_prefetch", "false", BOTH_PASSES, "Gather ahead in the forward pass, too"),
    Key::flag(Bool, "limit_all_gathers", "true", NoEffect("gathered parameters have a limit, always"), "Limit what is gathered"),
    Key::flag(Text, "mixed_precision_policy.reduce_dtype", "", Used, "What gradients are reduced in"),
    Key::flag(Text, "mixed_precision_policy.param_dtype", "", NoEffect("bf16 and fp16 say it"), "What parameters are computed in"),
    Key::flag(Text, "mixed_precision_policy.buffer_dtype", "", NoEffect("bf16 and fp16 say it"), "What buffers are computed in"),
    Key::flag(Text, "mixed_precision_policy.output_dtype", "", NoEffect("bf16 and fp16 say it"), "What outputs are computed in"),
    Key::flag(Bool, "mixed_precision_policy.cast_forward_inputs", "true", NoEffect("inputs are tokens"), "Cast inputs"),
    Key::flag(Text, "auto_wrap_policy", "", Used, "What becomes a unit: TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP"),
    Key::flag(List, "transformer_layer_cls_to_wrap", "", Used, "Classes whose modules become units; unset: all units that the model has"),
    Key::flag(List, "transformer_cls_names_to_wrap", "", Used, "The same"),
    Key::flag(Int(0), "min_num_params", "1e8", Used, "Least size of a unit of SIZE_BASED_WRAP; 0: one unit, as there"),
    Key::flag(Bool, "cpu_ram_efficient_loading", "false", MAPPED, "Only rank 0 reads the weights"),
    Key::flag(Bool, "sync_module_states", "true", MAPPED, "Send the weights of rank 0"),
    Key::flag(Bool, "use_orig_params", "true", ORIGINAL, "Keep the model's parameters"),
    Key::flag(List, "ignored_modules", "", Later("every unit is treated alike"), "Modules that stay whole"),
    Key::flag(Map, "parallelism_config", "", Later("write fsdp_config, sequence_parallel_size or pipeline_model_parallel_size"), "Other kinds of parallel ranks"),
    Key::flag(Bool, "xla", "false", XLA, "FSDP of XLA"),
    Key::flag(Bool, "xla_fsdp_v2", "false", XLA, "FSDP of XLA"),
    Key::flag(Map, "xla_fsdp_settings", "", XLA, "Settings of XLA"),
    Key::flag(Bool, "xla_fsdp_grad_ckpt", "false", XLA, "Recomputation of XLA"),
];
