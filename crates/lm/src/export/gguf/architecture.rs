//! The settings of a family in the keys of llama.cpp, and what these keys cannot say.

use oarlock_engine::Result;
use oarlock_gguf::Metadata;

use super::keys::Keys;
use super::rope;
use super::settings::Settings;
use crate::gguf::names::{Architecture, RowOrder};

/// The one of a model.
///
/// # Errors
/// A model that llama.cpp has no name for, or would compute otherwise.
pub(super) fn of(settings: &Settings) -> Result<Architecture> {
    let model_type = settings.text("model_type").unwrap_or_default();
    let Some(found) = Architecture::of_model_type(model_type) else {
        return Err(settings.refuse(format_args!("llama.cpp has no name for model_type {model_type}")));
    };
    check(&found, settings)?;
    Ok(found)
}

/// Refuses what has no key.
fn check(architecture: &Architecture, settings: &Settings) -> Result<()> {
    if settings.get("quantization_config").is_some() {
        return Err(settings.refuse("its weights are quantized already; export the unquantized model"));
    }
    if settings.get("sparse_attention").is_some() {
        return Err(settings.refuse("there is no key for sparse attention"));
    }
    let window = settings.u32("sliding_window")?;
    let in_use = settings.get("use_sliding_window").is_none_or(|used| used == true);
    if let (Some(window), true, "llama" | "qwen2" | "qwen3") = (window, in_use, architecture.name)
        && window < settings.required_u32("max_position_embeddings")?
    {
        let what = format!(
            "there is no key for its sliding window of {window} tokens in architecture {}",
            architecture.name
        );
        return Err(settings.refuse(what));
    }
    if architecture.is_gemma() {
        let (layers, heads) =
            (settings.required_u32("num_hidden_layers")?, settings.required_u32("num_attention_heads")?);
        let whole = if architecture.name == "gemma2" { 46 } else { 62 };
        let fixed = match layers == whole {
            true => settings.required_u32("hidden_size")? / heads.max(1),
            false => settings.head_dim()?,
        };
        let scalar = settings.f32("query_pre_attn_scalar")?.unwrap_or(256.0);
        if scalar != fixed as f32 {
            let what = format!("query_pre_attn_scalar is {scalar}, and llama.cpp computes with {fixed}");
            return Err(settings.refuse(what));
        }
    }
    // Full attention in every second layer of Gemma 2 and every sixth of Gemma 3.
    let every = if architecture.name == "gemma2" { 2 } else { 6 };
    let types =
        settings.get("layer_types").and_then(|types| types.as_array()).filter(|_| architecture.is_gemma());
    let is_usual =
        |(i, kind): (usize, &serde_json::Value)| (kind == "full_attention") == ((i + 1) % every == 0);
    if types.is_some_and(|types| !types.iter().enumerate().all(is_usual)) {
        return Err(settings.refuse("its layers do not take turns as llama.cpp has them (layer_types)"));
    }
    if architecture.name == "gemma3" && settings.get("attn_logit_softcapping").is_some() {
        return Err(settings.refuse("llama.cpp has no attn_logit_softcapping for gemma3"));
    }
    Ok(())
}

/// What llama.cpp computes otherwise though the file says it: lines for people.
///
/// # Errors
/// Settings that are not numbers.
pub(super) fn notes(architecture: &Architecture, settings: &Settings) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if architecture.name != "phi3" {
        return Ok(notes);
    }
    if let Some(window) = settings.u32("sliding_window")?
        && window < settings.required_u32("max_position_embeddings")?
    {
        notes.push(format!(
            "note: llama.cpp lets each token of phi3 attend to all before it, and this model to the last {window}"
        ));
    }
    if let Some(original) = settings.rope("original_max_position_embeddings")
        && settings.rope("long_factor").is_some()
    {
        notes.push(format!(
            "note: llama.cpp takes the factors of long texts wherever its context is larger than {original} tokens, and this \
             model where the text is longer"
        ));
    }
    Ok(notes)
}

/// Writes the keys of the settings.
///
/// # Errors
/// A setting that is missing, or that no key holds.
pub(super) fn write_settings(
    architecture: &Architecture,
    settings: &Settings,
    metadata: &mut Metadata,
) -> Result<()> {
    let mut keys = Keys::new(architecture.name, settings, metadata);
    let (heads, head_dim) = (settings.required_u32("num_attention_heads")?, settings.head_dim()?);
    keys.set("block_count", settings.required_u32("num_hidden_layers")?)?;
    keys.set("context_length", settings.required_u32("max_position_embeddings")?)?;
    keys.set("embedding_length", settings.required_u32("hidden_size")?)?;
    keys.set("feed_forward_length", settings.required_u32("intermediate_size")?)?;
    keys.set("attention.head_count", heads)?;
    keys.set("attention.head_count_kv", settings.u32("num_key_value_heads")?.unwrap_or(heads))?;
    let eps = settings.f32("rms_norm_eps")?.unwrap_or(1e-6);
    keys.set("attention.layer_norm_rms_epsilon", eps)?;
    keys.set("attention.key_length", head_dim)?;
    keys.set("attention.value_length", head_dim)?;
    if architecture.name == "llama" {
        keys.set("vocab_size", settings.required_u32("vocab_size")?)?;
    }
    if architecture.is_gemma() || architecture.name == "phi3" {
        let window = settings.u32("sliding_window")?;
        // 0 stands for none, as in Phi-4.
        keys.set("attention.sliding_window", window.unwrap_or(0))?;
    }
    if architecture.name == "gemma2" {
        for (name, key) in [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ] {
            if let Some(cap) = settings.f32(name)? {
                keys.set(key, cap)?;
            }
        }
    }
    rope::write(architecture.name, head_dim, &mut keys)
}

/// The name and the rows of a tensor with this name in the files of Hugging Face; `None` for what llama.cpp computes itarchitecture.
///
/// # Errors
/// A tensor that it has no place for.
pub(super) fn tensor(
    architecture: &Architecture,
    name: &str,
    settings: &Settings,
) -> Result<Option<(String, RowOrder)>> {
    let short = name.strip_prefix("model.").unwrap_or(name);
    let is_tied = settings.get("tie_word_embeddings").map_or(architecture.is_gemma(), |tied| tied == true);
    let named = match short {
        "embed_tokens.weight" => "token_embd.weight".to_owned(),
        "norm.weight" => "output_norm.weight".to_owned(),
        "lm_head.weight" if is_tied => return Ok(None),
        "lm_head.weight" => "output.weight".to_owned(),
        _ if short.ends_with("rotary_emb.inv_freq") => return Ok(None),
        _ => architecture.of_layer(short).ok_or_else(|| {
            settings.refuse(format_args!("architecture {} has no tensor {name}", architecture.name))
        })?,
    };
    let heads = settings.required_u32("num_attention_heads")?;
    let kv_heads = settings.u32("num_key_value_heads")?.unwrap_or(heads);
    let rows = architecture.rows(&named, heads, kv_heads);
    Ok(Some((named, rows)))
}
