//! The keys of a training that configurations of DeepSpeed and FSDP speak of, too. The table of all keys is that of the
//! program, of which these are rows.

use super::keys::Group::{Optimizer, Ranks, Train};
use super::keys::Range::{BelowOne, NotNegative, Positive, Share};
use super::keys::Status::Used;
use super::keys::ValueType::{Bool, Choice, Float, Int, List, Map, MapOrPath, Steps, Text};
use super::keys::{Key, key};
use super::optimizer::OPTIMIZERS;

/// The courses of the learning rate, by their names in transformers, MiniMind's two and DeepSpeed's.
pub const SCHEDULES: &[&str] = &[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
    "minimind_seed",
    "minimind",
    "minimind3",
    "WarmupLR",
    "WarmupDecayLR",
    "WarmupCosineLR",
    "LRRangeTest",
    "OneCycle",
];

/// MiniMind's among them.
pub const MINIMIND_SCHEDULES: &[&str] = &["minimind_seed", "minimind", "minimind3"];

/// The keys.
#[rustfmt::skip]
pub const TRAINING: &[Key] = &[
    key(Train, Int(1), "per_device_train_batch_size", "8", Used, "Sequences of a rank in one forward pass"),
    key(Train, Int(1), "gradient_accumulation_steps", "1", Used, "Forward and backward passes of an optimizer step"),
    key(Train, Float(NotNegative), "max_grad_norm", "1", Used, "Norm to which gradients are clipped; 0: not at all"),
    key(Train, Bool, "bf16", "false", Used, "Compute in bf16 with f32 master weights"),
    key(Train, Bool, "fp16", "false", Used, "Compute in f16 with f32 master weights and a scaled loss"),
    key(Optimizer, Choice(OPTIMIZERS), "optim", "adamw_torch", Used, "Optimizer; AdamW under any of its names"),
    key(Optimizer, Text, "optim_args", "", Used, "Further arguments of the optimizer, as in momentum=0.9,nesterov=true"),
    key(Optimizer, Float(NotNegative), "learning_rate", "5e-5", Used, "Peak learning rate"),
    key(Optimizer, Float(NotNegative), "weight_decay", "0", Used, "Weight decay, not on norms and biases"),
    key(Optimizer, Float(BelowOne), "adam_beta1", "0.9", Used, "Decay of the first moment, for adamw, adam, lamb, lion and the part of muon that is AdamW"),
    key(Optimizer, Float(BelowOne), "adam_beta2", "0.999", Used, "Decay of the second moment, for the same"),
    key(Optimizer, Float(Positive), "adam_epsilon", "1e-8", Used, "Added to the root of the second moment, for the same"),
    key(Optimizer, Choice(SCHEDULES), "lr_scheduler_type", "linear", Used, "Course of the learning rate"),
    key(Optimizer, Map, "lr_scheduler_kwargs", "", Used, "Arguments of that course, such as min_lr, min_lr_rate, num_cycles, num_stable_steps (of warmup_stable_decay; a third of the steps after the warm-up by default), num_decay_steps (the rest of them), warmup_num_steps"),
    key(Optimizer, Float(Share), "min_lr_ratio", "", Used, "Our own: lowest learning rate as a share of the peak, for cosine_with_min_lr, cosine_warmup_with_min_lr and warmup_stable_decay"),
    key(Optimizer, Steps, "warmup_steps", "0", Used, "Warm-up steps; below 1 the share of all steps; when positive it replaces warmup_ratio"),
    key(Optimizer, Float(Share), "warmup_ratio", "0", Used, "Warm-up as a share of all steps"),
    key(Ranks, Int(1), "num_processes", "1", Used, "Our own: ranks, each a process; must agree with WORLD_SIZE and NPROC_PER_NODE"),
    key(Ranks, Int(1), "sequence_parallel_size", "1", Used, "Ranks over which each sequence is divided (DeepSpeed-Ulysses), which must divide the attention heads and cutoff_len; batches are of groups of so many ranks then"),
    key(Ranks, MapOrPath, "deepspeed", "", Used, "DeepSpeed configuration: its file, or the mapping itself"),
    key(Ranks, List, "fsdp", "", Used, "FSDP options: a strategy such as full_shard or shard_grad_op, and offload"),
    key(Ranks, MapOrPath, "fsdp_config", "", Used, "FSDP configuration: its file, or the mapping itself"),
    key(Ranks, List, "fsdp_transformer_layer_cls_to_wrap", "", Used, "Classes of the units of FSDP, as in fsdp_config"),
];
