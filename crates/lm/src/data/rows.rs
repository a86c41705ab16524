//! The rows of a data set: which records they are made of, how many there are and how long they are.

use std::sync::Arc;

use oarlock_config::config::Packing;

use super::error::Result;
use super::knapsack::Bins;
use super::lengths::Lengths;
use super::selection::Selection;

/// The rows of a data set.
#[derive(Clone, Debug)]
pub struct Rows {
    pub(super) selection: Selection,
    pub(super) packing: Packing,
    /// The records of each row, where rows hold several whole ones.
    pub(super) bins: Option<Arc<Bins>>,
    pub(super) len: usize,
    pub(super) bos: i32,
    pub(super) eos: i32,
    pub(super) pad: i32,
    pub(super) lengths: Option<Lengths>,
}

impl Rows {
    /// The number of rows.
    pub fn n_rows(&self) -> u64 {
        match self.packing {
            Packing::Concat | Packing::ConcatDocuments => self.selection.n_tokens() / self.len as u64,
            Packing::Truncate | Packing::MiniMind | Packing::Examples => self.selection.n_records(),
            Packing::Knapsack => self.bins.as_ref().map_or(0, |bins| bins.len() as u64),
        }
    }

    /// The tokens of a row, or the most of them.
    pub fn row_len(&self) -> usize {
        self.len - usize::from(self.packing == Packing::MiniMind)
    }

    /// The lengths of the rows, where those of similar length are drawn together.
    pub fn lengths(&self) -> Option<&Lengths> {
        self.lengths.as_ref()
    }

    /// Whether all tokens that were read so far stood in the file.
    ///
    /// # Errors
    /// When it has become shorter.
    pub fn check(&self) -> Result<()> {
        self.selection.cache.check()
    }

    /// Whether rows have lengths of their own; `write` then takes slices of [`Rows::tokens_in`] elements.
    pub fn is_unpadded(&self) -> bool {
        self.packing.is_unpadded()
    }

    /// The rows of a rank in a micro-batch that is to have so many. Rows of one length that the data do not have are not
    /// computed: a micro-batch with more than all of them has all of them, divided over the ranks.
    pub fn micro_batch(&self, world: u64, wanted: u64) -> u64 {
        match self.is_unpadded() {
            true => wanted,
            false => wanted.min(self.n_rows().div_ceil(world.max(1))),
        }
    }

    /// The number of records that these rows are made of.
    pub fn n_records(&self) -> u64 {
        self.selection.n_records()
    }

    /// Whether rows are unpaired preferences.
    pub(super) fn is_unpaired(&self) -> bool {
        self.selection.cache.holds_unpaired_preferences()
    }
}
