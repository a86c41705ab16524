//! What an objective asks of a language model, in a recorded pass and beside it.

use std::ops::Range;

use oarlock_engine::nn::{self, Module};
use oarlock_engine::{Accelerator, Error, Prepared, Result};
use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{HeadLoss, TokenLoss};

use super::inputs::Inputs;
use crate::generate::{GenerateOptions, Generation, Model, Prompt};
use crate::model::{Decoder, LogProbs, LossOptions};

/// A language model in a pass over a micro-batch. Where a pipeline divides it, the residual stream before the head is in
/// the inputs already, so an objective asks the same of a whole model and of a last stage.
pub trait LanguageModel: Module {
    /// The elements of the residual stream of a token.
    fn hidden_size(&self) -> usize;

    /// The units that the stages of a pipeline divide.
    fn n_units(&self) -> usize;

    /// Some units but the head, from ids or from the residual stream to the residual stream.
    ///
    /// # Errors
    /// A token outside the vocabulary, or a sequence longer than the model's.
    fn stream_through(&self, units: Range<usize>, x: &Tensor, inputs: &Inputs) -> nn::Result<Tensor>;

    /// The summed loss of the labels.
    ///
    /// # Errors
    /// As [`LanguageModel::stream_through`].
    fn token_loss(&self, inputs: &Inputs, kind: TokenLoss) -> nn::Result<HeadLoss>;

    /// As [`LanguageModel::token_loss`], with whether each label is the likeliest token (f32 `[B, S]`, 1 or 0).
    ///
    /// # Errors
    /// As [`LanguageModel::stream_through`].
    fn token_loss_and_hits(&self, inputs: &Inputs, kind: TokenLoss) -> nn::Result<(HeadLoss, Tensor)>;

    /// The log-probabilities of the labels.
    ///
    /// # Errors
    /// As [`LanguageModel::stream_through`].
    fn log_probs(&self, inputs: &Inputs) -> nn::Result<LogProbs>;

    /// The value at each of these places among the tokens, `[N]` in f32.
    ///
    /// # Errors
    /// As [`LanguageModel::stream_through`], and a model without a value head.
    fn values(&self, inputs: &Inputs, places: &[usize]) -> nn::Result<Tensor>;

    /// Answers to prompts, `at_once` of them at a time, on all ranks in step: each answers its own.
    ///
    /// # Errors
    /// A prompt that is empty or too long, and the failure of another rank.
    fn generate(
        &self,
        accelerator: &Accelerator,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
    ) -> Result<Vec<Generation<Vec<u32>>>>;
}

impl LanguageModel for Decoder {
    fn hidden_size(&self) -> usize {
        self.config().hidden_size
    }

    fn n_units(&self) -> usize {
        self.n_units()
    }

    fn stream_through(&self, units: Range<usize>, x: &Tensor, inputs: &Inputs) -> nn::Result<Tensor> {
        self.stream_through(units, x, &inputs.mask, inputs.noise.as_ref())
    }

    fn token_loss(&self, inputs: &Inputs, kind: TokenLoss) -> nn::Result<HeadLoss> {
        match &inputs.stream {
            Some(x) => self.loss_of_stream(x, &inputs.labels, kind),
            None => self.loss_with(&inputs.ids, &inputs.labels, &inputs.mask, &options(inputs, kind)),
        }
    }

    fn token_loss_and_hits(&self, inputs: &Inputs, kind: TokenLoss) -> nn::Result<(HeadLoss, Tensor)> {
        match &inputs.stream {
            Some(x) => self.loss_and_hits_of_stream(x, &inputs.labels, kind),
            None => self.loss_and_hits(&inputs.ids, &inputs.labels, &inputs.mask, &options(inputs, kind)),
        }
    }

    fn log_probs(&self, inputs: &Inputs) -> nn::Result<LogProbs> {
        match &inputs.stream {
            Some(x) => self.log_probs_of_stream(x, &inputs.labels),
            None => self.log_probs(&inputs.ids, &inputs.labels, &inputs.mask),
        }
    }

    fn values(&self, inputs: &Inputs, places: &[usize]) -> nn::Result<Tensor> {
        match &inputs.stream {
            Some(x) => self.values_of_stream(x, places),
            None => self.values(&inputs.ids, &inputs.mask, places),
        }
    }

    fn generate(
        &self,
        accelerator: &Accelerator,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
    ) -> Result<Vec<Generation<Vec<u32>>>> {
        let model = Model {
            decoder: self,
            dtype: accelerator.dtype(),
            device: accelerator.device(),
            n_positions: self.n_positions(),
        };
        let goes_on = |own: bool| {
            let mut any = [f64::from(u8::from(own))];
            accelerator.reduce_sum(&mut any)?;
            Ok(any[0] > 0.0)
        };
        model.generate_in_step(prompts, options, at_once, &mut |_| (), &goes_on)
    }
}

fn options(inputs: &Inputs, kind: TokenLoss) -> LossOptions<'_> {
    LossOptions { kind, noise: inputs.noise.as_ref() }
}

/// A prepared language model beside the steps: in evaluation mode, and on no tape.
pub trait Unrecorded {
    /// Runs `pass` on the model and the inputs.
    ///
    /// # Errors
    /// What the model reports, and a model that is divided into stages.
    fn unrecorded(
        &self,
        inputs: &Inputs,
        pass: &dyn Fn(&dyn LanguageModel, &Inputs) -> nn::Result<Tensor>,
    ) -> Result<Tensor>;

    /// [`LanguageModel::generate`] of the weights as they are now.
    ///
    /// # Errors
    /// As there, and a model that is divided into stages.
    fn generate(
        &self,
        accelerator: &Accelerator,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
    ) -> Result<Vec<Generation<Vec<u32>>>>;
}

impl<M: LanguageModel> Unrecorded for Prepared<M> {
    fn unrecorded(
        &self,
        inputs: &Inputs,
        pass: &dyn Fn(&dyn LanguageModel, &Inputs) -> nn::Result<Tensor>,
    ) -> Result<Tensor> {
        evaluating(self, || {
            let pass = |model: &M, ids: &Tensor| pass(model, &Inputs { ids: ids.clone(), ..inputs.clone() });
            self.call(&inputs.ids.detach(), pass)
        })
    }

    fn generate(
        &self,
        accelerator: &Accelerator,
        prompts: &[Prompt],
        options: &GenerateOptions,
        at_once: usize,
    ) -> Result<Vec<Generation<Vec<u32>>>> {
        if let Some(pipeline) = self.pipeline() {
            return Err(Error::Usage(format!(
                "the model is divided into {} stages, and answers need it whole; leave pipeline_model_parallel_size out",
                pipeline.n_stages()
            )));
        }
        evaluating(self, || self.module().generate(accelerator, prompts, options, at_once))
    }
}

/// Runs `f` while the model is in evaluation mode.
fn evaluating<M: Module, R>(model: &Prepared<M>, f: impl FnOnce() -> R) -> R {
    let trains = model.is_training();
    model.eval();
    let found = f();
    if trains {
        model.train();
    }
    found
}
