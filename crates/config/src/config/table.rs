//! All keys of a training run, and those of them that configurations of DeepSpeed and FSDP speak of, too. Each stands
//! beside the struct that it fills; those of the optimizer stand here.

use crate::settings::keys::Group::Optimizer;
use crate::settings::keys::Range::{BelowOne, NotNegative, Positive, Share};
use crate::settings::keys::Status::Used;
use crate::settings::keys::ValueType::{Choice, Float, Map, Steps, Text};
use crate::settings::keys::{Row, joined, key, key_table, n_rows};
use crate::settings::node::Entry;

pub use super::data::*;
pub use super::eval::*;
pub use super::log::*;
pub use super::method::*;
pub use super::model::*;
pub use super::objective::keys::*;
pub use super::ranks::*;
pub use super::save::*;
pub use super::train::*;

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

key_table! {
    /// The keys of optimizers and of the learning rate.
    pub const OPTIMIZER = [
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
    ];
}

/// The keys of each group.
const GROUPS: &[&[Row]] = &[MODEL, DATA, METHOD, TRAIN, OPTIMIZER, EVAL, SAVE, LOG, RANKS];

/// All keys, in the order in which help and tables show them.
pub const KEYS: &[Row] = &joined::<{ n_rows(GROUPS) }>(GROUPS);

/// Those that a configuration of DeepSpeed or FSDP can be read with by itself.
pub const TRAINING: &[Row] = &[
    *PER_DEVICE_TRAIN_BATCH_SIZE.row,
    *GRADIENT_ACCUMULATION_STEPS.row,
    *MAX_GRAD_NORM.row,
    *BF16.row,
    *FP16.row,
    *OPTIM.row,
    *OPTIM_ARGS.row,
    *LEARNING_RATE.row,
    *WEIGHT_DECAY.row,
    *ADAM_BETA1.row,
    *ADAM_BETA2.row,
    *ADAM_EPSILON.row,
    *LR_SCHEDULER_TYPE.row,
    *LR_SCHEDULER_KWARGS.row,
    *MIN_LR_RATIO.row,
    *WARMUP_STEPS.row,
    *WARMUP_RATIO.row,
    *NUM_PROCESSES.row,
    *SEQUENCE_PARALLEL_SIZE.row,
    *DEEPSPEED.row,
    *FSDP.row,
    *FSDP_CONFIG.row,
    *FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP.row,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::keys::Group;
    use crate::settings::value;

    #[test]
    fn every_default_is_of_its_type() {
        for key in KEYS.iter().filter(|key| !key.default.is_empty()) {
            assert!(!matches!(value::default(key), value::Value::Null), "{}: {}", key.name, key.default);
        }
    }

    #[test]
    fn the_keys_of_a_group_stand_together() {
        let groups: Vec<_> = GROUPS.iter().map(|rows| rows[0].group).collect();
        assert_eq!(groups, Group::ALL);
        assert!(GROUPS.iter().all(|rows| rows.iter().all(|row| row.group == rows[0].group)));
    }
}
