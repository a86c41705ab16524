//! A rank finds its place: from the environment of a launcher, or alone.

use oarlock_comm::{Communicator, cores_for_rank, shm};

use crate::error::Result;

/// The communicator that the environment describes: ranks in shared memory, or a world of one.
///
/// # Errors
/// When the environment names a group that cannot be joined.
pub fn join() -> Result<Communicator> {
    Ok(shm::from_env()?.unwrap_or_else(Communicator::solo))
}

/// The threads of a rank: its share of the cores that this process may use.
pub fn default_threads(comm: &Communicator) -> usize {
    cores_for_rank(comm.rank(), comm.world_size()).len().max(1)
}
