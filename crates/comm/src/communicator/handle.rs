//! The handle on a group of ranks: checks arguments, numbers and counts the collectives, records the caller, and leaves the
//! bytes to a [`Transport`].

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use oarlock_tensor::DType;

use crate::call::Request;
use crate::digest::mix;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::ledger::RankStatus;
use crate::members::Members;
use crate::observer::{CommunicationTime, Observer};
use crate::operation::Operation;
use crate::patience::LongWait;
use crate::progress::Progress;
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
pub struct Communicator(pub(super) Arc<Inner>);

/// A weak handle: it does not keep the rank in its group.
#[derive(Clone)]
pub struct WeakCommunicator(Weak<Inner>);

impl WeakCommunicator {
    /// The communicator, if a strong handle still exists.
    pub fn upgrade(&self) -> Option<Communicator> {
        self.0.upgrade().map(Communicator)
    }
}

pub(super) struct Inner {
    transport: Arc<dyn Transport>,
    /// The sequence number of the last collective; held while one runs.
    sequence: Mutex<u64>,
    counts: [Count; Operation::ALL.len()],
    pub(super) members: Arc<Members>,
    /// What its collectives hold regions by.
    pub(super) number: u64,
    /// Shared with the communicators that are split from this one.
    pub(super) observer: Arc<Observer>,
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
    /// calls; those that return values wait for it. Use only this one afterward. All ranks of a group do the same. For
    /// transports that copy bytes through a network, which [`from_env`](crate::from_env) hands out like this.
    pub fn in_background(self) -> Communicator {
        let (inner, observer) = (self.0.transport.clone(), Arc::<Observer>::default());
        let progress = Progress::new(inner, observer.clone());
        Communicator::observed_by(Arc::new(progress), self.0.members.clone(), observer)
    }

    /// The same rank on a link of the given latency and bandwidth, whatever carries the bytes: each rank has its own copy
    /// of every region, as between machines, and collectives take as long as the link says. For tests and experiments. Use
    /// only this one afterward. All ranks of a group do the same.
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

    /// Whether collectives on regions proceed while this rank computes, until it waits for their [`Ready`](crate::Ready).
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

    #[track_caller]
    pub(super) fn run<T>(
        &self,
        draft: Draft<'_>,
        call: impl FnOnce(&dyn Transport, &Request) -> Result<T>,
    ) -> Result<T> {
        self.run_holding(draft, || Ok(()), |transport, request, ()| call(transport, request))
    }

    /// Runs a collective on what it holds. If that is in use elsewhere nothing is sent, and the call does not count.
    #[track_caller]
    pub(super) fn run_holding<H, T>(
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

    pub(super) fn check_rank(&self, operation: Operation, rank: usize) -> Result<()> {
        if rank < self.world_size() {
            return Ok(());
        }
        Err(Error::Argument {
            operation: operation.name(),
            expected: format!("a rank below {}", self.world_size()),
            got: rank.to_string(),
        })
    }
}
