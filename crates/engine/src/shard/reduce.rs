//! How gradients become sums over the ranks. Where collectives proceed in the background, those of a group are begun when its
//! gradients are complete and taken up later ([`ReductionInFlight`]).

use std::ops::Range;
use std::sync::{Arc, Weak};

use oarlock_comm::{Ready, Region};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{
    DType, FlatBuffer, FlatParams, GradSlot, ParamHome, Result as TensorResult, Store, Tape, Tensor,
};

use crate::Result;
use crate::shard::group::Grads;
use crate::shard::in_flight::ReductionInFlight;
use crate::shard::layout::runs;
use crate::shard::order::ready;
use crate::shard::passes::{Core, Work};
use crate::shard::placement::Placement;
use crate::shard::pool::PoolBuffer;
use crate::shard::topology::Axis;

impl Core {
    /// A place for the gradients of a group, which an op is about to write.
    fn open_slot(&self, index: usize) -> Result<()> {
        self.go_on(|schedule, work| {
            work.open_slot(index)?;
            schedule.opened(index);
            Ok(())
        })
    }

    /// As [`Core::reduce_all`] for a rank that steps by itself: what no backward pass has touched has a zero gradient.
    pub fn complete_all(&self) -> Result<()> {
        self.groups.iter().try_for_each(|group| Ok(group.params.zero_untouched()?))
    }
}

impl Work<'_> {
    fn open_slot(&mut self, index: usize) -> Result<()> {
        let (group, buffers) = (&self.core.groups[index], &mut *self.buffers);
        if buffers.groups[index].slot.is_none() && matches!(group.grads, Grads::Sharded { .. }) {
            let slot = buffers.pools[group.mesh].gradients.take(group.layout.n_elems() * 4)?;
            group.params.attach_grads(slot.flat.clone())?;
            buffers.groups[index].slot = Some(slot);
        }
        Ok(())
    }

    /// Begins to sum a group's gradients over the ranks. Of those that are sharded each rank will put what it owns in the place
    /// of its sums, or add it to them.
    pub(super) fn begin_sums(&mut self, index: usize, adds: bool) -> Result<()> {
        self.open_slot(index)?;
        let (group, here) = (&self.core.groups[index], &mut self.buffers.groups[index]);
        here.note_touched(&group.params);
        group.params.zero_untouched()?;
        if let Grads::Whole(region) = &group.grads {
            return group.params.grads().map_or(Ok(()), |flat| self.begin(index, region, &flat, None));
        }
        let Some(slot) = here.slot.take() else { return Ok(()) };
        let store = if adds { Store::Add } else { Store::Overwrite };
        // What ops write from here on is another micro-batch's.
        group.params.detach_grads();
        group.params.clear_grads();
        let (region, flat) = (slot.region.clone(), slot.flat.clone());
        self.begin(index, &region, &flat, Some((slot, store)))
    }

    /// Begins the collectives of a group's gradients, in the dtype in which they travel.
    fn begin(
        &mut self,
        index: usize,
        region: &Region,
        flat: &FlatBuffer,
        slot: Option<(PoolBuffer, Store)>,
    ) -> Result<()> {
        let (core, buffers) = (self.core, &mut *self.buffers);
        let group = &core.groups[index];
        let (shard, pools) = (core.meshes[group.mesh].shard(), &mut buffers.pools[group.mesh]);
        let summed = group.owners.of(shard.rank()).first().cloned().unwrap_or(0..0);
        if group.in_4_bits
            && let Some(exchanges) = &mut pools.exchanges
        {
            let (hop, ready) = exchanges.begin(&group.layout, flat)?;
            let (flat, hop, ready) = (flat.clone(), Some(hop), vec![ready]);
            buffers.in_flight.push_back(ReductionInFlight { flat, slot, staging: None, hop, summed, ready });
            return Ok(());
        }
        let (end, bucket) = (group.layout.n_elems(), core.options.reduce_bucket_elems);
        let staging = match core.staging_bytes {
            0 => None,
            bytes => Some(pools.staging.take(bytes)?),
        };
        let (sent, elements, dtype) = match &staging {
            None => (region, flat, DType::F32),
            Some(staging) => {
                let dtype = core.options.reduces_in();
                let (full, half) =
                    (Part { flat, range: 0..end }, Part { flat: &staging.flat, range: 0..end });
                transfer::convert(&core.device, (&full, DType::F32), (&half, dtype))?;
                (&staging.region, &staging.flat, dtype)
            }
        };
        let everywhere = slot.is_none() && core.options.placements.optimizer == Placement::Whole;
        let ready: Vec<Ready> = match everywhere {
            true => runs(0..end, bucket)
                .map(|chunk| Ok(shard.all_reduce(sent, dtype, chunk, ready(elements)?)?))
                .collect::<Result<_>>()?,
            false => (group.buckets.iter())
                .map(|bucket| Ok(shard.reduce_scatter(sent, dtype, bucket, ready(elements)?)?))
                .collect::<Result<_>>()?,
        };
        let summed = match everywhere {
            true => 0..end,
            false => summed,
        };
        let flat = flat.clone();
        buffers.in_flight.push_back(ReductionInFlight { flat, slot, staging, hop: None, summed, ready });
        Ok(())
    }

    /// Takes up the oldest reduction, which is that of this group: its sums are where they belong, and its buffers are free.
    pub(super) fn finish_sums(&mut self, index: usize) -> Result<()> {
        let (core, buffers) = (self.core, &mut *self.buffers);
        let Some(reduction) = buffers.in_flight.pop_front() else { return Ok(()) };
        let ReductionInFlight { flat, slot, staging, hop, summed, ready } = reduction;
        ready.into_iter().try_for_each(Ready::precede_launches)?;
        let group = &core.groups[index];
        let pools = &mut buffers.pools[group.mesh];
        if let (Some(hop), Some(exchanges)) = (hop, &mut pools.exchanges) {
            exchanges.finish(&group.layout, hop, &flat)?;
        }
        if let Some(staging) = staging {
            let full = Part { flat: &flat, range: summed.clone() };
            let half = Part { flat: &staging.flat, range: summed.clone() };
            transfer::convert(&core.device, (&half, core.options.reduces_in()), (&full, DType::F32))?;
            pools.staging.give_back(staging)?;
        }
        if let (Some((slot, store)), Grads::Sharded { sums, .. }) = (slot, &group.grads) {
            let to = Part { flat: sums, range: 0..summed.len() };
            transfer::accumulate(&core.device, &Part { flat: &flat, range: summed }, &to, store)?;
            drop(flat);
            pools.gradients.give_back(slot)?;
        }
        Ok(())
    }

    /// Begins to add up a group's sums across groups of ranks.
    pub(super) fn begin_sums_across(&mut self, index: usize) -> Result<()> {
        let (core, group) = (self.core, &self.core.groups[index]);
        if let (Some(replica), Grads::Sharded { across: Some(region), sums }) =
            (core.meshes[group.mesh].get(Axis::Replicate), &group.grads)
        {
            let all = 0..region.bytes() / 4;
            self.buffers.across.push_back(replica.all_reduce(region, DType::F32, all, ready(sums)?)?);
        }
        Ok(())
    }

    /// Waits for the oldest of them.
    pub(super) fn finish_sums_across(&mut self) -> Result<()> {
        Ok(self.buffers.across.pop_front().map_or(Ok(()), Ready::precede_launches)?)
    }
}

/// The home of the parameters of a group: its buffers, with a place for gradients made when the first comes.
pub(super) struct Home {
    pub core: Weak<Core>,
    pub group: usize,
    pub params: Arc<FlatParams>,
}

impl ParamHome for Home {
    fn weight(&self, index: usize) -> TensorResult<Tensor> {
        if let Some(core) = self.core.upgrade() {
            core.await_weights(self.group).map_err(|error| oarlock_tensor::Error::Hook(Box::new(error)))?;
        }
        self.params.weight(index)
    }

    fn grad(&self, index: usize) -> TensorResult<Option<GradSlot>> {
        if self.params.trainable(index)
            && self.params.grads().is_none()
            && let Some(core) = self.core.upgrade()
        {
            core.open_slot(self.group).map_err(|error| oarlock_tensor::Error::Hook(Box::new(error)))?;
        }
        if let Some(core) = self.core.upgrade()
            && core.plan.reduces_early()
            && core.pass().schedule.has_left(self.group)
        {
            return Err(oarlock_tensor::Error::Usage(format!(
                "the parameter {} gets a gradient after those of its unit have left to be summed: it is used outside of its \
                 unit, or a backward pass follows the one that was said to be the last of the step; end the step before, \
                 or set overlap_comm (`ShardingConfig::overlap`) to false",
                core.groups[self.group].layout.params()[index].name
            )));
        }
        self.params.grad(index)
    }

    fn gradient(&self, index: usize) -> TensorResult<Option<Tensor>> {
        let is_summed = |core: Arc<Core>| core.pass().schedule.is_summed(self.group);
        if self.core.upgrade().is_some_and(is_summed) {
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

    fn place(&self, index: usize) -> Option<Range<usize>> {
        self.params.place(index)
    }
}
