//! Every key of an FSDP configuration, without its prefix `fsdp_`, with its default there and its meaning here.

use super::super::keys::Kind::{Bool, Int, List, Map, Text};
use super::super::keys::Status::{Later, NoEffect, Used};
use super::super::keys::{Group, Key, Kind, Status};

const UNITS: Status = NoEffect("a unit is a block of the model, always");
const MAPPED: Status = NoEffect("every rank maps the file of the weights");
const ORIGINAL: Status = NoEffect("parameters keep their names and shapes");
const OVERLAP: Status = NoEffect("communication overlaps computation by itself");
const XLA: Status = Later("ranks are CPU processes");

const fn key(
    kind: Kind,
    name: &'static str,
    default: &'static str,
    status: Status,
    doc: &'static str,
) -> Key {
    Key { name, group: Group::Ranks, kind, default, status, doc }
}

/// The keys, by their paths.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key(Text, "sharding_strategy", "", Used, "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, or its number from 1"),
    key(Text, "reshard_after_forward", "", Used, "true: FULL_SHARD; false: SHARD_GRAD_OP; a number: ranks that keep a second divided copy; or a strategy"),
    key(Int(1), "version", "2", NoEffect("there is one engine"), "Version of FSDP"),
    key(Bool, "offload_params", "false", Used, "States and parameters in main memory, where CPU ranks have them anyway"),
    key(Bool, "cpu_offload", "false", Used, "The same"),
    key(Text, "state_dict_type", "", Used, "FULL_STATE_DICT, LOCAL_STATE_DICT or SHARDED_STATE_DICT; unset: sharded, which any number of ranks reads"),
    key(Bool, "activation_checkpointing", "false", Used, "Recompute every unit, as gradient_checkpointing: true does"),
    key(Text, "backward_prefetch", "", Used, "NO_PREFETCH: gather nothing ahead; BACKWARD_PRE and BACKWARD_POST: one unit ahead"),
    key(Bool, "forward_prefetch", "false", OVERLAP, "Gather ahead in the forward pass, too"),
    key(Bool, "limit_all_gathers", "true", NoEffect("gathered parameters have a limit, always"), "Limit what is gathered"),
    key(Text, "mixed_precision_policy.reduce_dtype", "", Used, "What gradients are reduced in"),
    key(Text, "mixed_precision_policy.param_dtype", "", NoEffect("bf16 and fp16 say it"), "What parameters are computed in"),
    key(Text, "mixed_precision_policy.buffer_dtype", "", NoEffect("bf16 and fp16 say it"), "What buffers are computed in"),
    key(Text, "mixed_precision_policy.output_dtype", "", NoEffect("bf16 and fp16 say it"), "What outputs are computed in"),
    key(Bool, "mixed_precision_policy.cast_forward_inputs", "true", NoEffect("inputs are tokens"), "Cast inputs"),
    key(Text, "auto_wrap_policy", "", UNITS, "What becomes a unit"),
    key(List, "transformer_layer_cls_to_wrap", "", UNITS, "Classes of modules that become units"),
    key(List, "transformer_cls_names_to_wrap", "", UNITS, "The same"),
    key(Int(0), "min_num_params", "", UNITS, "The least size of a unit"),
    key(Bool, "cpu_ram_efficient_loading", "false", MAPPED, "Only rank 0 reads the weights"),
    key(Bool, "sync_module_states", "true", MAPPED, "Send the weights of rank 0"),
    key(Bool, "use_orig_params", "true", ORIGINAL, "Keep the model's parameters"),
    key(List, "ignored_modules", "", Later("every unit is treated alike"), "Modules that stay whole"),
    key(Map, "parallelism_config", "", Later("ranks are data parallel"), "Other kinds of parallel ranks"),
    key(Bool, "xla", "false", XLA, "FSDP of XLA"),
    key(Bool, "xla_fsdp_v2", "false", XLA, "FSDP of XLA"),
    key(Map, "xla_fsdp_settings", "", XLA, "Settings of XLA"),
    key(Bool, "xla_fsdp_grad_ckpt", "false", XLA, "Recomputation of XLA"),
];
