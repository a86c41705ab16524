//! How gradients become sums over the ranks: unit by unit during the backward pass where they are sharded, all before the
//! step where they are whole.

use std::ops::Range;
use std::sync::{Arc, Weak};

use oarlock_comm::Region;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{
    DType, FlatBuffer, FlatParams, GradSlot, ParamHome, Result as TensorResult, Store, Tape, Tensor,
};

use crate::error::Result;
use crate::shard::group::{Grads, Group};
use crate::shard::layout::runs;
use crate::shard::order::{ready, settle};
use crate::shard::passes::{Core, PassState};
use crate::shard::placement::Placement;

impl Core {
    /// A place for the gradients of a group, which an op is about to write.
    fn open_slot(&self, pass: &mut PassState, index: usize) -> Result<()> {
        if pass.groups[index].slot.is_none() && matches!(self.groups[index].grads, Grads::Sharded { .. }) {
            let group = &self.groups[index];
            let slot = pass.slots.take(group.layout.n_elems() * 4)?;
            group.params.attach_grads(slot.flat.clone())?;
            pass.groups[index].slot = Some(slot);
        }
        Ok(())
    }

    /// Sums a group's gradients over the ranks; each adds what it owns to its sums.
    pub(super) fn reduce(&self, pass: &mut PassState, index: usize) -> Result<()> {
        let group = &self.groups[index];
        let Grads::Sharded { sums, .. } = &group.grads else { return Ok(()) };
        self.open_slot(pass, index)?;
        pass.groups[index].note_touched(&group.params);
        group.params.zero_untouched()?;
        let here = &mut pass.groups[index];
        let Some(slot) = here.slot.take() else { return Ok(()) };
        self.reduce_scatter(group, &slot.region, &slot.flat)?;
        let owned = group.owners.of(self.mesh.shard.rank()).first().cloned().unwrap_or(0..0);
        let store = if here.summed { Store::Add } else { Store::Overwrite };
        here.summed = true;
        let to = Part { flat: sums, range: 0..owned.len() };
        transfer::accumulate(&self.device, &Part { flat: &slot.flat, range: owned }, &to, store)?;
        group.params.detach_grads();
        group.params.clear_grads();
        pass.slots.give_back(slot)
    }

    /// Each owner receives the sums of its elements.
    fn reduce_scatter(&self, group: &Group, region: &Region, flat: &FlatBuffer) -> Result<()> {
        let shard = &self.mesh.shard;
        let owned = group.owners.of(shard.rank()).first().cloned().unwrap_or(0..0);
        self.in_reduce_dtype(group, region, flat, owned, &|region, dtype, flat| {
            group.buckets.iter().try_for_each(|bucket| {
                Ok(shard.reduce_scatter(region, dtype, bucket, ready(flat)?)?.precede_launches()?)
            })
        })
    }

    /// Each rank receives the sums of all elements.
    fn all_reduce(&self, group: &Group, region: &Region, flat: &FlatBuffer) -> Result<()> {
        let (end, bucket) = (group.layout.n_elems(), self.options.reduce_bucket_elems);
        self.in_reduce_dtype(group, region, flat, 0..end, &|region, dtype, flat| {
            runs(0..end, bucket).try_for_each(|chunk| {
                Ok(self.mesh.shard.all_reduce(region, dtype, chunk, ready(flat)?)?.precede_launches()?)
            })
        })
    }

    /// Sums gradients in the dtype in which they travel; the elements `summed` come back from it.
    fn in_reduce_dtype(
        &self,
        group: &Group,
        region: &Region,
        flat: &FlatBuffer,
        summed: Range<usize>,
        sum: &dyn Fn(&Region, DType, &FlatBuffer) -> Result<()>,
    ) -> Result<()> {
        let Some(staging) = &self.staging else { return sum(region, DType::F32, flat) };
        let dtype = self.options.reduce_dtype;
        let range = 0..group.layout.n_elems();
        let (full, half) = (Part { flat, range: range.clone() }, Part { flat: &staging.flat, range });
        transfer::convert(&self.device, (&full, DType::F32), (&half, dtype))?;
        sum(&staging.region, dtype, &staging.flat)?;
        let (full, half) = (Part { range: summed.clone(), ..full }, Part { range: summed, ..half });
        Ok(transfer::convert(&self.device, (&half, dtype), (&full, DType::F32))?)
    }

    /// Ends the passes of a step: afterwards each rank has the sums of what it updates.
    pub fn reduce_all(&self) -> Result<()> {
        let mut pass = self.pass();
        let pass = &mut *pass;
        self.finish_backward_in(pass)?;
        for (index, group) in self.groups.iter().enumerate() {
            // Where ranks share one copy of the weights, an owner may write them when all have met.
            group.params.weights().map_or(Ok(()), |weights| settle(&weights))?;
            match &group.grads {
                Grads::None => {}
                Grads::Whole(region) => {
                    pass.groups[index].note_touched(&group.params);
                    group.params.zero_untouched()?;
                    let Some(flat) = group.params.grads() else { continue };
                    match self.options.placements.optimizer {
                        Placement::Sharded => self.reduce_scatter(group, region, &flat)?,
                        Placement::Whole => self.all_reduce(group, region, &flat)?,
                    }
                }
                Grads::Sharded { across, sums } => {
                    // Outside of any unit, or in a step without a backward pass.
                    if pass.groups[index].slot.is_some() || !pass.groups[index].summed {
                        self.reduce(pass, index)?;
                    }
                    if let (Some(region), Some(replica)) = (across, &self.mesh.replica) {
                        let n_elems = region.bytes() / 4;
                        let all = 0..n_elems;
                        replica.all_reduce(region, DType::F32, all, ready(sums)?)?.precede_launches()?;
                    }
                }
            }
        }
        Ok(())
    }

    /// As [`Core::reduce_all`] for a rank that steps by itself: what no backward pass has touched has a zero gradient.
    pub fn complete_all(&self) -> Result<()> {
        self.groups.iter().try_for_each(|group| Ok(group.params.zero_untouched()?))
    }
}

/// The home of a parameter: its group's buffers, with a place for gradients made when the first comes.
pub(super) struct Home {
    pub core: Weak<Core>,
    pub group: usize,
    pub params: Arc<FlatParams>,
}

impl ParamHome for Home {
    fn weight(&self, index: usize) -> TensorResult<Tensor> {
        self.params.weight(index)
    }

    fn grad(&self, index: usize) -> TensorResult<Option<GradSlot>> {
        if self.params.trainable(index)
            && self.params.grads().is_none()
            && let Some(core) = self.core.upgrade()
        {
            core.open_slot(&mut core.pass(), self.group)
                .map_err(|error| oarlock_tensor::Error::Hook(Box::new(error)))?;
        }
        self.params.grad(index)
    }

    fn gradient(&self, index: usize) -> TensorResult<Option<Tensor>> {
        let has_left = |core: Arc<Core>| {
            matches!(core.groups[self.group].grads, Grads::Sharded { .. })
                && core.pass().groups[self.group].summed
        };
        if self.core.upgrade().is_some_and(has_left) {
            return Err(oarlock_tensor::Error::Usage(
                "the gradient of this parameter is sharded: each rank keeps the sums of the elements that it owns"
                    .to_owned(),
            ));
        }
        self.params.gradient(index)
    }

    fn trainable(&self, index: usize) -> bool {
        self.params.trainable(index)
    }

    fn active_tape(&self) -> Option<Tape> {
        self.core.upgrade()?.active.current()
    }
}
