//! Which activations a decoder computes again in the backward pass instead of keeping them.

pub use oarlock_config::config::Recompute;

/// The parts of each block to run again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parts {
    pub(super) attention: bool,
    pub(super) mlp: bool,
}

/// Whether block `index` is run again as a whole.
pub(super) fn is_whole_unit(recompute: Recompute, index: usize) -> bool {
    matches!(recompute, Recompute::Units { every } if index.is_multiple_of(every.max(1)))
}

impl From<Recompute> for Parts {
    fn from(recompute: Recompute) -> Parts {
        match recompute {
            Recompute::Parts { attention, mlp } => Parts { attention, mlp },
            Recompute::None | Recompute::Units { .. } => Parts::default(),
        }
    }
}
