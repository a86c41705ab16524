//! Training and evaluation: what a layer that behaves differently in the two, such as dropout, looks at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Whether a layer trains, and where its random numbers come from. A layer holds one and shows it with
/// [`Visitor::mode`](crate::nn::Visitor::mode); a field of this type is shown by `#[derive(Module)]`. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Mode(pub(super) Arc<State>);

#[derive(Debug, Default)]
pub(super) struct State {
    pub training: AtomicBool,
    /// The number of the forward pass.
    pub pass: AtomicU64,
    /// Random numbers taken in this pass.
    pub draws: AtomicU64,
    /// What the random numbers are those of: seed, layer and rank.
    pub seed: AtomicU64,
}

impl Mode {
    /// Whether the model is in training mode.
    pub fn is_training(&self) -> bool {
        self.0.training.load(Relaxed)
    }

    /// The number of the forward pass, from 1.
    pub fn pass(&self) -> u64 {
        self.0.pass.load(Relaxed)
    }

    /// Seed and stream of the layer's next random numbers: a pure function of the run's seed, the layer's path, the
    /// rank, the number of the pass, and how often the layer has drawn in it. A unit that is computed again in the
    /// backward pass draws the same.
    pub fn draw(&self) -> (u64, u64) {
        let draw = self.0.draws.fetch_add(1, Relaxed);
        (self.0.seed.load(Relaxed), self.pass() << 20 | draw & 0xf_ffff)
    }
}
