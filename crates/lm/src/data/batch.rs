//! A micro-batch: rows of tokens with their targets, and named fields of what an objective needs to know besides.

use std::collections::BTreeMap;
use std::ops::Range;

/// One micro-batch of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Token ids, `rows * len`.
    pub input_ids: Vec<i32>,
    /// The target of each token, already shifted: the next token, or -100 for none.
    pub labels: Vec<i32>,
    /// Where in its row the document of each token begins; `None` when attention knows no documents. Of the whole rows where
    /// ranks divide them ([`SequenceParallel`](oarlock_engine::parallel::sequence_parallel::SequenceParallel)).
    pub doc_start: Option<Vec<i32>>,
    /// The number of rows.
    pub rows: usize,
    /// The tokens of a row.
    pub len: usize,
    /// Targets that are not -100.
    pub n_targets: usize,
    /// What an objective needs to know of the examples besides.
    pub fields: Fields,
    /// Which samples of the run it holds, in the order of their tokens; rows that are there for the shape only are
    /// none.
    pub samples: Vec<Sample>,
}

/// A sample of the run in a micro-batch: one row of the data set, at its turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The samples before it, over all epochs and ranks. It is the same however a step is split.
    pub position: u64,
    /// Its tokens in the micro-batch, row after row.
    pub tokens: Range<usize>,
}

/// Where the chosen answers stand among the tokens, each with its prompt.
pub const CHOSEN: &str = "chosen";
/// Where the rejected answers stand, likewise.
pub const REJECTED: &str = "rejected";
/// The prompts of unpaired preferences with the answers of other rows, as a batch.
pub const MISMATCHED: &str = "mismatched";
/// In that batch, where each prompt stands with its answer.
pub const ANSWERS: &str = "answers";

/// The fields of a batch by name. An objective reads those that it knows; most batches have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fields(BTreeMap<&'static str, Field>);

/// What a field holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// Ranges of tokens.
    Spans(Vec<Range<usize>>),
    /// Numbers, such as rewards.
    Numbers(Vec<f64>),
    /// Other rows that belong to these.
    Batch(Box<Batch>),
}

impl Fields {
    /// Sets a field.
    pub fn set(&mut self, name: &'static str, field: Field) {
        self.0.insert(name, field);
    }

    /// The ranges of a field; none where there is no such field.
    pub fn spans(&self, name: &str) -> &[Range<usize>] {
        match self.0.get(name) {
            Some(Field::Spans(spans)) => spans,
            _ => &[],
        }
    }

    /// The numbers of a field; none where there is no such field.
    pub fn numbers(&self, name: &str) -> &[f64] {
        match self.0.get(name) {
            Some(Field::Numbers(numbers)) => numbers,
            _ => &[],
        }
    }

    /// The rows of a field.
    pub fn batch(&self, name: &str) -> Option<&Batch> {
        match self.0.get(name) {
            Some(Field::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    /// Empties a field of ranges and adds these, in the memory that it has.
    pub(super) fn fill_spans(&mut self, name: &'static str, spans: impl Iterator<Item = Range<usize>>) {
        let mut all = match self.0.remove(name) {
            Some(Field::Spans(all)) => all,
            _ => Vec::new(),
        };
        all.clear();
        all.extend(spans);
        self.0.insert(name, Field::Spans(all));
    }

    /// Fills the rows of a field again, in the memory that they have.
    pub(super) fn fill_batch(&mut self, name: &'static str, fill: impl FnOnce(&mut Batch)) {
        let mut batch = match self.0.remove(name) {
            Some(Field::Batch(batch)) => batch,
            _ => Box::default(),
        };
        fill(&mut batch);
        self.0.insert(name, Field::Batch(batch));
    }
}
