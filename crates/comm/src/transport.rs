//! What carries the bytes: the trait behind a [`Communicator`](crate::Communicator).

use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use oarlock_tensor::DType;

use crate::call::Operation;
use crate::error::Result;
use crate::ledger::RankStatus;
use crate::ownership::Ownership;
use crate::ready::Ready;
use crate::region::{Region, Sharing};

/// One collective as this rank asks for it: everything that must agree between ranks, and where the caller stands.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The how-manieth collective of the communicator, from 1.
    pub sequence: u64,
    /// The operation.
    pub operation: Operation,
    /// Elements; bytes where there is no dtype.
    pub elements: usize,
    /// The element type, where elements have one.
    pub dtype: Option<DType>,
    /// The region, or what the call is about.
    pub subject: &'a str,
    /// A digest of the further arguments: ranges, root, owners.
    pub detail: u64,
    /// The caller.
    pub site: &'static Location<'static>,
}

/// An engine that carries bytes between ranks: shared memory, a world of one, NCCL, MPI.
///
/// The communicator in front of it has checked the arguments (ranges inside regions, one list of ranges a rank, dtypes
/// that can be added) and makes one call at a time. A transport compares the requests of all ranks and fails on every
/// rank when they differ. What it does on a stream of its own it orders after `after` and before the `Ready` it returns;
/// on return the arguments may be dropped, the regions may not be touched until the `Ready` was waited for.
pub trait Transport: Send + Sync {
    /// This rank in the group.
    fn rank(&self) -> usize;
    /// The ranks of the group.
    fn world_size(&self) -> usize;
    /// Whether all ranks of the group see one copy of a replicated region.
    fn shares_memory(&self) -> bool;

    /// This rank's place among those of the group that share its cores, and how many they are.
    fn sharing_cores(&self) -> (usize, usize) {
        (self.rank(), self.world_size())
    }

    /// The machine of each rank of the group, numbered as they come.
    fn machines(&self) -> Vec<usize> {
        vec![0; self.world_size()]
    }

    /// Reserves a region, zeroed.
    ///
    /// # Errors
    /// As every method: when a rank failed, differs or does not come, or the system refuses.
    fn allocate(&self, request: &Request, sharing: Sharing) -> Result<Region>;
    /// Waits for all ranks.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn barrier(&self, request: &Request) -> Result<()>;
    /// Sums `range` over ranks in the fixed tree; all ranks hold the sum.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn all_reduce(
        &self,
        request: &Request,
        region: &Region,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready>;
    /// Sums over ranks in the fixed tree; each owner holds the sums of its ranges.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn reduce_scatter(
        &self,
        request: &Request,
        region: &Region,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready>;
    /// Brings each owner's ranges to all ranks.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn all_gather(
        &self,
        request: &Request,
        region: &Region,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready>;
    /// Brings `range` of the rank `root` to all ranks.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn broadcast(
        &self,
        request: &Request,
        region: &Region,
        range: Range<usize>,
        root: usize,
        after: Ready,
    ) -> Result<Ready>;
    /// The bytes of each rank, in the order of ranks. Lengths may differ.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn all_gather_bytes(&self, request: &Request, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// A transport for `group`, which holds this rank; the other ranks are in other groups of the same division.
    ///
    /// # Errors
    /// See [`allocate`](Transport::allocate).
    fn split(&self, request: &Request, group: &[usize]) -> Result<Arc<dyn Transport>>;

    /// How long to wait for a rank that lives but does not come.
    fn set_timeout(&self, limit: Duration);
    /// Says what this rank is doing, for the reports of others.
    fn set_phase(&self, note: &str);
    /// What each rank was last doing.
    fn statuses(&self) -> Vec<RankStatus>;
    /// Tells all ranks that this one failed; the first failure of all is the one that everybody reports.
    fn abort(&self, cause: &str);
    /// Leaves in good order; a rank that is dropped without counts as failed for those that still wait for it.
    fn finish(&self);
}
