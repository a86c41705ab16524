//! The answers of a micro-batch: sums and means of their tokens' log-probabilities, and the reference's.

use std::ops::Range;

use oarlock_engine::{Prepared, Result, nn};
use oarlock_tensor::ops::{self, IGNORE_INDEX};
use oarlock_tensor::{DType, Device, Tensor};

use super::inputs::Inputs;
use super::language_model::{LanguageModel, Unrecorded};
use super::metric::{Mean, Sum};
use crate::adapters::as_reference;
use crate::model::{Decoder, LogProbs};

/// The model that a loss compares the trained one with.
#[derive(Clone, Default)]
pub enum Reference {
    /// None.
    #[default]
    Absent,
    /// The trained one without its adapters, or with those that it began with ([`as_reference`]).
    SameWeights,
    /// A second one that was prepared without an optimizer.
    Second(Prepared<Decoder>),
}

impl Reference {
    /// The log-probabilities of the labels `[B, S]` by the reference, on no tape; zeros where there is none.
    ///
    /// # Errors
    /// What the model reports.
    pub fn log_probs(&self, model: &dyn Unrecorded, inputs: &Inputs) -> Result<Tensor> {
        match self {
            Reference::Absent => Ok(no_reference(inputs)?),
            Reference::SameWeights => as_reference(|| log_probs(model, inputs)),
            Reference::Second(second) => log_probs(second, inputs),
        }
    }
}

/// What stands for the log-probabilities of a reference where there is none, and on a dry device.
fn no_reference(inputs: &Inputs) -> nn::Result<Tensor> {
    Tensor::zeros(inputs.ids.sizes(), DType::F32, inputs.ids.device())
}

/// What the reference says of the labels, where it was asked before the pass.
///
/// # Errors
/// No memory.
pub fn of_reference(inputs: &Inputs) -> nn::Result<Tensor> {
    inputs.reference.clone().map_or_else(|| no_reference(inputs), Ok)
}

/// The log-probabilities of the labels by a model, on no tape.
///
/// # Errors
/// What the model reports.
pub fn log_probs(model: &dyn Unrecorded, inputs: &Inputs) -> Result<Tensor> {
    model.unrecorded(inputs, &|model: &dyn LanguageModel, inputs| {
        model.log_probs(inputs).map(|found| found.of_labels)
    })
}

/// Some of the answers of a micro-batch, all of one kind: the better ones, say.
pub struct Answers<'i> {
    inputs: &'i Inputs,
    segments: Vec<Range<usize>>,
    /// The targets of each.
    lens: Vec<usize>,
}

impl<'i> Answers<'i> {
    /// Those of a field. There is at least one, which may be empty.
    pub fn of(inputs: &'i Inputs, field: &str) -> Answers<'i> {
        let mut segments = inputs.fields.spans(field).to_vec();
        if segments.is_empty() {
            segments.push(0..0);
        }
        Answers::new(inputs, segments)
    }

    /// Those in these segments.
    pub fn new(inputs: &'i Inputs, segments: Vec<Range<usize>>) -> Answers<'i> {
        let n_targets = |segment: &Range<usize>| {
            inputs.labels.ids()[segment.clone()].iter().filter(|label| **label != IGNORE_INDEX).count()
        };
        let lens = segments.iter().map(n_targets).collect();
        Answers { inputs, segments, lens }
    }

    /// How many they are.
    pub fn n(&self) -> usize {
        self.segments.len()
    }

    /// The targets of each.
    pub fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// The targets of all.
    pub fn n_targets(&self) -> usize {
        self.lens.iter().sum()
    }

    /// For each answer the sum over its targets of a value of each token `[B, S]`, times `weight` of (answer, place among
    /// its targets): `[N]`.
    ///
    /// # Errors
    /// No memory.
    pub fn sums(&self, values: &Tensor, weight: impl Fn(usize, usize) -> f32) -> nn::Result<Tensor> {
        let n_tokens = values.n_elems();
        let mut weights = vec![0.0f32; self.n() * n_tokens];
        for (answer, segment) in self.segments.iter().enumerate() {
            let labels = self.inputs.labels.ids();
            let targets = segment.clone().filter(|&token| labels[token] != IGNORE_INDEX);
            for (place, token) in targets.enumerate() {
                weights[answer * n_tokens + token] = weight(answer, place);
            }
        }
        let device = values.device();
        let weights = Tensor::from_slice(&weights, [self.n(), n_tokens], device)?;
        let sums = ops::matmul(&weights, &ops::reshape(values, [n_tokens, 1])?)?;
        ops::reshape(&sums, [self.n()])
    }

    /// The mean over the targets of each: `[N]`.
    ///
    /// # Errors
    /// No memory.
    pub fn means(&self, values: &Tensor) -> nn::Result<Tensor> {
        self.sums(values, |answer, _| 1.0 / self.lens[answer].max(1) as f32)
    }

    /// The mean logit over the targets of all, as a metric.
    ///
    /// # Errors
    /// No memory.
    pub fn mean_logit(&self, found: &LogProbs) -> nn::Result<Mean> {
        let sum = self.sums(&found.mean_logits, |_, _| 1.0)?.sum_all()?;
        Ok(Mean { sum: Sum::from(&sum), weight: self.n_targets() as f64 })
    }
}

/// The sum of values as a metric that weighs so much.
///
/// # Errors
/// No memory.
pub fn mean_of(values: &Tensor, weight: usize) -> nn::Result<Mean> {
    Ok(Mean { sum: Sum::from(&values.detach().sum_all()?), weight: weight as f64 })
}

/// A number of the host as a metric that weighs so much.
///
/// # Errors
/// No memory.
pub fn constant(value: f64, weight: usize, device: &Device) -> nn::Result<Mean> {
    let sum = Tensor::from_slice(&[(value * weight as f64) as f32], [], device)?;
    Ok(Mean { sum: Sum::from(&sum), weight: weight as f64 })
}
