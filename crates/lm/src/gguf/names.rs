//! What llama.cpp calls the families of Hugging Face and their tensors.

/// How the rows of a tensor lie in GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As they are.
    Same,
    /// The two halves of each of so many heads take turns: llama.cpp rotates neighbours where Hugging Face rotates halves.
    Interleaved(u32),
    /// With 1 added, as Gemma's norms multiply by one more than their weight.
    PlusOne,
}

impl RowOrder {
    /// Whether so many rows are whole heads.
    pub(crate) fn fits(self, n_rows: usize) -> bool {
        match self {
            RowOrder::Interleaved(heads) => heads > 0 && n_rows.is_multiple_of(2 * heads as usize),
            RowOrder::Same | RowOrder::PlusOne => true,
        }
    }

    /// The row in the files of Hugging Face that is row `at` of a GGUF tensor of so many rows.
    pub(crate) fn stored(self, at: usize, n_rows: usize) -> usize {
        match self {
            RowOrder::Interleaved(heads) => {
                let half = n_rows / heads as usize / 2;
                let (head, inside) = (at / (2 * half), at % (2 * half));
                head * 2 * half + (inside % 2) * half + inside / 2
            }
            RowOrder::Same | RowOrder::PlusOne => at,
        }
    }
}

/// A family under llama.cpp's name.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// The name there.
    pub(crate) name: &'static str,
    /// The name in `config.json`.
    pub(crate) model_type: &'static str,
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
    /// The family of a `model_type`.
    pub(crate) fn of_model_type(model_type: &str) -> Option<Architecture> {
        ALL.into_iter().find(|known| known.model_type == model_type)
    }

    /// The first family that llama.cpp calls so.
    pub(crate) fn named(name: &str) -> Option<Architecture> {
        ALL.into_iter().find(|known| known.name == name)
    }

    /// The names of all architectures.
    pub(crate) fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = ALL.into_iter().map(|known| known.name).collect();
        names.dedup();
        names
    }

    /// Whether norms are those of Gemma.
    pub(crate) fn is_gemma(&self) -> bool {
        self.name.starts_with("gemma")
    }

    /// The name in GGUF of a tensor of a layer, such as `layers.3.mlp.up_proj.weight`.
    pub(crate) fn of_layer(&self, short: &str) -> Option<String> {
        let (layer, rest) = short.strip_prefix("layers.")?.split_once('.')?;
        layer.parse::<u32>().ok()?;
        let (part, suffix) = rest.rsplit_once('.')?;
        let (_, named) = self.layer.iter().chain(&COMMON).find(|(known, _)| *known == part)?;
        self.has(named, suffix).then(|| format!("blk.{layer}.{named}.{suffix}"))
    }

    /// The name in a Hugging Face folder of a tensor of GGUF, such as `blk.3.ffn_up.weight`.
    pub(crate) fn stored(&self, name: &str) -> Option<String> {
        match name {
            "token_embd.weight" => return Some("model.embed_tokens.weight".to_owned()),
            "output_norm.weight" => return Some("model.norm.weight".to_owned()),
            "output.weight" => return Some("lm_head.weight".to_owned()),
            _ => {}
        }
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        layer.parse::<u32>().ok()?;
        let (part, suffix) = rest.rsplit_once('.')?;
        let (stored, named) = self.layer.iter().chain(&COMMON).find(|(_, named)| *named == part)?;
        self.has(named, suffix).then(|| format!("model.layers.{layer}.{stored}.{suffix}"))
    }

    /// How the rows of a tensor of GGUF lie, of a model with so many heads of queries and of keys.
    pub(crate) fn rows(&self, name: &str, heads: u32, kv_heads: u32) -> RowOrder {
        match name.split('.').nth(2) {
            Some("attn_q") if self.name == "llama" => RowOrder::Interleaved(heads),
            Some("attn_k") if self.name == "llama" => RowOrder::Interleaved(kv_heads),
            Some(part) if part.ends_with("norm") && self.is_gemma() => RowOrder::PlusOne,
            None if name == "output_norm.weight" && self.is_gemma() => RowOrder::PlusOne,
            _ => RowOrder::Same,
        }
    }

    /// Whether a tensor of a layer may have this suffix: biases of queries, keys and values are read in every architecture,
    /// others in llama alone.
    fn has(&self, named: &str, suffix: &str) -> bool {
        match suffix {
            "weight" => true,
            "bias" => ["attn_q", "attn_k", "attn_v"].contains(&named) || self.name == "llama",
            _ => false,
        }
    }
}
