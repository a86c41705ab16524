//! The new weights of a step travel to all ranks, where each has updated a part. Over transports that work in the background
//! they do so while the next step begins: an op that uses a weight waits for those of its group.

use std::sync::{MutexGuard, PoisonError};

use oarlock_comm::Ready;

use crate::Result;
use crate::shard::group::{Group, Weights};
use crate::shard::order::ready;
use crate::shard::passes::Core;
use crate::shard::placement::Placement;

impl Core {
    fn in_flight(&self) -> MutexGuard<'_, Vec<Option<Ready>>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to make the weights that each rank has written visible to all, in the order in which a forward pass uses them:
    /// those of the groups of which `is_written` says so, the same on all ranks.
    pub fn publish(&self, is_written: impl Fn(&Group) -> bool) -> Result<()> {
        if self.options.placements.optimizer == Placement::Whole {
            return Ok(());
        }
        let mut in_flight = self.in_flight();
        in_flight.resize_with(self.groups.len(), || None);
        let groups = self.groups.iter().zip(in_flight.iter_mut());
        for (group, on_its_way) in groups.filter(|(group, _)| is_written(group)) {
            if let Weights::Resident(region) = &group.weights {
                // A save reads weights where they lie. The update has waited for it only where it had something to change here.
                group.state.gate.wait();
                let (dtype, owners, comm) =
                    (group.params.dtype(), &group.owners, self.meshes[group.mesh].behind());
                let written = group.params.weights().map_or(Ok(Ready::now()), |flat| ready(&flat))?;
                let gathered = comm.all_gather(region, dtype, owners, written)?;
                match self.plan.overlaps {
                    true => *on_its_way = Some(gathered),
                    false => gathered.precede_launches()?,
                }
            }
        }
        Ok(())
    }

    /// Waits for the new weights of a group.
    pub fn await_weights(&self, group: usize) -> Result<()> {
        // Locked until they are there: another thread may ask for them, too.
        let mut in_flight = self.in_flight();
        let on_its_way = in_flight.get_mut(group).and_then(Option::take);
        Ok(on_its_way.map_or(Ok(()), Ready::precede_launches)?)
    }

    /// Waits for all new weights: before they are written again.
    pub fn await_published(&self) -> Result<()> {
        (0..self.groups.len()).try_for_each(|group| self.await_weights(group))
    }
}
