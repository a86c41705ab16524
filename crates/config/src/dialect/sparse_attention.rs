//! DeepSpeed's block `sparse_attention`: which blocks of its scores attention computes.

use super::block::Dialect;
use super::deepspeed_keys;
use crate::config::{Direction, Pattern, SparsityConfig};
use crate::settings::keys::{Key, Row};
use crate::settings::problem::Problems;
use crate::settings::resolve::Settings;
use crate::settings::value::Value;

/// The block's keys. A mode reads those that belong to it and leaves the others, as DeepSpeed does.
const KEYS: [&Row; 13] = [
    deepspeed_keys::SPARSE_ATTENTION_MODE.row,
    deepspeed_keys::SPARSE_ATTENTION_BLOCK.row,
    deepspeed_keys::SPARSE_ATTENTION_DIFFERENT_LAYOUT_PER_HEAD.row,
    deepspeed_keys::SPARSE_ATTENTION_NUM_LOCAL_BLOCKS.row,
    deepspeed_keys::SPARSE_ATTENTION_NUM_GLOBAL_BLOCKS.row,
    deepspeed_keys::SPARSE_ATTENTION_ATTENTION.row,
    deepspeed_keys::SPARSE_ATTENTION_HORIZONTAL_GLOBAL_ATTENTION.row,
    deepspeed_keys::SPARSE_ATTENTION_NUM_DIFFERENT_GLOBAL_PATTERNS.row,
    deepspeed_keys::SPARSE_ATTENTION_NUM_RANDOM_BLOCKS.row,
    deepspeed_keys::SPARSE_ATTENTION_LOCAL_WINDOW_BLOCKS.row,
    deepspeed_keys::SPARSE_ATTENTION_GLOBAL_BLOCK_INDICES.row,
    deepspeed_keys::SPARSE_ATTENTION_GLOBAL_BLOCK_END_INDICES.row,
    deepspeed_keys::SPARSE_ATTENTION_NUM_SLIDING_WINDOW_BLOCKS.row,
];

/// What the block says, for a layout of `max_seq_length` positions whose random blocks come from `seed`.
pub fn sparse_attention(
    block: &Dialect,
    (max_seq_length, seed): (usize, u64),
    problems: &mut Problems,
) -> Option<SparsityConfig> {
    let settings = &block.settings;
    let written: Vec<&Row> =
        KEYS.into_iter().filter(|key| settings.setting(*key).location().is_some()).collect();
    if written.is_empty() || written.iter().any(|key| settings.setting(*key).broken) {
        return None;
    }
    let attention = match settings.word(deepspeed_keys::SPARSE_ATTENTION_ATTENTION) {
        "unidirectional" => Direction::Unidirectional,
        _ => Direction::Bidirectional,
    };
    let starts = counts(settings, deepspeed_keys::SPARSE_ATTENTION_GLOBAL_BLOCK_INDICES, problems)?;
    let starts = starts.unwrap_or_else(|| vec![0]);
    let ends = counts(settings, deepspeed_keys::SPARSE_ATTENTION_GLOBAL_BLOCK_END_INDICES, problems)?;
    let horizontal_global_attention =
        settings.get(deepspeed_keys::SPARSE_ATTENTION_HORIZONTAL_GLOBAL_ATTENTION);
    let pattern = match settings.word(deepspeed_keys::SPARSE_ATTENTION_MODE) {
        "dense" => Pattern::Dense,
        "variable" => Pattern::Variable {
            num_random_blocks: settings.get(deepspeed_keys::SPARSE_ATTENTION_NUM_RANDOM_BLOCKS),
            local_window_blocks: counts(
                settings,
                deepspeed_keys::SPARSE_ATTENTION_LOCAL_WINDOW_BLOCKS,
                problems,
            )?
            .unwrap_or_else(|| vec![4]),
            global_block_indices: starts,
            global_block_end_indices: ends,
            attention,
            horizontal_global_attention,
        },
        "bigbird" => Pattern::BigBird {
            num_random_blocks: settings.get(deepspeed_keys::SPARSE_ATTENTION_NUM_RANDOM_BLOCKS),
            num_sliding_window_blocks: settings
                .get(deepspeed_keys::SPARSE_ATTENTION_NUM_SLIDING_WINDOW_BLOCKS),
            num_global_blocks: settings.get(deepspeed_keys::SPARSE_ATTENTION_NUM_GLOBAL_BLOCKS),
            attention,
        },
        "bslongformer" => Pattern::BsLongformer {
            num_sliding_window_blocks: settings
                .get(deepspeed_keys::SPARSE_ATTENTION_NUM_SLIDING_WINDOW_BLOCKS),
            global_block_indices: starts,
            global_block_end_indices: ends,
            attention,
        },
        _ => Pattern::Fixed {
            num_local_blocks: settings.get(deepspeed_keys::SPARSE_ATTENTION_NUM_LOCAL_BLOCKS),
            num_global_blocks: settings.get(deepspeed_keys::SPARSE_ATTENTION_NUM_GLOBAL_BLOCKS),
            attention,
            horizontal_global_attention,
            num_different_global_patterns: settings
                .get(deepspeed_keys::SPARSE_ATTENTION_NUM_DIFFERENT_GLOBAL_PATTERNS),
        },
    };
    let config = SparsityConfig {
        block: settings.get(deepspeed_keys::SPARSE_ATTENTION_BLOCK),
        different_layout_per_head: settings.get(deepspeed_keys::SPARSE_ATTENTION_DIFFERENT_LAYOUT_PER_HEAD),
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
fn counts(settings: &Settings, key: Key<Vec<String>>, problems: &mut Problems) -> Option<Option<Vec<usize>>> {
    let setting = settings.setting(key);
    let Value::List(words) = &setting.value else {
        return Some(None);
    };
    let numbers: Option<Vec<usize>> = words.iter().map(|word| word.parse().ok()).collect();
    if numbers.is_none() {
        let message = format!("`{key}` takes whole numbers from 0 on, not `{}`", words.join(", "));
        settings.report(problems, message, &[key.row], "blocks are counted from 0");
    }
    numbers.map(Some)
}
