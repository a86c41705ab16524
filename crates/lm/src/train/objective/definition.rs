//! What an objective is: a weight, a loss and metrics, and what it gets of a run.

use oarlock_engine::{Accelerator, Result, nn};
use oarlock_tensor::Tensor;

use super::answers::Reference;
use super::inputs::Inputs;
use super::language_model::{LanguageModel, Unrecorded};
use super::metric::{ObjectiveLoss, Totals};
use crate::data::{Batch, StepBatches, Tokenizer};

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
