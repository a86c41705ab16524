//! Means over ranks that have stepped by themselves, each with weights and states of its own.

use oarlock_comm::Scalar;

use super::outer::Outer;
use crate::Result;
use crate::shard::column::Column;
use crate::shard::group::Group;
use crate::shard::layout::runs;
use crate::shard::passes::Core;

/// Elements that are averaged at once.
const CHUNK: usize = 1 << 16;

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
        let comm = self.mesh().shard();
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
