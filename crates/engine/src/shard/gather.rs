//! Weights come and go: how those of a group are gathered, when they are there, and what remains of them.

use oarlock_comm::Ownership;
use oarlock_tensor::FlatBuffer;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;

use crate::Result;
use crate::shard::column::Store;
use crate::shard::compressed::quantized;
use crate::shard::group::Group;
use crate::shard::order::ready;
use crate::shard::passes::Work;
use crate::shard::pool::Gathered;
use crate::shard::topology::Axis;

impl Work<'_> {
    /// Begins to bring a group's weights together.
    pub(super) fn begin_gather(&mut self, index: usize, second_copy: bool) -> Result<()> {
        let (core, buffers) = (self.core, &mut *self.buffers);
        let group = &core.groups[index];
        let dtype = group.params.dtype();
        let bytes = group.layout.n_elems() * dtype.size();
        let second = buffers.groups[index].secondary.clone().filter(|_| second_copy);
        let secondary = second.is_some();
        let pools = &mut buffers.pools[group.mesh];
        let pool = pools.weights(secondary);
        let comm = pool.comm().clone();
        let (buffer, encoded) = match group.in_8_bits {
            true => {
                let encoded = pool.take(quantized::encoded_bytes(&group.layout, comm.world_size())?)?;
                (pools.decoded.take(bytes)?, Some(encoded))
            }
            false => (pool.take(bytes)?, None),
        };
        let owners = match secondary {
            true => owners_of(group, comm.world_size())?,
            false => group.owners.clone(),
        };
        let owned = owners.of(comm.rank()).first().cloned().unwrap_or(0..0);
        let to = Part { flat: &buffer.flat, range: owned.clone() };
        match (&second, &group.state.weights.store) {
            (Some(flat), _) => {
                transfer::copy(&core.device, dtype, &Part { flat, range: 0..owned.len() }, &to)?;
            }
            (None, Store::Memory(flat)) => {
                transfer::copy(&core.device, dtype, &Part { flat, range: 0..owned.len() }, &to)?;
            }
            (None, store @ Store::File { .. }) => {
                let range = owned.start * dtype.size()..owned.end * dtype.size();
                transfer::write_with::<u8, _>(&buffer.flat, range, |bytes| store.read_bytes(bytes, 0))??;
            }
        }
        let ready = match &encoded {
            Some(encoded) => {
                quantized::gather(&core.device, &group.layout, &comm, (&buffer.flat, dtype), encoded)?
            }
            None => comm.all_gather(&buffer.region, dtype, &owners, ready(&buffer.flat)?)?,
        };
        pools.weights(secondary).met();
        buffers.groups[index].gathered = Some(Gathered { buffer, encoded, ready: Some(ready), secondary });
        if core.options.overlap { Ok(()) } else { self.finish_gather(index) }
    }

    /// Waits until a group's weights are there, and shows them to the ops.
    pub(super) fn finish_gather(&mut self, index: usize) -> Result<()> {
        let (core, buffers) = (self.core, &mut *self.buffers);
        let (group, here) = (&core.groups[index], &mut buffers.groups[index]);
        let Some(Gathered { buffer, encoded, ready, secondary }) = &mut here.gathered else { return Ok(()) };
        let Some(ready) = ready.take() else { return Ok(()) };
        ready.precede_launches()?;
        let flat = buffer.flat.clone();
        if let Some(encoded) = encoded.take() {
            let pool = buffers.pools[group.mesh].weights(*secondary);
            let (n, dtype) = (pool.comm().world_size(), group.params.dtype());
            quantized::decode(&core.device, &group.layout, n, &encoded.flat, (&flat, dtype))?;
            pool.give_back(encoded)?;
        }
        group.params.attach_weights(flat)?;
        Ok(())
    }

    /// Gives the buffer of gathered weights back.
    pub(super) fn detach_weights(&mut self, index: usize) -> Result<()> {
        let (core, buffers) = (self.core, &mut *self.buffers);
        let Some(Gathered { buffer, encoded, ready, secondary }) = buffers.groups[index].gathered.take()
        else {
            return Ok(());
        };
        if let Some(ready) = ready {
            ready.precede_launches()?;
        }
        let group = &core.groups[index];
        group.params.detach_weights();
        let pools = &mut buffers.pools[group.mesh];
        encoded.map_or(Ok(()), |encoded| pools.weights(secondary).give_back(encoded))?;
        match group.in_8_bits {
            true => pools.decoded.give_back(buffer),
            false => pools.weights(secondary).give_back(buffer),
        }
    }

    /// Keeps this rank's part of the second copy of what is gathered.
    pub(super) fn copy_own_part(&mut self, index: usize) -> Result<()> {
        let (core, here) = (self.core, &mut self.buffers.groups[index]);
        let group = &core.groups[index];
        let Some(comm) = core.meshes[group.mesh].get(Axis::Secondary) else { return Ok(()) };
        let Some(Gathered { buffer, .. }) = &here.gathered else { return Ok(()) };
        let (rank, n) = (comm.rank(), comm.world_size());
        let part = group.layout.owned(rank, n);
        let dtype = group.params.dtype();
        let kept = FlatBuffer::pooled(&core.device, part.len() * dtype.size(), "secondary parameters")?;
        let to = Part { flat: &kept, range: 0..part.len() };
        transfer::copy(&core.device, dtype, &Part { flat: &buffer.flat, range: part }, &to)?;
        here.secondary = Some(kept);
        Ok(())
    }
}

fn owners_of(group: &Group, n: usize) -> Result<Ownership> {
    Ok(Ownership::new((0..n).map(|rank| vec![group.layout.owned(rank, n)]).collect())?)
}
