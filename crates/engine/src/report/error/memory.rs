//! Why a training run is refused before its start: the memory that it would need, and what would fit.

use std::borrow::Cow;
use std::fmt;

use crate::report::terminal::readable;

/// A training run that would not fit into memory.
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

/// A limit that a training run would not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What it is called, and of what.
    pub name: Cow<'static, str>,
    /// The bytes that it allows.
    pub allows: u64,
    /// The bytes that would be needed of it.
    pub needs: u64,
}

impl NotEnoughMemory {
    /// The change that puts a training run on the CPU.
    pub const ON_CPU: &str = "device: cpu";

    /// What to say where the CPU does what a GPU has no memory for; none where it cannot.
    pub fn instead_on_cpu(&self) -> Option<String> {
        let (on_cpu, on_gpu): (Vec<_>, Vec<_>) = self
            .fitting
            .iter()
            .map(|(change, _)| change.as_str())
            .partition(|change| *change == Self::ON_CPU);
        let of_gpu = match on_gpu[..] {
            [] => "no smaller batch would fit there".to_owned(),
            _ => format!("there would fit: {}", on_gpu.join(", or ")),
        };
        let limit = &self.limit;
        (!on_cpu.is_empty()).then(|| {
            format!("{limit}, so the CPU trains ({of_gpu}; `device: cuda` refuses what does not fit)")
        })
    }
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
