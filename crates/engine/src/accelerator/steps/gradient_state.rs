//! What a loop knows of its window of micro-batches and of the batch that it has.

/// Where a loop stands in its window of micro-batches: Accelerate's `GradientState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradientState {
    /// Whether the step that comes is one: optimizers and schedules do nothing otherwise.
    pub sync_gradients: bool,
    /// Micro-batches of the window so far.
    pub step: usize,
    /// Whether the batch that the loader gave last is its last.
    pub end_of_dataloader: bool,
    /// How many samples this rank's last batch has. `None` where no loader says so; then all that is gathered for a
    /// metric is real.
    pub rows: Option<usize>,
    /// How many samples of this rank's last batch are real, from its first on; the others repeat samples that came
    /// before. `None` where all are, or nobody knows.
    pub real: Option<usize>,
}

impl Default for GradientState {
    fn default() -> GradientState {
        GradientState { sync_gradients: true, step: 0, end_of_dataloader: false, rows: None, real: None }
    }
}
