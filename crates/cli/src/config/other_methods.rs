//! Keys that a method of fine-tuning or an optimizer reads which a run does not use: LLaMA-Factory passes over them, here they
//! are named.

use super::{objective, table as keys};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::resolve::Settings;

const LORA: [&Row; 10] = [
    keys::LORA_RANK.row,
    keys::LORA_ALPHA.row,
    keys::LORA_DROPOUT.row,
    keys::LORA_TARGET.row,
    keys::USE_RSLORA.row,
    keys::USE_DORA.row,
    keys::PISSA_INIT.row,
    keys::PISSA_ITER.row,
    keys::PISSA_CONVERT.row,
    keys::LORAPLUS_LR_RATIO.row,
];
const OFT: [&Row; 3] = [keys::OFT_TARGET.row, keys::OFT_RANK.row, keys::OFT_BLOCK_SIZE.row];
const FREEZE: [&Row; 3] =
    [keys::FREEZE_TRAINABLE_LAYERS.row, keys::FREEZE_TRAINABLE_MODULES.row, keys::FREEZE_EXTRA_MODULES.row];
const GALORE: [&Row; 5] = [
    keys::GALORE_TARGET.row,
    keys::GALORE_RANK.row,
    keys::GALORE_UPDATE_INTERVAL.row,
    keys::GALORE_SCALE.row,
    keys::GALORE_PROJ_TYPE.row,
];
const APOLLO: [&Row; 8] = [
    keys::APOLLO_TARGET.row,
    keys::APOLLO_RANK.row,
    keys::APOLLO_UPDATE_INTERVAL.row,
    keys::APOLLO_SCALE.row,
    keys::APOLLO_PROJ.row,
    keys::APOLLO_PROJ_TYPE.row,
    keys::APOLLO_SCALE_TYPE.row,
    keys::APOLLO_SCALE_FRONT.row,
];

const QUANTIZATION: [&Row; 3] =
    [keys::QUANTIZATION_METHOD.row, keys::QUANTIZATION_TYPE.row, keys::DOUBLE_QUANTIZATION.row];
const ANSWERS: [&Row; 7] = [
    keys::DO_SAMPLE.row,
    keys::TEMPERATURE.row,
    keys::TOP_P.row,
    keys::TOP_K.row,
    keys::MAX_NEW_TOKENS.row,
    keys::REPETITION_PENALTY.row,
    keys::SKIP_SPECIAL_TOKENS.row,
];
const EVALUATION: [&Row; 3] =
    [keys::EVAL_STEPS.row, keys::METRIC_FOR_BEST_MODEL.row, keys::GREATER_IS_BETTER.row];

/// Why the run that `settings` describe does not read a key; `None` where it does.
pub(super) fn obstacle(settings: &Settings, name: &str) -> Option<&'static str> {
    let method = settings.get(keys::FINETUNING_TYPE);
    let of = |keys: &[&Row]| keys.iter().any(|row| row.name == name);
    if of(&LORA) && method != "lora" {
        return Some("it belongs to `finetuning_type: lora`");
    }
    if of(&OFT) && method != "oft" {
        return Some("it belongs to `finetuning_type: oft`");
    }
    if of(&FREEZE) && method != "freeze" {
        return Some("it belongs to `finetuning_type: freeze`");
    }
    if of(&[keys::ADDITIONAL_TARGET.row, keys::CREATE_NEW_ADAPTER.row]) && !["lora", "oft"].contains(&method)
    {
        return Some("it belongs to `finetuning_type: lora` and `oft`");
    }
    let is_quantized = settings.said(keys::QUANTIZATION_BIT).is_some()
        || settings.said(keys::REF_MODEL_QUANTIZATION_BIT).is_some();
    if of(&QUANTIZATION) && !is_quantized {
        return Some("it belongs to `quantization_bit`");
    }
    let stage = objective::of(settings);
    let predicts = settings.get(keys::DO_PREDICT) && settings.get(keys::PREDICT_WITH_GENERATE);
    if of(&ANSWERS) && !stage.makes_answers && !(stage.is_supervised() && predicts) {
        return Some(objective::ANSWERS_ARE_MADE);
    }
    if of(&EVALUATION) && settings.get(keys::EVAL_STRATEGY) == "no" {
        return Some("nothing is evaluated during the training (`eval_strategy`)");
    }
    if of(&GALORE) && !settings.get(keys::USE_GALORE) {
        return Some("it belongs to `use_galore: true`");
    }
    if of(&APOLLO) && !settings.get(keys::USE_APOLLO) {
        return Some("it belongs to `use_apollo: true`");
    }
    None
}
