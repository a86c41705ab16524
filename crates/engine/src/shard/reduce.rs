//! How gradients become sums over the ranks: unit by unit during the backward pass where they are sharded, all before the
//! step where they are whole. Where collectives proceed in the background, a group's is begun when its gradients are complete and
//! taken up later ([`Leaving`]).

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
use crate::shard::layout::runs;
use crate::shard::leaving::Leaving;
use crate::shard::order::{ready, settle};
use crate::shard::passes::{Core, PassState};
use crate::shard::placement::Placement;
use crate::shard::pool::PoolBuffer;

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

    /// Begins to sum a group's gradients over the ranks; each will add what it owns to its sums.
    pub(super) fn reduce(&self, pass: &mut PassState, index: usize) -> Result<()> {
        let group = &self.groups[index];
        self.open_slot(pass, index)?;
        pass.groups[index].note_touched(&group.params);
        group.params.zero_untouched()?;
        let here = &mut pass.groups[index];
        let Some(slot) = here.slot.take() else { return Ok(()) };
        let store = if here.summed { Store::Add } else { Store::Overwrite };
        here.summed = true;
        // What ops write from here on is another micro-batch's.
        group.params.detach_grads();
        group.params.clear_grads();
        let (region, flat) = (slot.region.clone(), slot.flat.clone());
        self.begin(pass, index, &region, &flat, Some((slot, store)))
    }

    /// As [`Core::reduce`] for gradients that stay where they are.
    fn reduce_whole(&self, pass: &mut PassState, index: usize) -> Result<()> {
        let group = &self.groups[index];
        let Grads::Whole(region) = &group.grads else { return Ok(()) };
        pass.groups[index].note_touched(&group.params);
        group.params.zero_untouched()?;
        match group.params.grads() {
            Some(flat) => self.begin(pass, index, region, &flat, None),
            None => Ok(()),
        }
    }

    /// Begins the collectives of a group's gradients, in the dtype in which they travel.
    fn begin(
        &self,
        pass: &mut PassState,
        index: usize,
        region: &Region,
        flat: &FlatBuffer,
        slot: Option<(PoolBuffer, Store)>,
    ) -> Result<()> {
        let (group, shard) = (&self.groups[index], &self.mesh.shard);
        let summed = group.owners.of(shard.rank()).first().cloned().unwrap_or(0..0);
        if group.in_4_bits
            && let Some(exchanges) = &mut pass.exchanges
        {
            let (hop, ready) = exchanges.begin(&group.layout, flat)?;
            let hop = Some(hop);
            let (flat, ready, left) = (flat.clone(), vec![ready], pass.n_left);
            pass.leaving.push_back(Leaving { index, flat, slot, staging: None, hop, summed, ready, left });
            return if self.overlaps { Ok(()) } else { self.finish_leaving(pass) };
        }
        let (end, bucket) = (group.layout.n_elems(), self.options.reduce_bucket_elems);
        let staging = match self.staging_bytes {
            0 => None,
            bytes => Some(pass.staging.take(bytes)?),
        };
        let (sent, elements, dtype) = match &staging {
            None => (region, flat, DType::F32),
            Some(staging) => {
                let dtype = self.options.reduces_in();
                let (full, half) =
                    (Part { flat, range: 0..end }, Part { flat: &staging.flat, range: 0..end });
                transfer::convert(&self.device, (&full, DType::F32), (&half, dtype))?;
                (&staging.region, &staging.flat, dtype)
            }
        };
        let everywhere = slot.is_none() && self.options.placements.optimizer == Placement::Whole;
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
        let (flat, left) = (flat.clone(), pass.n_left);
        pass.leaving.push_back(Leaving { index, flat, slot, staging, hop: None, summed, ready, left });
        if self.overlaps { Ok(()) } else { self.finish_leaving(pass) }
    }

    /// Takes up reductions in whose buffers the next unit's gradients leave: all but those of the `kept` units left last.
    /// With one that is kept, at most two units have buffers at a time.
    pub(super) fn finish_earlier(&self, pass: &mut PassState, kept: u64) -> Result<()> {
        let is_earlier = |leaving: &Leaving| leaving.left + kept <= pass.n_left && leaving.has_buffers();
        match pass.leaving.iter().rposition(is_earlier) {
            Some(last) => (0..=last).try_for_each(|_| self.finish_first(pass)),
            None => Ok(()),
        }
    }

    /// Takes up all reductions.
    pub(super) fn finish_leaving(&self, pass: &mut PassState) -> Result<()> {
        while !pass.leaving.is_empty() {
            self.finish_first(pass)?;
        }
        Ok(())
    }

    /// Takes up the oldest reduction: its sums are where they belong, and its buffers are free.
    fn finish_first(&self, pass: &mut PassState) -> Result<()> {
        let Some(leaving) = pass.leaving.pop_front() else { return Ok(()) };
        let Leaving { index, flat, slot, staging, hop, summed, ready, left: _ } = leaving;
        ready.into_iter().try_for_each(Ready::precede_launches)?;
        if let (Some(hop), Some(exchanges)) = (hop, &mut pass.exchanges) {
            exchanges.finish(&self.groups[index].layout, hop, &flat)?;
        }
        if let Some(staging) = staging {
            let full = Part { flat: &flat, range: summed.clone() };
            let half = Part { flat: &staging.flat, range: summed.clone() };
            transfer::convert(&self.device, (&half, self.options.reduces_in()), (&full, DType::F32))?;
            pass.staging.give_back(staging)?;
        }
        if let (Some((slot, store)), Grads::Sharded { sums, .. }) = (slot, &self.groups[index].grads) {
            let to = Part { flat: sums, range: 0..summed.len() };
            transfer::accumulate(&self.device, &Part { flat: &flat, range: summed }, &to, store)?;
            drop(flat);
            pass.slots.give_back(slot)?;
        }
        Ok(())
    }

    /// Has whole gradients leave while the backward passes run that are recorded now: no other adds to them before the step.
    pub fn expect_step(&self) {
        if self.reduces_early() {
            self.pass().early.is_expected = true;
        }
    }

    /// After the backward pass of a unit: begins to sum the gradients that are complete.
    pub(super) fn reduce_early(&self, pass: &mut PassState, unit: usize) -> Result<()> {
        if !pass.early.is_expected {
            return Ok(());
        }
        for &group in &self.units[unit].completes {
            pass.early.complete(group);
        }
        while let Some(index) = pass.early.next_complete() {
            self.reduce_whole(pass, index)?;
        }
        Ok(())
    }

    /// Ends the passes of a step: afterwards each rank has the sums of what it updates.
    pub fn reduce_all(&self) -> Result<()> {
        let mut pass = self.pass();
        let pass = &mut *pass;
        self.finish_backward_in(pass)?;
        for group in &self.groups {
            // Where ranks share one copy of the weights, an owner may write them when all have met.
            group.params.weights().map_or(Ok(()), |weights| settle(&weights))?;
        }
        while let Some(index) = pass.early.next() {
            match &self.groups[index].grads {
                Grads::None => {}
                Grads::Whole(_) => self.reduce_whole(pass, index)?,
                // Outside of any unit, or in a step without a backward pass.
                Grads::Sharded { .. } if pass.groups[index].slot.is_some() || !pass.groups[index].summed => {
                    self.reduce(pass, index)?;
                }
                Grads::Sharded { .. } => {}
            }
        }
        self.finish_leaving(pass)?;
        let Some(replica) = &self.mesh.replica else { return Ok(()) };
        let mut summed = Vec::new();
        for group in &self.groups {
            if let Grads::Sharded { across: Some(region), sums } = &group.grads {
                let all = 0..region.bytes() / 4;
                summed.push(replica.all_reduce(region, DType::F32, all, ready(sums)?)?);
            }
        }
        Ok(summed.into_iter().try_for_each(Ready::precede_launches)?)
    }

    /// As [`Core::reduce_all`] for a rank that steps by itself: what no backward pass has touched has a zero gradient.
    pub fn complete_all(&self) -> Result<()> {
        self.groups.iter().try_for_each(|group| Ok(group.params.zero_untouched()?))
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
            core.open_slot(&mut core.pass(), self.group)
                .map_err(|error| oarlock_tensor::Error::Hook(Box::new(error)))?;
        }
        if let Some(core) = self.core.upgrade()
            && core.reduces_early()
            && core.pass().early.has_left(self.group)
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
        let has_left = |core: Arc<Core>| {
            let pass = core.pass();
            match core.groups[self.group].grads {
                Grads::Sharded { .. } => pass.groups[self.group].summed,
                // Where the ranks' own gradients were, their sums come to be.
                _ => !pass.leaving.is_empty() && pass.early.has_left(self.group),
            }
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

    fn place(&self, index: usize) -> Option<Range<usize>> {
        self.params.place(index)
    }
}
