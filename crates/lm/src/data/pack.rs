//! Rows: how the tokens of a data set become sequences of one length, with their targets.
//!
//! Records are seen in file order as one stream that is never stored: a row is found in it by binary search. The
//! end-of-text token follows each text; a conversation has the ends that its template gave it.

use std::ops::Range;
use std::sync::Arc;

use super::batch::{CHOSEN, Fields, REJECTED};
use super::cache::TokenCache;
use super::error::{Error, Result};
use super::knapsack::Bins;
use super::lengths::Lengths;
use super::rows::Rows;
use super::selection::{Selection, Split};
use super::tokenizer::SpecialIds;
pub use oarlock_config::config::{Packing, ValSize};

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

/// The part of a record that stands in a row.
struct Part {
    /// The record's number in the cache.
    record: u64,
    /// Where its tokens begin in the cache, and how many there are.
    begin: u64,
    len: usize,
    /// The first of them in the row; `len` where only the end token is.
    from: usize,
    /// Where in the row the part stands, the end token included.
    at: Range<usize>,
}

impl Rows {
    /// All records of `cache` as rows.
    ///
    /// # Errors
    /// When a special token that the packing needs is missing, or there is no row.
    pub fn new(cache: Arc<TokenCache>, settings: &RowSettings) -> Result<Rows> {
        Rows::of(Selection::all(cache), settings)
    }

    /// The records of `cache` as rows to train on and rows to validate on. The held-out records are chosen at random by the
    /// seed, and stand in the order of that choice. The others are mixed; none of them is held out, however often it comes.
    ///
    /// # Errors
    /// As `new`, when one of the two would be empty, and when the data sets cannot be mixed so.
    pub fn split(
        cache: Arc<TokenCache>,
        settings: &RowSettings,
        split: &Split,
    ) -> Result<(Rows, Option<Rows>)> {
        let (rest, held_out) = Selection::split(cache, split)?;
        let held_out = held_out.map(|held_out| Rows::of(held_out, settings)).transpose()?;
        Ok((Rows::of(rest, settings)?, held_out))
    }

    /// The same rows, of which a training run draws those of similar length together.
    pub fn grouped_by_length(mut self) -> Rows {
        let lens = (0..self.n_rows()).map(|row| self.tokens_of(row).min(u32::MAX as usize) as u32);
        self.lengths = Some(Lengths::new(lens.collect()));
        self
    }

    /// The tokens of this row without what fills it up.
    fn tokens_of(&self, row: u64) -> usize {
        self.parts(row).map(|part| part.at.len()).sum()
    }

    /// The tokens of a record and which of them are targets, from its first to its last, whatever row they are in: the
    /// `index`-th of the records that these rows are made of. Of an unpaired preference those that fit into a row.
    pub fn record(&self, index: u64) -> (Vec<u32>, Vec<Range<usize>>) {
        if self.is_unpaired() {
            let ids = self.shown(index).0;
            return (ids, vec![self.unpaired_targets(index)]);
        }
        let (record, begin, len) = self.selection.record(index);
        let mut ids = vec![0; len];
        self.selection.cache.copy(begin, &mut ids);
        let targets = self.selection.cache.targets(record).map(|runs| runs.collect());
        (ids.into_iter().map(|id| id as u32).collect(), targets.unwrap_or_default())
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
        let (conversations, pairs) = (selection.cache.holds_conversations(), selection.cache.has_segments());
        if conversations && (minimind || pairs && packing == Packing::Concat) {
            let what = if minimind { "MiniMind's rows hold texts" } else { "pairs must not see each other" };
            let cause = format!("{what}, and these records are conversations; use neat_packing");
            return Err(Error::Setting { key: "packing", cause });
        }
        let eos = need(special.eos, "eos_token", !conversations)?;
        let bos = need(special.bos, "bos_token", minimind)?;
        // What fills a truncated row is never a target, so the end token serves where none is named.
        let pad = need(special.pad.or(if minimind { None } else { special.eos }), "pad_token", minimind)?;
        if packing.is_unpadded() && !conversations {
            let cause = "rows of whole examples are for conversations; these records are texts".into();
            return Err(Error::Setting { key: "packing", cause });
        }
        let bins = (packing == Packing::Knapsack).then(|| {
            let lens = (0..selection.n_records()).map(|k| selection.record(k).2.min(len));
            Arc::new(Bins::pack(lens, len))
        });
        let rows = Rows { selection, packing, bins, len, bos, eos, pad, lengths: None };
        if rows.n_rows() == 0 {
            let (n_tokens, n_records) = (rows.selection.n_tokens(), rows.selection.n_records());
            return Err(Error::TooLittle(format!(
                "{n_records} records with {n_tokens} tokens do not fill one block of cutoff_len {len}; lower \
                 cutoff_len, give more text, or set packing: false"
            )));
        }
        Ok(rows)
    }

    /// The tokens of this row.
    pub fn tokens_in(&self, row: u64) -> usize {
        match self.is_unpadded() {
            true => self.parts(row).map(|part| part.at.len()).sum(),
            false => self.row_len(),
        }
    }

    /// The length of the sequence inside of which an average token looks back: what attention costs depends on it. The
    /// row where rows are one sequence, else the documents of all rows, each counted once for each of its tokens.
    pub fn mean_sequence_len(&self) -> usize {
        if !self.has_documents() {
            return self.row_len();
        }
        let (mut tokens, mut squares) = (0_u64, 0_u64);
        for part in (0..self.n_rows()).flat_map(|row| self.parts(row)) {
            let len = part.at.len() as u64;
            tokens += len;
            squares = squares.saturating_add(len * len);
        }
        usize::try_from(squares.div_ceil(tokens.max(1))).unwrap_or(self.row_len()).clamp(1, self.row_len())
    }

    /// Whether rows say where their documents begin.
    pub fn has_documents(&self) -> bool {
        self.packing.has_documents() || self.selection.cache.has_segments()
    }

    /// Writes a row: its ids, its targets (the next token, or -100) and, where rows have documents, where in the row the
    /// document of each token begins. All slices have `row_len` elements. Gives the number of targets.
    pub fn write(
        &self,
        row: u64,
        ids: &mut [i32],
        labels: &mut [i32],
        mut doc_start: Option<&mut [i32]>,
    ) -> usize {
        if self.packing == Packing::MiniMind {
            return self.write_minimind(row, ids, labels);
        }
        if self.is_unpaired() {
            if let Some(doc_start) = doc_start {
                doc_start.fill(0);
            }
            return self.write_unpaired(row, ids, labels);
        }
        let (cache, mut n) = (&self.selection.cache, 0);
        for Part { record, begin, len, from, at } in self.parts(row) {
            let n_tokens = (len - from).min(at.len());
            cache.copy(begin + from as u64, &mut ids[at.start..at.start + n_tokens]);
            ids[at.start + n_tokens..at.end].fill(self.eos);
            if let Some(doc_start) = doc_start.as_deref_mut() {
                doc_start[at.clone()].fill(at.start as i32);
                for &segment in cache.segments(record) {
                    let start = at.start + (segment as usize).saturating_sub(from);
                    doc_start[start.min(at.end)..at.end].fill(start as i32);
                }
            }
            n = at.end;
        }
        ids[n..].fill(self.pad);
        if let Some(doc_start) = doc_start {
            doc_start[n..].fill(n as i32);
        }
        // Each target is the next token; the last has none.
        let n_next = n.saturating_sub(1);
        labels[..n_next].copy_from_slice(&ids[n - n_next..n]);
        labels[n_next..].fill(IGNORED);
        let n_targets = n_next - self.for_each_ignored(row, |tokens| labels[tokens].fill(IGNORED));
        n_targets + self.for_each_end(row, |at| labels[at] = self.eos)
    }

    /// Says where the answers that are compared stand in a batch of these rows, one after another.
    pub(super) fn fill_answers(&self, rows: &[Option<u64>], fields: &mut Fields) {
        if !self.selection.cache.has_segments() {
            return;
        }
        for (index, name) in [CHOSEN, REJECTED].into_iter().enumerate() {
            let mut begin = 0;
            let spans = rows.iter().flatten().flat_map(|&row| {
                let first = begin;
                begin += self.tokens_in(row);
                let own = self.segments(row).into_iter().skip(index).step_by(2);
                own.map(move |span| first + span.start..first + span.end)
            });
            // Of an unpaired preference the one that it is not is empty.
            fields.fill_spans(name, spans.filter(|span| !self.is_unpaired() || !span.is_empty()));
        }
    }

    /// Where the segments of a row stand, in order, where its record has several; one of them may be empty.
    pub(super) fn segments(&self, row: u64) -> Vec<Range<usize>> {
        if self.is_unpaired() {
            return self.unpaired_segments(row);
        }
        let mut segments = Vec::new();
        for Part { record, from, at, .. } in self.parts(row) {
            let begins = self.selection.cache.segments(record);
            let place = |token: u32| (at.start + (token as usize).saturating_sub(from)).min(at.end);
            let mut start = at.start;
            for end in begins.iter().map(|&begin| place(begin)).chain((!begins.is_empty()).then_some(at.end))
            {
                segments.push(start..end);
                start = end;
            }
        }
        segments
    }

    /// Adds one fill token without a target.
    pub(super) fn write_filler_token(&self, ids: &mut Vec<i32>, labels: &mut Vec<i32>) {
        ids.push(self.pad);
        labels.push(IGNORED);
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
            _ if self.is_unpaired() => self.unpaired_targets(row).len(),
            Packing::Concat | Packing::ConcatDocuments => {
                self.len - 1 - self.for_each_ignored(row, |_| ()) + self.for_each_end(row, |_| ())
            }
            Packing::Truncate | Packing::Examples | Packing::Knapsack => {
                let n = self.parts(row).map(|part| part.at.len()).sum::<usize>();
                n.saturating_sub(1) - self.for_each_ignored(row, |_| ()) + self.for_each_end(row, |_| ())
            }
            Packing::MiniMind => {
                let (_, begin, len) = self.selection.record(row);
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

    /// The records in a row, in their order.
    fn parts(&self, row: u64) -> impl Iterator<Item = Part> + '_ {
        let is_block = matches!(self.packing, Packing::Concat | Packing::ConcatDocuments);
        let (first, mut from) =
            if is_block { self.selection.locate(row * self.len as u64) } else { (row, 0) };
        let (mut k, mut start) = (first, 0);
        // The records of a bin, or one of its own.
        let mut members = self.bins.as_ref().map(|bins| bins.of(row).iter());
        std::iter::from_fn(move || {
            match &mut members {
                Some(members) => k = *members.next()?,
                None if start == self.len || !is_block && k > first => return None,
                None => {}
            }
            let (record, begin, len) = self.selection.record(k);
            let n = (len + self.selection.n_ends as usize - from).min(self.len - start);
            let part = Part { record, begin, len, from, at: start..start + n };
            (k, from, start) = (k + 1, 0, start + n);
            Some(part)
        })
    }

    /// Calls `f` with the tokens of a row whose next token is not a target though there is one; gives how many they are.
    fn for_each_ignored(&self, row: u64, mut f: impl FnMut(Range<usize>)) -> usize {
        let cache = &self.selection.cache;
        let is_apart = self.packing == Packing::ConcatDocuments;
        if !is_apart && !cache.holds_conversations() {
            return 0;
        }
        let mut n = 0;
        let mut ignore = |tokens: Range<usize>| {
            let before = tokens.start.max(1) - 1..tokens.end.max(1) - 1;
            n += before.len();
            f(before);
        };
        for Part { record, from, at, .. } in self.parts(row) {
            let Some(targets) = cache.targets(record) else {
                // A text: only its first token, which nothing before it predicts.
                if from == 0 {
                    ignore(at.start..at.start + 1);
                }
                continue;
            };
            let place = |token: usize| (at.start + token.saturating_sub(from)).min(at.end);
            let mut gap = at.start;
            for run in targets {
                ignore(gap..place(run.start).max(gap));
                gap = place(run.end);
            }
            ignore(gap..at.end);
        }
        n
    }

    /// Calls `f` with the tokens of a row whose target is the end-of-text token instead of the next token; gives how many
    /// they are.
    fn for_each_end(&self, row: u64, mut f: impl FnMut(usize)) -> usize {
        let cache = &self.selection.cache;
        if !cache.holds_conversations() {
            return 0;
        }
        let mut n = 0;
        for Part { record, from, at, .. } in self.parts(row) {
            for run in cache.targets(record).into_iter().flatten().filter(|run| run.is_empty()) {
                let place = run.start.checked_sub(from).map(|place| at.start + place);
                if let Some(place) = place.filter(|place| (at.start + 1..at.end).contains(place)) {
                    f(place - 1);
                    n += 1;
                }
            }
        }
        n
    }

    /// The tokens of a row, and which of them are supervised.
    pub fn shown(&self, row: u64) -> (Vec<u32>, Vec<bool>) {
        let len = self.tokens_in(row);
        let (mut ids, mut labels) = (vec![0; len], vec![0; len]);
        let mut doc_start = self.has_documents().then(|| vec![0; len]);
        self.write(row, &mut ids, &mut labels, doc_start.as_deref_mut());
        let supervised =
            [false].into_iter().chain(labels.iter().map(|&label| label != IGNORED)).take(len).collect();
        (ids.into_iter().map(|id| id as u32).collect(), supervised)
    }

    fn write_minimind(&self, row: u64, ids: &mut [i32], labels: &mut [i32]) -> usize {
        // The whole row has one token more than the inputs: the targets are its tokens from the second on.
        let (_, begin, len) = self.selection.record(row);
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

#[cfg(test)]
mod tests;
