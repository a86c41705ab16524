//! The collectives on regions: what they check before bytes move, and the regions that they hold meanwhile.

use std::ops::Range;
use std::time::Instant;

use oarlock_tensor::DType;

use super::handle::Communicator;
use crate::blocks::Blocks;
use crate::collective::Collective;
use crate::digest::{digest, mix};
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::held_region::HeldRegion;
use crate::operation::Operation;
use crate::ownership::Ownership;
use crate::ready::Ready;
use crate::region::{Region, Sharing};

/// Takes a region for a collective.
type Hold<'a> = dyn Fn(&Region) -> Result<HeldRegion> + 'a;

impl Communicator {
    /// Reserves a zeroed region of `bytes` bytes on each rank, all in the same order and under the same name.
    ///
    /// # Errors
    /// As every collective, and when the memory cannot be allocated.
    #[track_caller]
    pub fn allocate(&self, name: &str, bytes: usize, sharing: Sharing) -> Result<Region> {
        let detail = mix(digest(name.as_bytes()), sharing as u64);
        let draft = Draft { elements: bytes, ..Draft::small(Operation::Allocate, name, detail) };
        Ok(self.run(draft, |t, r| t.allocate(r, sharing))?.of(&self.0.members))
    }

    /// Sums the elements of `range` over all ranks, in a fixed pairwise tree over ranks; each rank then holds the sums.
    /// 16-bit elements are added in f32 and rounded once. Over NCCL the order is that of NCCL, the same on every run with the
    /// same GPUs and settings, and 16-bit elements are rounded at every rank.
    ///
    /// # Errors
    /// As every collective, and when the arguments do not fit the region.
    #[track_caller]
    pub fn all_reduce(
        &self,
        region: &Region,
        dtype: DType,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        self.check_reach(Operation::AllReduce, region)?;
        region.check_summable(Operation::AllReduce, dtype)?;
        let draft = Draft::range(Operation::AllReduce, region, dtype, &range, 0)?;
        self.run_on(draft, after, |hold| Ok(Collective::AllReduce { region: hold(region)?, range }))
    }

    /// Sums over all ranks, as [`all_reduce`](Communicator::all_reduce) does, but each owner alone receives the sums of
    /// its ranges. The rest of the region keeps this rank's values.
    ///
    /// # Errors
    /// As every collective, and when the arguments do not fit the region.
    #[track_caller]
    pub fn reduce_scatter(
        &self,
        region: &Region,
        dtype: DType,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        self.check_reach(Operation::ReduceScatter, region)?;
        region.check_summable(Operation::ReduceScatter, dtype)?;
        let draft = self.draft_owners(Operation::ReduceScatter, region, dtype, owners)?;
        let owners = owners.clone();
        self.run_on(draft, after, |hold| Ok(Collective::ReduceScatter { region: hold(region)?, owners }))
    }

    /// Brings each owner's ranges to all ranks. Over a replicated region nothing moves: the call orders the owners' writes
    /// before the reads of all ranks.
    ///
    /// # Errors
    /// As every collective, and when the arguments do not fit the region.
    #[track_caller]
    pub fn all_gather(
        &self,
        region: &Region,
        dtype: DType,
        owners: &Ownership,
        after: Ready,
    ) -> Result<Ready> {
        self.check_reach(Operation::AllGather, region)?;
        let draft = self.draft_owners(Operation::AllGather, region, dtype, owners)?;
        let owners = owners.clone();
        self.run_on(draft, after, |hold| Ok(Collective::AllGather { region: hold(region)?, owners }))
    }

    /// Brings the elements of `range` on the rank `root` to all ranks.
    ///
    /// # Errors
    /// As every collective, and when the arguments do not fit the region or there is no such rank.
    #[track_caller]
    pub fn broadcast(
        &self,
        region: &Region,
        dtype: DType,
        range: Range<usize>,
        root: usize,
        after: Ready,
    ) -> Result<Ready> {
        self.check_reach(Operation::Broadcast, region)?;
        self.check_rank(Operation::Broadcast, root)?;
        let draft = Draft::range(Operation::Broadcast, region, dtype, &range, root as u64 + 1)?;
        self.run_on(draft, after, |hold| Ok(Collective::Broadcast { region: hold(region)?, range, root }))
    }

    /// Brings the elements of `range` on the rank `from` to the rank `to`. The other ranks of the group call it, too, and keep
    /// theirs; where only two ranks have to meet, they are a group.
    ///
    /// # Errors
    /// As every collective, and when the arguments do not fit the region, there are no such ranks, or they are one, or the region
    /// is replicated.
    #[track_caller]
    pub fn send_receive(
        &self,
        region: &Region,
        dtype: DType,
        range: Range<usize>,
        [from, to]: [usize; 2],
        after: Ready,
    ) -> Result<Ready> {
        let operation = Operation::SendReceive;
        self.check_reach(operation, region)?;
        self.check_rank(operation, from)?;
        self.check_rank(operation, to)?;
        if from == to || region.sharing() == Sharing::Replicated {
            return Err(Error::Argument {
                operation: operation.name(),
                expected: "two ranks, and a region with a buffer for each".to_owned(),
                got: format!("ranks {from} and {to}, and {region:?}"),
            });
        }
        let ranks = mix(from as u64 + 1, to as u64 + 1);
        let draft = Draft::range(operation, region, dtype, &range, ranks)?;
        self.run_on(draft, after, |hold| {
            Ok(Collective::SendReceive { region: hold(region)?, range, from, to })
        })
    }

    /// Divides the elements of `range` into one block for each rank, all of the same size. Block `j` of `from` goes to rank
    /// `j`, where it becomes the block of `to` that has the sender's number: the blocks of a matrix of ranks, transposed.
    ///
    /// # Errors
    /// As every collective, and when the elements do not fit the regions or are not a multiple of the ranks, or when the
    /// regions are one, replicated, or not both in memory of the same kind.
    #[track_caller]
    pub fn all_to_all(
        &self,
        from: &Region,
        to: &Region,
        dtype: DType,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        self.check_pair(from, to)?;
        if !range.len().is_multiple_of(self.world_size()) {
            return Err(Error::Argument {
                operation: Operation::AllToAll.name(),
                expected: format!("an equal block for each of {} ranks", self.world_size()),
                got: format!("{} elements", range.len()),
            });
        }
        let draft = Draft::exchange(from, to, dtype, [&range, &range], 0)?;
        let blocks = Blocks::even(&range, self.world_size());
        self.run_on(draft, after, |hold| {
            Ok(Collective::AllToAll { from: hold(from)?, to: hold(to)?, blocks })
        })
    }

    /// Sends `counts[j]` elements of `from` to each rank `j`, with blocks of any size: the first `counts[0]` elements go to rank 0,
    /// the next `counts[1]` to rank 1, and so on, as in `MPI_Alltoallv` and `torch.distributed.all_to_all_single`. `to` receives
    /// the blocks in the order of their senders, from its first element on. Returns how many elements came from each rank.
    ///
    /// The ranks exchange their counts first, so the call waits for the collectives before it.
    ///
    /// # Errors
    /// As every collective, and when there is not one count for each rank, when what any rank sends or receives is longer than
    /// its region, or when the regions are one, replicated, or not both in memory of the same kind.
    #[track_caller]
    pub fn all_to_all_v(
        &self,
        from: &Region,
        to: &Region,
        dtype: DType,
        counts: &[usize],
        after: Ready,
    ) -> Result<(Ready, Vec<usize>)> {
        self.check_pair(from, to)?;
        let wrong = |got: String| Error::Argument {
            operation: Operation::AllToAll.name(),
            expected: format!("a count of elements for each of {} ranks", self.world_size()),
            got,
        };
        if counts.len() != self.world_size() {
            return Err(wrong(format!("{} counts", counts.len())));
        }
        let own: Vec<u8> = counts.iter().flat_map(|&count| (count as u64).to_ne_bytes()).collect();
        let draft = Draft::small(Operation::AllGatherBytes, from.name(), 0);
        let all = self.run(draft, |t, r| t.all_gather_bytes(r, &own))?;
        let row = |bytes: &Vec<u8>| {
            bytes.chunks_exact(8).map(|count| bytemuck::pod_read_unaligned::<u64>(count) as usize).collect()
        };
        let counts: Vec<Vec<usize>> = all.iter().map(row).collect();
        let blocks = Blocks::uneven(&counts).ok_or_else(|| wrong(format!("{counts:?}")))?;
        let [sent, received] = blocks.largest().unwrap_or_default();
        // All ranks know all counts and have regions of the same sizes, so that all refuse or none.
        let draft = Draft::exchange(from, to, dtype, [&(0..sent), &(0..received)], blocks.digest())?;
        let me = self.rank();
        let came = (0..self.world_size()).map(|peer| blocks.received(me, peer).len()).collect();
        let hold = |hold: &Hold<'_>| Ok(Collective::AllToAll { from: hold(from)?, to: hold(to)?, blocks });
        Ok((self.run_on(draft, after, hold)?, came))
    }

    /// A collective on regions, which nobody else reads or writes until it is over.
    #[track_caller]
    fn run_on(
        &self,
        draft: Draft<'_>,
        after: Ready,
        collective: impl FnOnce(&Hold<'_>) -> Result<Collective>,
    ) -> Result<Ready> {
        let (number, operation) = (self.0.number, draft.operation);
        let hold = || collective(&|region: &Region| region.held_by(number, operation));
        self.run_holding(draft, hold, |transport, request, collective| {
            let after = collective.regions().fold(after, |after, held| held.ready(after));
            if self.world_size() == 1 && collective.is_in_place() {
                // A rank alone has the sums already, so it does not wait for the launches that make them.
                if let Some(failure) = transport.failure() {
                    return Err(failure);
                }
                if transport.observes() {
                    self.0.observer.ran(request, 1, Instant::now());
                }
                return Ok(after);
            }
            let result = transport.run(request, &collective, after);
            if result.is_err() {
                collective.lose();
            }
            result
        })
    }

    /// A region is for the ranks that have allocated it, and on a GPU for a communicator that reaches it.
    fn check_reach(&self, operation: Operation, region: &Region) -> Result<()> {
        if !region.is_for(&self.0.members) {
            return Err(Error::Argument {
                operation: operation.name(),
                expected: "a region that the ranks of this group have allocated together".to_owned(),
                got: format!("{:?}, which other ranks have allocated", region.name()),
            });
        }
        if region.gpu().is_none() || self.reaches_gpus() {
            return Ok(());
        }
        Err(Error::Argument {
            operation: operation.name(),
            expected: format!("a region that {} reaches", self.describe()),
            got: format!("{:?}, in memory of a GPU", region.name()),
        })
    }

    /// The regions of an all-to-all are two, of each rank, in memory of one kind.
    fn check_pair(&self, from: &Region, to: &Region) -> Result<()> {
        self.check_reach(Operation::AllToAll, from)?;
        self.check_reach(Operation::AllToAll, to)?;
        let is_shared = [from, to].iter().any(|region| region.sharing() == Sharing::Replicated);
        let expected = if from.is(to) || is_shared {
            "two regions, each with a buffer for each rank"
        } else if from.gpu().is_some() != to.gpu().is_some() {
            "two regions in memory of the host, or two of the GPU"
        } else {
            return Ok(());
        };
        Err(Error::Argument {
            operation: Operation::AllToAll.name(),
            expected: expected.to_owned(),
            got: format!("{from:?} and {to:?}"),
        })
    }

    fn draft_owners<'a>(
        &self,
        operation: Operation,
        region: &'a Region,
        dtype: DType,
        owners: &Ownership,
    ) -> Result<Draft<'a>> {
        if owners.world_size() != self.world_size() {
            return Err(Error::Argument {
                operation: operation.name(),
                expected: format!("ranges for each of {} ranks", self.world_size()),
                got: format!("ranges for {}", owners.world_size()),
            });
        }
        let draft = Draft::range(operation, region, dtype, &(0..owners.end()), owners.digest())?;
        Ok(Draft { elements: owners.elements(), ..draft })
    }
}
