//! Reads which model is trained: a folder, or `model_config`, the settings of a config.json written in place.

use super::table as keys;
use std::path::{Path, PathBuf};

use oarlock::config::{GgufWeights, ModelArgs, ModelParts, ModelSource, RopeArgs, RopeKind};
use oarlock::model::Family;
use oarlock_config::settings::keys::{Range, Row};
use oarlock_config::settings::kwargs::Kwargs;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;
use oarlock_config::settings::value::Value;
use oarlock_tensor::cpu::quantized::Format;
use serde_json::{Map, Value as Json, json};

use super::hub;
use super::new_tokens::new_tokens;
use super::quantization::quantization;

const SIZES: [&str; 8] = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
];

const NUMBERS: [&str; 3] = ["rms_norm_eps", "rope_theta", "initializer_range"];

/// The model; what is wrong with it goes to `problems`.
pub fn model(settings: &Settings, problems: &mut Problems) -> ModelArgs {
    let quantization = quantization(settings, problems);
    let [folder, config, tokenizer, scratch] = [
        keys::MODEL_NAME_OR_PATH.row,
        keys::MODEL_CONFIG.row,
        keys::TOKENIZER_PATH.row,
        keys::TRAIN_FROM_SCRATCH.row,
    ]
    .map(|key| settings.setting(key));
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    if !config.is_written() {
        if tokenizer.is_written() {
            report(
                "`tokenizer_path` goes with `model_config`",
                &[keys::TOKENIZER_PATH.row],
                "the tokenizer of a model folder lies in it; remove tokenizer_path",
            );
        }
        let path = hub::local(settings, settings.word(keys::MODEL_NAME_OR_PATH));
        return read(settings, quantization, ModelSource::Folder(path.clone()), path, problems);
    }
    if folder.is_written() {
        report(
            "`model_name_or_path` and `model_config` are mutually exclusive",
            &[keys::MODEL_NAME_OR_PATH.row, keys::MODEL_CONFIG.row],
            "name the folder of a model, or say what a new one is made of",
        );
    }
    if scratch.is_written() && matches!(scratch.value, Value::Bool(false)) {
        report(
            "`train_from_scratch` is off, but `model_config` brings no weights",
            &[keys::TRAIN_FROM_SCRATCH.row, keys::MODEL_CONFIG.row],
            "remove it, or name the folder of a model in model_name_or_path",
        );
    }
    if !tokenizer.is_written() {
        report(
            "`model_config` needs a tokenizer",
            &[keys::MODEL_CONFIG.row],
            "write `tokenizer_path: …`, a tokenizer.json or its folder",
        );
    }
    let source = ModelSource::Fields(fields(settings, problems));
    let tokenizer = folder_of(Path::new(settings.word(keys::TOKENIZER_PATH)));
    ModelArgs { from_scratch: true, ..read(settings, quantization, source, tokenizer, problems) }
}

/// A model from this source, with what the settings say beside.
fn read(
    settings: &Settings,
    quantization: Option<Format>,
    source: ModelSource,
    tokenizer: PathBuf,
    problems: &mut Problems,
) -> ModelArgs {
    let parts = ModelParts {
        source,
        tokenizer,
        quantization,
        gguf_weights: GgufWeights::named(settings.word(keys::GGUF_WEIGHTS)),
        sparse_attention: None,
        new_tokens: new_tokens(settings, problems),
        rope_scaling: rope_scaling(settings),
    };
    ModelArgs::read(settings, parts)
}

/// The rotary scaling for sequences of `cutoff_len`.
fn rope_scaling(settings: &Settings) -> Option<RopeArgs> {
    let kind = RopeKind::named(settings.word(keys::ROPE_SCALING))?;
    Some(RopeArgs { kind, max_len: Some(settings.get(keys::CUTOFF_LEN)) })
}

/// A tokenizer is known by its folder; who names the file means the folder.
fn folder_of(path: &Path) -> PathBuf {
    match path.file_name() {
        Some(name) if name == "tokenizer.json" => {
            path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
        }
        _ => path.to_path_buf(),
    }
}

/// The settings under the names of a config.json.
fn fields(settings: &Settings, problems: &mut Problems) -> Map<String, Json> {
    let mut out = Map::new();
    let setting = settings.setting(keys::MODEL_CONFIG);
    let written = settings.get(keys::MODEL_CONFIG);
    if setting.broken {
        return out;
    }
    let mut kwargs = Kwargs::new("model_config", [setting, setting], written, problems);
    let names: Vec<&str> = Family::new_model_types().collect();
    if !written.iter().any(|entry| entry.key == "model_type") {
        kwargs.reject(format!("`model_config` needs a model_type: {}", names.join(", ")));
    }
    let types: Vec<(&str, &str)> = names.iter().map(|name| (*name, *name)).collect();
    if let Some(name) = kwargs.choice("model_type", &types) {
        out.insert("model_type".to_owned(), json!(name));
    }
    for name in SIZES {
        if let Some(size) = kwargs.size(name) {
            out.insert(name.to_owned(), json!(size));
        }
    }
    for name in NUMBERS {
        if let Some(number) = kwargs.number(name, Range::Positive) {
            out.insert(name.to_owned(), json!(number));
        }
    }
    if let Some(tied) = kwargs.flag("tie_word_embeddings") {
        out.insert("tie_word_embeddings".to_owned(), json!(tied));
    }
    // Asked for where it is written alone, so that the settings that a new model has do not list it.
    let has_moe = written.iter().any(|entry| entry.key == "use_moe");
    if has_moe && kwargs.flag("use_moe") == Some(true) {
        kwargs.reject("mixtures of experts (`use_moe`) are not supported, only dense models".to_owned());
    }
    kwargs.finish();
    out
}
