//! The passes of an objective over micro-batches: through a whole model one after another, or through the stages of a
//! pipeline, several at a time.

use oarlock_engine::report::speed::{Phase, PhaseTimer};
use oarlock_engine::{Accelerator, PartOutput, PartPasses, Prepared, PreparedOptimizer, Result, nn};
use oarlock_tensor::Tensor;

use crate::data::Batch;
use crate::train::objective::{Inputs, LanguageModel, Objective, ObjectiveLoss, Tally};

/// What runs an objective on micro-batches.
pub(super) struct Passes<'a, M> {
    pub accelerator: &'a Accelerator,
    pub objective: &'a dyn Objective,
    pub model: &'a Prepared<M>,
}

/// Micro-batches for each stage that an evaluation sends through a pipeline at a time: enough that it is seldom empty.
const EVAL_WINDOW: usize = 16;

impl<M: LanguageModel> Passes<'_, M> {
    /// Forward and backward passes over the micro-batches of a step.
    pub fn train(
        &self,
        batches: &[Batch],
        optimizer: &PreparedOptimizer,
        timer: &mut PhaseTimer,
    ) -> Result<Tally> {
        timer.enter(Phase::Forward);
        self.objective.before_step(self.accelerator, self.model, batches)?;
        if self.model.pipeline().is_some() {
            return self.through_stages(batches);
        }
        let mut tally = Tally::default();
        for (index, batch) in batches.iter().enumerate() {
            timer.enter(Phase::Forward);
            // ZeRO-3: each unit gathers its weights before its forward pass and releases them after it.
            let loss = self.forward(batch)?;
            timer.enter(Phase::Backward);
            if index + 1 == batches.len() {
                // Between machines, DDP and ZeRO-1: the sums of a unit are under way while the units before it run backward.
                optimizer.expect_step()?;
            }
            // ZeRO-3: again, in reverse. ZeRO-2 and -3: the gradients of a unit leave for their owners when it is done.
            self.accelerator.backward(&loss)?;
            tally.add(loss);
        }
        Ok(tally)
    }

    /// Forward passes over the micro-batches of an evaluation. The model is in evaluation mode.
    pub fn evaluate(&self, mut batches: impl Iterator<Item = Batch>) -> Result<Tally> {
        let mut tally = Tally::default();
        if let Some(pipeline) = self.model.pipeline() {
            let size = EVAL_WINDOW * pipeline.n_stages();
            loop {
                let window: Vec<Batch> = batches.by_ref().take(size).collect();
                if window.is_empty() {
                    return Ok(tally);
                }
                tally.append(self.through_stages(&window)?);
            }
        }
        for batch in batches {
            self.objective.before_step(self.accelerator, self.model, std::slice::from_ref(&batch))?;
            tally.add(self.forward(&batch)?);
        }
        Ok(tally)
    }

    /// A micro-batch with what the objective wants to know of it before the pass.
    fn inputs(&self, batch: &Batch) -> Result<Inputs> {
        let evaluates = !self.model.is_training();
        let mut inputs = Inputs { evaluates, ..Inputs::new(batch, self.accelerator.device())? };
        self.objective.prepare(self.model, &mut inputs)?;
        Ok(inputs)
    }

    /// The noise on the embeddings of a micro-batch, where it is trained on.
    fn noise(&self, model: &M, inputs: &Inputs) -> nn::Result<Option<Tensor>> {
        match inputs.evaluates {
            true => Ok(None),
            false => self.objective.noise(model.hidden_size(), inputs),
        }
    }

    fn forward(&self, batch: &Batch) -> Result<ObjectiveLoss> {
        let inputs = self.inputs(batch)?;
        let loss = |model: &M, ids: &Tensor| {
            let inputs = Inputs { ids: ids.clone(), ..inputs.clone() };
            let noise = self.noise(model, &inputs)?;
            self.objective.loss(model, &Inputs { noise, ..inputs })
        };
        match self.objective.is_token_loss() {
            true => self.model.loss(&inputs.ids, loss),
            false => self.model.call(&inputs.ids, loss),
        }
    }

    /// The losses are on the last stage.
    fn through_stages(&self, batches: &[Batch]) -> Result<Tally> {
        let inputs = batches.iter().map(|batch| self.inputs(batch)).collect::<Result<Vec<_>>>()?;
        let weights: Vec<f64> = batches.iter().map(|batch| self.objective.weight(batch)).collect();
        let losses = self.accelerator.pipeline_window(
            self.model,
            PartPasses {
                weights: &weights,
                input: &|micro_batch| Ok(inputs[micro_batch].ids.clone()),
                forward: &mut |model: &M, units, micro_batch, x| {
                    let (mut inputs, is_last) = (inputs[micro_batch].clone(), units.end == model.n_units());
                    if units.start == 0 {
                        inputs.noise = self.noise(model, &inputs)?;
                    }
                    let x = model.stream_through(units, x, &inputs)?;
                    if !is_last {
                        return Ok(PartOutput::Activations(x));
                    }
                    let inputs = Inputs { stream: Some(x), ..inputs };
                    Ok(PartOutput::Loss(self.objective.loss(model, &inputs)?))
                },
                is_head_loss: self.objective.is_token_loss(),
            },
        )?;
        let mut tally = Tally::default();
        losses.into_iter().for_each(|loss| tally.add(loss));
        Ok(tally)
    }
}
