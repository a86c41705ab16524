//! DeepSpeed's block `sparse_attention`: which blocks of its scores attention computes.

use super::super::problem::Problems;
use super::super::resolve::Settings;
use super::super::value::Value;
use super::block::Dialect;
use crate::config::{Direction, Pattern, SparsityConfig};

/// The block's keys. A mode reads those that belong to it and leaves the others, as DeepSpeed does.
const KEYS: [&str; 13] = [
    "sparse_attention.mode",
    "sparse_attention.block",
    "sparse_attention.different_layout_per_head",
    "sparse_attention.num_local_blocks",
    "sparse_attention.num_global_blocks",
    "sparse_attention.attention",
    "sparse_attention.horizontal_global_attention",
    "sparse_attention.num_different_global_patterns",
    "sparse_attention.num_random_blocks",
    "sparse_attention.local_window_blocks",
    "sparse_attention.global_block_indices",
    "sparse_attention.global_block_end_indices",
    "sparse_attention.num_sliding_window_blocks",
];

/// What the block says, for a layout of `max_seq_length` positions whose random blocks come from `seed`.
pub fn sparse_attention(
    block: &Dialect,
    (max_seq_length, seed): (usize, u64),
    problems: &mut Problems,
) -> Option<SparsityConfig> {
    let settings = &block.settings;
    let written: Vec<&str> =
        KEYS.into_iter().filter(|name| settings.get(name).location().is_some()).collect();
    if written.is_empty() || written.iter().any(|name| settings.get(name).broken) {
        return None;
    }
    let count = |name: &str| settings.usize(&format!("sparse_attention.{name}"));
    let flag = |name: &str| settings.bool(&format!("sparse_attention.{name}"));
    let attention = match settings.word("sparse_attention.attention") {
        "unidirectional" => Direction::Unidirectional,
        _ => Direction::Bidirectional,
    };
    let starts = counts(settings, "sparse_attention.global_block_indices", problems)?;
    let starts = starts.unwrap_or_else(|| vec![0]);
    let ends = counts(settings, "sparse_attention.global_block_end_indices", problems)?;
    let horizontal_global_attention = flag("horizontal_global_attention");
    let pattern = match settings.word("sparse_attention.mode") {
        "dense" => Pattern::Dense,
        "variable" => Pattern::Variable {
            num_random_blocks: count("num_random_blocks"),
            local_window_blocks: counts(settings, "sparse_attention.local_window_blocks", problems)?
                .unwrap_or_else(|| vec![4]),
            global_block_indices: starts,
            global_block_end_indices: ends,
            attention,
            horizontal_global_attention,
        },
        "bigbird" => Pattern::BigBird {
            num_random_blocks: count("num_random_blocks"),
            num_sliding_window_blocks: count("num_sliding_window_blocks"),
            num_global_blocks: count("num_global_blocks"),
            attention,
        },
        "bslongformer" => Pattern::BsLongformer {
            num_sliding_window_blocks: count("num_sliding_window_blocks"),
            global_block_indices: starts,
            global_block_end_indices: ends,
            attention,
        },
        _ => Pattern::Fixed {
            num_local_blocks: count("num_local_blocks"),
            num_global_blocks: count("num_global_blocks"),
            attention,
            horizontal_global_attention,
            num_different_global_patterns: count("num_different_global_patterns"),
        },
    };
    let config = SparsityConfig {
        block: count("block"),
        different_layout_per_head: flag("different_layout_per_head"),
        pattern,
        seed,
        max_seq_length: Some(max_seq_length),
    };
    // What depends on the sequence alone is found with one head.
    if let Err(problem) = config.check().and_then(|()| config.layout(1, max_seq_length)) {
        let text = problem.to_string();
        let text = text.strip_prefix("sparse attention: ").unwrap_or(&text);
        let help = format!("the layout is for cutoff_len, {max_seq_length} tokens");
        settings.report(problems, format!("`sparse_attention`: {text}"), &written, &help);
        return None;
    }
    Some(config)
}

/// A list of block numbers or sizes: `Some(None)` where nobody writes one; `None` if it is not of numbers.
fn counts(settings: &Settings, name: &str, problems: &mut Problems) -> Option<Option<Vec<usize>>> {
    let setting = settings.get(name);
    let Value::List(words) = &setting.value else {
        return Some(None);
    };
    let numbers: Option<Vec<usize>> = words.iter().map(|word| word.parse().ok()).collect();
    if numbers.is_none() {
        let message = format!("`{name}` takes whole numbers from 0 on, not `{}`", words.join(", "));
        settings.report(problems, message, &[name], "blocks are counted from 0");
    }
    numbers.map(Some)
}
