//! The engine: a model with its optimizer and schedule, which steps them at the end of each window of micro-batches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_config::dialect::DeepSpeedArgs;
use serde::{Deserialize, Serialize};

use crate::accelerator::handle::Accelerator;
use crate::accelerator::models::passes::Loss;
use crate::accelerator::models::prepare::Prepare;
use crate::accelerator::models::prepared::Prepared;
use crate::accelerator::steps::optimizer::PreparedOptimizer;
use crate::accelerator::steps::scheduler::PreparedScheduler;
use crate::nn::nested::Nested;
use crate::nn::{Forward, Module};
use crate::optim::Stepped;
use crate::{Error, Result};

/// DeepSpeed's engine.
///
/// Two engines in one process are two models that are trained in turn: each has its own window, loss scale, schedule and
/// checkpoints. Make the second over the accelerator of the first: `InitializeArgs { accelerator:
/// Some(first.accelerator().clone()), .. }`.
pub struct DeepSpeedEngine<M> {
    accelerator: Accelerator,
    plan: DeepSpeedArgs,
    model: Prepared<M>,
    optimizer: Option<PreparedOptimizer>,
    scheduler: Option<PreparedScheduler>,
    count: Mutex<Count>,
}

/// Where a loop stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Count {
    micro_steps: u64,
    global_steps: u64,
    skipped_steps: u64,
    /// Steps of the schedule.
    schedule: u64,
    /// What [`DeepSpeedEngine::set_gradient_accumulation_boundary`] said.
    #[serde(skip)]
    boundary: Option<bool>,
    #[serde(skip)]
    in_no_sync: bool,
    #[serde(skip)]
    norm: Option<f64>,
}

impl<M: Module> DeepSpeedEngine<M> {
    pub(super) fn new(
        accelerator: Accelerator,
        plan: DeepSpeedArgs,
        model: Prepared<M>,
        optimizer: Option<PreparedOptimizer>,
        scheduler: Option<PreparedScheduler>,
    ) -> DeepSpeedEngine<M> {
        DeepSpeedEngine { accelerator, plan, model, optimizer, scheduler, count: Mutex::default() }
    }

    /// The forward pass of a micro-batch, recorded while the model trains.
    ///
    /// # Errors
    /// What the model reports.
    pub fn forward<I: Nested>(&self, input: &I) -> Result<M::Output>
    where
        M: Forward<I>,
    {
        self.model.forward(input)
    }

    /// The backward pass from a loss, which is scaled in f16. It is not to be divided by the accumulation steps: the step
    /// takes the mean over all micro-batches and ranks.
    ///
    /// # Errors
    /// A loss that no recorded pass made, or that goes through a model of another engine; what an op reports.
    pub fn backward(&self, loss: &impl Loss) -> Result<()> {
        let micro_batch = self.count().micro_steps + 1;
        self.accelerator.in_micro_batch(micro_batch, || self.accelerator.backward(loss))
    }

    /// Ends a micro-batch. At the boundary of a window the gradients are clipped, the optimizer steps and the schedule
    /// moves on; what came of it is the result. Elsewhere it only counts, and says `None`. A step whose gradients
    /// overflow in f16 is skipped on all ranks: weights, moments and schedule stay, and the loss scale falls. All ranks
    /// call it.
    ///
    /// # Errors
    /// An engine without an optimizer, a call inside of `no_sync`, a window without a backward pass, a gradient that is not
    /// finite, a failed rank.
    #[track_caller]
    pub fn step(&self) -> Result<Option<Stepped>> {
        let optimizer = self.optimizer("step")?;
        if self.count().in_no_sync {
            return Err(Error::Usage(
                "step: inside of `no_sync` no window ends; call it behind the closure, as DeepSpeed asks for"
                    .to_owned(),
            ));
        }
        let mut stepped = None;
        if self.is_gradient_accumulation_boundary() {
            let norm = self.accelerator.clip_grad_norm(optimizer, self.plan.gradient_clipping)?;
            let outcome = optimizer.step()?;
            let mut count = self.count();
            count.global_steps += 1;
            count.norm = norm.filter(|norm| norm.is_finite());
            match &outcome {
                Some(Stepped::Skipped { .. }) => count.skipped_steps += 1,
                _ => {
                    if let Some(scheduler) = &self.scheduler {
                        scheduler.step();
                    }
                }
            }
            stepped = outcome;
        }
        self.count().micro_steps += 1;
        Ok(stepped)
    }

    /// Whether the coming [`DeepSpeedEngine::step`] is one: the last micro-batch of a window.
    pub fn is_gradient_accumulation_boundary(&self) -> bool {
        let count = self.count();
        let steps = self.plan.gradient_accumulation_steps as u64;
        count.boundary.unwrap_or_else(|| (count.micro_steps + 1).is_multiple_of(steps))
    }

    /// Says by hand whether the coming steps are at a boundary, from now on.
    pub fn set_gradient_accumulation_boundary(&self, is_boundary: bool) {
        self.count().boundary = Some(is_boundary);
    }

    /// Runs micro-batches of which none ends the window: `step` is not called inside. As in DeepSpeed it is for stages 0
    /// and 1, where gradients need not leave the rank before the step.
    ///
    /// # Errors
    /// Stages 2 and 3, another `no_sync` around it, what `body` reports.
    pub fn no_sync<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        let stage = self.plan.stage;
        if stage >= 2 {
            return Err(Error::Usage(format!(
                "no_sync does not go with stage {stage}, which divides gradients as they come; leave it out, or use stage 0 \
                 or 1"
            )));
        }
        if std::mem::replace(&mut self.count().in_no_sync, true) {
            return Err(Error::Usage("no_sync inside of no_sync".to_owned()));
        }
        let result = body();
        self.count().in_no_sync = false;
        result
    }

    /// The learning rate of the next step, of group 0.
    ///
    /// # Errors
    /// An engine without an optimizer.
    pub fn get_lr(&self) -> Result<f64> {
        Ok(self.optimizer("get_lr")?.lr())
    }

    /// The learning rates of the next step, of all groups.
    ///
    /// # Errors
    /// An engine without an optimizer.
    pub fn group_lrs(&self) -> Result<Vec<f64>> {
        Ok(self.optimizer("group_lrs")?.group_lrs())
    }

    /// Sets the learning rate of the next step for all groups, for a custom schedule.
    ///
    /// # Errors
    /// An engine without an optimizer, or one that steps a schedule.
    pub fn set_lr(&self, lr: f64) -> Result<()> {
        if self.scheduler.is_some() {
            return Err(Error::Usage(
                "set_lr: this engine steps a schedule, which would set another rate after the next step; leave the \
                 schedule out of the configuration and of `initialize`"
                    .to_owned(),
            ));
        }
        self.optimizer("set_lr")?.set_lr(lr);
        Ok(())
    }

    /// The L2 norm of all gradients in the last step, before it was clipped; `None` before the first and where they
    /// overflowed.
    pub fn get_global_grad_norm(&self) -> Option<f64> {
        self.count().norm
    }

    /// The factor of the loss in the backward pass: 1 but in f16.
    ///
    /// # Errors
    /// None in an engine that was made by [`initialize`](super::initialize).
    pub fn loss_scale(&self) -> Result<f64> {
        Ok(self.model.state.optimizer()?.loss_scale())
    }

    /// Steps that were skipped because gradients overflowed.
    pub fn skipped_steps(&self) -> u64 {
        self.count().skipped_steps
    }

    /// Steps, skipped ones among them, as DeepSpeed counts.
    pub fn global_steps(&self) -> u64 {
        self.count().global_steps
    }

    /// Micro-batches of this rank.
    pub fn micro_steps(&self) -> u64 {
        self.count().micro_steps
    }

    /// Samples of a step over all ranks.
    pub fn train_batch_size(&self) -> usize {
        self.plan.train_batch_size
    }

    /// Samples of a rank in a micro-batch.
    pub fn train_micro_batch_size_per_gpu(&self) -> usize {
        self.plan.micro_batch_size
    }

    /// Micro-batches of a step.
    pub fn gradient_accumulation_steps(&self) -> usize {
        self.plan.gradient_accumulation_steps
    }

    /// The norm to which gradients are clipped; 0: not at all.
    pub fn gradient_clipping(&self) -> f64 {
        self.plan.gradient_clipping
    }

    /// 0 to 3.
    pub fn zero_optimization_stage(&self) -> u8 {
        self.plan.stage
    }

    /// Prepares a loader for the ranks of this engine, such as one of evaluation data.
    ///
    /// # Errors
    /// What its preparation reports.
    #[track_caller]
    pub fn deepspeed_io<L: Prepare>(&self, loader: L) -> Result<L::Prepared> {
        self.accelerator.prepare(loader)
    }

    /// From now on forward passes are recorded, and dropout drops. A model without an optimizer is never recorded.
    pub fn train(&self) {
        self.model.train();
    }

    /// From now on nothing is recorded, and dropout does nothing.
    pub fn eval(&self) {
        self.model.eval();
    }

    /// The model itself.
    pub fn module(&self) -> &Arc<M> {
        self.model.module()
    }

    /// The prepared model.
    pub fn model(&self) -> &Prepared<M> {
        &self.model
    }

    /// The schedule that the engine steps, if there is one.
    pub fn lr_scheduler(&self) -> Option<&PreparedScheduler> {
        self.scheduler.as_ref()
    }

    /// The rank that this engine runs on, with its collectives.
    pub fn accelerator(&self) -> &Accelerator {
        &self.accelerator
    }

    /// The device of this rank.
    pub fn device(&self) -> &oarlock_tensor::Device {
        self.accelerator.device()
    }

    /// Counts micro-batches whose passes were not run one by one.
    pub(super) fn pass_micro_steps(&self, n: usize) {
        self.count().micro_steps += n as u64;
    }

    pub(super) fn optimizer(&self, what: &str) -> Result<&PreparedOptimizer> {
        self.optimizer.as_ref().ok_or_else(|| {
            Error::Usage(format!(
                "{what}: the engine of {} has no optimizer, so its model is inference-only; name one in the configuration or \
                 give one to `initialize`",
                self.model.state.name
            ))
        })
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        // Numbers, whole at every moment.
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a checkpoint keeps of the loop.
    pub(super) fn kept(&self) -> Count {
        let schedule = self.scheduler.as_ref().map_or(0, PreparedScheduler::steps);
        Count { schedule, ..*self.count() }
    }

    /// Goes on from what a checkpoint kept; a schedule sets its own learning rates.
    pub(super) fn go_on(&self, kept: Count, group_lrs: Option<Vec<f64>>) -> Result<()> {
        if let (Some(optimizer), Some(lrs)) = (&self.optimizer, group_lrs) {
            optimizer.lr_state.resume(&lrs)?;
        }
        if let Some(scheduler) = &self.scheduler {
            scheduler.set_steps(kept.schedule);
        }
        let boundary = self.count().boundary;
        *self.count() = Count { boundary, ..kept };
        self.model.state.update();
        Ok(())
    }
}
