//! Pooled buffers that a unit's weights are gathered into, or its gradients leave from.

use oarlock_comm::{Communicator, Ready, Region, Sharing};
use oarlock_tensor::{Device, FlatBuffer};

use crate::shard::order::settle;
use crate::{Error, Result};

/// The elements of a region, where launches use them. A rank that is alone on a GPU keeps them there, since no collective
/// looks into its regions.
pub fn flat_of(region: &Region, is_alone: bool, device: &Device, what: &'static str) -> Result<FlatBuffer> {
    match is_alone && device.is_cuda() {
        true => Ok(FlatBuffer::pooled(device, region.bytes(), what)?),
        false => Ok(region.flat()),
    }
}

/// A buffer that is lent out.
#[derive(Clone, Debug)]
pub struct PoolBuffer {
    /// What collectives work on.
    pub region: Region,
    /// The same memory, as ops see it.
    pub flat: FlatBuffer,
}

/// A group's weights in a buffer, or in flight.
pub struct Gathered {
    pub buffer: PoolBuffer,
    /// What comes, where they come in 8 bits and are not decoded yet.
    pub encoded: Option<PoolBuffer>,
    /// When they are there, until somebody has waited for them.
    pub ready: Option<Ready>,
    /// Whether they come from the secondary group.
    pub secondary: bool,
}

/// A pool of buffers. All ranks take and give back in the same order, so that all find the same.
#[derive(Debug)]
pub struct BufferPool {
    comm: Communicator,
    device: Device,
    sharing: Sharing,
    what: &'static str,
    free: Vec<(PoolBuffer, u64)>,
    n_allocated: usize,
    bytes: usize,
    /// Meetings of the ranks so far, which count where they see each other's buffers.
    meetings: u64,
}

impl BufferPool {
    /// An empty pool.
    pub fn new(comm: &Communicator, device: &Device, sharing: Sharing, what: &'static str) -> BufferPool {
        BufferPool {
            comm: comm.clone(),
            device: device.clone(),
            sharing,
            what,
            free: Vec::new(),
            n_allocated: 0,
            bytes: 0,
            meetings: 0,
        }
    }

    /// The group of ranks that see these buffers.
    pub fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// All bytes of the pool.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A buffer of at least `bytes` bytes that no rank uses any more; the smallest that there is, but none of twice the
    /// size, which something large will want.
    ///
    /// # Errors
    /// No memory, or a rank failed.
    pub fn take(&mut self, bytes: usize) -> Result<PoolBuffer> {
        let fitting = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, (buffer, _))| (bytes..=2 * bytes).contains(&buffer.region.bytes()));
        let Some((index, _)) = fitting.min_by_key(|(_, (buffer, since))| (buffer.region.bytes(), *since))
        else {
            let name = format!("{} {}", self.what, self.n_allocated);
            let region = self.comm.allocate(&name, bytes, self.sharing)?;
            (self.n_allocated, self.bytes) = (self.n_allocated + 1, self.bytes + bytes);
            let flat = flat_of(&region, self.comm.world_size() == 1, &self.device, self.what)?;
            return Ok(PoolBuffer { flat, region });
        };
        let (buffer, given_back) = self.free.remove(index);
        let is_seen = self.sharing == Sharing::Replicated && self.comm.shares_memory();
        if is_seen && given_back == self.meetings {
            // Another rank may still read what it was gathered for.
            self.comm.barrier()?;
            self.met();
        }
        Ok(buffer)
    }

    /// The ranks have met: whatever was given back before is free on all of them.
    pub fn met(&mut self) {
        self.meetings += 1;
    }

    /// Ends the use of a buffer.
    ///
    /// # Errors
    /// When somebody still holds a tensor in it.
    pub fn give_back(&mut self, buffer: PoolBuffer) -> Result<()> {
        // Other ranks may write there next, or look there.
        settle(&buffer.flat)?;
        drop(buffer.flat.write().map_err(|_| {
            Error::Usage(format!(
                "a tensor of {} is held after its unit was left: drop it inside of the unit",
                self.what
            ))
        })?);
        self.free.push((buffer, self.meetings));
        Ok(())
    }
}
