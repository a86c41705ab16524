//! Means over ranks that have stepped by themselves, each with weights and states of its own.

use oarlock_comm::Scalar;

use crate::error::{Error, Result};
use crate::shard::column::Column;
use crate::shard::engine::Engine;
use crate::shard::group::Group;
use crate::shard::layout::runs;
use crate::shard::outer::{Outer, OuterStep};
use crate::shard::passes::Core;
use crate::shard::placement::Placements;

/// Elements that are averaged at once.
const CHUNK: usize = 1 << 16;

impl Engine {
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

    /// The mean of the weights over all ranks, or with `outer` a step towards it; with `states`, the mean of the optimizer's
    /// states too. The ranks have done the same number of steps by themselves. Added in f64, so that every rank has the
    /// same bits.
    ///
    /// # Errors
    /// When a rank failed or has done another number of steps, or while somebody holds a weight.
    pub fn average(&mut self, states: bool, outer: Option<&mut Outer>) -> Result<()> {
        self.core
            .mesh
            .shard
            .agree("the number of optimizer steps before weights are averaged", self.n_steps)?;
        self.core.average(states, outer)
    }
}

impl Core {
    /// Weights become their mean over the ranks, or what `outer` makes of it; with `states`, the optimizer's states become
    /// theirs too.
    pub fn average(&self, states: bool, mut outer: Option<&mut Outer>) -> Result<()> {
        for (index, group) in self.groups.iter().filter(|group| group.trainable).enumerate() {
            group.state.gate.wait();
            self.average_column(group, group.state.master(), &mut |first, means| {
                if let Some(outer) = &mut outer {
                    outer.follow(index, first, means);
                }
            })?;
            self.refresh_working_copy(&self.device, group)?;
            for (column, _) in group.state.moments.iter().filter(|_| states) {
                self.average_column(group, column, &mut |_, _| ())?;
            }
        }
        Ok(())
    }

    /// Calls `follow` with the place of the first of some means in the column, and the means, which it may change.
    fn average_column(
        &self,
        group: &Group,
        column: &Column,
        follow: &mut dyn FnMut(usize, &mut [f64]),
    ) -> Result<()> {
        let comm = &self.mesh.shard;
        let n = comm.world_size() as f64;
        let mut values = Vec::new();
        for (index, param) in group.layout.params().iter().enumerate() {
            for run in runs(column.at(index, &param.range()), CHUNK) {
                values.resize(run.len(), 0.0f32);
                column.read(run.start, &mut values)?;
                let mut sums: Vec<f64> = values.iter().copied().map(f64::from).collect();
                comm.all_reduce_f64(&mut sums, Scalar::Sum)?;
                sums.iter_mut().for_each(|sum| *sum /= n);
                follow(run.start, &mut sums);
                values.iter_mut().zip(sums).for_each(|(value, mean)| *value = mean as f32);
                column.write(&self.device, run.start, &values)?;
            }
        }
        Ok(())
    }
}
