//! Objectives: what a step optimises. An objective turns a micro-batch and the model into a loss, what the loss weighs
//! and named metrics; the trainer, evaluation, logs and the memory forecast know nothing else of it.
//!
//! One objective is one file beside this one. It may hold more than numbers: a second model that is prepared without an
//! optimizer, and so frozen, whose passes take `ids.detach()` and are not recorded.

mod answers;
mod dry;
mod judgement;
mod metric;
mod next_token;
mod preference;
mod preference_loss;
mod pretrain;
mod reward;

use std::ops::Range;

use oarlock_tensor::ops::{HeadLoss, Labels, Mask};
use oarlock_tensor::{Device, Tensor};

pub use self::answers::Reference;
pub use self::dry::dry_pass;
pub use self::judgement::Judgement;
pub use self::metric::{Evaluation, Mean, Metric, Sum, Tally, Totals};
pub use self::next_token::NextToken;
pub use self::preference::Preference;
pub use self::pretrain::Pretrain;
pub use self::reward::Reward;
use crate::accelerator::{Accelerator, Loss, PartOutput, Prepared};
use crate::data::{Batch, Sample};
use crate::error::Result;
use crate::nn::{self, Module};

/// What a step optimises.
pub trait Objective {
    /// The model that it trains.
    type Model: Module;

    /// What the loss of a micro-batch will weigh: its targets, its sequences or its pairs. The step divides the sum of all
    /// losses by the sum of all weights, over micro-batches and ranks.
    fn weight(&self, batch: &Batch) -> f64;

    /// The loss of a micro-batch. `inputs.ids` is on the tape where gradients are wanted.
    ///
    /// # Errors
    /// What the model reports.
    fn loss(&self, model: &Self::Model, inputs: &Inputs) -> nn::Result<ObjectiveLoss>;

    /// Runs the objective on a micro-batch, recorded while the model trains. An objective that compares the model with
    /// another one runs that before.
    ///
    /// # Errors
    /// What the models report.
    fn forward(&self, model: &Prepared<Self::Model>, inputs: &Inputs) -> Result<ObjectiveLoss> {
        let loss = |model: &Self::Model, ids: &Tensor| {
            self.loss(model, &Inputs { ids: ids.clone(), ..inputs.clone() })
        };
        match self.is_head_loss() {
            true => model.loss(&inputs.ids, loss),
            false => model.call(&inputs.ids, loss),
        }
    }

    /// Sees all micro-batches of a step before the first is run; of an evaluation each batch. All ranks call it together.
    ///
    /// # Errors
    /// What the models report, and the failure of another rank.
    fn before_step(
        &self,
        _accelerator: &Accelerator,
        _model: &Prepared<Self::Model>,
        _batches: &[Batch],
    ) -> Result<()> {
        Ok(())
    }

    /// Sees what the micro-batches of a step came to on all ranks.
    fn after_step(&self, _totals: &Totals) {}

    /// Has checkpoints keep what the objective knows of earlier steps.
    fn register(&self, _accelerator: &Accelerator) {}

    /// The loss of the first step of a new run, where that is known beforehand.
    fn first_loss(&self) -> Option<f64> {
        None
    }

    /// The names of the metrics of each loss, in their order.
    fn metrics(&self) -> &'static [&'static str] {
        &[]
    }

    /// Runs the objective on a micro-batch of an evaluation, with the metrics of [`Objective::eval_metrics`].
    ///
    /// # Errors
    /// As [`Objective::forward`].
    fn eval_forward(&self, model: &Prepared<Self::Model>, inputs: &Inputs) -> Result<ObjectiveLoss> {
        self.forward(model, inputs)
    }

    /// The names of the metrics of each loss of an evaluation, in their order.
    fn eval_metrics(&self) -> &'static [&'static str] {
        self.metrics()
    }

    /// The scores of the better and the worse answer of each pair of a micro-batch, where the objective trains a model that
    /// gives scores.
    ///
    /// # Errors
    /// What the model reports.
    fn scores(&self, _model: &Prepared<Self::Model>, _inputs: &Inputs) -> Result<Vec<[f32; 2]>> {
        Ok(Vec::new())
    }

    /// Runs units of a model that is divided into the stages of a pipeline on a micro-batch, from what the units before have
    /// made or from the ids. The last unit gives the loss; where `evaluates` says so, that of
    /// [`Objective::eval_forward`].
    ///
    /// # Errors
    /// What the model reports; an objective that takes whole models only.
    fn part(
        &self,
        _model: &Self::Model,
        _inputs: &Inputs,
        _units: Range<usize>,
        _x: &Tensor,
        _evaluates: bool,
    ) -> nn::Result<PartOutput<ObjectiveLoss>> {
        Err(oarlock_tensor::Error::Usage(
            "this objective takes whole models; leave pipeline_parallel_size out, or train on next tokens (pretraining, \
             supervised fine-tuning)"
                .to_owned(),
        ))
    }

    /// Whether the loss is the sum of a head as it is, neither scaled nor added to others. The head then makes its first
    /// gradient in the forward pass, as [`Prepared::loss`] says.
    fn is_head_loss(&self) -> bool {
        false
    }
}

/// The tensors of a micro-batch on the device of a rank.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Token ids `[rows, len]`.
    pub ids: Tensor,
    /// The target of each token `[rows, len]`, shifted already; -100 for none.
    pub labels: Labels,
    /// Which positions see which.
    pub mask: Mask,
    /// Where the segments of each example stand among the tokens, as in [`Batch::segments`].
    pub segments: Vec<Range<usize>>,
    /// The examples of the training that it holds.
    pub documents: Vec<Document>,
}

/// An example in a micro-batch: a sample, or one of several that share its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The samples of the training before its own.
    pub position: u64,
    /// The tokens of the sample before it.
    pub first: usize,
    /// Its tokens in the micro-batch, row after row.
    pub tokens: Range<usize>,
}

impl Inputs {
    /// Brings a micro-batch to a device.
    ///
    /// # Errors
    /// No memory, or a batch whose parts do not fit.
    pub fn new(batch: &Batch, device: &Device) -> Result<Inputs> {
        let shape = [batch.rows, batch.len];
        let mask = match &batch.doc_start {
            // Of whole rows, where this rank has a part of them.
            Some(starts) => {
                let whole = [batch.rows, starts.len() / batch.rows.max(1)];
                Mask::Documents(Tensor::from_slice(starts, whole, device)?)
            }
            None => Mask::Causal,
        };
        Ok(Inputs {
            ids: Tensor::from_slice(&batch.input_ids, shape, device)?,
            labels: Labels::new(batch.labels.as_slice()),
            mask,
            segments: batch.segments.clone(),
            documents: documents(batch),
        })
    }
}

/// The samples of a batch, each divided where another document begins.
fn documents(batch: &Batch) -> Vec<Document> {
    let mut documents = Vec::with_capacity(batch.samples.len());
    for Sample { position, tokens } in &batch.samples {
        let starts = batch.doc_start.as_ref().map_or(&[][..], |starts| &starts[tokens.clone()]);
        let mut first = 0;
        for part in starts.chunk_by(|a, b| a == b) {
            let begin = tokens.start + first;
            documents.push(Document { position: *position, first, tokens: begin..begin + part.len() });
            first += part.len();
        }
        if starts.is_empty() {
            documents.push(Document { position: *position, first: 0, tokens: tokens.clone() });
        }
    }
    documents
}

/// The loss of a micro-batch.
pub struct ObjectiveLoss {
    /// The sum on the tape: one number.
    pub loss: Tensor,
    /// The same sum, to be read at the end of the step.
    pub sum: Sum,
    /// What it weighs: what [`Objective::weight`] said of the batch.
    pub weight: f64,
    /// A mean for each name of [`Objective::metrics`].
    pub metrics: Vec<Mean>,
}

impl Loss for ObjectiveLoss {
    fn value(&self) -> &Tensor {
        &self.loss
    }

    fn weight(&self) -> Option<f64> {
        Some(self.weight)
    }
}

impl From<HeadLoss> for ObjectiveLoss {
    /// The loss of a head, which weighs its targets.
    fn from(loss: HeadLoss) -> ObjectiveLoss {
        let weight = loss.n_targets as f64;
        ObjectiveLoss { sum: Sum::from(&loss), loss: loss.loss, weight, metrics: Vec::new() }
    }
}
