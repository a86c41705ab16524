//! Means over ranks that have stepped by themselves, each with weights and states of its own.

use oarlock_comm::Scalar;

use crate::error::Result;
use crate::shard::column::Column;
use crate::shard::group::Group;
use crate::shard::layout::runs;
use crate::shard::passes::Core;

/// Elements that are averaged at once.
const CHUNK: usize = 1 << 16;

impl Core {
    /// Weights become their mean over the ranks; with `states`, the optimizer's states too.
    pub fn average(&self, states: bool) -> Result<()> {
        for group in self.groups.iter().filter(|group| group.trainable) {
            group.state.gate.wait();
            self.average_column(group, group.state.master.as_ref().unwrap_or(&group.state.weights))?;
            self.refresh_working_copy(&self.device, group)?;
            for (column, _) in group.state.moments.iter().filter(|_| states) {
                self.average_column(group, column)?;
            }
        }
        Ok(())
    }

    fn average_column(&self, group: &Group, column: &Column) -> Result<()> {
        let comm = &self.mesh.shard;
        let n = comm.world_size() as f64;
        let mut values = Vec::new();
        for (index, param) in group.layout.params().iter().enumerate() {
            for run in runs(column.at(index, &param.range()), CHUNK) {
                values.resize(run.len(), 0.0f32);
                column.read(run.start, &mut values)?;
                let mut sums: Vec<f64> = values.iter().copied().map(f64::from).collect();
                comm.all_reduce_f64(&mut sums, Scalar::Sum)?;
                values.iter_mut().zip(sums).for_each(|(value, sum)| *value = (sum / n) as f32);
                column.write(&self.device, run.start, &values)?;
            }
        }
        Ok(())
    }
}
