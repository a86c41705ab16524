//! What `"auto"` in a DeepSpeed configuration became, for the table of values: by the formulas of Accelerate and
//! transformers, and 1e9 for the two that those cannot resolve.

use oarlock::config::ModelSource;
use oarlock_config::dialect::deepspeed_keys;
use oarlock_config::settings::keys::{Key, Row};
use oarlock_config::settings::resolve::{AUTO, Settings};
use oarlock_config::settings::value::{self, Value, number};

use super::resolved::ResolvedConfig;
use super::table as keys;
use super::yaml::Node;

/// Settings that take the value of one of ours.
const SAME: [(&Row, &Row); 8] = [
    (deepspeed_keys::TRAIN_MICRO_BATCH_SIZE_PER_GPU.row, keys::PER_DEVICE_TRAIN_BATCH_SIZE.row),
    (deepspeed_keys::GRADIENT_ACCUMULATION_STEPS.row, keys::GRADIENT_ACCUMULATION_STEPS.row),
    (deepspeed_keys::GRADIENT_CLIPPING.row, keys::MAX_GRAD_NORM.row),
    (deepspeed_keys::FP16_ENABLED.row, keys::FP16.row),
    (deepspeed_keys::BF16_ENABLED.row, keys::BF16.row),
    (deepspeed_keys::OPTIMIZER_PARAMS_LR.row, keys::LEARNING_RATE.row),
    (deepspeed_keys::OPTIMIZER_PARAMS_EPS.row, keys::ADAM_EPSILON.row),
    (deepspeed_keys::OPTIMIZER_PARAMS_WEIGHT_DECAY.row, keys::WEIGHT_DECAY.row),
];

/// Writes into the block what each `"auto"` became.
pub fn describe(config: &mut ResolvedConfig) {
    let hidden = hidden_size(&config.model.source);
    let ours = |key: &'static Row| config.settings.setting(key).value.clone();
    let size = |key: Key<usize>| match ours(key.row) {
        Value::Int(size) => size,
        _ => 1,
    };
    let factors = [keys::PER_DEVICE_TRAIN_BATCH_SIZE, keys::GRADIENT_ACCUMULATION_STEPS, keys::NUM_PROCESSES];
    let whole = factors.into_iter().map(size).fold(1, i64::saturating_mul);
    let betas = format!("{}, {}", ours(keys::ADAM_BETA1.row), ours(keys::ADAM_BETA2.row));
    let course = Course::of(&config.settings);
    let mut became: Vec<(&Row, String)> =
        SAME.iter().map(|(theirs, key)| (*theirs, format!("{}, {key}", ours(key)))).collect();
    let formula = "batch x accumulation x ranks";
    let batch = match config.settings.known(keys::NUM_PROCESSES) {
        Some(_) => format!("{whole}, {formula}"),
        None => formula.to_owned(),
    };
    became.push((deepspeed_keys::TRAIN_BATCH_SIZE.row, batch));
    became.push((deepspeed_keys::OPTIMIZER_PARAMS_BETAS.row, betas));
    for (key, auto, field) in deepspeed_keys::SIZES {
        let text = match (auto.formula(), hidden) {
            (Some(formula), Some(hidden)) => format!("{}, {formula}", auto.of(hidden)),
            (Some(formula), None) => formula.to_owned(),
            (None, _) => format!("{:e}", auto.of(0)),
        };
        became.extend(field.map(|_| (key.row, text)));
    }
    let Some(block) = &mut config.dialects.deepspeed else { return };
    for setting in block.settings.autos() {
        let text = match became.iter().find(|(key, _)| key.name == setting.key.name) {
            Some((_, text)) => text.clone(),
            None => format!("{}, default", value::default(setting.key)),
        };
        setting.value = Value::Text(format!("auto: {text}"));
    }
    if let Some(setting) = block.settings.find_mut(deepspeed_keys::SCHEDULER_PARAMS.name())
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
        let [rate, warmup, ratio] =
            [keys::LEARNING_RATE, keys::WARMUP_STEPS, keys::WARMUP_RATIO].map(|key| settings.get(key));
        let steps = settings.get(keys::MAX_STEPS) as f64;
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
            let text = oarlock_lm::gguf::read_file(&path.join("config.json"), oarlock_comm::MAX_CONFIG_BYTES)
                .ok()?;
            serde_json::from_slice::<serde_json::Value>(&text).ok()?.get("hidden_size")?.as_u64()
        }
        ModelSource::Fields(fields) => fields.get("hidden_size")?.as_u64(),
    };
    usize::try_from(size?).ok()
}
