//! Why training in 16 bits ends: gradients overflow at the least loss scale.

/// The scale cannot fall any further.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "gradients overflow although the loss scale is at its minimum ({scale}){}; the run diverges: lower learning_rate, \
     write bf16: true instead of fp16, or lower fp16.min_loss_scale", self.suffix()
)]
pub struct ScaleAtMinimum {
    /// The scale.
    pub scale: f64,
    /// Where the first value that is not finite was found, such as a unit and a parameter, if somebody looked.
    pub found_in: Option<String>,
}

impl ScaleAtMinimum {
    /// Names where the first value that is not finite was found.
    #[must_use]
    pub fn found_in(self, place: impl Into<String>) -> Self {
        ScaleAtMinimum { found_in: Some(place.into()), ..self }
    }

    fn suffix(&self) -> String {
        self.found_in.as_ref().map(|place| format!(", first in {place}")).unwrap_or_default()
    }
}
