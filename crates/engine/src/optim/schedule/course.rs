//! What the learning rates of a run depend on.

use oarlock_config::config::Shape;

/// The learning rate over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    pub(super) peak: f64,
    pub(super) shape: Shape,
    pub(super) warmup: u64,
    pub(super) total: u64,
    pub(super) accumulation: u64,
}
