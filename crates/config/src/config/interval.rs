//! When something is done again and again.

use super::schedule::Steps;

/// When something is done again and again, as transformers name it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntervalStrategy {
    /// Never.
    Never,
    /// At the end of every epoch.
    Epoch,
    /// Every so many steps.
    Every(Steps),
}

impl IntervalStrategy {
    /// What a strategy and its number of steps mean.
    pub fn of(strategy: &str, steps: f64) -> IntervalStrategy {
        match strategy {
            "steps" => IntervalStrategy::Every(Steps::written(steps)),
            "epoch" => IntervalStrategy::Epoch,
            _ => IntervalStrategy::Never,
        }
    }
}
