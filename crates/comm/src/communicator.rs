//! The handle on a group of ranks: checks arguments, numbers and counts the collectives, records the caller, and leaves the
//! bytes to a [`Transport`].

use std::ops::Range;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_tensor::DType;
use oarlock_tensor::cpu::rank_sum::tree_fold;

use crate::call::Request;
use crate::digest::{digest, mix};
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::held::Held;
use crate::ledger::RankStatus;
use crate::members::Members;
use crate::observer::{CommunicationTime, Observer};
use crate::operation::{Operation, Scalar};
use crate::ownership::Ownership;
use crate::patience::LongWait;
use crate::progress::Progress;
use crate::ready::Ready;
use crate::region::{Region, Sharing};
use crate::slowed::{Link, Slowed};
use crate::solo::Solo;
use crate::stats::{OpStats, Recorded, Recorder};
use crate::trace::CollectiveEvent;
use crate::transport::Transport;

/// One rank of a group. All ranks of the group must make the same collective calls in the same order; if one does not,
/// every rank gets an error that names both calls. Clones are the same rank.
///
/// Collectives may come from any thread but run one at a time. After a failure of any rank each further collective
/// returns that failure.
#[derive(Clone)]
pub struct Communicator(Arc<Inner>);

/// A weak handle: it does not keep the rank in its group.
#[derive(Clone)]
pub struct WeakCommunicator(Weak<Inner>);

impl WeakCommunicator {
    /// The communicator, if a strong handle still exists.
    pub fn upgrade(&self) -> Option<Communicator> {
        self.0.upgrade().map(Communicator)
    }
}

struct Inner {
    transport: Arc<dyn Transport>,
    /// The sequence number of the last collective; held while one runs.
    sequence: Mutex<u64>,
    counts: [Count; Operation::ALL.len()],
    members: Arc<Members>,
    /// What its collectives hold regions by.
    number: u64,
    /// Shared with the communicators that are split from this one.
    observer: Arc<Observer>,
}

#[derive(Default)]
struct Count {
    calls: AtomicU64,
    bytes: AtomicU64,
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}

/// How often an operation ran on this rank, and over how many bytes of regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The operation.
    pub operation: Operation,
    /// Calls since the communicator was made.
    pub calls: u64,
    /// Region bytes that these calls covered.
    pub bytes: u64,
}

impl Traffic {
    /// The bytes that this rank sent among `ranks` ranks, by [`Operation::sent_share`].
    pub fn sent_bytes(&self, ranks: usize) -> f64 {
        self.bytes as f64 * self.operation.sent_share(ranks)
    }
}

impl Communicator {
    /// A communicator over a transport.
    pub fn new(transport: Arc<dyn Transport>) -> Communicator {
        let members = Arc::new(Members::of_world(transport.world_size()));
        Communicator::observed_by(transport, members, Arc::default())
    }

    /// The same ranks over another transport.
    pub(crate) fn over(&self, transport: Arc<dyn Transport>) -> Communicator {
        Communicator::observed_by(transport, self.0.members.clone(), Arc::default())
    }

    fn observed_by(
        transport: Arc<dyn Transport>,
        members: Arc<Members>,
        observer: Arc<Observer>,
    ) -> Communicator {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let (sequence, counts) = (Mutex::new(0), Default::default());
        let number = MADE.fetch_add(1, Relaxed);
        Communicator(Arc::new(Inner { transport, sequence, counts, members, number, observer }))
    }

    /// The same rank, whose collectives on regions proceed on a thread of their own from now on, in the order of their
    /// calls; those that return values wait for it. Use only this one afterwards. All ranks of a group do the same. For
    /// transports that copy bytes through a network, which [`from_env`](crate::from_env) hands out like this.
    pub fn in_background(self) -> Communicator {
        let (inner, observer) = (self.0.transport.clone(), Arc::<Observer>::default());
        let progress = Progress::new(inner, observer.clone());
        Communicator::observed_by(Arc::new(progress), self.0.members.clone(), observer)
    }

    /// The same rank on a link of the given latency and bandwidth, whatever carries the bytes: each rank has its own copy
    /// of every region, as between machines, and collectives take as long as the link says. For tests and experiments. Use
    /// only this one afterwards. All ranks of a group do the same.
    pub fn slowed(self, link: Link) -> Communicator {
        self.over(Arc::new(Slowed::new(self.0.transport.clone(), link)))
    }

    /// A world of one rank.
    pub fn solo() -> Communicator {
        Communicator::new(Arc::new(Solo::new()))
    }

    /// What carries the bytes between the ranks, in words: `shared memory`, `MPI`, or `NCCL` with its version.
    pub fn describe(&self) -> String {
        self.0.transport.describe()
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.0.transport
    }

    /// A weak handle on it.
    pub fn downgrade(&self) -> WeakCommunicator {
        WeakCommunicator(Arc::downgrade(&self.0))
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.transport.rank()
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.0.transport.world_size()
    }

    /// Whether all ranks see one copy of a replicated region, so that an all-gather over it moves nothing.
    pub fn shares_memory(&self) -> bool {
        self.0.transport.shares_memory()
    }

    /// Whether collectives on regions proceed while this rank computes, until it waits for their [`Ready`].
    pub fn works_in_background(&self) -> bool {
        self.0.transport.works_in_background()
    }

    /// Whether collectives take regions in memory of a GPU.
    pub fn reaches_gpus(&self) -> bool {
        self.0.transport.reaches_gpus()
    }

    /// The time of this rank's collectives so far, and how much of it was hidden behind computation; of this communicator,
    /// those split from it and those that it was split from. `None` over NCCL, whose stream keeps no times.
    pub fn communication_time(&self) -> Option<CommunicationTime> {
        (!self.reaches_gpus()).then(|| self.0.observer.time())
    }

    /// This rank's index among those that share its cores, and their number: all ranks of the machine, unless they are
    /// bound to cores.
    pub fn sharing_cores(&self) -> (usize, usize) {
        self.0.transport.sharing_cores()
    }

    /// The machine of each rank, numbered in order of appearance.
    pub fn machines(&self) -> Vec<usize> {
        self.0.transport.machines()
    }

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As every collective: when a rank failed, called something else or did not enter in time.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.run(Draft::small(Operation::Barrier, "", 0), |t, r| t.barrier(r))
    }

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
        self.run_on([region], draft, after, |t, r, [held], after| t.all_reduce(r, held, range, after))
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
        self.run_on([region], draft, after, |t, r, [held], after| t.reduce_scatter(r, held, owners, after))
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
        self.run_on([region], draft, after, |t, r, [held], after| t.all_gather(r, held, owners, after))
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
        self.run_on([region], draft, after, |t, r, [held], after| t.broadcast(r, held, range, root, after))
    }

    /// Divides the elements of `range` into one block for each rank, all of the same size. Block `j` of `from` goes to rank
    /// `j`, where it becomes the block of `to` that has the sender's number: the blocks of a matrix of ranks, transposed.
    ///
    /// # Errors
    /// As every collective, and when the elements do not fit the regions or are no multiple of the ranks, or when the regions
    /// are one, replicated, or not both in memory of the same kind.
    #[track_caller]
    pub fn all_to_all(
        &self,
        from: &Region,
        to: &Region,
        dtype: DType,
        range: Range<usize>,
        after: Ready,
    ) -> Result<Ready> {
        self.check_reach(Operation::AllToAll, from)?;
        self.check_reach(Operation::AllToAll, to)?;
        let draft = Draft::range(Operation::AllToAll, from, dtype, &range, 0)?;
        let other = Draft::range(Operation::AllToAll, to, dtype, &range, draft.detail)?;
        let wrong = |expected: String, got: String| {
            Err(Error::Argument { operation: Operation::AllToAll.name(), expected, got })
        };
        if from.is(to) || [from, to].iter().any(|region| region.sharing() == Sharing::Replicated) {
            let expected = "two regions, each with a buffer for each rank".into();
            return wrong(expected, format!("{from:?} and {to:?}"));
        }
        if from.gpu().is_some() != to.gpu().is_some() {
            let expected = "two regions in memory of the host, or two of the GPU".into();
            return wrong(expected, format!("{from:?} and {to:?}"));
        }
        if !range.len().is_multiple_of(self.world_size()) {
            let expected = format!("an equal block for each of {} ranks", self.world_size());
            return wrong(expected, format!("{} elements", range.len()));
        }
        let draft = Draft { detail: other.detail, ..draft };
        self.run_on([from, to], draft, after, |t, r, [from, to], after| {
            t.all_to_all(r, from, to, range, after)
        })
    }

    /// The bytes of each rank, in the order of ranks; lengths may differ. For small values: they are copied.
    ///
    /// # Errors
    /// As every collective.
    #[track_caller]
    pub fn all_gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.run(Draft::small(Operation::AllGatherBytes, "", 0), |t, r| t.all_gather_bytes(r, bytes))
    }

    /// The bytes of the rank `root`; those given by the others are ignored.
    ///
    /// # Errors
    /// As every collective, and when there is no such rank.
    #[track_caller]
    pub fn broadcast_bytes(&self, root: usize, bytes: &[u8]) -> Result<Vec<u8>> {
        self.check_rank(Operation::BroadcastBytes, root)?;
        let mine = if self.rank() == root { bytes } else { &[] };
        let draft = Draft::small(Operation::BroadcastBytes, "", root as u64);
        Ok(self.run(draft, |t, r| t.all_gather_bytes(r, mine))?.swap_remove(root))
    }

    /// Combines a few numbers elementwise over all ranks, in a fixed pairwise tree over ranks.
    ///
    /// # Errors
    /// As every collective; the count must be the same on all ranks.
    #[track_caller]
    pub fn all_reduce_f64(&self, values: &mut [f64], how: Scalar) -> Result<()> {
        let draft =
            Draft { elements: 8 * values.len(), ..Draft::small(Operation::AllReduceScalars, "", how as u64) };
        let all = self.run(draft, |t, r| t.all_gather_bytes(r, bytemuck::cast_slice(values)))?;
        for (i, value) in values.iter_mut().enumerate() {
            let of_rank = |rank: usize| bytemuck::pod_read_unaligned::<f64>(&all[rank][8 * i..8 * i + 8]);
            *value = tree_fold(0..all.len(), &of_rank, &|a, b| how.combine(a, b));
        }
        Ok(())
    }

    /// Checks that all ranks hold the same value.
    ///
    /// # Errors
    /// As every collective, and [`Error::Disagreement`] on all ranks when one holds another value.
    #[track_caller]
    pub fn agree(&self, what: &str, value: u64) -> Result<()> {
        let draft = Draft::small(Operation::Agree, what, digest(what.as_bytes()));
        let all = self.run(draft, |t, r| t.all_gather_bytes(r, &value.to_ne_bytes()))?;
        let of_rank = |rank: usize| bytemuck::pod_read_unaligned::<u64>(&all[rank]);
        match (1..all.len()).find(|&rank| of_rank(rank) != of_rank(0)) {
            None => Ok(()),
            Some(rank) => Err(Error::Disagreement {
                what: what.to_owned(),
                first: (0, of_rank(0)),
                other: (rank, of_rank(rank)),
            }),
        }
    }

    /// Splits the ranks into groups and returns the communicator of this rank's group, in which rank `i` is the `i`-th of the
    /// group's list. All ranks give the same groups.
    ///
    /// # Errors
    /// As every collective, and when the groups do not hold each rank once.
    #[track_caller]
    pub fn split(&self, groups: &[Vec<usize>]) -> Result<Communicator> {
        let mut listed: Vec<usize> = groups.iter().flatten().copied().collect();
        listed.sort_unstable();
        let group = groups.iter().find(|g| g.contains(&self.rank()));
        let (Some(group), true) = (group, listed.iter().copied().eq(0..self.world_size())) else {
            return Err(Error::Argument {
                operation: Operation::Split.name(),
                expected: format!("groups that hold each of {} ranks once", self.world_size()),
                got: format!("{groups:?}"),
            });
        };
        let detail =
            groups.iter().fold(0, |d, g| g.iter().fold(mix(d, g.len() as u64), |d, &r| mix(d, r as u64)));
        let transport = self.run(Draft::small(Operation::Split, "", detail), |t, r| t.split(r, group))?;
        let members = Arc::new(self.0.members.group(group));
        Ok(Communicator::observed_by(transport, members, self.0.observer.clone()))
    }

    /// How long to wait for a rank that is alive but does not enter a collective.
    pub fn set_timeout(&self, limit: Duration) {
        self.0.transport.patience().set_limit(limit);
    }

    /// Reports waits in collectives that last longer than `after`, and again each time they have lasted twice as long. Of
    /// the ranks that wait the lowest reports. What a rank does alone, such as building a cache, makes the others wait.
    pub fn on_long_wait(&self, after: Duration, report: impl Fn(&LongWait) + Send + Sync + 'static) {
        self.0.transport.patience().set_report(after, Arc::new(report));
    }

    /// As [`Communicator::on_long_wait`], unless waits are reported already: what a program has set stays.
    pub fn on_long_wait_by_default(
        &self,
        after: Duration,
        report: impl Fn(&LongWait) + Send + Sync + 'static,
    ) {
        self.0.transport.patience().set_default_report(after, Arc::new(report));
    }

    /// Says what this rank is doing ("step 12: forward"), for the error messages of others.
    pub fn set_phase(&self, note: &str) {
        self.0.transport.set_phase(note);
    }

    /// What each rank was last doing.
    pub fn statuses(&self) -> Vec<RankStatus> {
        self.0.transport.statuses()
    }

    /// How often each operation ran on this rank; operations that never ran are left out.
    pub fn traffic(&self) -> Vec<Traffic> {
        let counts = Operation::ALL.iter().zip(&self.0.counts);
        counts
            .map(|(&operation, c)| Traffic {
                operation,
                calls: c.calls.load(Relaxed),
                bytes: c.bytes.load(Relaxed),
            })
            .filter(|t| t.calls > 0)
            .collect()
    }

    /// Times collectives from now on, of this communicator and of those split from it. Only the first call has an effect.
    pub fn record(&self, recorded: Recorded) {
        self.0.observer.recorder.get_or_init(|| Recorder::new(recorded));
    }

    /// The times of the collectives since [`Communicator::record`]; empty without it.
    pub fn recorded(&self) -> Vec<OpStats> {
        self.0.observer.recorder.get().map(Recorder::stats).unwrap_or_default()
    }

    /// Records each collective with its time from now on, of this communicator and of those split from it.
    pub fn start_trace(&self) {
        self.0.observer.trace.start();
    }

    /// Stops the recording of [`Communicator::start_trace`] and returns the collectives since then, in order.
    pub fn take_trace(&self) -> Vec<CollectiveEvent> {
        self.0.observer.trace.take()
    }

    /// Tells all ranks that this one failed, and why. Every rank reports the first failure of the run.
    pub fn abort(&self, cause: &str) {
        self.0.transport.abort(cause);
    }

    /// Leaves the group: the others no longer wait for this rank. A rank that is dropped without this call counts as failed
    /// for those that still wait for it.
    pub fn finish(&self) {
        self.0.transport.finish();
    }

    /// A collective on regions, which nobody else reads or writes until it is over.
    #[track_caller]
    fn run_on<const N: usize>(
        &self,
        regions: [&Region; N],
        draft: Draft<'_>,
        after: Ready,
        call: impl FnOnce(&dyn Transport, &Request, [&Held; N], Ready) -> Result<Ready>,
    ) -> Result<Ready> {
        let operation = draft.operation;
        let hold = || {
            regions
                .into_iter()
                .map(|region| region.held_by(self.0.number, operation))
                .collect::<Result<Vec<_>>>()
        };
        self.run_holding(draft, hold, |transport, request, held| {
            let after = held.iter().fold(after, |after, held| held.ready(after));
            let result = call(transport, request, std::array::from_fn(|i| &held[i]), after);
            if result.is_err() {
                held.into_iter().for_each(Held::lose);
            }
            result
        })
    }

    #[track_caller]
    fn run<T>(
        &self,
        draft: Draft<'_>,
        call: impl FnOnce(&dyn Transport, &Request) -> Result<T>,
    ) -> Result<T> {
        self.run_holding(draft, || Ok(()), |transport, request, ()| call(transport, request))
    }

    /// Runs a collective on what it holds. If that is in use elsewhere nothing is sent, and the call does not count.
    #[track_caller]
    fn run_holding<H, T>(
        &self,
        draft: Draft<'_>,
        hold: impl FnOnce() -> Result<H>,
        call: impl FnOnce(&dyn Transport, &Request, H) -> Result<T>,
    ) -> Result<T> {
        let site = Location::caller();
        // A panic inside a transport leaves no broken state behind: the number is taken, and the others will see the gap.
        let mut sequence = self.0.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        let held = hold()?;
        *sequence += 1;
        let Draft { operation, elements, dtype, subject, detail } = draft;
        let count = &self.0.counts[operation as usize];
        count.calls.fetch_add(1, Relaxed);
        count.bytes.fetch_add((elements * dtype.map_or(0, DType::size)) as u64, Relaxed);
        let request = Request { sequence: *sequence, operation, elements, dtype, subject, detail, site };
        let begin = Instant::now();
        let result = call(&*self.0.transport, &request, held);
        if !self.0.transport.observes() {
            self.0.observer.ran(&request, self.world_size(), begin);
            if operation.sends() {
                self.0.observer.waited(begin);
            }
        }
        result
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

    fn check_rank(&self, operation: Operation, rank: usize) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        Err(Error::Argument {
            operation: operation.name(),
            expected: format!("a rank below {}", self.world_size()),
            got: rank.to_string(),
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
