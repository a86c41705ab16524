//! The best model of a training run as values: by which metric, and what follows from it.

/// How evaluations are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BestArgs {
    /// The metric, as the log names it: `eval_loss`.
    pub metric: String,
    /// Whether more of it is better.
    pub greater_is_better: bool,
    /// The run ends after so many evaluations in a row without progress.
    pub patience: Option<u64>,
    /// Save whenever an evaluation is the best so far.
    pub saves: bool,
    /// The final model is the best one that was saved.
    pub load_at_end: bool,
}

impl BestArgs {
    /// Whether a value is better than another one; no number is better than none, and NaN is none.
    pub fn is_better(&self, value: f64, than: Option<f64>) -> bool {
        match than {
            None => !value.is_nan(),
            Some(than) if self.greater_is_better => value > than,
            Some(than) => value < than,
        }
    }
}
