//! A record as tokens, and which of them are targets.

use std::ops::Range;

/// The tokens of an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// Which of them are targets.
    pub labels: Labels,
    /// Where each segment after the first begins, ascending. Segments do not see each other, and none predicts the
    /// first token of the next: the two answers of a pair are segments.
    pub segments: Vec<u32>,
}

/// Which tokens of an example are targets: predicted from what stands before them, and counted in the loss.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Labels {
    /// All that have a token before them.
    All,
    /// These runs of tokens, ascending and apart. The first token of a segment is in none of them. An empty run is one
    /// target as well: the token there learns the end-of-text token instead of itself.
    Spans(Vec<Range<u32>>),
}
