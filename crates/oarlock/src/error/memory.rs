//! Why a training is refused before its start: the memory that it would need, and what would fit.

use std::fmt;

use crate::terminal::readable;

/// A training that would not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotEnoughMemory {
    /// The limit that it would not keep.
    pub limit: Limit,
    /// What it was predicted to need, in words.
    pub predicted: String,
    /// The ranks of the run.
    pub n_ranks: usize,
    /// Changes that would make it fit, each with the bytes that a rank would need then.
    pub fitting: Vec<(String, u64)>,
}

/// A limit that a training would not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What it is called, and of what.
    pub name: &'static str,
    /// The bytes that it allows.
    pub allows: u64,
    /// The bytes that would be needed of it.
    pub needs: u64,
}

impl fmt::Display for NotEnoughMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not enough memory to train: {}\n  predicted: {}", self.limit, self.predicted)?;
        if self.fitting.is_empty() {
            write!(f, "\n  no smaller batch and no placement on {} rank(s) fits", self.n_ranks)?;
        } else {
            write!(f, "\n  what would fit:")?;
        }
        for (change, bytes) in &self.fitting {
            write!(f, "\n    {change} ({} a rank)", readable(*bytes))?;
        }
        write!(f, "\n  `memory_check: false` starts all the same")
    }
}

impl std::error::Error for NotEnoughMemory {}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needed, but {} is {}", readable(self.needs), self.name, readable(self.allows))
    }
}
