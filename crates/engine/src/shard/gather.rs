//! Weights come and go: a unit's are gathered before its pass, those of the next ones begin to come, and all are released
//! when their unit is left.

use oarlock_comm::Ownership;
use oarlock_tensor::FlatBuffer;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;

use crate::Result;
use crate::shard::column::Store;
use crate::shard::group::{Group, Weights};
use crate::shard::order::ready;
use crate::shard::passes::{Core, PassState};
use crate::shard::pool::{BufferPool, Gathered};
use crate::shard::quantized;

impl PassState {
    /// The buffers that collectives of the secondary group, or of all, gather into.
    fn pool_of(&mut self, secondary: bool) -> &mut BufferPool {
        match &mut self.secondary_pool {
            Some(pool) if secondary => pool,
            _ => &mut self.pool,
        }
    }
}

impl Core {
    /// Gathers the weights of a unit and waits for them, and begins to gather those of the units that come next.
    pub(super) fn enter(&self, pass: &mut PassState, unit: usize, forward: bool) -> Result<()> {
        if !forward {
            self.finish_earlier(pass, 1)?;
        }
        self.hold(pass, unit, forward)?;
        for &group in &self.units[unit].groups {
            self.wait_gather(pass, group)?;
        }
        let gathered = |group: usize| match self.groups[group].weights {
            Weights::Gathered => self.groups[group].layout.n_elems(),
            Weights::Resident(_) => 0,
        };
        let mut ahead = 0;
        let mut live: usize =
            (0..self.groups.len()).filter(|&g| pass.groups[g].gathered.is_some()).map(gathered).sum();
        let next: Vec<usize> = match forward {
            true => (unit + 1..self.units.len()).collect(),
            false => (0..unit).rev().collect(),
        };
        for unit in next {
            let more: usize = self.units[unit]
                .groups
                .iter()
                .filter(|&&g| pass.groups[g].gathered.is_none())
                .map(|&g| gathered(g))
                .sum();
            live += more;
            if ahead >= self.options.prefetch_elems || live > self.options.max_live_elems {
                break;
            }
            ahead += more;
            self.hold(pass, unit, forward)?;
        }
        Ok(())
    }

    fn hold(&self, pass: &mut PassState, unit: usize, forward: bool) -> Result<()> {
        if std::mem::replace(&mut pass.holds[unit], true) {
            return Ok(());
        }
        for &group in &self.units[unit].groups {
            pass.groups[group].n_holds += 1;
            self.gather(pass, group, forward)?;
        }
        Ok(())
    }

    pub(super) fn release(&self, pass: &mut PassState, unit: usize) -> Result<()> {
        if !std::mem::replace(&mut pass.holds[unit], false) {
            return Ok(());
        }
        for &group in &self.units[unit].groups {
            pass.groups[group].n_holds -= 1;
            if pass.groups[group].n_holds == 0 {
                self.release_group(pass, group)?;
            }
        }
        Ok(())
    }

    /// Begins to bring a group's weights together.
    fn gather(&self, pass: &mut PassState, index: usize, forward: bool) -> Result<()> {
        let group = &self.groups[index];
        if !matches!(group.weights, Weights::Gathered) || pass.groups[index].gathered.is_some() {
            return Ok(());
        }
        let dtype = group.params.dtype();
        let bytes = group.layout.n_elems() * dtype.size();
        let second = if forward { None } else { pass.groups[index].secondary.clone() };
        let secondary = second.is_some();
        let pool = pass.pool_of(secondary);
        let comm = pool.comm().clone();
        let (buffer, encoded) = match group.in_8_bits {
            true => {
                let encoded = pool.take(quantized::encoded_bytes(&group.layout, comm.world_size())?)?;
                (pass.decoded.take(bytes)?, Some(encoded))
            }
            false => (pool.take(bytes)?, None),
        };
        let owners = match secondary {
            true => self.owners_of(group, comm.world_size())?,
            false => group.owners.clone(),
        };
        let owned = owners.of(comm.rank()).first().cloned().unwrap_or(0..0);
        let to = Part { flat: &buffer.flat, range: owned.clone() };
        match (&second, &group.state.weights.store) {
            (Some(flat), _) => {
                transfer::copy(&self.device, dtype, &Part { flat, range: 0..owned.len() }, &to)?;
            }
            (None, Store::Memory(flat)) => {
                transfer::copy(&self.device, dtype, &Part { flat, range: 0..owned.len() }, &to)?;
            }
            (None, store @ Store::File { .. }) => {
                let range = owned.start * dtype.size()..owned.end * dtype.size();
                transfer::write_with::<u8, _>(&buffer.flat, range, |bytes| store.read_bytes(bytes, 0))??;
            }
        }
        let ready = match &encoded {
            Some(encoded) => {
                quantized::gather(&self.device, &group.layout, &comm, (&buffer.flat, dtype), encoded)?
            }
            None => comm.all_gather(&buffer.region, dtype, &owners, ready(&buffer.flat)?)?,
        };
        pass.pool_of(secondary).met();
        pass.groups[index].gathered = Some(Gathered { buffer, encoded, ready: Some(ready), secondary });
        if self.options.overlap { Ok(()) } else { self.wait_gather(pass, index) }
    }

    /// Waits until a group's weights are there, and shows them to the ops.
    fn wait_gather(&self, pass: &mut PassState, index: usize) -> Result<()> {
        let (group, here) = (&self.groups[index], &mut pass.groups[index]);
        let Some(Gathered { buffer, encoded, ready, secondary }) = &mut here.gathered else { return Ok(()) };
        let Some(ready) = ready.take() else { return Ok(()) };
        ready.precede_launches()?;
        let flat = buffer.flat.clone();
        if let Some(encoded) = encoded.take() {
            let pool = match &mut pass.secondary_pool {
                Some(pool) if *secondary => pool,
                _ => &mut pass.pool,
            };
            let (n, dtype) = (pool.comm().world_size(), group.params.dtype());
            quantized::decode(&self.device, &group.layout, n, &encoded.flat, (&flat, dtype))?;
            pool.give_back(encoded)?;
        }
        group.params.attach_weights(flat)?;
        Ok(())
    }

    fn release_group(&self, pass: &mut PassState, index: usize) -> Result<()> {
        let Some(Gathered { buffer, encoded, ready, secondary }) = pass.groups[index].gathered.take() else {
            return Ok(());
        };
        if let Some(ready) = ready {
            ready.precede_launches()?;
        }
        let group = &self.groups[index];
        group.params.detach_weights();
        encoded.map_or(Ok(()), |encoded| pass.pool_of(secondary).give_back(encoded))?;
        match group.in_8_bits {
            true => pass.decoded.give_back(buffer),
            false => pass.pool_of(secondary).give_back(buffer),
        }
    }

    /// Keeps this rank's part of the second copy of what is gathered pass.
    pub(super) fn keep_second_copy(&self, pass: &mut PassState, index: usize) -> Result<()> {
        let (group, Some(comm)) = (&self.groups[index], &self.mesh.secondary) else { return Ok(()) };
        let here = &mut pass.groups[index];
        let (Some(Gathered { buffer, .. }), None) = (&here.gathered, &here.secondary) else { return Ok(()) };
        let (rank, n) = (comm.rank(), comm.world_size());
        let part = group.layout.owned(rank, n);
        let dtype = group.params.dtype();
        let kept = FlatBuffer::pooled(&self.device, part.len() * dtype.size(), "secondary parameters")?;
        let to = Part { flat: &kept, range: 0..part.len() };
        transfer::copy(&self.device, dtype, &Part { flat: &buffer.flat, range: part }, &to)?;
        here.secondary = Some(kept);
        Ok(())
    }

    fn owners_of(&self, group: &Group, n: usize) -> Result<Ownership> {
        Ok(Ownership::new((0..n).map(|rank| vec![group.layout.owned(rank, n)]).collect())?)
    }
}
