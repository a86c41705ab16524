//! What a prepared model and its prepared optimizer share on a rank: module, engine, and the accumulation window.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use oarlock_comm::{Communicator, Scalar};

use crate::accelerator::settings::config::{DivideBy, GradientAccumulation};
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::parallel::pipeline::Pipeline;
use crate::{Error, Result};

/// What the steps of an optimizer do besides stepping; a dialect asks for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepOptions {
    /// The norm to which every step clips the gradients.
    pub clip_on_step: Option<f64>,
    /// `zero_grad` leaves windows of several micro-batches alone.
    pub keeps_partial_windows: bool,
    /// The loss scale is the optimizer's own, and not that of all optimizers of the accelerator.
    pub has_own_loss_scale: bool,
}

/// A model with its optimizer. A model without one is for inference: nothing of it is trained.
pub(crate) struct PreparedState {
    /// The name of the model's type, for messages.
    pub name: &'static str,
    /// Whether it has an optimizer.
    pub is_trained: bool,
    /// Whether forward passes are recorded.
    pub training: AtomicBool,
    /// Whether this rank steps by itself, inside of `local_sgd`.
    pub local: AtomicBool,
    /// Why the ranks no longer have the same weights, where an error inside of `local_sgd` left them so.
    apart: OnceLock<String>,
    /// What its steps do besides.
    pub options: StepOptions,
    /// Where its parts lie, if it is divided into stages.
    pub pipeline: OnceLock<Arc<Pipeline>>,
    /// The seed of its random numbers, such as those of dropout.
    pub seed: AtomicU64,
    /// Grows whenever the weights become others: what a forward pass has kept belongs to the weights that it saw.
    version: AtomicU64,
    engine: OnceLock<(Arc<dyn Module>, Mutex<Optimizer>)>,
    window: Mutex<AccumulationWindow>,
}

/// The models that an accelerator has prepared, in their order.
#[derive(Default)]
pub(crate) struct Models(Mutex<Vec<Arc<PreparedState>>>);

impl Models {
    fn list(&self) -> MutexGuard<'_, Vec<Arc<PreparedState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Vec<Arc<PreparedState>> {
        self.list().clone()
    }

    pub fn add(&self, state: Arc<PreparedState>) {
        self.list().push(state);
    }

    /// Takes all of them out.
    pub fn take(&self) -> Vec<Arc<PreparedState>> {
        std::mem::take(&mut *self.list())
    }
}

/// What has accumulated since the last step.
#[derive(Clone, Copy, Debug, Default)]
struct AccumulationWindow {
    /// What this rank's losses weigh: its micro-batches, or the targets of its sums.
    weight: f64,
    /// What the losses of the window weigh on this rank and over all ranks, where that was said before the first.
    declared: Option<(f64, f64)>,
    /// The micro-batch that was counted last.
    counted: Option<u64>,
    /// Whether the losses of the backward passes are sums over targets; `None` before the first.
    is_sum: Option<bool>,
    /// Whether the optimizer knows what to divide by.
    is_closed: bool,
}

impl PreparedState {
    pub fn new(name: &'static str, is_trained: bool, options: StepOptions) -> Arc<PreparedState> {
        Arc::new(PreparedState {
            name,
            is_trained,
            training: AtomicBool::new(is_trained),
            local: AtomicBool::new(false),
            apart: OnceLock::new(),
            options,
            pipeline: OnceLock::new(),
            seed: AtomicU64::new(0),
            version: AtomicU64::new(0),
            engine: OnceLock::new(),
            window: Mutex::default(),
        })
    }

    /// Puts model and engine in their place; they come when the model is prepared.
    pub fn fill(&self, module: Arc<dyn Module>, optimizer: Optimizer) -> Result<()> {
        let filled = self.engine.set((module, Mutex::new(optimizer)));
        filled.map_err(|_| Error::Usage(format!("the model {} is prepared twice", self.name)))
    }

    fn engine(&self) -> Result<&(Arc<dyn Module>, Mutex<Optimizer>)> {
        self.check_whole()?;
        self.engine.get().ok_or_else(|| {
            Error::Usage(format!("the optimizer of {} is used before its model is prepared", self.name))
        })
    }

    /// The model.
    pub fn module(&self) -> Result<&Arc<dyn Module>> {
        Ok(&self.engine()?.0)
    }

    /// The engine with its optimizer.
    pub fn optimizer(&self) -> Result<MutexGuard<'_, Optimizer>> {
        // After a panic in a step the ranks no longer agree on where they are, and the next collective says so.
        Ok(self.engine()?.1.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn is_training(&self) -> bool {
        self.training.load(Relaxed)
    }

    /// Whether the ranks have the same weights, as what is called needs them; local steps of 0/1 Adam end for it.
    pub fn check_together(&self, call: &str) -> Result<()> {
        if self.local.load(Relaxed) {
            return Err(Error::Usage(format!(
                "{call} inside of `local_sgd`: each rank has weights of its own there; call it behind `local_sgd`, which ends \
                 with their mean"
            )));
        }
        self.optimizer()?.engine_mut().end_local_steps()
    }

    /// From now on every use of the model is an error, since the ranks have different weights.
    pub fn break_apart(&self, why: String) {
        // The first reason stands; later ones follow from it.
        let _ = self.apart.set(why);
    }

    /// Whether nothing has left the ranks with different weights.
    pub fn check_whole(&self) -> Result<()> {
        match self.apart.get() {
            None => Ok(()),
            Some(why) => Err(Error::Usage(format!(
                "{} has different weights on the ranks, since a `local_sgd` ended without their mean: {why}; build it again \
                 and prepare that, with the weights of a checkpoint",
                self.name
            ))),
        }
    }

    /// Begins a window whose losses will weigh `weight` on this rank; returns what they weigh over all ranks.
    #[track_caller]
    pub fn declare(&self, comm: &Communicator, weight: f64) -> Result<f64> {
        if self.window().is_sum.is_some() {
            return Err(Error::Usage(format!(
                "accumulation_window of {} after a backward pass: a window is declared before its first; end the one \
                 that is open with `step` or `zero_grad`",
                self.name
            )));
        }
        let mut total = [weight];
        if !self.local.load(Relaxed) {
            comm.all_reduce_f64(&mut total, Scalar::Sum)?;
        }
        if total[0] == 0.0 {
            return Err(Error::Usage(
                "a step without a single target: all its labels are ignored; remove empty records from the data, or put \
                 more records into a step"
                    .to_string(),
            ));
        }
        let mut optimizer = self.optimizer()?;
        // All ranks have the same scale, whichever of them run a backward pass.
        let scale = optimizer.loss_scale();
        optimizer.set_window_scale(scale);
        *self.window() =
            AccumulationWindow { declared: Some((weight, total[0])), ..AccumulationWindow::default() };
        Ok(total[0])
    }

    /// What losses are divided by before their backward pass: the declared weight of the window over all ranks, else 1.
    pub fn declared(&self) -> f64 {
        self.window().declared.map_or(1.0, |(_, total)| total)
    }

    /// Whether a further backward pass, from a mean or from a sum over targets, may add to the window.
    pub fn check_open(&self, is_sum: bool) -> Result<()> {
        let window = *self.window();
        if window.is_sum.is_some_and(|other| other != is_sum) {
            return Err(Error::Usage(format!(
                "backward of {}: one window has a loss that is a mean and one that is a sum over targets, which weigh \
                 differently; make all losses of a step means, or all sums",
                self.name
            )));
        }
        if window.declared.is_some() && !is_sum {
            return Err(Error::Usage(format!(
                "backward of {}: the loss is a mean, and the window was declared with the weight of its losses; give it \
                 summed losses, or leave `accumulation_window` out",
                self.name
            )));
        }
        if window.is_closed {
            return Err(Error::Usage(format!(
                "backward of {} after `clip_grad_norm` and before `step`: the norm of the step is known already; clip when \
                 all its backward passes are done",
                self.name
            )));
        }
        Ok(())
    }

    /// A backward pass of a micro-batch is over. A sum weighs its targets; the means of one micro-batch add up, as in
    /// torch, and weigh as much as one.
    pub fn add(&self, micro_batch: u64, weight: Option<f64>) {
        let mut window = self.window();
        window.is_sum = Some(weight.is_some());
        if weight.is_some() || window.counted.replace(micro_batch) != Some(micro_batch) {
            window.weight += weight.unwrap_or(1.0);
        }
    }

    /// Tells the optimizer what to divide the window's gradients by, over all ranks. Once a window.
    #[track_caller]
    pub fn close(&self, comm: &Communicator, accumulation: &GradientAccumulation) -> Result<()> {
        let mut window = self.window();
        if window.is_closed {
            return Ok(());
        }
        if let Some((declared, _)) = window.declared {
            if (window.weight - declared).abs() > 1e-9 * declared.abs() {
                return Err(Error::Usage(format!(
                    "step of {}: the window was declared with losses that weigh {declared} on this rank, and those of its \
                     backward passes weigh {}",
                    self.name, window.weight
                )));
            }
            window.is_closed = true;
            return Ok(());
        }
        let (mut total, mut ranks) = ([window.weight], 1);
        if !self.local.load(Relaxed) {
            comm.all_reduce_f64(&mut total, Scalar::Sum)?;
            ranks = comm.world_size();
        }
        if total[0] == 0.0 {
            return Err(Error::Usage(format!(
                "a step of {} without gradients: no rank ran `backward` since the last one",
                self.name
            )));
        }
        let mut optimizer = self.optimizer()?;
        if !self.local.load(Relaxed) && optimizer.loss_scale_state().is_some() {
            // A rank that ran no backward pass takes the scale of those that did.
            let mut scale = [optimizer.window_scale().unwrap_or(0.0)];
            comm.all_reduce_f64(&mut scale, Scalar::Max)?;
            optimizer.set_window_scale(scale[0]);
        }
        let divisor = match accumulation.divide_by {
            DivideBy::MicroBatches => total[0],
            DivideBy::NumSteps => accumulation.num_steps.max(1) as f64 * ranks as f64,
        };
        optimizer.divide_by(divisor);
        window.is_closed = true;
        Ok(())
    }

    /// Clips the gradients of the closed window, where every step does.
    #[track_caller]
    pub fn clip(&self) -> Result<()> {
        if let Some(max_norm) = self.options.clip_on_step {
            self.optimizer()?.clip_grad_norm(max_norm)?;
        }
        Ok(())
    }

    /// Whether accumulated gradients exist that no step has used.
    pub fn has_gradients(&self) -> bool {
        self.window().weight != 0.0
    }

    /// Which weights forward passes see now.
    pub fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// The weights have become others, and the next window begins.
    pub fn update(&self) {
        self.version.fetch_add(1, Relaxed);
        self.begin();
    }

    /// The next window begins.
    pub fn begin(&self) {
        *self.window() = AccumulationWindow::default();
    }

    fn window(&self) -> MutexGuard<'_, AccumulationWindow> {
        // Numbers, whole at every moment.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
