//! Steps that a rank takes on its own gradients: local SGD, and those of 1-bit optimizers, which exchange signs instead.

use oarlock_tensor::ops::optimizer::Needs;

use crate::shard::engine::Engine;
use crate::shard::local_sgd::{Outer, OuterStep};
use crate::shard::placement::Placements;
use crate::{Error, Result};

impl Engine {
    /// After it all ranks have the same weights: local steps of 0/1 Adam end before their time. All ranks call it.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn end_local_steps(&mut self) -> Result<()> {
        match &mut self.one_bit {
            Some(one_bit) => one_bit.end_local_steps(&self.core, &self.last_hyperparameters),
            None => Ok(()),
        }
    }

    /// From now on the first moment of a parameter is multiplied with `mask` whenever ranks have exchanged signs of it:
    /// DeepSpeed's `exp_avg_mask`. One bit cannot say zero, so elements whose gradient is always zero need a 0 here.
    ///
    /// # Errors
    /// Another optimizer than a 1-bit one, an unknown parameter, another number of elements.
    pub fn set_exp_avg_mask(&mut self, name: &str, mask: &[f32]) -> Result<()> {
        match &mut self.one_bit {
            Some(one_bit) => one_bit.set_mask(&self.core, name, mask),
            None => Err(Error::Usage(format!(
                "exp_avg_mask is for 1-bit optimizers, not for {}",
                self.rule.name()
            ))),
        }
    }

    /// Whether from now on this rank steps by itself: gradients are not summed over ranks, and each has weights of its
    /// own, until [`Engine::average`] makes them equal again.
    ///
    /// # Errors
    /// Where weights, gradients or the optimizer's state are sharded over the ranks.
    pub fn set_local(&mut self, local: bool) -> Result<()> {
        if local && self.core.options.placements != Placements::WHOLE {
            return Err(Error::Usage(format!(
                "ranks can step by themselves only where each has the whole state (Placements::WHOLE: DDP, ZeRO-0, \
                 NO_SHARD), and this model is held as {:?}",
                self.core.options.placements
            )));
        }
        if local && self.pipe.is_some() {
            return Err(Error::Usage(
                "ranks of a pipeline cannot step by themselves: each holds a part of the model".to_owned(),
            ));
        }
        if local && self.one_bit.is_some() {
            return Err(Error::Usage(format!(
                "ranks cannot step by themselves with {}, which has its own way of sending less",
                self.rule.name()
            )));
        }
        if local && self.rule.needs() == Needs::Blocks {
            return Err(Error::Usage(format!(
                "ranks cannot step by themselves with {}: states of 8 bits have no mean",
                self.rule.name()
            )));
        }
        self.local = local;
        Ok(())
    }

    /// The beginning of outer steps, from weights that are equal on all ranks.
    ///
    /// # Errors
    /// Numbers that make no step.
    pub fn begin_outer(&self, step: OuterStep) -> Result<Outer> {
        Outer::new(step, self.core.groups.iter().filter(|group| group.trainable))
    }

    /// The mean of the weights over all ranks, which have done the same number of steps by themselves, or with `outer` a step
    /// toward it; with `states`, the mean of the optimizer's states too. Added in f64, so that all ranks are bitwise
    /// identical.
    ///
    /// # Errors
    /// When a rank failed or has done another number of steps, or while somebody holds a weight.
    pub fn average(&mut self, states: bool, outer: Option<&mut Outer>) -> Result<()> {
        self.core
            .mesh()
            .shard()
            .agree("the number of optimizer steps before weights are averaged", self.n_steps)?;
        self.core.average(states, outer)
    }
}
