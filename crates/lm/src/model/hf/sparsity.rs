//! Sparse attention in a `config.json`: the field `sparse_attention` with the names of DeepSpeed's JSON, and the seed and the
//! length of the layout, so that a saved model generates with the layout that it was trained with. Other programs do not
//! know the field.

use oarlock_engine::Result;
use oarlock_engine::nn::{Direction, Pattern, SparsityConfig};
use serde_json::{Map, Value, json};

use super::fields::{FieldWriter, Fields};

const FIELD: &str = "sparse_attention";

/// The settings, where the file has them.
pub(super) fn read(fields: &Fields<'_>) -> Result<Option<SparsityConfig>> {
    let Some(fields) = fields.object(FIELD)? else { return Ok(None) };
    let attention = match fields.text("attention")? {
        None | Some("bidirectional") => Direction::Bidirectional,
        Some("unidirectional") => Direction::Unidirectional,
        Some(_) => return Err(fields.wrong("attention", "expected bidirectional or unidirectional")),
    };
    let horizontal_global_attention = fields.flag_or("horizontal_global_attention", false)?;
    let starts =
        || Ok::<_, oarlock_engine::Error>(fields.counts("global_block_indices")?.unwrap_or_else(|| vec![0]));
    let ends = || fields.counts("global_block_end_indices");
    let pattern = match fields.text("mode")? {
        Some("dense") => Pattern::Dense,
        None | Some("fixed") => Pattern::Fixed {
            num_local_blocks: fields.count_or("num_local_blocks", 4)?,
            num_global_blocks: fields.count_or("num_global_blocks", 1)?,
            attention,
            horizontal_global_attention,
            num_different_global_patterns: fields.count_or("num_different_global_patterns", 1)?,
        },
        Some("variable") => Pattern::Variable {
            num_random_blocks: fields.count_or("num_random_blocks", 0)?,
            local_window_blocks: fields.counts("local_window_blocks")?.unwrap_or_else(|| vec![4]),
            global_block_indices: starts()?,
            global_block_end_indices: ends()?,
            attention,
            horizontal_global_attention,
        },
        Some("bigbird") => Pattern::BigBird {
            num_random_blocks: fields.count_or("num_random_blocks", 0)?,
            num_sliding_window_blocks: fields.count_or("num_sliding_window_blocks", 3)?,
            num_global_blocks: fields.count_or("num_global_blocks", 1)?,
            attention,
        },
        Some("bslongformer") => Pattern::BsLongformer {
            num_sliding_window_blocks: fields.count_or("num_sliding_window_blocks", 3)?,
            global_block_indices: starts()?,
            global_block_end_indices: ends()?,
            attention,
        },
        Some(_) => {
            return Err(fields.wrong("mode", "expected dense, fixed, variable, bigbird or bslongformer"));
        }
    };
    Ok(Some(SparsityConfig {
        block: fields.count_or("block", 16)?,
        different_layout_per_head: fields.flag_or("different_layout_per_head", false)?,
        pattern,
        seed: fields.count_or("seed", 0)? as u64,
        max_seq_length: fields.count("max_seq_length")?,
    }))
}

/// Writes the settings, or removes the field.
pub(super) fn write(sparsity: Option<&SparsityConfig>, writer: &mut FieldWriter) {
    match sparsity {
        Some(sparsity) => writer.set(FIELD, Value::Object(to_json(sparsity))),
        None => writer.remove(FIELD),
    }
}

fn to_json(config: &SparsityConfig) -> Map<String, Value> {
    let (mode, own) = match &config.pattern {
        Pattern::Dense => ("dense", json!({})),
        Pattern::Fixed {
            num_local_blocks,
            num_global_blocks,
            attention,
            horizontal_global_attention,
            num_different_global_patterns,
        } => (
            "fixed",
            json!({
                "num_local_blocks": num_local_blocks,
                "num_global_blocks": num_global_blocks,
                "attention": word(*attention),
                "horizontal_global_attention": horizontal_global_attention,
                "num_different_global_patterns": num_different_global_patterns,
            }),
        ),
        Pattern::Variable {
            num_random_blocks,
            local_window_blocks,
            global_block_indices,
            global_block_end_indices,
            attention,
            horizontal_global_attention,
        } => (
            "variable",
            json!({
                "num_random_blocks": num_random_blocks,
                "local_window_blocks": local_window_blocks,
                "global_block_indices": global_block_indices,
                "global_block_end_indices": global_block_end_indices,
                "attention": word(*attention),
                "horizontal_global_attention": horizontal_global_attention,
            }),
        ),
        Pattern::BigBird { num_random_blocks, num_sliding_window_blocks, num_global_blocks, attention } => (
            "bigbird",
            json!({
                "num_random_blocks": num_random_blocks,
                "num_sliding_window_blocks": num_sliding_window_blocks,
                "num_global_blocks": num_global_blocks,
                "attention": word(*attention),
            }),
        ),
        Pattern::BsLongformer {
            num_sliding_window_blocks,
            global_block_indices,
            global_block_end_indices,
            attention,
        } => (
            "bslongformer",
            json!({
                "num_sliding_window_blocks": num_sliding_window_blocks,
                "global_block_indices": global_block_indices,
                "global_block_end_indices": global_block_end_indices,
                "attention": word(*attention),
            }),
        ),
    };
    let mut fields = Map::new();
    fields.insert("mode".to_owned(), json!(mode));
    fields.insert("block".to_owned(), json!(config.block));
    fields.insert("different_layout_per_head".to_owned(), json!(config.different_layout_per_head));
    fields.extend(own.as_object().cloned().unwrap_or_default());
    fields.insert("seed".to_owned(), json!(config.seed));
    fields.insert("max_seq_length".to_owned(), json!(config.max_seq_length));
    fields
}

fn word(attention: Direction) -> &'static str {
    match attention {
        Direction::Bidirectional => "bidirectional",
        Direction::Unidirectional => "unidirectional",
    }
}
