//! How texts become rows, and which of them are split off for validation.

/// How records become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// LLaMA-Factory's `packing: true`: all records in a row, chopped into blocks of exactly `len` tokens; the tail
    /// is dropped. Attention reaches into the text before.
    Concat,
    /// The same blocks, but attention stays inside a record and no record predicts the next (`neat_packing`).
    ConcatDocuments,
    /// `packing: false`: one record a row, cut to `len` tokens, filled up behind.
    Truncate,
    /// MiniMind's: begin, text and end, cut and filled to `len` tokens; a row is the first `len - 1` of them, its
    /// targets the last `len - 1`, and no target is the fill token.
    MiniMind,
}

/// How many records are split off for validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValSize {
    /// So many.
    Count(u64),
    /// A part of all, rounded up.
    Fraction(f64),
}
