//! The rotary tables of a decoder: one for all layers whose settings are equal, and others where the frequencies depend on
//! the length of the sequence.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use oarlock_tensor::ops::{self, Mask, Rope};
use oarlock_tensor::{Result, RopeScaling, Tensor};

use super::cache::LayerCache;
use super::config::{DecoderConfig, RopeSettings};

/// The rotary tables of a layer.
#[derive(Clone, Debug)]
pub(super) struct RopeTables {
    /// Of sequences as long as those of the model's pretraining, or of all.
    table: Arc<Rope>,
    longer: Option<Longer>,
}

/// Tables of sequences that are longer than `original` positions.
#[derive(Clone, Debug)]
struct Longer {
    original: usize,
    tables: Tables,
}

#[derive(Clone, Debug)]
enum Tables {
    /// One for all of them.
    One(Arc<Rope>),
    /// One for each length.
    Each(Arc<OfEachLength>),
}

/// How the positions of a text are turned, as far as it follows from the length of the text. Texts for which it is equal turn
/// the positions that they share alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turning {
    /// Layers that take the table of longer sequences.
    n_longer: usize,
    /// The length, where each has a table of its own.
    own: usize,
}

/// A table of each length, of which the last is kept: all layers ask for it.
#[derive(Debug)]
struct OfEachLength {
    settings: RopeSettings,
    dim: usize,
    last: Mutex<Option<(usize, Arc<Rope>)>>,
}

impl RopeTables {
    /// The tables of each layer, for sequences of up to `n_positions`, or for several in rows of up to `row_len`. What a
    /// query sees of a key depends on the distance between them alone, so the positions of a row go on from one sequence
    /// to the next. Positions beyond those of the pretraining are turned on as in transformers.
    ///
    /// # Errors
    /// Scaling settings that make no sense, or more positions than memory has room for.
    pub(super) fn of_layers(
        config: &DecoderConfig,
        n_positions: usize,
        row_len: usize,
    ) -> oarlock_engine::Result<Vec<RopeTables>> {
        let row_len = row_len.max(n_positions);
        let kinds = config.rotary_kinds();
        let tables = kinds.iter().map(|(rope, dim)| {
            let table = |longest: usize, end: usize| {
                let scaling = rope.scaling.clone();
                Rope::of_positions(rope.theta, *dim, rope.style, scaling, longest, 0..end).map(Arc::new)
            };
            Ok(match &rope.scaling {
                RopeScaling::LongRope(long) if n_positions > long.original_max_positions => {
                    let original = long.original_max_positions;
                    let tables = Tables::One(table(n_positions, row_len)?);
                    RopeTables { table: table(original, row_len)?, longer: Some(Longer { original, tables }) }
                }
                RopeScaling::Dynamic { original_max_positions: original, .. } if n_positions > *original => {
                    let (settings, last) = ((*rope).clone(), Mutex::default());
                    let tables = Tables::Each(Arc::new(OfEachLength { settings, dim: *dim, last }));
                    let table = table(*original, *original)?;
                    RopeTables { table, longer: Some(Longer { original: *original, tables }) }
                }
                _ => RopeTables { table: table(n_positions, row_len)?, longer: None },
            })
        });
        let tables: Vec<RopeTables> = tables.collect::<oarlock_engine::Result<_>>()?;
        let of_layer = |attention: &super::config::AttentionConfig| {
            let kind = (&attention.rope, attention.rotary_dim());
            kinds.iter().position(|known| *known == kind).map(|index| tables[index].clone())
        };
        Ok(config.layers.iter().filter_map(|layer| of_layer(&layer.attention)).collect())
    }

    /// Whether the length of a sequence counts.
    pub(super) fn depend_on_length(&self) -> bool {
        self.longer.is_some()
    }

    /// The table for these positions, where the longest sequence has `longest`.
    ///
    /// # Errors
    /// More positions than memory has room for.
    pub(super) fn of(&self, positions: Range<usize>, longest: usize) -> Result<Arc<Rope>> {
        match &self.longer {
            Some(Longer { original, tables: Tables::One(table) }) if longest > *original => Ok(table.clone()),
            // Rows of short sequences may be long as well.
            Some(Longer { original, tables: Tables::Each(tables) })
                if longest > *original || positions.end > *original =>
            {
                tables.of(positions, longest.max(*original))
            }
            _ => Ok(self.table.clone()),
        }
    }

    /// The table for the next `n` positions of an answer: that of a text which ends with them, or with the prompt that they are
    /// a part of. Each pass turns its positions by the length of then, as in transformers; neither the room of the cache nor
    /// the most tokens of the answer count.
    ///
    /// # Errors
    /// More positions than memory has room for.
    pub(super) fn of_pass(&self, cache: &LayerCache, n: usize) -> Result<Arc<Rope>> {
        let end = cache.len() + n;
        self.of(cache.len()..end, end.max(cache.n_prompt()))
    }

    /// x `[B, 1, H, D]`, each row turned to its position in an answer to a prompt of so many tokens, as [`RopeTables::of_pass`]
    /// says.
    ///
    /// # Errors
    /// As [`RopeTables::of`], and other rows than positions.
    pub(super) fn turn_each(&self, x: &Tensor, places: &[(usize, usize)]) -> Result<Tensor> {
        if self.longer.is_none() {
            let positions: Vec<usize> = places.iter().map(|(position, _)| *position).collect();
            return ops::rope_each(x, &self.table, &positions);
        }
        let each = places.iter().enumerate().map(|(row, &(position, n_prompt))| {
            let table = self.of(position..position + 1, n_prompt.max(position + 1))?;
            ops::rope(&ops::narrow(x, 0, row..row + 1)?, &table, position)
        });
        ops::concat(&each.collect::<Result<Vec<_>>>()?, 0)
    }

    /// How the positions of a text of this length are turned, beside what other layers add to it.
    pub(super) fn turning(&self, longest: usize) -> Turning {
        match &self.longer {
            Some(Longer { original, tables }) if longest > *original => match tables {
                Tables::One(_) => Turning { n_longer: 1, own: 0 },
                Tables::Each(_) => Turning { n_longer: 0, own: longest },
            },
            _ => Turning::default(),
        }
    }

    /// Whether all positions of a text that becomes `longer` are turned in another way than as it had `len`. With LongRoPE
    /// transformers then reads the text anew; with dynamic scaling it keeps the keys as they were turned.
    pub(super) fn turn_anew(&self, len: usize, longer: usize) -> bool {
        let Some(Longer { original, tables: Tables::One(_) }) = &self.longer else { return false };
        len <= *original && longer > *original
    }
}

impl Turning {
    /// That of two layers.
    pub(super) fn and(self, other: Turning) -> Turning {
        Turning { n_longer: self.n_longer + other.n_longer, own: self.own.max(other.own) }
    }
}

impl OfEachLength {
    fn of(&self, positions: Range<usize>, longest: usize) -> Result<Arc<Rope>> {
        // Whoever panicked here has changed nothing.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |rope: &Rope| {
            let own = rope.positions();
            own.start <= positions.start && positions.end <= own.end
        };
        if let Some((length, table)) = &*last
            && *length == longest
            && fits(table)
        {
            return Ok(table.clone());
        }
        let RopeSettings { theta, style, scaling, .. } = &self.settings;
        let table = Rope::of_positions(*theta, self.dim, *style, scaling.clone(), longest, positions)?;
        Ok(last.insert((longest, Arc::new(table))).1.clone())
    }
}

/// The longest sequence in rows of so many positions.
///
/// # Errors
/// A mask that cannot be read.
pub(super) fn longest_sequence(mask: &Mask, row_len: usize) -> Result<usize> {
    let Mask::Documents(firsts) = mask else { return Ok(row_len) };
    if firsts.device().is_dry() {
        return Ok(row_len);
    }
    let len = |(at, first): (usize, &i32)| (at % row_len.max(1) + 1).saturating_sub(*first as usize);
    let firsts: Vec<i32> = Tensor::to_vec(firsts)?;
    Ok(firsts.iter().enumerate().map(len).max().unwrap_or(row_len))
}
