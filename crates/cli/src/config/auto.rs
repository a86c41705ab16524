//! What `"auto"` in a DeepSpeed configuration became, for the table of values: by the formulas of Accelerate and
//! transformers, and 1e9 for the two that those cannot resolve.

use oarlock::config::{Elems, ModelSource};
use oarlock::settings::resolve::{AUTO, Settings};
use oarlock::settings::value::{self, Value, number};

use super::resolved::ResolvedConfig;
use super::yaml::Node;

/// Settings that take the value of one of ours.
const SAME: [(&str, &str); 8] = [
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("fp16.enabled", "fp16"),
    ("bf16.enabled", "bf16"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("optimizer.params.weight_decay", "weight_decay"),
];

/// Settings that follow from the hidden size of the model.
const SIZES: [(&str, Elems, &str); 3] = [
    ("reduce_bucket_size", Elems::HiddenSquared, "h x h"),
    ("stage3_prefetch_bucket_size", Elems::NineTenthsOfHiddenSquared, "0.9 x h x h"),
    ("stage3_param_persistence_threshold", Elems::TenHidden, "10 x h"),
];

/// Writes into the block what each `"auto"` became.
pub fn describe(config: &mut ResolvedConfig) {
    let hidden = hidden_size(&config.model.source);
    let ours = |name: &str| config.settings.get(name).value.clone();
    let size = |name: &str| match ours(name) {
        Value::Int(size) => size,
        _ => 1,
    };
    let whole = ["per_device_train_batch_size", "gradient_accumulation_steps", "num_processes"];
    let whole = whole.into_iter().map(size).fold(1, i64::saturating_mul);
    let betas = format!("{}, {}", ours("adam_beta1"), ours("adam_beta2"));
    let course = Course::of(&config.settings);
    let mut became: Vec<(String, String)> =
        SAME.iter().map(|(theirs, name)| ((*theirs).to_owned(), format!("{}, {name}", ours(name)))).collect();
    let formula = "batch x accumulation x ranks";
    let batch = match config.settings.known_ranks() {
        Some(_) => format!("{whole}, {formula}"),
        None => formula.to_owned(),
    };
    became.push(("train_batch_size".to_owned(), batch));
    became.push(("optimizer.params.betas".to_owned(), betas));
    for (name, elems, formula) in SIZES {
        let text = hidden.map_or(formula.to_owned(), |hidden| format!("{}, {formula}", elems.of(hidden)));
        became.push((format!("zero_optimization.{name}"), text));
    }
    became.push(("zero_optimization.stage3_max_live_parameters".to_owned(), "1e9".to_owned()));
    let Some(block) = &mut config.dialects.deepspeed else { return };
    for setting in block.settings.autos() {
        let text = match became.iter().find(|(name, _)| name == setting.key.name) {
            Some((_, text)) => text.clone(),
            None => format!("{}, default", value::default(setting.key)),
        };
        setting.value = Value::Text(format!("auto: {text}"));
    }
    if let Some(setting) = block.settings.get_mut("scheduler.params")
        && let Value::Map(entries) = &mut setting.value
    {
        for entry in entries.iter_mut().filter(|entry| entry.value.word() == Some(AUTO)) {
            if let Some(text) = course.of_parameter(&entry.key) {
                entry.value = Node::scalar(text, entry.value.location.clone());
            }
        }
    }
}

/// What a schedule's parameters follow from.
struct Course {
    rate: String,
    warmup: String,
    steps: String,
}

impl Course {
    fn of(settings: &Settings) -> Course {
        let [rate, steps, warmup, ratio] = ["learning_rate", "max_steps", "warmup_steps", "warmup_ratio"]
            .map(|name| settings.f64_or_int(name));
        let all = if steps > 0.0 { number(steps) } else { "all steps".to_owned() };
        // Never shorter than DeepSpeed makes it.
        let count = |steps: f64| number(steps.max(2.0));
        let share = |share: f64| match (steps > 0.0, share > 0.0) {
            (_, false) => count(0.0),
            // As transformers rounds.
            (true, true) => count((steps * share).ceil()),
            (false, true) => format!("{} of all steps", number(share)),
        };
        let warmup = if warmup >= 1.0 { count(warmup) } else { share(warmup.max(ratio)) };
        Course { rate: number(rate), warmup, steps: all }
    }

    fn of_parameter(&self, name: &str) -> Option<String> {
        let text = match name {
            "warmup_min_lr" => "0",
            "warmup_max_lr" => &self.rate,
            "warmup_num_steps" => &self.warmup,
            "total_num_steps" => &self.steps,
            _ => return None,
        };
        Some(format!("auto: {text}"))
    }
}

/// The hidden size of the model, where its description can be read by now.
fn hidden_size(model: &ModelSource) -> Option<usize> {
    let size = match model {
        ModelSource::Folder(path) => {
            let text =
                oarlock_comm::read_file(path.join("config.json"), oarlock_comm::MAX_CONFIG_BYTES).ok()?;
            serde_json::from_slice::<serde_json::Value>(&text).ok()?.get("hidden_size")?.as_u64()
        }
        ModelSource::Fields(fields) => fields.get("hidden_size")?.as_u64(),
    };
    usize::try_from(size?).ok()
}
