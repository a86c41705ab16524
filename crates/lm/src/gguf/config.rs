//! The `config.json` that the keys and tensors of a GGUF file stand for.

use oarlock_gguf::TensorType;
use serde_json::{Map, Value, json};

use super::model_keys::{ModelKeys, decimal};
use super::parts::{Found, Model};
use super::rope;

/// # Errors
/// What Hugging Face's form cannot say, and keys that are missing.
pub(super) fn of(model: &Model<'_>) -> Found<String> {
    let (keys, gguf) = (ModelKeys::of(model)?, model.keys());
    let mut fields = sizes(&keys)?;
    match keys.architecture.name {
        "llama" => {
            fields.insert("attention_bias".to_owned(), json!(biases(&keys)?));
            fields.insert("mlp_bias".to_owned(), json!(keys.has("blk.0.ffn_up.bias")));
        }
        "glm4" | "qwen3" => {
            fields.insert("attention_bias".to_owned(), json!(keys.has("blk.0.attn_q.bias")));
        }
        "qwen2" | "olmo2" => {}
        "phi3" => {
            let window = keys.get::<u32>("attention.sliding_window")?.filter(|window| *window > 0);
            fields.insert("sliding_window".to_owned(), json!(window));
        }
        _ => gemma(&keys, &mut fields)?,
    }
    rope::read(&keys, &mut fields)?;
    let ids = |key: &str| gguf.get::<u32>(&format!("tokenizer.ggml.{key}")).map_err(|e| e.to_string());
    for (field, key) in [
        ("bos_token_id", "bos_token_id"),
        ("eos_token_id", "eos_token_id"),
        ("pad_token_id", "padding_token_id"),
    ] {
        fields.insert(field.to_owned(), json!(ids(key)?));
    }
    Ok(Value::Object(fields).to_string())
}

/// What all families have.
fn sizes(keys: &ModelKeys<'_>) -> Found<Map<String, Value>> {
    let heads = keys.require::<u32>("attention.head_count")?;
    let hidden = keys.require::<u32>("embedding_length")?;
    if keys.get::<u32>("expert_count")?.is_some_and(|n| n > 0) {
        return Err("it is a mixture of experts; only dense models are supported".to_owned());
    }
    let embedding =
        keys.model.tensor("token_embd.weight").ok_or("the file has no tensor token_embd.weight")?;
    let head_dim = match keys.get::<u32>("attention.key_length")? {
        Some(size) => size,
        None => hidden.checked_div(heads).ok_or("attention.head_count is 0")?,
    };
    if let Some(value) = keys.get::<u32>("attention.value_length")?.filter(|value| *value != head_dim) {
        return Err(format!(
            "heads have {head_dim} elements for keys and {value} for values; expected as many"
        ));
    }
    let known = json!({
        "model_type": keys.architecture.model_type,
        "vocab_size": embedding.n_rows(),
        "hidden_size": hidden,
        "intermediate_size": keys.require::<u32>("feed_forward_length")?,
        "num_hidden_layers": keys.require::<u32>("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.get::<u32>("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.require::<u32>("context_length")?,
        "rms_norm_eps": decimal(keys.require("attention.layer_norm_rms_epsilon")?),
        "tie_word_embeddings": !keys.has("output.weight"),
        "dtype": dtype(keys),
    });
    match known {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

/// The dtype of most of the weights. What blocks stand for has more bits than the dtypes of 16 bits keep.
fn dtype(keys: &ModelKeys<'_>) -> &'static str {
    let elements = |kind: TensorType| {
        let of_kind = keys.model.tensors().filter(|(_, tensor)| tensor.tensor_type() == kind);
        of_kind.map(|(_, tensor)| tensor.n_elems()).sum::<u64>()
    };
    let all: u64 = keys.model.tensors().map(|(_, tensor)| tensor.n_elems()).sum();
    match (elements(TensorType::F16), elements(TensorType::BF16)) {
        (halves, _) if halves > all / 2 => "float16",
        (_, halves) if halves > all / 2 => "bfloat16",
        _ => "float32",
    }
}

/// Whether the projections of attention have biases: all four or none, as Hugging Face's llama has them.
fn biases(keys: &ModelKeys<'_>) -> Found<bool> {
    let has =
        ["attn_q", "attn_k", "attn_v", "attn_output"].map(|part| keys.has(&format!("blk.0.{part}.bias")));
    match has {
        [true, true, true, true] => Ok(true),
        [false, false, false, false] => Ok(false),
        _ => Err("some projections of attention have biases and some have none; in architecture llama all have them \
                  or none"
            .to_owned()),
    }
}

/// Windows, caps and scales of Gemma.
fn gemma(keys: &ModelKeys<'_>, fields: &mut Map<String, Value>) -> Found<()> {
    let is_second = keys.architecture.name == "gemma2";
    let number = |name: &str| fields.get(name).and_then(Value::as_u64).unwrap_or_default();
    let (layers, heads, hidden) =
        (number("num_hidden_layers"), number("num_attention_heads"), number("hidden_size"));
    let head_dim = number("head_dim");
    // llama.cpp knows the largest models of both by their number of layers.
    let scalar = match layers == if is_second { 46 } else { 62 } {
        true => hidden / heads.max(1),
        false => head_dim,
    };
    let every = match is_second {
        true => 2,
        false => keys.get::<u64>("attention.sliding_window_pattern")?.unwrap_or(6).max(1),
    };
    let kind =
        |layer: u64| if (layer + 1).is_multiple_of(every) { "full_attention" } else { "sliding_attention" };
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    set("hidden_activation", json!("gelu_pytorch_tanh"));
    set("query_pre_attn_scalar", json!(scalar));
    set("attention_bias", json!(keys.has("blk.0.attn_q.bias")));
    set("sliding_window", json!(keys.get::<u32>("attention.sliding_window")?));
    // A file of a stranger may say any number of layers; the reader of this refuses more than models have.
    set("layer_types", (0..layers.min(1 << 16)).map(kind).collect());
    for name in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let cap = keys.get::<f32>(name)?.map_or(Value::Null, decimal);
        if is_second || !cap.is_null() {
            set(name, cap);
        }
    }
    Ok(())
}
