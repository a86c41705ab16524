//! The barrier of a group of ranks: the only way in which they wait for each other. The README explains the protocol and
//! numbers its invariants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::failure::Failure;
use super::layout::{ABSENT, CHUNK, KEPT_CALLS, LEFT, RUNNING, Slot};
use super::segment::Segment;
use super::socket::Listener;
use super::status::{self, state};
use crate::error::{Error, Result};
use crate::patience::{Patience, Wait};
use crate::procfs::stat;
use crate::stamp::{STAMP_WORDS, Stamp};

/// How long a waiting rank sleeps at first, and at most, before it checks the others.
const FIRST_SLICE: Duration = Duration::from_millis(5);
const SLICE: Duration = Duration::from_millis(50);
/// Beyond so many ranks all but one sleep longer, so that looking at the time costs no more however many they are.
const FREQUENT: usize = 32;

/// One rank in the segment; dropped with the last communicator of the rank.
pub(super) struct Member {
    pub(super) segment: Arc<Segment>,
    pub(super) rank: usize,
    pub(super) patience: Patience,
    /// The first channel that no group of this rank uses.
    pub(super) next_channel: AtomicUsize,
    /// The socket where the ranks of another launcher met, kept open by the first of them.
    pub(super) listener: Option<Listener>,
    /// HeldRegion while the ledger is written: it has one writer at a time.
    ledger: std::sync::Mutex<()>,
}

impl Member {
    pub(super) fn join(segment: Arc<Segment>, rank: usize) -> Result<Member> {
        let cell = segment.cell(rank);
        if cell.state.compare_exchange(ABSENT, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Join(format!("rank {rank} has already joined; each rank is one process")));
        }
        let pid = std::process::id();
        cell.start_time.store(stat(pid).map_or(0, |(_, start)| start), Ordering::Relaxed);
        cell.pid.store(pid, Ordering::Release);
        Ok(Member {
            segment,
            rank,
            patience: Patience::default(),
            next_channel: AtomicUsize::new(1),
            listener: None,
            ledger: Default::default(),
        })
    }

    /// Posts a failure and returns the one that was first.
    pub(super) fn fail(&self, failure: &Failure) -> Error {
        self.segment.header().failure.post(failure);
        status::failure(&self.segment).unwrap_or_else(|| Error::Join("the failure was not recorded".into()))
    }

    fn check_failure(&self) -> Result<()> {
        status::failure(&self.segment).map_or(Ok(()), Err)
    }

    /// Publishes what this rank is doing.
    pub(super) fn set_phase(&self, phase: &str) {
        let _one = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.segment.cell(self.rank).phase.write_text(phase);
    }

    /// Adds a call to the ledger.
    fn record(&self, stamp: &Stamp) {
        let _one = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cell = self.segment.cell(self.rank);
        let n = cell.n_calls.load(Ordering::Relaxed);
        cell.calls[n as usize % KEPT_CALLS].write(&stamp.words());
        cell.n_calls.store(n + 1, Ordering::Release);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let state = &self.segment.cell(self.rank).state;
        // Finished stays finished.
        let _ = state.compare_exchange(RUNNING, LEFT, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The ranks that synchronize in one channel.
pub(super) struct Group {
    pub(super) member: Arc<Member>,
    channel: usize,
    /// Ranks of the world, in the order of the group.
    pub(super) ranks: Vec<usize>,
    /// This rank's index among them.
    pub(super) me: usize,
    /// Barriers so far.
    round: AtomicU64,
}

impl Group {
    pub(super) fn new(member: Arc<Member>, channel: usize, ranks: Vec<usize>, me: usize) -> Group {
        Group { member, channel, ranks, me, round: AtomicU64::new(0) }
    }

    /// Begins a collective: fails if the run has failed, and adds the call to the ledger.
    pub(super) fn enter(&self, stamp: &Stamp) -> Result<()> {
        self.member.check_failure()?;
        self.member.record(stamp);
        Ok(())
    }

    /// Waits until all ranks of the group have entered with the same stamp, and hands over up to [`CHUNK`] of `bytes`
    /// beginning at `at`. All ranks see after the barrier what any of them wrote before it (invariant 1).
    pub(super) fn barrier(&self, stamp: &Stamp, bytes: &[u8], at: usize) -> Result<()> {
        let round = self.round.fetch_add(1, Ordering::Relaxed) + 1;
        let parity = (round % 2) as usize;
        let chunk = &bytes[at.min(bytes.len())..bytes.len().min(at + CHUNK)];
        let mine = self.slot(self.me);
        // SAFETY: a chunk fits the payload, which belongs to this rank until its entry is posted (invariant 3).
        unsafe {
            let to = self.segment().payload(self.channel, self.ranks[self.me], parity);
            to.copy_from_nonoverlapping(std::ptr::NonNull::from(chunk).cast(), chunk.len());
        }
        let entry = &mine.entries[parity];
        entry.stamp.write(&stamp.words());
        entry.key.store(stamp.key(), Ordering::Relaxed);
        entry.length.store(bytes.len() as u64, Ordering::Relaxed);
        entry.round.store(round, Ordering::Release);

        let lead = self.slot(0);
        let generation = lead.generation.load(Ordering::Acquire);
        if lead.entered.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks.len() as u32 {
            lead.entered.store(0, Ordering::Relaxed);
            lead.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            if lead.sleepers.load(Ordering::SeqCst) != 0 {
                wake_all(lead);
            }
        } else {
            self.wait(lead, generation, round, stamp)?;
        }
        self.compare(round)
    }

    /// The whole length that a rank of the group announced at the last barrier.
    pub(super) fn length(&self, index: usize) -> usize {
        let parity = (self.round.load(Ordering::Relaxed) % 2) as usize;
        self.slot(index).entries[parity].length.load(Ordering::Relaxed) as usize
    }

    /// Adds to `out` the chunk that a rank of the group handed over at the last barrier, for bytes from `at` on.
    pub(super) fn receive(&self, index: usize, at: usize, out: &mut Vec<u8>) {
        let parity = (self.round.load(Ordering::Relaxed) % 2) as usize;
        let count = self.length(index).saturating_sub(at).min(CHUNK);
        let from = self.segment().payload(self.channel, self.ranks[index], parity);
        // SAFETY: inside the payload; its writer comes back to this parity only after the next barrier (invariant 3).
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(from.as_ptr(), count) });
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.member.segment
    }

    fn slot(&self, index: usize) -> &Slot {
        self.segment().slot(self.channel, self.ranks[index])
    }

    fn wait(&self, lead: &Slot, generation: u32, round: u64, stamp: &Stamp) -> Result<()> {
        let over = || lead.generation.load(Ordering::Acquire) != generation;
        for _ in 0..self.segment().header().spins.load(Ordering::Relaxed) {
            if over() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let mut wait = Wait::begin();
        let share = self.ranks.len().div_ceil(FREQUENT) as u32;
        let mut slice = FIRST_SLICE * share;
        let mut check_at = Instant::now() + slice;
        loop {
            // Counted before the generation is read, as the last to enter sets it before it reads the count (invariant 2).
            lead.sleepers.fetch_add(1, Ordering::SeqCst);
            if lead.generation.load(Ordering::SeqCst) == generation {
                let limit = Timespec { tv_sec: 0, tv_nsec: slice.as_nanos() as i64 };
                // Woken, interrupted, timed out or too late: the loop checks.
                let _ = futex::wait(&lead.generation, futex::Flags::empty(), generation, Some(&limit));
            }
            lead.sleepers.fetch_sub(1, Ordering::SeqCst);
            if over() {
                return Ok(());
            }
            // Who has found a failure wakes the others.
            self.member.check_failure()?;
            let now = Instant::now();
            if now >= check_at {
                let looks = lead.takes_the_look(slice.min(SLICE));
                if let Err(error) = self.check_peers(round, stamp, &mut wait, looks) {
                    wake_all(lead);
                    return Err(error);
                }
                if over() {
                    return Ok(());
                }
                // Who has looked at the processes does so again, for all; if it dies another one finds the look due.
                slice = if looks { SLICE.min(slice * 2) } else { SLICE * share };
                check_at = now + slice;
            }
        }
    }

    /// Fails if a rank called something else, a rank is dead, or the time limit is over. One rank of the group at a time
    /// compares the calls and asks the system about each process (`looks`): if all did, that would cost the square of the ranks.
    fn check_peers(&self, round: u64, stamp: &Stamp, wait: &mut Wait, looks: bool) -> Result<()> {
        if looks {
            self.compare(round)?;
        }
        let (mut missing, mut first_here) = (Vec::new(), None);
        for (index, &rank) in self.ranks.iter().enumerate() {
            let state = looks.then(|| state(self.segment(), rank));
            // Read after the state: a rank that has finished posts no further entry.
            let is_here = self.entered_key(index, round).is_some();
            let pid = self.segment().cell(rank).pid.load(Ordering::Relaxed);
            match state.and_then(|state| state.failure(pid, !is_here)) {
                Some(cause) => return Err(self.member.fail(&Failure::Peer { rank, cause })),
                None if is_here => first_here = first_here.or(Some(rank)),
                None => missing.push(rank),
            }
        }
        let rank = self.member.rank;
        let statuses = || missing.iter().map(|&rank| status::status(self.segment(), rank)).collect();
        if !missing.is_empty() && self.member.patience.is_over(wait, rank, first_here == Some(rank), statuses)
        {
            let waited = wait.waited();
            return Err(self.member.fail(&Failure::Timeout { rank, stamp: *stamp, waited, missing }));
        }
        Ok(())
    }

    /// What ended the run, if anything has; a rank of the group that is gone does.
    pub(super) fn failure(&self) -> Option<Error> {
        let of_rank = |&rank: &usize| {
            let pid = self.segment().cell(rank).pid.load(Ordering::Relaxed);
            let cause = state(self.segment(), rank).failure(pid, false)?;
            Some(self.member.fail(&Failure::Peer { rank, cause }))
        };
        self.member.check_failure().err().or_else(|| self.ranks.iter().find_map(of_rank))
    }

    /// Compares the calls of the ranks that have entered.
    fn compare(&self, round: u64) -> Result<()> {
        let mut here = (0..self.ranks.len()).filter_map(|i| self.entered_key(i, round).map(|key| (i, key)));
        let Some((first, key)) = here.next() else { return Ok(()) };
        let Some((other, _)) = here.find(|&(_, k)| k != key) else { return Ok(()) };
        let side = |index: usize| {
            let words = self.slot(index).entries[(round % 2) as usize].stamp.read();
            (self.ranks[index], Stamp::from_words(words.unwrap_or([0; STAMP_WORDS])))
        };
        Err(self.member.fail(&Failure::Mismatch { first: side(first), other: side(other) }))
    }

    /// The key that a rank of the group posted for a round, if it has entered.
    fn entered_key(&self, index: usize, round: u64) -> Option<u64> {
        let entry = &self.slot(index).entries[(round % 2) as usize];
        (entry.round.load(Ordering::Acquire) == round).then(|| entry.key.load(Ordering::Relaxed))
    }
}

/// Wakes all ranks that sleep in the barrier of this slot.
fn wake_all(lead: &Slot) {
    // The number of ranks that were woken does not matter.
    let _ = futex::wake(&lead.generation, futex::Flags::empty(), i32::MAX as u32);
}
