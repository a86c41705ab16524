//! The messages of one collective between the ranks of a group: queues in both directions, and the one loop that waits.

use std::time::{Duration, Instant};

use super::layout::Layout;
use super::library::{ByteSpan, MessageQueue};
use super::member::Group;
use super::notice::Notice;
use crate::error::Result;
use crate::held_region::HeldRegion;
use crate::ledger::RankState;
use crate::patience::Wait;
use crate::progress::runs_beside_computation;
use crate::region::{Memory, PrivateBuffer};
use crate::stamp::Stamp;

/// Messages in flight between two ranks: sent, and received. What is sent delays what tells the other side to send; receives begin
/// early enough for that.
const IN_FLIGHT: (usize, usize) = (8, 32);
/// How often a waiting rank polls without sleeping: where it has nothing else to do, and where another thread of it computes.
const SPINS: (u32, u32) = (300, 10);
/// The shortest and the longest sleep between two polls; the longest for each rank that shares a core.
const SLEEP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// How often a waiting rank checks the others, for each rank of its machine: so that all of them together cost no more where they
/// are many.
const CHECK: Duration = Duration::from_millis(10);

/// The messages of one collective. Their memory is kept here, and is never freed if the exchange ends before they do: the
/// library may still access it (invariant 6).
pub(super) struct Exchange<'a> {
    group: &'a Group,
    tag: usize,
    stamp: Stamp,
    /// One for each rank of the group; this rank's own are empty.
    pub(super) sends: Vec<MessageQueue>,
    pub(super) receives: Vec<MessageQueue>,
    buffers: Vec<PrivateBuffer>,
    regions: Vec<HeldRegion>,
}

impl<'a> Exchange<'a> {
    /// Of the data of a collective.
    pub(super) fn new(group: &'a Group, stamp: &Stamp) -> Exchange<'a> {
        Exchange::tagged(group, stamp, group.data_tag())
    }

    pub(super) fn tagged(group: &'a Group, stamp: &Stamp, tag: usize) -> Exchange<'a> {
        let queues = || group.ranks.iter().map(|&rank| MessageQueue::to(rank)).collect();
        Exchange {
            group,
            tag,
            stamp: *stamp,
            sends: queues(),
            receives: queues(),
            buffers: Vec::new(),
            regions: Vec::new(),
        }
    }

    /// The ranks of the group but this one.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.group.me;
        (0..self.group.ranks.len()).filter(move |&index| index != me)
    }

    /// Memory for messages, of at least `bytes` bytes and aligned to a page.
    pub(super) fn buffer(&mut self, bytes: usize) -> Result<*mut u8> {
        let buffer = self.group.member.buffer(bytes)?;
        let at = buffer.as_ptr();
        self.buffers.push(buffer);
        Ok(at)
    }

    /// Keeps a region that messages are read from or written to.
    pub(super) fn keep(&mut self, region: &HeldRegion) {
        self.regions.push(region.clone());
    }

    /// Queues a message to a rank of the group.
    ///
    /// # Safety
    /// The bytes lie in a buffer of this exchange or a kept region, and nobody writes them before the message is sent.
    pub(super) unsafe fn send(&mut self, to: usize, span: ByteSpan) {
        self.sends[to].queued.push_back(span);
    }

    /// Queues a message from a rank of the group.
    ///
    /// # Safety
    /// The bytes lie in a buffer of this exchange or a kept region, and nobody else touches them before the message is
    /// received.
    pub(super) unsafe fn receive(&mut self, from: usize, span: ByteSpan) {
        self.receives[from].queued.push_back(span);
    }

    /// Waits until all messages are done.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.wait_until(|all| all.is_done())
    }

    /// Waits until the ranks of this machine no longer touch each other's memory.
    pub(super) fn settle(&mut self, layout: &Layout) -> Result<()> {
        if layout.is_flat() {
            return Ok(());
        }
        let (n, me) = (layout.row.len(), self.group.me);
        let words = self.buffer(n + 1).map_err(|error| self.group.member.fail_locally(error))?;
        for (i, &rank) in layout.row.iter().enumerate().filter(|(_, rank)| **rank != me) {
            // SAFETY: a byte for each rank, which nobody reads, and one that is sent.
            unsafe {
                self.send(rank, ByteSpan { at: words.add(n), bytes: 1 });
                self.receive(rank, ByteSpan { at: words.add(i), bytes: 1 });
            }
        }
        self.finish()
    }

    fn is_done(&self) -> bool {
        self.sends.iter().chain(&self.receives).all(MessageQueue::is_done)
    }

    /// Moves messages until `is_done` returns true. Fails if nothing moves within the time limit, or if any rank fails.
    pub(super) fn wait_until(&mut self, is_done: impl Fn(&Exchange) -> bool) -> Result<()> {
        let mut wait = Wait::begin();
        let wakes = self.group.member.world.library.wakes();
        let (here, on_a_core) = self.group.member.world.ranks_here();
        let (longest, check) = (SLEEP.1 * on_a_core as u32, CHECK * here as u32);
        let (mut spins, mut sleep, mut check_at) = (0, SLEEP.0, Instant::now() + check);
        loop {
            let moved = self.progress()?;
            if is_done(self) {
                return Ok(());
            }
            if moved {
                wait = Wait::begin();
                (spins, sleep, check_at) = (0, SLEEP.0, Instant::now() + check);
                continue;
            }
            self.group.member.world.check()?;
            let most_spins = match () {
                () if wakes => 0,
                () if runs_beside_computation() => SPINS.1,
                () => SPINS.0,
            };
            if spins < most_spins {
                spins += 1;
                std::thread::yield_now();
                continue;
            }
            // Who is woken needs no short looks.
            sleep = if wakes { longest } else { sleep };
            let mut queues = self.receives.iter_mut().chain(&mut self.sends);
            match queues.find_map(|queue| queue.in_flight.front_mut()) {
                Some(message) => message.wait(sleep),
                None => std::thread::sleep(sleep),
            }
            sleep = longest.min(sleep * 2);
            let now = Instant::now();
            // Who is asked to end has little time to find the reason.
            if now >= check_at || self.group.member.world.is_asked_to_end() {
                self.check_peers(&mut wait)?;
                check_at = now + check;
            }
        }
    }

    /// Starts queued messages and completes those that are done. True if any was.
    fn progress(&mut self) -> Result<bool> {
        let world = self.group.member.world;
        let (library, tag) = (&world.library, self.tag);
        let mut moved = false;
        let mut advance = |queue: &mut MessageQueue, is_send: bool| -> Result<()> {
            let most = if is_send { IN_FLIGHT.0 } else { IN_FLIGHT.1 };
            while queue.in_flight.len() < most
                && let Some(&span) = queue.queued.front()
            {
                // SAFETY: `send` and `receive` require that the bytes are left alone, and they are kept in `buffers` or
                // `regions`, also after this exchange ends early (invariant 6).
                let message = unsafe {
                    match is_send {
                        true => library.send(queue.peer, tag, span),
                        false => library.receive(queue.peer, tag, span),
                    }
                }?;
                queue.queued.pop_front();
                queue.in_flight.push_back(message);
            }
            while let Some(message) = queue.in_flight.front_mut()
                && let Some(bytes) = message.poll()?
            {
                queue.in_flight.pop_front();
                (queue.done, queue.last, moved) = (queue.done + 1, bytes, true);
            }
            Ok(())
        };
        let result = self
            .receives
            .iter_mut()
            .try_for_each(|queue| advance(queue, false))
            .and_then(|()| self.sends.iter_mut().try_for_each(|queue| advance(queue, true)));
        match result {
            Ok(()) => Ok(moved),
            Err(error) => Err(self.group.member.fail_locally(error)),
        }
    }

    /// Fails if a rank is dead or has left, this rank was asked to end, or the time limit is over.
    fn check_peers(&mut self, wait: &mut Wait) -> Result<()> {
        let member = &self.group.member;
        let states: Vec<_> =
            self.group.ranks.iter().map(|&rank| (rank, member.world.rank_state(rank))).collect();
        // Done after reading the states: a rank that has finished sends nothing more.
        if self.progress()? {
            return Ok(());
        }
        let mut missing = Vec::new();
        for (index, (rank, (state, pid))) in states.into_iter().enumerate() {
            let is_missing = !self.sends[index].is_done() || !self.receives[index].is_done();
            match state.failure(pid, is_missing) {
                Some(cause) => {
                    let is_dead = state == RankState::Dead;
                    let doing = if is_dead { member.world.status(rank).doing() } else { String::new() };
                    return Err(member.world.fail(Notice::peer(rank, &(cause + &doing))));
                }
                None if is_missing => missing.push(rank),
                None => {}
            }
        }
        let me = member.world.library.rank();
        if member.world.was_asked_to_end() {
            let cause = "it was asked to end (SIGTERM) by its launcher or a user";
            return Err(member.world.fail(Notice::peer(me, cause)));
        }
        // The others that wait are not missing, as their messages are here.
        let is_lowest = (0..me).all(|lower| missing.contains(&lower));
        let statuses = || missing.iter().map(|&rank| member.world.status(rank)).collect::<Vec<_>>();
        if !missing.is_empty() && member.patience.is_over(wait, me, is_lowest, statuses) {
            return Err(member.world.fail(Notice::timeout(me, &self.stamp, wait.waited(), &statuses())));
        }
        Ok(())
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        let (buffers, regions) = (std::mem::take(&mut self.buffers), std::mem::take(&mut self.regions));
        let is_in_flight = |queue: &MessageQueue| !queue.in_flight.is_empty();
        if self.sends.iter().chain(&self.receives).any(is_in_flight) {
            // The run has failed; the library may still write there (invariant 6).
            std::mem::forget((buffers, regions));
        } else {
            self.group.member.recycle(buffers);
        }
    }
}
