//! What DeepSpeed's `optimizer` and `scheduler` blocks leave out. Here the run's own settings count then, where
//! DeepSpeed would take defaults of its own; where that makes a difference, a note says so.

use super::block::Dialect;
use super::deepspeed_keys;
use crate::config::table::{self as keys, MINIMIND_SCHEDULES};
use crate::settings::keys::{Key, Row};
use crate::settings::node::Entry;
use crate::settings::resolve::Settings;
use crate::settings::value::{Value, number};

/// Schedules of DeepSpeed with a warm-up.
const WARMING_UP: [&str; 3] = ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"];

/// The warm-up of these where nobody says how long it is.
const WARMUP_STEPS: f64 = 1000.0;

/// The highest rate of a schedule where nobody says it.
const WARMUP_MAX_LR: f64 = 1e-3;

/// Makes the warm-up of DeepSpeed's schedules as long as it is there, where nobody says how long.
pub fn warmup(block: Option<&Dialect>, settings: &mut Settings) {
    let said = [keys::WARMUP_STEPS, keys::WARMUP_RATIO].iter().any(|key| settings.setting(*key).is_written())
        || has(settings, keys::LR_SCHEDULER_KWARGS, "warmup_num_steps")
        || block
            .is_some_and(|block| has(&block.settings, deepspeed_keys::SCHEDULER_PARAMS, "warmup_num_steps"));
    if is_one_of(settings, &WARMING_UP) && !said {
        settings.derive(keys::WARMUP_STEPS, Value::Float(WARMUP_STEPS), "DeepSpeed's default");
    }
}

/// The learning rate and the weight decay of DeepSpeed's optimizers, where nobody says them.
pub fn defaults(block: &Dialect) -> (f64, f64) {
    let kind = block.settings.get(deepspeed_keys::OPTIMIZER_TYPE).unwrap_or_default().to_ascii_lowercase();
    // AdamW of torch decays by default.
    let of_torch =
        kind.starts_with("adam") && block.settings.get(deepspeed_keys::OPTIMIZER_PARAMS_TORCH_ADAM);
    (if kind == "adagrad" { 1e-2 } else { 1e-3 }, if of_torch { 0.01 } else { 0.0 })
}

/// A note on parameters that are not in the block and for which DeepSpeed's defaults are other values.
pub fn note(block: &Dialect, settings: &Settings) -> Option<String> {
    let mut left_out: Vec<(&str, Key<f64>, f64)> = Vec::new();
    let has_parameter = |name| has(&block.settings, deepspeed_keys::SCHEDULER_PARAMS, name);
    // WarmupLR takes the optimizer's rate where it says none.
    let own_rate = is_one_of(settings, &["WarmupDecayLR", "LRRangeTest", "OneCycle"])
        || is_one_of(settings, &["WarmupLR"]) && has_parameter("warmup_max_lr")
        || is_one_of(settings, MINIMIND_SCHEDULES);
    if let Some(kind) =
        block.settings.get(deepspeed_keys::OPTIMIZER_TYPE).map(|kind| kind.to_ascii_lowercase())
    {
        let is_missing = |key: &'static Row| !block.settings.setting(key).is_written();
        let has_betas = ["adam", "adamw", "lamb", "lion"].contains(&kind.as_str());
        let known = has_betas || ["sgd", "adagrad"].contains(&kind.as_str());
        let (lr, weight_decay) = defaults(block);
        if known && is_missing(deepspeed_keys::OPTIMIZER_PARAMS_LR.row) && !own_rate {
            left_out.push(("lr", keys::LEARNING_RATE, lr));
        }
        if has_betas && is_missing(deepspeed_keys::OPTIMIZER_PARAMS_BETAS.row) {
            left_out.extend([("betas", keys::ADAM_BETA1, 0.9), ("betas", keys::ADAM_BETA2, 0.999)]);
        }
        if has_betas && kind != "lion" && is_missing(deepspeed_keys::OPTIMIZER_PARAMS_EPS.row) {
            left_out.push(("eps", keys::ADAM_EPSILON, 1e-8));
        }
        if known && is_missing(deepspeed_keys::OPTIMIZER_PARAMS_WEIGHT_DECAY.row) {
            left_out.push(("weight_decay", keys::WEIGHT_DECAY, weight_decay));
        }
    }
    if block.settings.said(deepspeed_keys::SCHEDULER_TYPE).is_some() {
        if is_one_of(settings, &["WarmupDecayLR"]) && !has_parameter("warmup_max_lr") {
            left_out.push(("warmup_max_lr", keys::LEARNING_RATE, WARMUP_MAX_LR));
        }
        if is_one_of(settings, &WARMING_UP) && !has_parameter("warmup_num_steps") {
            let ratio = settings.get(keys::WARMUP_RATIO);
            let ours = if ratio > 0.0 { keys::WARMUP_RATIO } else { keys::WARMUP_STEPS };
            left_out.push(("warmup_num_steps", ours, WARMUP_STEPS));
        }
    }
    let differing = left_out.into_iter().filter_map(|(theirs, ours, default)| {
        let value = settings.get(ours);
        (value != default).then(|| {
            format!("{theirs} ({ours}, {}; DeepSpeed's default is {})", number(value), number(default))
        })
    });
    let differing: Vec<String> = differing.collect();
    (!differing.is_empty()).then(|| {
        format!("the DeepSpeed file leaves out what the run's settings say here: {}", differing.join(", "))
    })
}

fn is_one_of(settings: &Settings, schedules: &[&str]) -> bool {
    schedules.contains(&settings.get(keys::LR_SCHEDULER_TYPE))
}

/// Whether a mapping has a field, `auto` or not.
fn has(settings: &Settings, mapping: Key<Vec<Entry>>, field: &str) -> bool {
    settings.get(mapping).iter().any(|entry| entry.key == field && !entry.value.is_null())
}
