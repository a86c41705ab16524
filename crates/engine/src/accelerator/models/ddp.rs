//! A model and its optimizer over a process group: torch's `DistributedDataParallel`, on the accelerator's engine.

use std::ops::Deref;

use oarlock_tensor::{Device, Tensor};

use super::prepared::Prepared;
use crate::Result;
use crate::accelerator::handle::Accelerator;
use crate::accelerator::settings::config::AcceleratorConfig;
use crate::accelerator::steps::optimizer::PreparedOptimizer;
use crate::distributed::ProcessGroup;
use crate::nn::Module;
use crate::optim::{Optim, Stepped};
use crate::shard::Placements;

/// A model that trains on all ranks of a group, each with all of it: for those who want nothing else. The
/// [`Accelerator`] is more, and this is no more than one with [`Placements::WHOLE`].
///
/// Initial weights depend on seed and name alone, so no rank has to send them to the others. Gradients of several
/// backward passes before a step are averaged, where torch adds them up.
///
/// ```
/// use oarlock::distributed::{self, DistributedDataParallel as DDP};
/// use oarlock::{Tensor, nn, optim};
///
/// distributed::spawn(2, |_rank| {
///     let group = distributed::init_process_group("gloo".parse()?, &Default::default())?;
///     let model = nn::Linear::new(10, 10)?;
///     let optimizer = optim::sgd(&model).lr(0.001);
///     let ddp = DDP::new(model, optimizer, &group)?;
///
///     let x = Tensor::from_slice(&[0.5_f32; 200], [20, 10], ddp.device())?;
///     let loss = nn::mse_loss(&ddp.forward(&x)?, &x)?;
///     ddp.backward(&loss)?;
///     ddp.step()?;
///     distributed::destroy_process_group()
/// })?;
/// # Ok::<(), oarlock::Error>(())
/// ```
pub struct DistributedDataParallel<M> {
    accelerator: Accelerator,
    model: Prepared<M>,
    optimizer: PreparedOptimizer,
}

impl<M: Module> DistributedDataParallel<M> {
    /// Holds a model, and the optimizer that was made from it, in every rank of a group. All ranks call it.
    ///
    /// # Errors
    /// A model and an optimizer that do not belong together, a model that was prepared before, a failed rank.
    pub fn new(model: M, optimizer: Optim, group: &ProcessGroup) -> Result<DistributedDataParallel<M>> {
        DistributedDataParallel::with(model, optimizer, group, &AcceleratorConfig::default())
    }

    /// As [`DistributedDataParallel::new`], with precision, seed, threads and the like as `config` says; what it says of
    /// placements does not count.
    ///
    /// # Errors
    /// As [`DistributedDataParallel::new`].
    pub fn with(
        model: M,
        optimizer: Optim,
        group: &ProcessGroup,
        config: &AcceleratorConfig,
    ) -> Result<DistributedDataParallel<M>> {
        let mut config = config.clone();
        config.shard.placements = Placements::WHOLE;
        let accelerator = Accelerator::over(group.communicator().clone(), &config)?;
        let (model, optimizer) = accelerator.prepare((model, optimizer))?;
        Ok(DistributedDataParallel { accelerator, model, optimizer })
    }

    /// Runs the backward pass from a loss, the mean over this rank's rows.
    ///
    /// # Errors
    /// As [`Accelerator::backward`].
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.accelerator.backward(loss)
    }

    /// One step of the optimizer with the gradients averaged over all ranks, which are forgotten afterward; torch's
    /// `optimizer.step()` and `optimizer.zero_grad()`. All ranks call it.
    ///
    /// # Errors
    /// No backward pass before it, a failed rank, a gradient that is not finite.
    pub fn step(&self) -> Result<Option<Stepped>> {
        self.optimizer.step()
    }

    /// Runs backward passes whose gradients wait for those of a later one.
    ///
    /// # Errors
    /// What `body` reports.
    pub fn no_sync<R>(&self, body: impl FnOnce() -> Result<R>) -> Result<R> {
        self.accelerator.no_sync(body)
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        self.accelerator.device()
    }

    /// The optimizer, as a scheduler or clipping wants it.
    pub fn optimizer(&self) -> &PreparedOptimizer {
        &self.optimizer
    }

    /// The accelerator underneath: clipping, gathering, saving.
    pub fn accelerator(&self) -> &Accelerator {
        &self.accelerator
    }
}

/// The prepared model: `forward`, `train`, `eval`, `module`.
impl<M> Deref for DistributedDataParallel<M> {
    type Target = Prepared<M>;
    fn deref(&self) -> &Prepared<M> {
        &self.model
    }
}
