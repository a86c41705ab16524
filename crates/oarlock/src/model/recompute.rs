//! Which activations a decoder computes again in the backward pass instead of keeping them.

/// What a decoder keeps from the forward pass for the backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Everything that the backward pass needs.
    #[default]
    None,
    /// Of the first block of every `every` blocks (1: of each block) nothing but its input.
    Units {
        /// At least 1.
        every: usize,
    },
    /// Of parts of each block nothing but their input.
    Parts {
        /// Attention and the norm before it.
        attention: bool,
        /// The MLP and the norm before it.
        mlp: bool,
    },
}

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
