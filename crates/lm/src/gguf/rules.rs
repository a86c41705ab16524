//! The rules by which byte-level tokenizers cut texts before merges, under llama.cpp's names and as `tokenizer.json` has them.

use serde_json::{Value, json};

/// Rules that are one pattern: the pattern as `tokenizer.json` writes it, its name, and whether pieces that are tokens are taken
/// whole there.
pub(crate) const REGEXES: [(&str, &str, bool); 3] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
        true,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
        false,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen35",
        false,
    ),
];
/// The rule of GPT-2, which `ByteLevel` has without being told.
pub(crate) const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// A rule as `tokenizer.json` has it.
pub(super) struct Rule {
    /// `pre_tokenizer`.
    pub(super) pre_tokenizer: Value,
    /// `ignore_merges`: whether pieces that are tokens are taken whole.
    pub(super) takes_whole: bool,
    /// `normalizer`. llama.cpp has none for these, and the tokenizers that the files came from have this one.
    pub(super) normalizer: Value,
}

/// The rule of a name (`tokenizer.ggml.pre`); `None` for one that is not known here.
pub(super) fn named(pre: &str) -> Option<Rule> {
    let same = match pre {
        "mpt" | "olmo" | "phi-2" | "gpt2" => "gpt-2",
        "starcoder" | "refact" | "command-r" => "smollm",
        "llama3" | "llama-v3" | "glm4" => "llama-bpe",
        "stablelm2" | "deepseek-r1-qwen" | "megrez" => "qwen2",
        own => own,
    };
    let bytes = |cuts: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let (pre_tokenizer, takes_whole) = match same {
        "gpt-2" => (bytes(true), false),
        "smollm" => {
            (sequence(vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)]), false)
        }
        _ => {
            let (regex, _, takes_whole) = REGEXES.iter().find(|(_, name, _)| *name == same)?;
            let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
            (sequence(vec![split, bytes(false)]), *takes_whole)
        }
    };
    let normalizer = if same.starts_with("qwen") { json!({"type": "NFC"}) } else { Value::Null };
    Some(Rule { pre_tokenizer, takes_whole, normalizer })
}
