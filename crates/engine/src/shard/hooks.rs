//! Where a step goes on: what units call around their passes, and an engine before and after them.
//!
//! `nn/unit.rs` calls [`UnitPasses`]: weights are gathered before a unit runs and released after it, and its gradients leave
//! when they are complete. Where the weights are always there and gradients stay, nothing of this moves anything.

use std::sync::Weak;

use oarlock_tensor::{Result as TensorResult, Tape, UnitHook};

use crate::shard::order::settle;
use crate::shard::passes::{Core, Work};
use crate::shard::schedule::Executor;
use crate::{Error, Result};

impl Executor for Work<'_> {
    type Error = Error;

    fn gather(&mut self, group: usize, second_copy: bool) -> Result<()> {
        self.begin_gather(group, second_copy)
    }

    fn await_weights(&mut self, group: usize) -> Result<()> {
        self.finish_gather(group)
    }

    fn release(&mut self, group: usize) -> Result<()> {
        self.detach_weights(group)
    }

    fn keep_second_copy(&mut self, group: usize) -> Result<()> {
        self.copy_own_part(group)
    }

    fn drop_second_copy(&mut self, group: usize) {
        self.buffers.groups[group].secondary = None;
    }

    fn reduce(&mut self, group: usize, adds: bool) -> Result<()> {
        self.begin_sums(group, adds)
    }

    fn finish_reduction(&mut self, group: usize) -> Result<()> {
        self.finish_sums(group)
    }

    fn reduce_across(&mut self, group: usize) -> Result<()> {
        self.begin_sums_across(group)
    }

    fn finish_across(&mut self, _group: usize) -> Result<()> {
        self.finish_sums_across()
    }
}

impl Core {
    /// Has whole gradients leave while the backward passes run that are recorded now: no other adds to them before the step.
    pub fn expect_step(&self) {
        if self.plan.reduces_early() {
            self.pass().schedule.expect_step();
        }
    }

    /// Ends the passes of a step: afterward each rank has the sums of what it updates.
    pub fn reduce_all(&self) -> Result<()> {
        self.go_on(|schedule, work| {
            schedule.finish_backward(work)?;
            for group in &self.groups {
                // Where ranks share one copy of the weights, an owner may write them when all have met.
                group.params.weights().map_or(Ok(()), |weights| settle(&weights))?;
            }
            schedule.reduce_rest(work)
        })
    }

    /// After a step: every gathered copy is stale, and gradients begin again from zero.
    pub fn begin_step(&self) -> Result<()> {
        self.go_on(|schedule, work| {
            schedule.begin_step(work)?;
            for (group, buffers) in self.groups.iter().zip(&mut work.buffers.groups) {
                group.params.clear_grads();
                buffers.touched.clear();
            }
            Ok(())
        })
    }
}

/// What a unit calls around its passes: its engine. A tape calls it again in the backward pass.
pub(super) struct UnitPasses {
    pub core: Weak<Core>,
    pub unit: usize,
}

impl UnitHook for UnitPasses {
    fn before_forward(&self, trains: bool) -> TensorResult<()> {
        call(&self.core, |core| core.go_on(|schedule, work| schedule.before_forward(self.unit, trains, work)))
    }

    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        call(&self.core, |core| core.go_on(|schedule, work| schedule.after_forward(self.unit, work)))
    }

    fn before_backward(&self) -> TensorResult<()> {
        call(&self.core, |core| core.go_on(|schedule, work| schedule.before_backward(self.unit, work)))
    }

    fn after_backward(&self) -> TensorResult<()> {
        call(&self.core, |core| core.go_on(|schedule, work| schedule.after_backward(self.unit, work)))
    }

    fn active_tape(&self) -> Option<Tape> {
        self.core.upgrade()?.active.current()
    }
}

/// What a tape calls around a whole pass.
pub(super) struct TapePass(pub Weak<Core>);

impl UnitHook for TapePass {
    fn before_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }

    fn after_forward(&self, _trains: bool) -> TensorResult<()> {
        Ok(())
    }

    fn before_backward(&self) -> TensorResult<()> {
        Ok(())
    }

    fn after_backward(&self) -> TensorResult<()> {
        call(&self.0, |core| core.go_on(|schedule, work| schedule.finish_backward(work)))
    }
}

/// Runs `f` on a core where anything moves at all.
fn call(core: &Weak<Core>, f: impl FnOnce(&Core) -> Result<()>) -> TensorResult<()> {
    let Some(core) = core.upgrade() else {
        return Err(oarlock_tensor::Error::Usage("the model's optimizer is gone".to_string()));
    };
    if core.plan.is_still() {
        return Ok(());
    }
    f(&core).map_err(|error| match error {
        Error::Tensor(error) => error,
        error => oarlock_tensor::Error::Hook(Box::new(error)),
    })
}
