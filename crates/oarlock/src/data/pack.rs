//! Rows: how the tokens of a data set become sequences of one length, with their targets.
//!
//! Records are seen in file order, each followed by the end-of-text token, as one stream that is never stored: a row
//! is found in it by binary search.

use std::sync::Arc;

use oarlock_tensor::cpu::random::{Permutation, Stream};

use super::cache::TokenCache;
use super::error::{Error, Result};
use super::tokenizer::SpecialIds;
pub use crate::config::{Packing, ValSize};

/// A target that counts for nothing.
const IGNORED: i32 = -100;

/// What decides how rows are cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSettings {
    /// How records become rows.
    pub packing: Packing,
    /// `cutoff_len`, or MiniMind's `max_seq_len`.
    pub len: usize,
    /// The tokenizer's special ids.
    pub special: SpecialIds,
}

impl ValSize {
    /// Reads `val_size`: below 1 a part, else a whole number; 0 holds nothing out.
    ///
    /// # Errors
    /// When it is negative, or above 1 and not whole.
    pub fn parse(val_size: f64) -> Result<ValSize> {
        if (0.0..1.0).contains(&val_size) {
            Ok(ValSize::Fraction(val_size))
        } else if val_size >= 1.0 && val_size.fract() == 0.0 && val_size < u64::MAX as f64 {
            Ok(ValSize::Count(val_size as u64))
        } else {
            let cause = format!("{val_size} is neither a part below 1 nor a whole number of records");
            Err(Error::Setting { key: "val_size", cause })
        }
    }
}

/// Which records of a cache are meant.
#[derive(Clone, Debug)]
enum Chosen {
    AllBut,
    Only,
}

/// A choice of records: all but the `marked`, or only these. Places and lengths are in the stream of the chosen
/// records, each with one token more than its text.
#[derive(Clone, Debug)]
struct Selection {
    cache: Arc<TokenCache>,
    chosen: Chosen,
    /// Ascending.
    marked: Vec<u64>,
    /// The summed lengths of the marked records before each, and of all.
    before: Vec<u64>,
}

impl Selection {
    fn new(cache: Arc<TokenCache>, chosen: Chosen, marked: Vec<u64>) -> Selection {
        let offsets = cache.offsets();
        let mut before = vec![0u64];
        for &record in &marked {
            let len = offsets[record as usize + 1] - offsets[record as usize] + 1;
            before.push(before[before.len() - 1] + len);
        }
        Selection { cache, chosen, marked, before }
    }

    fn n_records(&self) -> u64 {
        match self.chosen {
            Chosen::Only => self.marked.len() as u64,
            Chosen::AllBut => self.cache.n_records() - self.marked.len() as u64,
        }
    }

    fn n_tokens(&self) -> u64 {
        let marked = self.before[self.marked.len()];
        match self.chosen {
            Chosen::Only => marked,
            Chosen::AllBut => self.cache.n_tokens() + self.cache.n_records() - marked,
        }
    }

    /// The `k`-th chosen record: where its text begins in the cache, and its length.
    fn record(&self, k: u64) -> (u64, usize) {
        let record = match self.chosen {
            Chosen::Only => self.marked[k as usize],
            // The marked records before it are those that have at most k chosen ones before them.
            Chosen::AllBut => k + partition(self.marked.len(), |j| self.marked[j] - j as u64 <= k) as u64,
        };
        let offsets = self.cache.offsets();
        let (begin, end) = (offsets[record as usize], offsets[record as usize + 1]);
        (begin, (end - begin) as usize)
    }

    /// The chosen record (its `k`) that place `at` of the stream falls into, and where in it.
    fn locate(&self, at: u64) -> (u64, usize) {
        if matches!(self.chosen, Chosen::Only) {
            let k = partition(self.before.len(), |j| self.before[j] <= at) - 1;
            return (k as u64, (at - self.before[k]) as usize);
        }
        let offsets = self.cache.offsets();
        let begin = |record: u64| offsets[record as usize] + record;
        let n_skipped = partition(self.marked.len(), |j| begin(self.marked[j]) - self.before[j] <= at);
        let at = at + self.before[n_skipped];
        let record = partition(offsets.len(), |r| begin(r as u64) <= at) as u64 - 1;
        (record - n_skipped as u64, (at - begin(record)) as usize)
    }
}

/// The first of `0..n` for which `before` does not hold.
fn partition(n: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// The rows of a data set.
#[derive(Clone, Debug)]
pub struct Rows {
    selection: Selection,
    packing: Packing,
    len: usize,
    bos: i32,
    eos: i32,
    pad: i32,
}

impl Rows {
    /// All records of `cache` as rows.
    ///
    /// # Errors
    /// When a special token that the packing needs is missing, or there is no row.
    pub fn new(cache: Arc<TokenCache>, settings: &RowSettings) -> Result<Rows> {
        Rows::of(Selection::new(cache, Chosen::AllBut, Vec::new()), settings)
    }

    /// The records of `cache` as rows to train on and rows to validate on. The held-out records are chosen at random
    /// by `seed` and stay in file order.
    ///
    /// # Errors
    /// As `new`, and when one of the two would be empty.
    pub fn split(
        cache: Arc<TokenCache>,
        settings: &RowSettings,
        size: ValSize,
        seed: u64,
    ) -> Result<(Rows, Option<Rows>)> {
        let n = cache.n_records();
        let n_held_out = match size {
            ValSize::Count(count) => count,
            ValSize::Fraction(part) => (part * n as f64).ceil() as u64,
        };
        if n_held_out == 0 {
            return Ok((Rows::new(cache, settings)?, None));
        }
        if n_held_out >= n {
            let cause = format!("{n_held_out} of {n} records held out leave none to train on; lower it");
            return Err(Error::Setting { key: "val_size", cause });
        }
        let order = Permutation::new(Stream { seed, stream: VAL_STREAM }, n);
        let mut marked: Vec<u64> = (0..n_held_out).filter_map(|i| order.get(i)).collect();
        marked.sort_unstable();
        let rest = Selection::new(cache.clone(), Chosen::AllBut, marked.clone());
        let held_out = Selection::new(cache, Chosen::Only, marked);
        Ok((Rows::of(rest, settings)?, Some(Rows::of(held_out, settings)?)))
    }

    fn of(selection: Selection, settings: &RowSettings) -> Result<Rows> {
        let &RowSettings { packing, len, special } = settings;
        if !(2..=i32::MAX as usize).contains(&len) {
            let cause = format!("{len} tokens hold no input and target; give at least 2");
            return Err(Error::Setting { key: "cutoff_len", cause });
        }
        let need = |id: Option<u32>, what: &str, wanted: bool| match id {
            Some(id) => Ok(id as i32),
            None if !wanted => Ok(0),
            None => Err(Error::Setting {
                key: "tokenizer",
                cause: format!("it has no {what}; name one as {what} in tokenizer_config.json"),
            }),
        };
        let minimind = packing == Packing::MiniMind;
        let eos = need(special.eos, "eos_token", true)?;
        let bos = need(special.bos, "bos_token", minimind)?;
        // What fills a truncated row is never a target, so the end token serves where none is named.
        let pad = need(special.pad.or(if minimind { None } else { special.eos }), "pad_token", minimind)?;
        let rows = Rows { selection, packing, len, bos, eos, pad };
        if rows.n_rows() == 0 {
            let (n_tokens, n_records) = (rows.selection.n_tokens(), rows.selection.n_records());
            return Err(Error::TooLittle(format!(
                "{n_records} records with {n_tokens} tokens do not fill one block of cutoff_len {len}; lower \
                 cutoff_len, give more text, or set packing: false"
            )));
        }
        Ok(rows)
    }

    /// The number of rows.
    pub fn n_rows(&self) -> u64 {
        match self.packing {
            Packing::Concat | Packing::ConcatDocuments => self.selection.n_tokens() / self.len as u64,
            Packing::Truncate | Packing::MiniMind => self.selection.n_records(),
        }
    }

    /// The tokens of a row.
    pub fn row_len(&self) -> usize {
        self.len - usize::from(self.packing == Packing::MiniMind)
    }

    /// Whether rows say where their documents begin.
    pub fn has_documents(&self) -> bool {
        self.packing == Packing::ConcatDocuments
    }

    /// Writes a row: its ids, its targets (the next token, or -100) and, for `ConcatDocuments`, where in the row the
    /// document of each token begins. All slices have `row_len` elements. Gives the number of targets.
    pub fn write(
        &self,
        row: u64,
        ids: &mut [i32],
        labels: &mut [i32],
        doc_start: Option<&mut [i32]>,
    ) -> usize {
        match self.packing {
            Packing::Concat => self.write_block(row, ids, None),
            Packing::ConcatDocuments => self.write_block(row, ids, doc_start),
            Packing::Truncate => return self.write_truncated(row, ids, labels),
            Packing::MiniMind => return self.write_minimind(row, ids, labels),
        }
        let n = shift(ids, labels);
        if self.packing == Packing::Concat {
            return n;
        }
        n - self.for_each_end(row, |end| {
            if end + 1 < self.len {
                labels[end] = IGNORED;
            }
        })
    }

    /// A row that is there for the shape only: fill tokens and no target.
    pub fn write_filler(&self, ids: &mut [i32], labels: &mut [i32], doc_start: Option<&mut [i32]>) {
        ids.fill(self.pad);
        labels.fill(IGNORED);
        if let Some(doc_start) = doc_start {
            doc_start.fill(0);
        }
    }

    /// The number of targets that `write` gives for a row.
    pub fn n_targets(&self, row: u64) -> usize {
        match self.packing {
            Packing::Concat => self.len - 1,
            Packing::ConcatDocuments => self.len - 1 - self.for_each_end(row, |_| ()),
            Packing::Truncate => (self.selection.record(row).1 + 1).min(self.len) - 1,
            Packing::MiniMind => {
                let (begin, len) = self.selection.record(row);
                let (n_text, mut n) = (len.min(self.len - 1), 0);
                let mut chunk = [0; 256];
                for at in (0..n_text).step_by(chunk.len()) {
                    let chunk = &mut chunk[..(n_text - at).min(256)];
                    self.selection.cache.copy(begin + at as u64, chunk);
                    n += chunk.iter().filter(|&&id| id != self.pad).count();
                }
                n + usize::from(len + 2 <= self.len && self.eos != self.pad)
            }
        }
    }

    /// Calls `f` with the place of each document's last token in a block, but for the block's own last place; gives
    /// how often.
    fn for_each_end(&self, row: u64, mut f: impl FnMut(usize)) -> usize {
        let (mut k, within) = self.selection.locate(row * self.len as u64);
        let (mut end, mut n) = (self.selection.record(k).1 - within, 0);
        while end + 1 < self.len {
            f(end);
            n += 1;
            k += 1;
            end += self.selection.record(k).1 + 1;
        }
        n
    }

    fn write_block(&self, row: u64, ids: &mut [i32], mut doc_start: Option<&mut [i32]>) {
        let (mut k, mut within) = self.selection.locate(row * self.len as u64);
        let mut at = 0;
        while at < self.len {
            let (begin, len) = self.selection.record(k);
            let n_text = (len - within).min(self.len - at);
            self.selection.cache.copy(begin + within as u64, &mut ids[at..at + n_text]);
            let mut end = at + n_text;
            if end < self.len {
                ids[end] = self.eos;
                end += 1;
            }
            if let Some(doc_start) = doc_start.as_deref_mut() {
                doc_start[at..end].fill(at as i32);
            }
            (at, k, within) = (end, k + 1, 0);
        }
    }

    fn write_truncated(&self, row: u64, ids: &mut [i32], labels: &mut [i32]) -> usize {
        let (begin, len) = self.selection.record(row);
        let n_text = len.min(self.len);
        self.selection.cache.copy(begin, &mut ids[..n_text]);
        let n = (len + 1).min(self.len);
        ids[n_text..n].fill(self.eos);
        ids[n..].fill(self.pad);
        labels.fill(IGNORED);
        shift(&ids[..n], &mut labels[..n])
    }

    fn write_minimind(&self, row: u64, ids: &mut [i32], labels: &mut [i32]) -> usize {
        // The whole row has one token more than the inputs: the targets are its tokens from the second on.
        let (begin, len) = self.selection.record(row);
        let n_text = len.min(labels.len());
        self.selection.cache.copy(begin, &mut labels[..n_text]);
        labels[n_text..].fill(self.pad);
        if let Some(end) = labels.get_mut(n_text) {
            *end = self.eos;
        }
        ids[0] = self.bos;
        ids[1..].copy_from_slice(&labels[..labels.len() - 1]);
        labels.iter_mut().filter(|id| **id == self.pad).for_each(|id| *id = IGNORED);
        labels.iter().filter(|&&id| id != IGNORED).count()
    }
}

/// Distinguishes the order that chooses held-out records from those of the epochs.
const VAL_STREAM: u64 = u64::MAX;

/// Each target is the next token; the last has none. Gives the number of targets.
fn shift(ids: &[i32], labels: &mut [i32]) -> usize {
    let n = ids.len() - 1;
    labels[..n].copy_from_slice(&ids[1..]);
    labels[n] = IGNORED;
    n
}

#[cfg(test)]
mod tests;
