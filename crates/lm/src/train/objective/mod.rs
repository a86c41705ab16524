//! Objectives: what a step optimizes. An objective turns a micro-batch and a language model into a loss, what the loss
//! weighs and named metrics; the trainer, evaluation, logs and the memory forecast know nothing else of it.
//!
//! One objective is one file beside this one, and its line in [`of`]. It may hold more than numbers: a second model that is
//! prepared without an optimizer, and so frozen, which runs before the pass that is recorded ([`Objective::prepare`]).

mod answers;
mod dry;
mod kto;
mod language_model;
mod metric;
mod next_token;
mod preference;
mod preference_loss;
mod raft;
mod reward;

use std::ops::Range;

use oarlock_config::config::{ObjectiveArgs, TrainArgs};
use oarlock_engine::{Accelerator, Loss, Result, nn};
use oarlock_tensor::ops::{HeadLoss, Labels, Mask};
use oarlock_tensor::{Device, Tensor};

pub use self::answers::Reference;
pub use self::dry::dry_pass;
pub use self::kto::Kto;
pub use self::language_model::{LanguageModel, Unrecorded};
pub use self::metric::{Evaluation, Mean, Metric, Sum, Tally, Totals};
pub use self::next_token::NextToken;
pub use self::preference::Preference;
pub use self::raft::Raft;
pub use self::reward::{Reward, scores};
use crate::data::{Batch, Fields, Sample, StepBatches, Tokenizer};

/// The objective of a run. One that is only looked at needs nothing of the run.
pub fn of(train: &TrainArgs, given: ObjectiveContext) -> Box<dyn Objective> {
    match &train.objective {
        ObjectiveArgs::NextToken => Box::new(NextToken { args: train.loss, seed: train.seed }),
        ObjectiveArgs::Preference(args) => Box::new(Preference::new(args.clone(), given.reference)),
        ObjectiveArgs::Kto(args) => Box::new(Kto::new(args.clone(), given.reference)),
        ObjectiveArgs::Rewards => Box::new(Reward),
        ObjectiveArgs::Raft(args) => Box::new(Raft::new(args.clone(), train, given)),
    }
}

/// What a step optimizes.
pub trait Objective {
    /// What the loss of a micro-batch will weigh: its targets, its sequences or its pairs. The step divides the sum of all
    /// losses by the sum of all weights, over micro-batches and ranks.
    fn weight(&self, batch: &Batch) -> f64;

    /// The loss of a micro-batch, with its metrics. `inputs.ids` is on the tape where gradients are wanted.
    ///
    /// # Errors
    /// What the model reports.
    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss>;

    /// The names of the metrics of each loss, in their order: of an evaluation, or of a micro-batch that is trained on.
    fn metrics(&self, _evaluates: bool) -> &'static [&'static str] {
        &[]
    }

    /// Whether the loss is the sum over targets that the head of the model gives, neither scaled nor added to others. The
    /// head then makes its first gradient in the forward pass ([`Prepared::loss`](oarlock_engine::Prepared::loss)), and the mean of
    /// an evaluation is one of tokens, which has a perplexity.
    fn is_token_loss(&self) -> bool {
        false
    }

    /// What makes its examples, where they are not the rows of the data as they are.
    fn source(&self) -> Option<&dyn Source> {
        None
    }

    /// Noise that is added to the embeddings of a micro-batch that is trained on, whose elements for each token are
    /// `hidden_size`: `[rows, len, hidden_size]`.
    ///
    /// # Errors
    /// No memory.
    fn noise(&self, _hidden_size: usize, _inputs: &Inputs) -> nn::Result<Option<Tensor>> {
        Ok(None)
    }

    /// Puts into the inputs of a micro-batch what other models say of it, before the pass that is recorded.
    ///
    /// # Errors
    /// What the models report.
    fn prepare(&self, _model: &dyn Unrecorded, _inputs: &mut Inputs) -> Result<()> {
        Ok(())
    }

    /// Sees all micro-batches of a step before the first is run; of an evaluation each batch. All ranks call it together.
    ///
    /// # Errors
    /// What the models report, and the failure of another rank.
    fn before_step(
        &self,
        _accelerator: &Accelerator,
        _model: &dyn Unrecorded,
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
}

/// Makes the examples of each step while training, such as answers of the model to the prompts of the data (rollouts).
pub trait Source {
    /// Puts examples in the place of the rows of a step, which are whole. All ranks call it together.
    ///
    /// # Errors
    /// What the model reports, and the failure of another rank.
    fn make(&self, accelerator: &Accelerator, model: &dyn Unrecorded, step: &mut StepBatches) -> Result<()>;
}

/// What an objective gets of a run beside its settings.
#[derive(Default)]
pub struct ObjectiveContext {
    /// The frozen model that it compares the trained one with, or scores answers with.
    pub reference: Reference,
    /// What answers are made of, where it makes some.
    pub answering: Option<Answering>,
}

/// What text and tokens an answer is made of.
pub struct Answering {
    /// The tokenizer of the run.
    pub tokenizer: Tokenizer,
    /// The tokens that end an answer; the first of them ends those that are trained on.
    pub stop_ids: Vec<u32>,
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
    /// The examples of the run that it holds.
    pub documents: Vec<Document>,
    /// What the objective needs to know of them besides.
    pub fields: Fields,
    /// What is added to the embeddings of the tokens ([`Objective::noise`]).
    pub noise: Option<Tensor>,
    /// The log-probabilities of the labels by another model ([`Objective::prepare`]).
    pub reference: Option<Tensor>,
    /// The residual stream before the head, in the last stage of a pipeline.
    pub stream: Option<Tensor>,
    /// Whether they are evaluated: with the metrics of an evaluation, and without gradients.
    pub evaluates: bool,
}

/// An example in a micro-batch: a sample, or one of several that share its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The samples of the run before its own.
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
        let ids = Tensor::from_slice(&batch.input_ids, shape, device)?;
        let labels = Labels::new(batch.labels.as_slice());
        Ok(Inputs {
            documents: documents(batch),
            fields: batch.fields.clone(),
            ..Inputs::of_tensors(ids, labels, mask)
        })
    }

    /// Tokens with a label for each, of which nothing else is known.
    pub fn of_tensors(ids: Tensor, labels: Labels, mask: Mask) -> Inputs {
        Inputs {
            ids,
            labels,
            mask,
            documents: Vec::new(),
            fields: Fields::default(),
            noise: None,
            reference: None,
            stream: None,
            evaluates: false,
        }
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
