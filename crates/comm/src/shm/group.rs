//! The meeting of a group of ranks: the one way in which they wait for each other. The README explains the protocol and
//! numbers its invariants.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use super::failure::Failure;
use super::segment::{ABSENT, CHUNK, KEPT_CALLS, LEFT, RUNNING, Segment, Slot};
use super::socket::Listener;
use super::statuses::state;
use crate::call::{STAMP_WORDS, Stamp};
use crate::error::{Error, Result};
use crate::ledger::RankState;
use crate::liveness::process;

/// The longest a waiting rank sleeps before it looks after the others.
const SLICE: Duration = Duration::from_millis(50);

/// One rank in the segment; dropped with the last communicator of the rank.
pub(super) struct Member {
    pub(super) segment: Arc<Segment>,
    pub(super) rank: usize,
    pub(super) timeout_ms: AtomicU64,
    /// The first channel that no group of this rank uses.
    pub(super) next_channel: AtomicUsize,
    /// The name under which the ranks of another launcher met, held by the first of them.
    pub(super) name: Option<Listener>,
    /// Held to write the ledger, which has one writer at a time.
    ledger: std::sync::Mutex<()>,
}

/// How long to wait for a rank that lives but does not come, unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(1800);

impl Member {
    pub(super) fn join(segment: Arc<Segment>, rank: usize) -> Result<Member> {
        let cell = segment.cell(rank);
        if cell.state.compare_exchange(ABSENT, RUNNING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Error::Join(format!("rank {rank} has already joined; each rank is one process")));
        }
        let pid = std::process::id();
        cell.start_time.store(process(pid).map_or(0, |(_, start)| start), Ordering::Relaxed);
        cell.pid.store(pid, Ordering::Release);
        let timeout_ms = AtomicU64::new(TIMEOUT.as_millis() as u64);
        Ok(Member {
            segment,
            rank,
            timeout_ms,
            next_channel: AtomicUsize::new(1),
            name: None,
            ledger: Default::default(),
        })
    }

    /// Posts a failure and returns the one that was first.
    pub(super) fn fail(&self, failure: &Failure) -> Error {
        let cell = &self.segment.header().failure;
        cell.post(failure);
        cell.read(&self.segment).unwrap_or_else(|| Error::Join("the failure was not recorded".into()))
    }

    fn check_failure(&self) -> Result<()> {
        self.segment.header().failure.read(&self.segment).map_or(Ok(()), Err)
    }

    /// Writes down what this rank is doing.
    pub(super) fn note(&self, phase: &str) {
        let _one = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.segment.cell(self.rank).phase.put_text(phase);
    }

    /// Writes a call into the ledger.
    fn record(&self, stamp: &Stamp) {
        let _one = self.ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let cell = self.segment.cell(self.rank);
        let n = cell.n_calls.load(Ordering::Relaxed);
        cell.calls[n as usize % KEPT_CALLS].put(&stamp.words());
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

/// The ranks that meet in one channel.
pub(super) struct Group {
    pub(super) member: Arc<Member>,
    channel: usize,
    /// Ranks of the world, in the order of the group.
    pub(super) ranks: Vec<usize>,
    /// This rank's place among them.
    pub(super) me: usize,
    /// Meetings so far.
    turn: AtomicU64,
}

impl Group {
    pub(super) fn new(member: Arc<Member>, channel: usize, ranks: Vec<usize>, me: usize) -> Group {
        Group { member, channel, ranks, me, turn: AtomicU64::new(0) }
    }

    /// Begins a collective: fails if the run has failed, and notes the call.
    pub(super) fn enter(&self, stamp: &Stamp) -> Result<()> {
        self.member.check_failure()?;
        self.member.record(stamp);
        Ok(())
    }

    /// Waits until all ranks of the group are here with the same stamp, and hands over up to [`CHUNK`] of `bytes`
    /// beginning at `at`. What was written before the meeting is seen by all after it (invariant 1).
    pub(super) fn meet(&self, stamp: &Stamp, bytes: &[u8], at: usize) -> Result<()> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) + 1;
        let parity = (turn % 2) as usize;
        let chunk = &bytes[at.min(bytes.len())..bytes.len().min(at + CHUNK)];
        let mine = self.slot(self.me);
        // SAFETY: a chunk fits the payload, which belongs to this rank until its turn is posted (invariant 3).
        unsafe {
            let to = self.segment().payload(self.channel, self.ranks[self.me], parity);
            to.copy_from_nonoverlapping(std::ptr::NonNull::from(chunk).cast(), chunk.len());
        }
        let post = &mine.posts[parity];
        post.stamp.put(&stamp.words());
        post.key.store(stamp.key(), Ordering::Relaxed);
        post.length.store(bytes.len() as u64, Ordering::Relaxed);
        post.turn.store(turn, Ordering::Release);

        let lead = self.slot(0);
        let generation = lead.generation.load(Ordering::Acquire);
        if lead.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks.len() as u32 {
            lead.arrived.store(0, Ordering::Relaxed);
            lead.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            if lead.sleepers.load(Ordering::SeqCst) != 0 {
                // Nobody to wake is as good as somebody.
                let _ = futex::wake(&lead.generation, futex::Flags::empty(), i32::MAX as u32);
            }
        } else {
            self.wait(lead, generation, turn, stamp)?;
        }
        self.compare(turn)
    }

    /// The whole length that a rank of the group announced at the last meeting.
    pub(super) fn length(&self, index: usize) -> usize {
        let parity = (self.turn.load(Ordering::Relaxed) % 2) as usize;
        self.slot(index).posts[parity].length.load(Ordering::Relaxed) as usize
    }

    /// Adds to `out` the chunk that a rank of the group handed over at the last meeting, for bytes from `at` on.
    pub(super) fn receive(&self, index: usize, at: usize, out: &mut Vec<u8>) {
        let parity = (self.turn.load(Ordering::Relaxed) % 2) as usize;
        let count = self.length(index).saturating_sub(at).min(CHUNK);
        let from = self.segment().payload(self.channel, self.ranks[index], parity);
        // SAFETY: inside the payload; its writer comes back to this parity only after a meeting with us (invariant 3).
        out.extend_from_slice(unsafe { std::slice::from_raw_parts(from.as_ptr(), count) });
    }

    pub(super) fn segment(&self) -> &Arc<Segment> {
        &self.member.segment
    }

    fn slot(&self, index: usize) -> &Slot {
        self.segment().slot(self.channel, self.ranks[index])
    }

    fn wait(&self, lead: &Slot, generation: u32, turn: u64, stamp: &Stamp) -> Result<()> {
        let over = || lead.generation.load(Ordering::Acquire) != generation;
        for _ in 0..self.segment().header().spins.load(Ordering::Relaxed) {
            if over() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let began = Instant::now();
        let mut slice = Duration::from_millis(5);
        let mut look = began + slice;
        loop {
            // Counted before the generation is looked at, as the last to arrive sets it before it counts (invariant 2).
            lead.sleepers.fetch_add(1, Ordering::SeqCst);
            if lead.generation.load(Ordering::SeqCst) == generation {
                let limit = Timespec { tv_sec: 0, tv_nsec: slice.as_nanos() as i64 };
                // Woken, interrupted, over time or too late: the loop looks for itself.
                let _ = futex::wait(&lead.generation, futex::Flags::empty(), generation, Some(&limit));
            }
            lead.sleepers.fetch_sub(1, Ordering::SeqCst);
            if over() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= look {
                self.look_around(turn, stamp, now - began)?;
                if over() {
                    return Ok(());
                }
                slice = SLICE.min(slice * 2);
                look = now + slice;
            }
        }
    }

    /// What a rank that waits too long finds out: a failure, another collective, a dead rank, the end of its patience.
    fn look_around(&self, turn: u64, stamp: &Stamp, waited: Duration) -> Result<()> {
        self.member.check_failure()?;
        self.compare(turn)?;
        let mut missing = Vec::new();
        for (index, &rank) in self.ranks.iter().enumerate() {
            let state = state(self.segment(), rank);
            // Looked at after the state: who has finished has posted all it ever will.
            let here = self.posted(index, turn).is_some();
            let cause = match state {
                RankState::Dead => {
                    let pid = self.segment().cell(rank).pid.load(Ordering::Relaxed);
                    format!("its process {pid} ended without saying why")
                }
                RankState::Left => "it left without finishing (a panic, an early return)".into(),
                RankState::Finished if !here => "it finished while others still waited for it".into(),
                _ if here => continue,
                _ => {
                    missing.push(rank);
                    continue;
                }
            };
            return Err(self.member.fail(&Failure::Peer { rank, cause }));
        }
        if !missing.is_empty()
            && waited >= Duration::from_millis(self.member.timeout_ms.load(Ordering::Relaxed))
        {
            let rank = self.member.rank;
            return Err(self.member.fail(&Failure::Timeout { rank, stamp: *stamp, waited, missing }));
        }
        Ok(())
    }

    /// Compares what the ranks that are here called.
    fn compare(&self, turn: u64) -> Result<()> {
        let mut here = (0..self.ranks.len()).filter_map(|i| self.posted(i, turn).map(|key| (i, key)));
        let Some((first, key)) = here.next() else { return Ok(()) };
        let Some((other, _)) = here.find(|&(_, k)| k != key) else { return Ok(()) };
        let side = |index: usize| {
            let words = self.slot(index).posts[(turn % 2) as usize].stamp.get();
            (self.ranks[index], Stamp::from_words(words.unwrap_or([0; STAMP_WORDS])))
        };
        Err(self.member.fail(&Failure::Mismatch { first: side(first), other: side(other) }))
    }

    /// The key that a rank of the group posted for a turn, if it has arrived.
    fn posted(&self, index: usize, turn: u64) -> Option<u64> {
        let post = &self.slot(index).posts[(turn % 2) as usize];
        (post.turn.load(Ordering::Acquire) == turn).then(|| post.key.load(Ordering::Relaxed))
    }
}
