//! The rotary tables of a decoder: one for all layers whose settings are equal, two where the frequencies depend on the
//! length of the sequence.

use std::sync::Arc;

use oarlock_tensor::RopeScaling;
use oarlock_tensor::ops::Rope;

use super::config::DecoderConfig;
use crate::error::{Error, Result};

/// The rotary table of a layer, by the length of the sequence that it is used for.
#[derive(Clone, Debug)]
pub(super) struct RopeTables {
    table: Arc<Rope>,
    /// The longest sequence for `table`, and the table of longer ones.
    longer: Option<(usize, Arc<Rope>)>,
}

impl RopeTables {
    /// The tables of each layer, for sequences of up to `n_positions`, or for several in rows of up to `row_len`. What a
    /// query sees of a key depends on the distance between them alone, so the positions of a row go on from one sequence
    /// to the next.
    ///
    /// # Errors
    /// More positions than the model allows, or scaling settings that make no sense.
    pub(super) fn of_layers(
        config: &DecoderConfig,
        n_positions: usize,
        row_len: usize,
    ) -> Result<Vec<RopeTables>> {
        if n_positions > config.max_positions {
            return Err(Error::Model(format!(
                "sequences of {n_positions} tokens are longer than the model allows (max_position_embeddings is {}); \
                 give a smaller cutoff_len",
                config.max_positions
            )));
        }
        let row_len = row_len.max(n_positions);
        let kinds = config.rotary_kinds();
        let tables = kinds.iter().map(|(rope, dim)| {
            let table = |n: usize| Rope::new(rope.theta, *dim, rope.style, rope.scaling.clone(), n);
            let switch = match &rope.scaling {
                RopeScaling::LongRope(long) if n_positions > long.original_max_positions => {
                    Some(long.original_max_positions)
                }
                _ => None,
            };
            Ok(RopeTables {
                table: Arc::new(table(switch.unwrap_or(row_len))?),
                longer: switch.map(|n| Ok::<_, Error>((n, Arc::new(table(row_len)?)))).transpose()?,
            })
        });
        let tables: Vec<RopeTables> = tables.collect::<Result<_>>()?;
        let of_layer = |attention: &super::AttentionConfig| {
            let kind = (&attention.rope, attention.rotary_dim());
            kinds.iter().position(|known| *known == kind).map(|index| tables[index].clone())
        };
        Ok(config.layers.iter().filter_map(|layer| of_layer(&layer.attention)).collect())
    }

    /// The table for a sequence of `len` positions.
    pub(super) fn for_length(&self, len: usize) -> &Arc<Rope> {
        match &self.longer {
            Some((longest, table)) if len > *longest => table,
            _ => &self.table,
        }
    }
}
