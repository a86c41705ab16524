//! A model as a training loop uses it once it is prepared.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use oarlock_comm::Communicator;

use super::passes::{self, Loss};
use super::prepared_state::PreparedState;
use crate::accelerator::handle::Inner;
use crate::nn::nested::Nested;
use crate::nn::{self, Forward, Module, Visitor};
use crate::{Error, Result};

/// A prepared model. Its forward passes are recorded while it trains; everything else of the model is there as before.
/// Cloning gives another handle.
pub struct Prepared<M> {
    module: Arc<M>,
    pub(crate) state: Arc<PreparedState>,
    inner: Arc<Inner>,
}

impl<M> Clone for Prepared<M> {
    fn clone(&self) -> Prepared<M> {
        Prepared { module: self.module.clone(), state: self.state.clone(), inner: self.inner.clone() }
    }
}

impl<M: Module> Prepared<M> {
    pub(crate) fn new(module: Arc<M>, state: Arc<PreparedState>, inner: Arc<Inner>) -> Prepared<M> {
        let prepared = Prepared { module, state, inner };
        nn::set_training(&*prepared.module, prepared.is_training());
        prepared
    }

    /// The forward pass, on the device of this rank. While the model trains it is recorded for
    /// [`Accelerator::backward`](crate::Accelerator::backward); an input that comes from another model's recorded pass
    /// goes on in that.
    ///
    /// # Errors
    /// What the model reports.
    pub fn forward<I: Nested>(&self, input: &I) -> Result<M::Output>
    where
        M: Forward<I>,
    {
        self.call(input, |module, input| module.forward(input))
    }

    /// As [`Prepared::forward`], for any other method of the model that takes an input.
    ///
    /// # Errors
    /// What `f` reports.
    pub fn call<I: Nested, R>(&self, input: &I, f: impl FnOnce(&M, &I) -> nn::Result<R>) -> Result<R> {
        self.run(input, false, f)
    }

    /// As [`Prepared::call`], for a loss summed over targets, such as a decoder's, which then makes its first gradient in
    /// the forward pass and spares one of the four products of the head. The loss goes to
    /// [`Accelerator::backward`](crate::Accelerator::backward) as it is; scaled or added to others it is an error there.
    ///
    /// # Errors
    /// What `f` reports.
    pub fn loss<I: Nested, L: Loss>(&self, input: &I, f: impl FnOnce(&M, &I) -> nn::Result<L>) -> Result<L> {
        self.run(input, true, f)
    }

    fn run<I: Nested, R>(
        &self,
        input: &I,
        is_summed: bool,
        f: impl FnOnce(&M, &I) -> nn::Result<R>,
    ) -> Result<R> {
        if let Some(pipeline) = self.state.pipeline.get() {
            return Err(Error::Usage(format!(
                "{} is divided into {} stages, of which this rank holds one; its passes are those of whole windows \
                 (`Accelerator::pipeline_window`, or `train_batch` of a pipeline engine)",
                self.state.name,
                pipeline.n_stages()
            )));
        }
        let (input, _pass) = passes::enter(&self.inner, &self.state, self.inner.placed(input)?, is_summed)?;
        nn::begin_pass(&*self.module);
        Ok(f(&self.module, &input)?)
    }

    /// From now on forward passes are recorded, and dropout drops. A model without an optimizer is never recorded.
    pub fn train(&self) {
        self.set_training(true);
    }

    /// From now on nothing is recorded, and dropout does nothing. (torch's `eval` leaves recording to `no_grad`.) Only an
    /// input that comes from another model's recorded pass goes on in that, since the other's gradients come through
    /// here; `detach` it where they shall not.
    pub fn eval(&self) {
        self.set_training(false);
    }

    fn set_training(&self, training: bool) {
        self.state.training.store(training, Relaxed);
        nn::set_training(&*self.module, training);
    }

    /// Whether it is in training mode.
    pub fn is_training(&self) -> bool {
        self.state.is_training()
    }

    /// The process group of the ranks that hold it.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.ranks.comm
    }

    /// The model itself.
    pub fn module(&self) -> &Arc<M> {
        &self.module
    }
}

impl<M: Module> Module for Prepared<M> {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.module.visit(visitor);
    }

    fn kind(&self) -> &'static str {
        self.module.kind()
    }
}
