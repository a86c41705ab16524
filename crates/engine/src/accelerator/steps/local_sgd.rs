//! Local SGD: ranks step by themselves, and average their weights every few steps (Stich 2019), or take an outer step
//! toward the mean (DiLoCo, Douillard et al. 2023).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use oarlock_comm::Communicator;
use serde::{Deserialize, Serialize};

use crate::accelerator::handle::Accelerator;
use crate::accelerator::models::prepared::Prepared;
use crate::accelerator::models::prepared_state::PreparedState;
use crate::accelerator::ranks::collectives::{decode_all, encode};
use crate::nn::Module;
use crate::shard::{Outer, OuterStep};
use crate::{Error, Result};

/// How [`Accelerator::local_sgd`] runs. The first two fields are those of Accelerate's `LocalSGD`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSgd {
    /// Steps that each rank does by itself between two averages.
    pub local_sgd_steps: usize,
    /// Whether ranks step by themselves at all; if not, the loop runs as everywhere.
    pub enabled: bool,
    /// Follow the mean with momentum instead of taking it (DiLoCo); it takes eight bytes for each trained parameter.
    pub outer: Option<OuterStep>,
}

impl Default for LocalSgd {
    /// Eight steps and the mean, as in Accelerate's example.
    fn default() -> LocalSgd {
        LocalSgd { local_sgd_steps: 8, enabled: true, outer: None }
    }
}

/// Counts the steps inside of [`Accelerator::local_sgd`].
pub struct LocalSteps {
    /// `None` where ranks step together.
    alone: Option<Alone>,
    local_sgd_steps: usize,
    n_steps: usize,
}

impl LocalSteps {
    /// Counts a step; every so many of them the weights become their mean over the ranks. To be called after each
    /// `optimizer.step()` that is one, as often on each rank.
    ///
    /// # Errors
    /// When a rank failed, has left the loop, or has done another number of steps.
    pub fn step(&mut self) -> Result<()> {
        self.n_steps += 1;
        match &mut self.alone {
            Some(alone) if self.n_steps.is_multiple_of(self.local_sgd_steps) => {
                alone.average(&LoopPosition::Inside, true)
            }
            _ => Ok(()),
        }
    }
}

/// A model whose weights each rank has for itself. Dropped before they were averaged at the end, as by a panic, it leaves
/// the model unusable: nobody knows whether the other ranks have the same weights.
struct Alone {
    state: Arc<PreparedState>,
    comm: Communicator,
    outer: Option<Outer>,
}

/// Where a rank stands when weights become their mean.
#[derive(Serialize, Deserialize)]
enum LoopPosition {
    /// Inside of the loop.
    Inside,
    /// At its end.
    End,
    /// Behind an error that has ended it.
    Failed(String),
}

impl Alone {
    fn begin(state: &Arc<PreparedState>, comm: &Communicator, outer: Option<OuterStep>) -> Result<Alone> {
        let outer = outer.map(|step| state.optimizer()?.engine().begin_outer(step)).transpose()?;
        state.optimizer()?.engine_mut().set_local(true)?;
        state.local.store(true, Relaxed);
        Ok(Alone { state: state.clone(), comm: comm.clone(), outer })
    }

    /// Weights become their mean, at the end with the optimizer's states, where all ranks are inside or all at the end. Where
    /// the ranks have `moved` since they last met, the outer step makes something of the mean.
    fn average(&mut self, place: &LoopPosition, moved: bool) -> Result<()> {
        let averaged = self.meet(place).and_then(|()| {
            let mut optimizer = self.state.optimizer()?;
            let outer = self.outer.as_mut().filter(|_| moved);
            optimizer.engine_mut().average(!matches!(place, LoopPosition::Inside), outer)
        });
        // The ranks have the weights that they had, or some of them.
        averaged.inspect_err(|error| self.state.break_apart(error.to_string()))
    }

    /// All ranks tell where they are.
    fn meet(&self, place: &LoopPosition) -> Result<()> {
        self.state.check_whole()?;
        let places = self.comm.all_gather_bytes(&encode(place).map_err(Error::Usage)?)?;
        let places: Vec<LoopPosition> = decode_all("local_sgd", &places)?;
        let Some(inside) = places.iter().position(|place| matches!(place, LoopPosition::Inside)) else {
            return Ok(());
        };
        let left = places.iter().enumerate().find_map(|(rank, place)| match place {
            LoopPosition::Inside => None,
            LoopPosition::End => Some(format!("rank {rank} is at the end of its loop")),
            LoopPosition::Failed(why) => {
                Some(format!("the loop of rank {rank} has ended with an error ({why})"))
            }
        });
        match left {
            None => Ok(()),
            Some(left) => Err(Error::Usage(format!(
                "local_sgd: {left} while rank {inside} is inside of its own; all ranks do as many steps"
            ))),
        }
    }

    /// Ranks go on as one.
    fn end(mut self, place: &LoopPosition, moved: bool) -> Result<()> {
        if !matches!(place, LoopPosition::End) {
            // The micro-batch that failed has left some, on this rank or that.
            self.state.optimizer()?.clear_grads()?;
            self.state.begin();
        }
        self.average(place, moved)?;
        self.state.optimizer()?.engine_mut().set_local(false)?;
        self.state.local.store(false, Relaxed);
        Ok(())
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if self.state.local.swap(false, Relaxed) {
            self.state.break_apart("this rank has left it in the middle".to_owned());
        }
    }
}

impl Accelerator {
    /// Runs a loop in which each rank steps on its own gradients; the weights become their mean over the ranks every
    /// `local_sgd_steps` steps and at the end. The optimizer's states stay each rank's own until the end, where they
    /// become their mean too, so that all ranks are equal again whatever comes next. (Accelerate leaves them different,
    /// and with them all later steps.)
    ///
    /// With [`LocalSgd::outer`] each of these meetings is a step of DiLoCo instead, at the end where ranks have stepped since
    /// the last one: its outer momentum begins at zero and ends with the loop.
    ///
    /// Each rank must have the whole state (`Placements::WHOLE`). Nothing is saved inside of it, where weights differ.
    ///
    /// # Errors
    /// Another placement, a model without an optimizer, 16-bit training with a loss scale (each rank's would follow its
    /// own overflows), no steps at all; what `body` reports; a failed rank. After an error of `body` the weights are
    /// averaged as well, where all ranks have done as many steps; where they have not, or a rank is gone, the model
    /// cannot be used any more, and each use says why.
    pub fn local_sgd<M: Module, R>(
        &self,
        model: &Prepared<M>,
        config: LocalSgd,
        body: impl FnOnce(&mut LocalSteps) -> Result<R>,
    ) -> Result<R> {
        let state = &model.state;
        let wrong = |what: &str| Err(Error::Usage(format!("local_sgd: {} {what}", state.name)));
        if config.local_sgd_steps == 0 {
            return wrong(
                "averages its weights every `local_sgd_steps` steps, of which there must be at least one",
            );
        }
        if !state.is_trained {
            return wrong("has no optimizer, and nothing of it is trained");
        }
        let mut alone = None;
        if config.enabled {
            if state.local.load(Relaxed) {
                return wrong("is in a `local_sgd` already");
            }
            if state.optimizer()?.loss_scale_state().is_some() {
                return wrong("is trained with a loss scale, which the ranks share; train it in bf16 or f32");
            }
            alone = Some(Alone::begin(state, self.communicator(), config.outer)?);
        }
        let mut steps = LocalSteps { alone, local_sgd_steps: config.local_sgd_steps, n_steps: 0 };
        let result = body(&mut steps);
        let Some(alone) = steps.alone else { return result };
        let moved = !steps.n_steps.is_multiple_of(config.local_sgd_steps);
        match result {
            Ok(result) => alone.end(&LoopPosition::End, moved).map(|()| result),
            Err(error) => {
                // Where this fails, the next use of the model says so. What has failed is nothing to follow.
                let _ = alone.end(&LoopPosition::Failed(error.to_string()), false);
                Err(error)
            }
        }
    }
}
