//! What llama.cpp calls a family, its settings and its tensors.

use oarlock_engine::Result;
use oarlock_gguf::Metadata;

use super::keys::Keys;
use super::rope;
use super::settings::Settings;

/// How the rows of a tensor are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rows {
    /// As they are.
    Same,
    /// The two halves of each of so many heads take turns: llama.cpp rotates neighbours where Hugging Face rotates halves.
    Interleaved(u32),
    /// With 1 added, as Gemma's norms multiply by one more than their weight.
    PlusOne,
}

/// A family under llama.cpp's name.
#[derive(Debug)]
pub(super) struct Architecture {
    pub(super) name: &'static str,
    model_type: &'static str,
    /// The tensors of a layer that are not those of [`COMMON`], by the names of Hugging Face.
    layer: &'static [(&'static str, &'static str)],
}

/// The tensors of a layer that all families have in common.
const COMMON: [(&str, &str); 10] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
const LLAMA: &[(&str, &str)] = &[("post_attention_layernorm", "ffn_norm")];
/// Norms behind attention and the MLP.
const GEMMA: &[(&str, &str)] = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
const PHI: &[(&str, &str)] = &[
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("mlp.gate_up_proj", "ffn_up"),
];
const GLM: &[(&str, &str)] = &[
    ("post_self_attn_layernorm", "post_attention_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("post_mlp_layernorm", "post_ffw_norm"),
    ("mlp.gate_up_proj", "ffn_up"),
];

/// All families. MiniMind's own model type has no name there; its layers are those of Qwen3.
const ALL: [Architecture; 10] = [
    Architecture { name: "llama", model_type: "llama", layer: LLAMA },
    Architecture { name: "llama", model_type: "mistral", layer: LLAMA },
    Architecture { name: "qwen2", model_type: "qwen2", layer: LLAMA },
    Architecture { name: "qwen3", model_type: "qwen3", layer: LLAMA },
    Architecture { name: "qwen3", model_type: "minimind", layer: LLAMA },
    Architecture { name: "phi3", model_type: "phi3", layer: PHI },
    Architecture { name: "gemma2", model_type: "gemma2", layer: GEMMA },
    Architecture { name: "gemma3", model_type: "gemma3_text", layer: GEMMA },
    Architecture { name: "glm4", model_type: "glm4", layer: GLM },
    Architecture { name: "olmo2", model_type: "olmo2", layer: GEMMA },
];

impl Architecture {
    /// The one of a model.
    ///
    /// # Errors
    /// A model that llama.cpp has no name for, or would compute otherwise.
    pub(super) fn of(settings: &Settings) -> Result<Architecture> {
        let model_type = settings.text("model_type").unwrap_or_default();
        let Some(found) = ALL.into_iter().find(|known| known.model_type == model_type) else {
            return Err(settings.refuse(format_args!("llama.cpp has no name for model_type {model_type}")));
        };
        found.check(settings)?;
        Ok(found)
    }

    /// Refuses what has no key.
    fn check(&self, settings: &Settings) -> Result<()> {
        if settings.get("quantization_config").is_some() {
            return Err(settings.refuse("its weights are quantized already; export the unquantized model"));
        }
        if settings.get("sparse_attention").is_some() {
            return Err(settings.refuse("there is no key for sparse attention"));
        }
        let window = settings.u32("sliding_window")?;
        let in_use = settings.get("use_sliding_window").is_none_or(|used| used == true);
        if let (Some(window), true, "llama" | "qwen2" | "qwen3") = (window, in_use, self.name)
            && window < settings.required_u32("max_position_embeddings")?
        {
            let what = format!(
                "there is no key for its sliding window of {window} tokens in architecture {}",
                self.name
            );
            return Err(settings.refuse(what));
        }
        if self.is_gemma() {
            let (layers, heads) =
                (settings.required_u32("num_hidden_layers")?, settings.required_u32("num_attention_heads")?);
            let whole = if self.name == "gemma2" { 46 } else { 62 };
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
        let every = if self.name == "gemma2" { 2 } else { 6 };
        let types =
            settings.get("layer_types").and_then(|types| types.as_array()).filter(|_| self.is_gemma());
        let is_usual =
            |(i, kind): (usize, &serde_json::Value)| (kind == "full_attention") == ((i + 1) % every == 0);
        if types.is_some_and(|types| !types.iter().enumerate().all(is_usual)) {
            return Err(settings.refuse("its layers do not take turns as llama.cpp has them (layer_types)"));
        }
        if self.name == "gemma3" && settings.get("attn_logit_softcapping").is_some() {
            return Err(settings.refuse("llama.cpp has no attn_logit_softcapping for gemma3"));
        }
        Ok(())
    }

    /// What llama.cpp computes otherwise though the file says it: lines for people.
    ///
    /// # Errors
    /// Settings that are not numbers.
    pub(super) fn notes(&self, settings: &Settings) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        if self.name != "phi3" {
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

    fn is_gemma(&self) -> bool {
        self.name.starts_with("gemma")
    }

    /// Writes the keys of the settings.
    ///
    /// # Errors
    /// A setting that is missing, or that no key holds.
    pub(super) fn write_settings(&self, settings: &Settings, metadata: &mut Metadata) -> Result<()> {
        let mut keys = Keys::new(self.name, settings, metadata);
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
        if self.name == "llama" {
            keys.set("vocab_size", settings.required_u32("vocab_size")?)?;
        }
        if self.is_gemma() || self.name == "phi3" {
            let window = settings.u32("sliding_window")?;
            // 0 stands for none, as in Phi-4.
            keys.set("attention.sliding_window", window.unwrap_or(0))?;
        }
        if self.name == "gemma2" {
            for (name, key) in [
                ("attn_logit_softcapping", "attn_logit_softcapping"),
                ("final_logit_softcapping", "final_logit_softcapping"),
            ] {
                if let Some(cap) = settings.f32(name)? {
                    keys.set(key, cap)?;
                }
            }
        }
        rope::write(self.name, head_dim, &mut keys)
    }

    /// The name and the rows of a tensor with this name in the files of Hugging Face; `None` for what llama.cpp computes itself.
    ///
    /// # Errors
    /// A tensor that it has no place for.
    pub(super) fn tensor(&self, name: &str, settings: &Settings) -> Result<Option<(String, Rows)>> {
        let short = name.strip_prefix("model.").unwrap_or(name);
        let norm = if self.is_gemma() { Rows::PlusOne } else { Rows::Same };
        let is_tied = settings.get("tie_word_embeddings").map_or(self.is_gemma(), |tied| tied == true);
        let found = match short {
            "embed_tokens.weight" => ("token_embd.weight".to_owned(), Rows::Same),
            "norm.weight" => ("output_norm.weight".to_owned(), norm),
            "lm_head.weight" if is_tied => return Ok(None),
            "lm_head.weight" => ("output.weight".to_owned(), Rows::Same),
            _ if short.ends_with("rotary_emb.inv_freq") => return Ok(None),
            _ => match self.of_layer(short) {
                Some(named) => {
                    let heads = settings.required_u32("num_attention_heads")?;
                    let kv_heads = settings.u32("num_key_value_heads")?.unwrap_or(heads);
                    let rows = match named.split('.').nth(2) {
                        Some("attn_q") if self.name == "llama" => Rows::Interleaved(heads),
                        Some("attn_k") if self.name == "llama" => Rows::Interleaved(kv_heads),
                        Some(part) if part.ends_with("norm") => norm,
                        _ => Rows::Same,
                    };
                    (named, rows)
                }
                None => {
                    return Err(
                        settings.refuse(format_args!("architecture {} has no tensor {name}", self.name))
                    );
                }
            },
        };
        Ok(Some(found))
    }

    /// A tensor of a layer, such as `layers.3.mlp.up_proj.weight`.
    fn of_layer(&self, short: &str) -> Option<String> {
        let (layer, rest) = short.strip_prefix("layers.")?.split_once('.')?;
        layer.parse::<u32>().ok()?;
        let (part, suffix) = rest.rsplit_once('.')?;
        let (_, named) = self.layer.iter().chain(&COMMON).find(|(known, _)| *known == part)?;
        // Biases of queries, keys and values are read in every architecture, others in llama alone.
        let has_bias = ["attn_q", "attn_k", "attn_v"].contains(named) || self.name == "llama";
        if suffix == "bias" && !has_bias {
            return None;
        }
        ["weight", "bias"].contains(&suffix).then(|| format!("blk.{layer}.{named}.{suffix}"))
    }
}
