//! The keys of a training run that configurations of DeepSpeed and FSDP speak of, too. The table of all keys is that of
//! the program, of which these are rows.

use super::keys::Group::{Optimizer, Ranks, Train};
use super::keys::Range::{BelowOne, NotNegative, Positive, Share};
use super::keys::Status::Used;
use super::keys::ValueType::{Bool, Choice, Float, Int, List, Map, MapOrPath, Steps, Text};
use super::keys::key;
use super::node::Entry;
use super::value::Value;

/// The names of `optim`, those of transformers and DeepSpeed. Those of bitsandbytes, and of AdamW on other devices, follow the
/// others, each with a stand-in.
pub const OPTIMIZERS: &[&str] = &[
    "adamw_torch",
    "adamw_torch_fused",
    "adamw_hf",
    "adamw",
    "adam",
    "sgd",
    "adagrad",
    "lion_32bit",
    "lion",
    "lamb",
    "adafactor",
    "adafactor_torch",
    "muon",
    "onebit_adam",
    "zero_one_adam",
    "onebit_lamb",
    "rmsprop",
    "ademamix",
    "adamw_apex_fused",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "adamw_torch_8bit",
    "adamw_torch_4bit",
    "paged_adamw",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "lion_8bit",
    "paged_lion",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop_bnb",
    "rmsprop_bnb_32bit",
    "rmsprop_bnb_8bit",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
];

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

super::keys::key_table! {
    /// The keys.
    pub const TRAINING = [
        PER_DEVICE_TRAIN_BATCH_SIZE: usize = key(Train, Int(1), "per_device_train_batch_size", "8", Used, "Sequences of a rank in one forward pass"),
        GRADIENT_ACCUMULATION_STEPS: usize = key(Train, Int(1), "gradient_accumulation_steps", "1", Used, "Forward and backward passes of an optimizer step"),
        MAX_GRAD_NORM: f64 = key(Train, Float(NotNegative), "max_grad_norm", "1", Used, "Maximum gradient norm; 0: no clipping"),
        BF16: bool = key(Train, Bool, "bf16", "false", Used, "Compute in bf16 with f32 master weights"),
        FP16: bool = key(Train, Bool, "fp16", "false", Used, "Compute in f16 with f32 master weights and a scaled loss"),
        OPTIM: String = key(Optimizer, Choice(OPTIMIZERS), "optim", "adamw_torch", Used, "Optimizer; AdamW under any of its names"),
        OPTIM_ARGS: Option<String> = key(Optimizer, Text, "optim_args", "", Used, "Further arguments of the optimizer, as in momentum=0.9,nesterov=true"),
        LEARNING_RATE: f64 = key(Optimizer, Float(NotNegative), "learning_rate", "5e-5", Used, "Peak learning rate"),
        WEIGHT_DECAY: f64 = key(Optimizer, Float(NotNegative), "weight_decay", "0", Used, "Weight decay, not on norms and biases"),
        ADAM_BETA1: f64 = key(Optimizer, Float(BelowOne), "adam_beta1", "0.9", Used, "Decay of the first moment (beta1), for adamw, adam, lamb, lion and the AdamW part of muon"),
        ADAM_BETA2: f64 = key(Optimizer, Float(BelowOne), "adam_beta2", "0.999", Used, "Decay of the second moment (beta2), for the same"),
        ADAM_EPSILON: f64 = key(Optimizer, Float(Positive), "adam_epsilon", "1e-8", Used, "Epsilon, added to the root of the second moment, for the same"),
        LR_SCHEDULER_TYPE: String = key(Optimizer, Choice(SCHEDULES), "lr_scheduler_type", "linear", Used, "Learning rate schedule"),
        LR_SCHEDULER_KWARGS: Vec<Entry> = key(Optimizer, Map, "lr_scheduler_kwargs", "", Used, "Arguments of the schedule, such as min_lr, min_lr_rate, num_cycles, num_stable_steps (of warmup_stable_decay; a third of the steps after the warm-up by default), num_decay_steps (the rest of them), warmup_num_steps"),
        MIN_LR_RATIO: Option<f64> = key(Optimizer, Float(Share), "min_lr_ratio", "", Used, "Our own: lowest learning rate as a share of the peak, for cosine_with_min_lr, cosine_warmup_with_min_lr and warmup_stable_decay"),
        WARMUP_STEPS: f64 = key(Optimizer, Steps, "warmup_steps", "0", Used, "Warm-up steps; below 1 the share of all steps; when positive it replaces warmup_ratio"),
        WARMUP_RATIO: f64 = key(Optimizer, Float(Share), "warmup_ratio", "0", Used, "Warm-up as a share of all steps"),
        NUM_PROCESSES: usize = key(Ranks, Int(1), "num_processes", "1", Used, "Our own: number of ranks, each a process; must agree with WORLD_SIZE and NPROC_PER_NODE"),
        SEQUENCE_PARALLEL_SIZE: usize = key(Ranks, Int(1), "sequence_parallel_size", "1", Used, "Ranks that share each sequence (DeepSpeed-Ulysses); must divide the attention heads and cutoff_len; batch sizes then count groups of ranks"),
        DEEPSPEED: Value = key(Ranks, MapOrPath, "deepspeed", "", Used, "DeepSpeed configuration: a file or a mapping"),
        FSDP: Vec<String> = key(Ranks, List, "fsdp", "", Used, "FSDP options: a strategy such as full_shard or shard_grad_op, and offload"),
        FSDP_CONFIG: Value = key(Ranks, MapOrPath, "fsdp_config", "", Used, "FSDP configuration: a file or a mapping"),
        FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP: Vec<String> = key(Ranks, List, "fsdp_transformer_layer_cls_to_wrap", "", Used, "Classes that FSDP wraps, as in fsdp_config"),
    ];
}
