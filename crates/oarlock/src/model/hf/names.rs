//! The names of weights in files: ours are those of transformers; MiniMind's seed era has its own.

/// How a folder names its weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naming {
    /// `model.layers.0.self_attn.q_proj.weight`: transformers' llama, qwen2, qwen3, and MiniMind since 2025.
    Transformers,
    /// `layers.0.attention.wq.weight`: MiniMind's seed era.
    MinimindSeed,
}

const SEED_ERA: [(&str, &str); 3] =
    [("model.embed_tokens.", "tok_embeddings."), ("model.norm.", "norm."), ("lm_head.", "output.")];

const SEED_ERA_BLOCK: [(&str, &str); 9] = [
    ("self_attn.q_proj.", "attention.wq."),
    ("self_attn.k_proj.", "attention.wk."),
    ("self_attn.v_proj.", "attention.wv."),
    ("self_attn.o_proj.", "attention.wo."),
    ("input_layernorm.", "attention_norm."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("mlp.gate_proj.", "feed_forward.w1."),
    ("mlp.down_proj.", "feed_forward.w2."),
    ("mlp.up_proj.", "feed_forward.w3."),
];

impl Naming {
    /// The name in files of the parameter that a decoder calls `name`.
    pub fn in_file(self, name: &str) -> String {
        if self == Naming::Transformers {
            return name.to_string();
        }
        let block = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let (prefix, rest, table) = match block {
            Some((index, rest)) => (format!("layers.{index}."), rest, &SEED_ERA_BLOCK[..]),
            None => (String::new(), name, &SEED_ERA[..]),
        };
        let renamed =
            table.iter().find_map(|(ours, theirs)| Some(format!("{theirs}{}", rest.strip_prefix(ours)?)));
        format!("{prefix}{}", renamed.unwrap_or_else(|| rest.to_string()))
    }
}

/// Whether a tensor is a table that follows from the settings, which older files store beside the weights.
pub(super) fn follows_from_settings(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    matches!(last, "inv_freq" | "pos_cis" | "freqs_cos" | "freqs_sin") || name.ends_with(".attention.mask")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_era_names() {
        let name = |ours| Naming::MinimindSeed.in_file(ours);
        assert_eq!(name("model.embed_tokens.weight"), "tok_embeddings.weight");
        assert_eq!(name("model.layers.11.self_attn.v_proj.weight"), "layers.11.attention.wv.weight");
        assert_eq!(name("model.layers.0.post_attention_layernorm.weight"), "layers.0.ffn_norm.weight");
        assert_eq!(name("model.layers.0.mlp.down_proj.weight"), "layers.0.feed_forward.w2.weight");
        assert_eq!(name("model.norm.weight"), "norm.weight");
        assert_eq!(name("lm_head.weight"), "output.weight");
        assert_eq!(Naming::Transformers.in_file("lm_head.weight"), "lm_head.weight");
    }

    #[test]
    fn tables_are_told_from_weights() {
        for table in [
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "pos_cis",
            "layers.1.attention.mask",
            "model.freqs_cos",
        ] {
            assert!(follows_from_settings(table), "{table}");
        }
        assert!(!follows_from_settings("model.layers.0.mlp.gate.weight"));
    }
}
