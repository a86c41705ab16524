//! The trait of what carries the bytes, behind a [`Communicator`](crate::Communicator).

use std::sync::Arc;

use crate::call::Request;
use crate::collective::Collective;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::patience::Patience;
use crate::ready::Ready;
use crate::region::{Region, Sharing};

/// An engine that carries bytes between ranks: shared memory, MPI, Gloo, or a world of one.
///
/// The communicator in front of it has checked the arguments and makes one call at a time. A transport compares the requests of all ranks and fails on every
/// rank when they differ. It begins after `after` is over. The caller may touch the regions again once it has waited for the
/// `Ready` that is returned. Transports of host memory work on the calling thread and return [`Ready::now`]; a progress
/// thread in front of them, and NCCL with a stream of its own, return a pending one.
pub trait Transport: Send + Sync {
    /// The number of this rank in the group.
    fn rank(&self) -> usize;
    /// The number of ranks in the group.
    fn world_size(&self) -> usize;
    /// Whether all ranks of the group see one copy of a replicated region.
    fn shares_memory(&self) -> bool;

    /// Whether its collectives take regions in memory of a GPU.
    fn reaches_gpus(&self) -> bool {
        false
    }

    /// Whether collectives on regions proceed while their caller does something else, until it waits for their [`Ready`].
    fn works_in_background(&self) -> bool {
        false
    }

    /// Whether it notes the times of its collectives itself, as they are not over when their calls return.
    fn observes(&self) -> bool {
        false
    }

    /// What carries the bytes, in words.
    fn describe(&self) -> String {
        "shared memory".to_string()
    }

    /// This rank's index among those of the group that share its cores, and their number.
    fn sharing_cores(&self) -> (usize, usize) {
        (self.rank(), self.world_size())
    }

    /// The machine of each rank of the group, numbered in order of appearance.
    fn machines(&self) -> Vec<usize> {
        vec![0; self.world_size()]
    }

    /// Reserves a region, zeroed.
    ///
    /// # Errors
    /// As every method: when a rank failed, called something else or did not enter in time, or the system refuses.
    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region>;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn barrier(&self, request: &Request) -> Result<()>;
    /// Runs a collective on regions.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn run(&self, request: &Request, collective: &Collective, after: Ready) -> Result<Ready>;
    /// The bytes of each rank, in the order of ranks. Lengths may differ.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// A transport for `group`, which holds this rank; the other ranks are in other groups of the same split.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>>;

    /// How long to wait for a rank that is alive but does not enter a collective.
    fn patience(&self) -> &Patience;
    /// Says what this rank is doing, for the error messages of others.
    fn set_phase(&self, note: &str);
    /// What each rank was last doing.
    fn statuses(&self) -> Vec<RankStatus>;
    /// What ended the run, if anything has: a rank failed, or its process is gone. Waits for nobody.
    fn failure(&self) -> Option<Error> {
        None
    }
    /// Tells all ranks that this one failed; every rank reports the first failure of the run.
    fn abort(&self, cause: &str);
    /// Leaves the group; a rank that is dropped without this call counts as failed for those that still wait for it.
    fn finish(&self);
}
