//! Which activations a decoder computes again in the backward pass instead of keeping them.

pub use crate::config::Recompute;

/// The parts of each block to run again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    pub(super) attention: bool,
    pub(super) mlp: bool,
}

impl Recompute {
    /// Whether block `index` is run again as a whole.
    pub(super) fn whole_unit(self, index: usize) -> bool {
        matches!(self, Recompute::Units { every } if index.is_multiple_of(every.max(1)))
    }

    pub(super) fn parts(self) -> Parts {
        match self {
            Recompute::Parts { attention, mlp } => Parts { attention, mlp },
            _ => Parts::default(),
        }
    }
}
