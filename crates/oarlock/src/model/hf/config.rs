//! `config.json`: what it says of a decoder, and how it is written back with all that it said besides.

use std::collections::BTreeMap;
use std::path::Path;

use oarlock_tensor::DType;
use oarlock_tensor::cpu::rope::RopeStyle;
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::names::Naming;
use super::rope;
use crate::error::{Error, Result};
use crate::model::{DecoderConfig, Family};

/// The settings of a Hugging Face folder.
#[derive(Clone, Debug, PartialEq)]
pub struct HfConfig {
    decoder: DecoderConfig,
    naming: Naming,
    special: SpecialTokens,
    /// The file as it was read: what is not understood here is written back as it came.
    fields: Map<String, Value>,
}

/// The token ids with a meaning that `config.json` names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Each of them ends a text.
    pub eos: Vec<u32>,
    /// Fills a row.
    pub pad: Option<u32>,
}

/// What a family means by a field that is not written.
struct Defaults {
    vocab_size: usize,
    hidden_size: usize,
    /// By the hidden size.
    intermediate_size: fn(usize) -> usize,
    n_layers: usize,
    n_heads: usize,
    /// As many as query heads where absent.
    n_kv_heads: Option<usize>,
    /// The hidden size divided by the heads where absent.
    head_dim: Option<usize>,
    max_positions: usize,
    norm_eps: f64,
    theta: f64,
    tie_embeddings: bool,
    bos: Option<u32>,
    eos: Option<u32>,
}

const LLAMA: Defaults = Defaults {
    vocab_size: 32_000,
    hidden_size: 4096,
    intermediate_size: |_| 11_008,
    n_layers: 32,
    n_heads: 32,
    n_kv_heads: None,
    head_dim: None,
    max_positions: 2048,
    norm_eps: 1e-6,
    theta: 10_000.0,
    tie_embeddings: false,
    bos: Some(1),
    eos: Some(2),
};

const QWEN2: Defaults = Defaults {
    vocab_size: 151_936,
    intermediate_size: |_| 22_016,
    n_kv_heads: Some(32),
    max_positions: 32_768,
    bos: None,
    eos: None,
    ..LLAMA
};

const QWEN3: Defaults = Defaults { head_dim: Some(128), ..QWEN2 };

const MINIMIND: Defaults = Defaults {
    vocab_size: 6400,
    hidden_size: 768,
    intermediate_size: |hidden| {
        ((hidden as f64 * std::f64::consts::PI / 64.0).ceil() as usize).saturating_mul(64)
    },
    n_layers: 8,
    n_heads: 8,
    n_kv_heads: Some(4),
    max_positions: 32_768,
    theta: 1e6,
    tie_embeddings: true,
    ..LLAMA
};

/// MiniMind of 2025, under transformers' names but without norms on heads.
const MINIMIND_2025: Defaults = Defaults {
    hidden_size: 512,
    intermediate_size: |hidden| (hidden.saturating_mul(8) / 3).div_ceil(64).saturating_mul(64),
    n_kv_heads: Some(2),
    norm_eps: 1e-5,
    ..MINIMIND
};

impl HfConfig {
    /// Reads `config.json` of a folder, or the file itself.
    ///
    /// # Errors
    /// [`Error::BadFile`] with the line and the field: broken JSON, a wrong type, a setting or a kind of model that is
    /// not supported; [`Error::Io`] when there is no such file.
    pub fn read(path: &Path) -> Result<HfConfig> {
        let path = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        HfConfig::parse(&path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<HfConfig> {
        let map: Map<String, Value> = serde_json::from_str(text).map_err(|e| {
            Error::bad_file(path, format!("{e}; expected the JSON object of a Hugging Face model"))
        })?;
        let fields = Fields::new(path, text, &map);
        let (decoder, naming, defaults) = match fields.text("model_type")? {
            Some("llama") => (transformers(&fields, Family::Llama, &LLAMA)?, Naming::Transformers, &LLAMA),
            Some("qwen2") => (transformers(&fields, Family::Qwen2, &QWEN2)?, Naming::Transformers, &QWEN2),
            Some("qwen3") => (transformers(&fields, Family::Qwen3, &QWEN3)?, Naming::Transformers, &QWEN3),
            Some("minimind") if fields.has("n_layers") || fields.has("dim") => {
                (seed_era(&fields)?, Naming::MinimindSeed, &MINIMIND)
            }
            Some("minimind") => {
                let defaults = if fields.has("n_routed_experts") { &MINIMIND_2025 } else { &MINIMIND };
                (transformers(&fields, Family::Minimind, defaults)?, Naming::Transformers, defaults)
            }
            _ => {
                return Err(
                    fields.wrong("model_type", "supported are llama, qwen2, qwen3 and minimind, all dense")
                );
            }
        };
        refuse_unsupported(&fields, decoder.n_layers, decoder.max_positions)?;
        decoder.check().map_err(|e| Error::bad_file(path, e.to_string()))?;
        let first = |name, default| -> Result<Option<u32>> {
            match fields.has(name) {
                true => Ok(fields.token_ids(name)?.and_then(|ids| ids.first().copied())),
                false => Ok(default),
            }
        };
        let eos = match fields.has("eos_token_id") {
            true => fields.token_ids("eos_token_id")?.unwrap_or_default(),
            false => defaults.eos.into_iter().collect(),
        };
        let special = SpecialTokens {
            bos: first("bos_token_id", defaults.bos)?,
            eos,
            pad: first("pad_token_id", None)?,
        };
        Ok(HfConfig { decoder, naming, special, fields: map })
    }

    /// A new model from fields of a config.json that stand in no folder; `of` is where, for messages. `model_type` may
    /// also be `minimind` (MiniMind2) or `minimind3`: then the model is the llama, or the qwen3, that computes the same.
    /// MiniMind2 turns neighbouring channels of a head where llama turns those half a head apart; for weights that
    /// begin at random that is only another order of the rows of q and k.
    ///
    /// # Errors
    /// As [`HfConfig::read`].
    pub fn from_fields(of: &str, map: &Map<String, Value>, special: SpecialTokens) -> Result<HfConfig> {
        let fields = Fields::new(Path::new(of), "", map);
        let (family, defaults) = match fields.text("model_type")? {
            Some("minimind") => (Family::Llama, &MINIMIND_2025),
            Some("minimind3") => (Family::Qwen3, &MINIMIND),
            Some("llama") => (Family::Llama, &LLAMA),
            Some("qwen2") => (Family::Qwen2, &QWEN2),
            Some("qwen3") => (Family::Qwen3, &QWEN3),
            _ => {
                let supported = "supported are minimind, minimind3, llama, qwen2 and qwen3, all dense";
                return Err(fields.wrong("model_type", supported));
            }
        };
        let mut decoder = transformers(&fields, family, defaults)?;
        if fields.text("model_type")? == Some("minimind") && !fields.has("initializer_range") {
            // Its weights begin as torch's Linear does: uniform up to 1 / sqrt(inputs), which has this deviation.
            decoder.init_std = (1.0 / (3.0 * decoder.hidden_size as f64).sqrt()) as f32;
        }
        refuse_unsupported(&fields, decoder.n_layers, decoder.max_positions)?;
        decoder.check().map_err(|e| Error::bad_file(of, e.to_string()))?;
        Ok(HfConfig::new(decoder, special))
    }

    /// Settings that come from no file.
    pub fn new(decoder: DecoderConfig, special: SpecialTokens) -> HfConfig {
        let seed_era = decoder.family == Family::Minimind && decoder.rope.style == RopeStyle::Interleaved;
        let naming = if seed_era { Naming::MinimindSeed } else { Naming::Transformers };
        let mut fields = Map::new();
        if decoder.family == Family::Minimind && !seed_era && !decoder.qk_norm {
            // What tells MiniMind of 2025 from the newest: the first has no norms on heads.
            fields.insert("n_routed_experts".to_string(), json!(4));
            fields.insert("use_moe".to_string(), json!(false));
        }
        HfConfig { decoder, naming, special, fields }
    }

    /// The decoder that it describes.
    pub fn decoder(&self) -> &DecoderConfig {
        &self.decoder
    }

    /// How the folder's weights are named.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// The token ids with a meaning.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// The labels of a classifier: `num_labels`, or as many as `id2label` has, or transformers' 2.
    pub fn n_labels(&self) -> usize {
        let field = |name: &str| self.fields.get(name);
        let written = field("num_labels").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        let listed = || field("id2label").and_then(Value::as_object).map(Map::len);
        written.or_else(listed).unwrap_or(2)
    }

    /// The Python files that the folder's own model class needs (`auto_map`).
    pub(super) fn code_files(&self) -> Vec<String> {
        let classes =
            self.fields.get("auto_map").and_then(Value::as_object).into_iter().flat_map(Map::values);
        let module = |class: &Value| Some(format!("{}.py", class.as_str()?.split_once('.')?.0));
        let mut files: Vec<String> = classes.filter_map(module).collect();
        files.sort();
        files.dedup();
        files
    }

    /// `config.json` for weights of `dtype`: everything that was read, and every setting written out.
    pub fn to_json(&self, dtype: DType) -> String {
        let mut fields = self.fields.clone();
        let mut set = |name: &str, value: Value| {
            if !fields.get(name).is_some_and(|old| same(old, &value)) {
                fields.insert(name.to_string(), value);
            }
        };
        let c = &self.decoder;
        let (model_type, class) = match c.family {
            Family::Llama => ("llama", "LlamaForCausalLM"),
            Family::Qwen2 => ("qwen2", "Qwen2ForCausalLM"),
            Family::Qwen3 => ("qwen3", "Qwen3ForCausalLM"),
            Family::Minimind => ("minimind", "MiniMindForCausalLM"),
        };
        set("model_type", json!(model_type));
        set("vocab_size", json!(c.vocab_size));
        set("bos_token_id", json!(self.special.bos));
        set("eos_token_id", json_ids(&self.special.eos));
        set("pad_token_id", json!(self.special.pad));
        if self.naming == Naming::MinimindSeed {
            set("dim", json!(c.hidden_size));
            set("hidden_dim", json!(c.intermediate_size));
            set("n_layers", json!(c.n_layers));
            set("n_heads", json!(c.n_heads));
            set("n_kv_heads", json!(c.n_kv_heads));
            set("max_seq_len", json!(c.max_positions));
            set("norm_eps", decimal(c.norm_eps));
            set("rope_theta", json!(c.rope.theta));
        } else {
            set("hidden_size", json!(c.hidden_size));
            set("intermediate_size", json!(c.intermediate_size));
            set("num_hidden_layers", json!(c.n_layers));
            set("num_attention_heads", json!(c.n_heads));
            set("num_key_value_heads", json!(c.n_kv_heads));
            if c.family != Family::Qwen2 || c.head_dim * c.n_heads != c.hidden_size {
                set("head_dim", json!(c.head_dim));
            }
            set("max_position_embeddings", json!(c.max_positions));
            set("rms_norm_eps", decimal(c.norm_eps));
            set("hidden_act", json!("silu"));
            set("tie_word_embeddings", json!(c.tie_embeddings));
            set("initializer_range", decimal(c.init_std));
        }
        match c.family {
            Family::Minimind if self.naming == Naming::Transformers => set("rope_theta", json!(c.rope.theta)),
            Family::Minimind => {}
            Family::Llama | Family::Qwen2 | Family::Qwen3 => {
                if c.family != Family::Qwen2 {
                    set("attention_bias", json!(c.qkv_bias));
                }
                if c.family == Family::Llama {
                    set("mlp_bias", json!(c.mlp_bias));
                }
                let mut parameters =
                    fields.get("rope_parameters").and_then(Value::as_object).cloned().unwrap_or_default();
                parameters.extend(rope::write(&c.rope));
                fields.insert("rope_parameters".to_string(), Value::Object(parameters));
                fields.remove("rope_theta");
                fields.remove("rope_scaling");
            }
        }
        fields.entry("architectures").or_insert_with(|| json!([class]));
        fields.remove("torch_dtype");
        fields.insert("dtype".to_string(), json!(dtype_name(dtype)));
        pretty(&fields)
    }

    /// `generation_config.json` where none can be taken over.
    pub(super) fn generation_json(&self) -> String {
        let mut fields = Map::new();
        fields.insert("_from_model_config".to_string(), json!(true));
        let ids = [
            ("bos", json!(self.special.bos)),
            ("eos", json_ids(&self.special.eos)),
            ("pad", json!(self.special.pad)),
        ];
        for (name, id) in ids {
            if !id.is_null() {
                fields.insert(format!("{name}_token_id"), id);
            }
        }
        pretty(&fields)
    }
}

/// The families that transformers' names of fields serve.
fn transformers(fields: &Fields<'_>, family: Family, defaults: &Defaults) -> Result<DecoderConfig> {
    let hidden_size = fields.count_or("hidden_size", defaults.hidden_size)?;
    let n_heads = fields.count_or("num_attention_heads", defaults.n_heads)?;
    let n_kv_heads = match (fields.count("num_key_value_heads")?, fields.has("num_key_value_heads")) {
        (Some(n), _) => n,
        (None, true) => n_heads,
        (None, false) => defaults.n_kv_heads.unwrap_or(n_heads),
    };
    let head_dim = match fields.count("head_dim")?.or(defaults.head_dim) {
        Some(head_dim) => head_dim,
        None => divided(fields, "hidden_size", hidden_size, n_heads)?,
    };
    let max_positions = fields.count_or("max_position_embeddings", defaults.max_positions)?;
    let attention_bias = family != Family::Minimind && fields.flag_or("attention_bias", false)?;
    Ok(DecoderConfig {
        family,
        vocab_size: fields.count_or("vocab_size", defaults.vocab_size)?,
        hidden_size,
        intermediate_size: fields.count_or("intermediate_size", (defaults.intermediate_size)(hidden_size))?,
        n_layers: fields.count_or("num_hidden_layers", defaults.n_layers)?,
        n_heads,
        n_kv_heads,
        head_dim,
        max_positions,
        norm_eps: fields.number_or("rms_norm_eps", defaults.norm_eps)? as f32,
        tie_embeddings: fields.flag_or("tie_word_embeddings", defaults.tie_embeddings)?,
        qkv_bias: family == Family::Qwen2 || attention_bias,
        o_bias: family != Family::Qwen2 && attention_bias,
        mlp_bias: family == Family::Llama && fields.flag_or("mlp_bias", false)?,
        qk_norm: family == Family::Qwen3 || (family == Family::Minimind && !fields.has("n_routed_experts")),
        rope: rope::read(fields, defaults.theta, max_positions, RopeStyle::Half)?,
        init_std: fields.number_or("initializer_range", 0.02)? as f32,
    })
}

/// MiniMind's `LMConfig`.
fn seed_era(fields: &Fields<'_>) -> Result<DecoderConfig> {
    let hidden_size = fields.count_or("dim", 512)?;
    let n_heads = fields.count_or("n_heads", 8)?;
    let n_kv_heads = match (fields.count("n_kv_heads")?, fields.has("n_kv_heads")) {
        (Some(n), _) => n,
        (None, true) => n_heads,
        (None, false) => 2,
    };
    let multiple_of = fields.count_or("multiple_of", 64)?;
    if multiple_of == 0 {
        return Err(fields.wrong("multiple_of", "expected at least 1"));
    }
    let two_thirds = hidden_size.saturating_mul(8) / 3;
    let max_positions = fields.count_or("max_seq_len", 8192)?;
    Ok(DecoderConfig {
        family: Family::Minimind,
        vocab_size: fields.count_or("vocab_size", 6400)?,
        hidden_size,
        intermediate_size: match fields.count("hidden_dim")? {
            Some(size) => size,
            None => two_thirds.div_ceil(multiple_of).saturating_mul(multiple_of),
        },
        n_layers: fields.count_or("n_layers", 8)?,
        n_heads,
        n_kv_heads,
        head_dim: divided(fields, "dim", hidden_size, n_heads)?,
        max_positions,
        norm_eps: fields.number_or("norm_eps", 1e-5)? as f32,
        tie_embeddings: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        rope: rope::read(fields, 1e6, max_positions, RopeStyle::Interleaved)?,
        init_std: 0.02,
    })
}

fn divided(fields: &Fields<'_>, name: &str, hidden_size: usize, n_heads: usize) -> Result<usize> {
    match n_heads > 0 && hidden_size.is_multiple_of(n_heads) {
        true => Ok(hidden_size / n_heads),
        false => Err(fields.wrong(name, format!("{hidden_size} cannot be divided among {n_heads} heads"))),
    }
}

/// Settings that would make another model than ours.
fn refuse_unsupported(fields: &Fields<'_>, n_layers: usize, max_positions: usize) -> Result<()> {
    if fields.text("hidden_act")?.is_some_and(|act| act != "silu" && act != "swish") {
        return Err(fields.wrong("hidden_act", "supported is silu"));
    }
    if fields.value("quantization_config").is_some() {
        return Err(fields
            .wrong("quantization_config", "quantized weights are not supported: take the original model"));
    }
    // MiniMind writes the numbers of its experts also where it has none.
    if fields.flag_or("use_moe", false)? {
        return Err(fields.wrong("use_moe", "mixtures of experts are not supported, only dense models"));
    }
    if !fields.has("use_moe") {
        for name in ["num_experts", "num_local_experts", "n_routed_experts"] {
            if fields.count(name)?.is_some_and(|n| n > 0) {
                return Err(fields.wrong(name, "mixtures of experts are not supported, only dense models"));
            }
        }
    }
    for name in ["dropout", "attention_dropout"] {
        if fields.number(name)?.is_some_and(|p| p != 0.0) {
            return Err(fields.wrong(name, "dropout is not supported: set it to 0.0"));
        }
    }
    let window = match fields.has("sliding_window") {
        true => fields.count("sliding_window")?,
        false => Some(4096),
    };
    if fields.flag_or("use_sliding_window", false)?
        && window.is_some_and(|window| window < max_positions)
        && fields.count_or("max_window_layers", 28)? < n_layers
    {
        return Err(fields.wrong("use_sliding_window", "sliding windows are not supported: set it to false"));
    }
    let other =
        |kinds: &Value| kinds.as_array().is_some_and(|k| k.iter().any(|kind| kind != "full_attention"));
    if fields.value("layer_types").is_some_and(other) {
        return Err(fields.wrong("layer_types", "supported is full_attention"));
    }
    Ok(())
}

/// Equal, also when one is written as 1 and the other as 1.0.
fn same(a: &Value, b: &Value) -> bool {
    a == b || a.as_f64().is_some_and(|a| Some(a) == b.as_f64())
}

/// An f32 with the digits that a person would write.
fn decimal(x: f32) -> Value {
    json!(x.to_string().parse::<f64>().unwrap_or(f64::from(x)))
}

fn json_ids(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => json!(id),
        ids => json!(ids),
    }
}

/// The name of a dtype in `config.json`.
fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float32",
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        DType::I32 => "int32",
    }
}

/// Sorted by name, as transformers writes it.
fn pretty(fields: &Map<String, Value>) -> String {
    let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
    // Maps with string keys always become JSON.
    serde_json::to_string_pretty(&sorted).unwrap_or_default() + "\n"
}
