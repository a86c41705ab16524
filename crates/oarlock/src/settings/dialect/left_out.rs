//! What DeepSpeed's `optimizer` and `scheduler` blocks leave out. Here the training's own settings count then, where
//! DeepSpeed would take defaults of its own; where that makes a difference, a note says so.

use super::super::resolve::Settings;
use super::super::table::MINIMIND_SCHEDULES;
use super::super::value::{Value, number};
use super::block::Dialect;

/// Schedules of DeepSpeed with a warm-up.
const WARMING_UP: [&str; 3] = ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"];

/// The warm-up of these where nobody says how long it is.
const WARMUP_STEPS: f64 = 1000.0;

/// The highest rate of a schedule where nobody says it.
const WARMUP_MAX_LR: f64 = 1e-3;

/// Makes the warm-up of DeepSpeed's schedules as long as it is there, where nobody says how long.
pub fn warmup(block: Option<&Dialect>, settings: &mut Settings) {
    let said = ["warmup_steps", "warmup_ratio"].iter().any(|name| settings.get(name).is_written())
        || has(settings, "lr_scheduler_kwargs", "warmup_num_steps")
        || block.is_some_and(|block| has(&block.settings, "scheduler.params", "warmup_num_steps"));
    if is_one_of(settings, &WARMING_UP) && !said {
        settings.derive("warmup_steps", Value::Float(WARMUP_STEPS), "DeepSpeed's default");
    }
}

/// The learning rate and the weight decay of DeepSpeed's optimizers, where nobody says them.
pub fn defaults(block: &Dialect) -> (f64, f64) {
    let kind = block.settings.text("optimizer.type").unwrap_or_default().to_ascii_lowercase();
    // AdamW of torch decays by default.
    let of_torch = kind.starts_with("adam") && block.settings.bool("optimizer.params.torch_adam");
    (if kind == "adagrad" { 1e-2 } else { 1e-3 }, if of_torch { 0.01 } else { 0.0 })
}

/// A note on parameters that are not in the block and for which DeepSpeed's defaults are other values.
pub fn note(block: &Dialect, settings: &Settings) -> Option<String> {
    let mut left_out: Vec<(&str, &str, f64)> = Vec::new();
    let has_parameter = |name| has(&block.settings, "scheduler.params", name);
    // WarmupLR takes the optimizer's rate where it says none.
    let own_rate = is_one_of(settings, &["WarmupDecayLR", "LRRangeTest", "OneCycle"])
        || is_one_of(settings, &["WarmupLR"]) && has_parameter("warmup_max_lr")
        || is_one_of(settings, MINIMIND_SCHEDULES);
    if let Some(kind) = block.settings.text("optimizer.type").map(|kind| kind.to_ascii_lowercase()) {
        let missing = |name: &str| !block.settings.get(&format!("optimizer.params.{name}")).is_written();
        let has_betas = ["adam", "adamw", "lamb", "lion"].contains(&kind.as_str());
        let known = has_betas || ["sgd", "adagrad"].contains(&kind.as_str());
        let (lr, weight_decay) = defaults(block);
        if known && missing("lr") && !own_rate {
            left_out.push(("lr", "learning_rate", lr));
        }
        if has_betas && missing("betas") {
            left_out.extend([("betas", "adam_beta1", 0.9), ("betas", "adam_beta2", 0.999)]);
        }
        if has_betas && kind != "lion" && missing("eps") {
            left_out.push(("eps", "adam_epsilon", 1e-8));
        }
        if known && missing("weight_decay") {
            left_out.push(("weight_decay", "weight_decay", weight_decay));
        }
    }
    if block.settings.said("scheduler.type").is_some() {
        if is_one_of(settings, &["WarmupDecayLR"]) && !has_parameter("warmup_max_lr") {
            left_out.push(("warmup_max_lr", "learning_rate", WARMUP_MAX_LR));
        }
        if is_one_of(settings, &WARMING_UP) && !has_parameter("warmup_num_steps") {
            let ratio = settings.f64("warmup_ratio");
            let ours = if ratio > 0.0 { "warmup_ratio" } else { "warmup_steps" };
            left_out.push(("warmup_num_steps", ours, WARMUP_STEPS));
        }
    }
    let differing = left_out.into_iter().filter_map(|(theirs, ours, default)| {
        let value = settings.f64_or_int(ours);
        (value != default).then(|| {
            format!("{theirs} ({ours}, {}; DeepSpeed's default is {})", number(value), number(default))
        })
    });
    let differing: Vec<String> = differing.collect();
    (!differing.is_empty()).then(|| {
        format!(
            "the DeepSpeed file leaves out what the training's settings say here: {}",
            differing.join(", ")
        )
    })
}

fn is_one_of(settings: &Settings, schedules: &[&str]) -> bool {
    settings.text("lr_scheduler_type").is_some_and(|name| schedules.contains(&name.as_str()))
}

/// Whether a mapping has a field, `auto` or not.
fn has(settings: &Settings, mapping: &str, field: &str) -> bool {
    settings.entries(mapping).iter().any(|entry| entry.key == field && !entry.value.is_null())
}
