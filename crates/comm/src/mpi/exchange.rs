//! Messages of one collective between the ranks of a group: queues in both directions, and the one loop that waits.

use std::time::{Duration, Instant};

use super::library::{Lane, Span};
use super::member::Group;
use super::notice::Notice;
use crate::call::Stamp;
use crate::error::Result;
use crate::ledger::RankState;
use crate::region::{Memory, Private, Region};

/// Messages under way in one direction between two ranks.
const WINDOW: usize = 4;
/// How often it looks, without sleeping, whether something has come.
const SPINS: u32 = 300;
/// The least and the most that it sleeps between two looks.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// How often it looks after the others.
const LOOK: Duration = Duration::from_millis(10);

/// The messages of one collective. What they are read from or written to is kept here, and for ever if the exchange ends
/// before they do: the library may still come to it (invariant 6).
pub(super) struct Exchange<'a> {
    group: &'a Group,
    stamp: Stamp,
    /// One for each rank of the group; this rank's own are empty.
    pub(super) sends: Vec<Lane>,
    pub(super) receives: Vec<Lane>,
    areas: Vec<Private>,
    regions: Vec<Region>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(group: &'a Group, stamp: &Stamp) -> Exchange<'a> {
        let lanes = || group.ranks.iter().map(|&rank| Lane::to(rank)).collect();
        Exchange {
            group,
            stamp: *stamp,
            sends: lanes(),
            receives: lanes(),
            areas: Vec::new(),
            regions: Vec::new(),
        }
    }

    /// The ranks of the group but this one.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.group.me;
        (0..self.group.ranks.len()).filter(move |&index| index != me)
    }

    /// Memory for messages, of at least `bytes` bytes and aligned to a page.
    pub(super) fn area(&mut self, bytes: usize) -> Result<*mut u8> {
        let area = self.group.member.area(bytes)?;
        let at = area.as_ptr();
        self.areas.push(area);
        Ok(at)
    }

    /// Keeps a region that messages are read from or written to.
    pub(super) fn keep(&mut self, region: &Region) {
        self.regions.push(region.clone());
    }

    /// Queues a message to a rank of the group.
    ///
    /// # Safety
    /// The bytes lie in an area or a kept region, and nobody writes them before the lane is over.
    pub(super) unsafe fn send(&mut self, to: usize, span: Span) {
        self.sends[to].waiting.push_back(span);
    }

    /// Queues a message from a rank of the group.
    ///
    /// # Safety
    /// The bytes lie in an area or a kept region, and nobody else touches them before the message was received.
    pub(super) unsafe fn receive(&mut self, from: usize, span: Span) {
        self.receives[from].waiting.push_back(span);
    }

    /// Waits until all messages are over.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.wait_until(|all| all.is_over())
    }

    fn is_over(&self) -> bool {
        self.sends.iter().chain(&self.receives).all(Lane::is_over)
    }

    /// Moves messages until `over` says so. Waits no longer than the time limit without anything that moves; ends with the
    /// failure of any rank.
    pub(super) fn wait_until(&mut self, over: impl Fn(&Exchange) -> bool) -> Result<()> {
        let mut since = Instant::now();
        let (mut spins, mut nap, mut look) = (0, NAPS.0, since + LOOK);
        loop {
            let moved = self.progress()?;
            if over(self) {
                return Ok(());
            }
            if moved {
                since = Instant::now();
                (spins, nap, look) = (0, NAPS.0, since + LOOK);
                continue;
            }
            self.group.member.world.check()?;
            if spins < SPINS {
                spins += 1;
                std::thread::yield_now();
                continue;
            }
            std::thread::sleep(nap);
            nap = NAPS.1.min(nap * 2);
            let now = Instant::now();
            if now >= look {
                self.look_around(now - since)?;
                look = now + LOOK;
            }
        }
    }

    /// Starts what waits, and takes note of what is over. Whether anything was.
    fn progress(&mut self) -> Result<bool> {
        let world = self.group.member.world;
        let (library, tag) = (&world.library, self.group.tag());
        let mut moved = false;
        let mut advance = |lane: &mut Lane, is_send: bool| -> Result<()> {
            while lane.flying.len() < WINDOW
                && let Some(&span) = lane.waiting.front()
            {
                // SAFETY: whoever queued it promised that the bytes are left alone, and they are kept in `areas` or
                // `regions`, for ever if this exchange ends early (invariant 6).
                let flight = unsafe {
                    match is_send {
                        true => library.send(lane.peer, tag, span),
                        false => library.receive(lane.peer, tag, span),
                    }
                }?;
                lane.waiting.pop_front();
                lane.flying.push_back(flight);
            }
            while let Some(flight) = lane.flying.front_mut()
                && let Some(bytes) = library.poll(flight)?
            {
                lane.flying.pop_front();
                (lane.done, lane.last, moved) = (lane.done + 1, bytes, true);
            }
            Ok(())
        };
        let result = self
            .receives
            .iter_mut()
            .try_for_each(|lane| advance(lane, false))
            .and_then(|()| self.sends.iter_mut().try_for_each(|lane| advance(lane, true)));
        match result {
            Ok(()) => Ok(moved),
            Err(error) => Err(self.group.member.fail_alone(error)),
        }
    }

    /// What a rank that waits too long finds out: a dead rank, one that left, the end of its patience.
    fn look_around(&mut self, waited: Duration) -> Result<()> {
        let member = &self.group.member;
        let statuses: Vec<_> = self.group.ranks.iter().map(|&rank| member.world.status(rank)).collect();
        // Looked at after the states: who has finished has sent all it ever will.
        if self.progress()? {
            return Ok(());
        }
        let mut missing = Vec::new();
        for (index, status) in statuses.into_iter().enumerate() {
            let is_missing = !self.sends[index].is_over() || !self.receives[index].is_over();
            let last = || {
                let doing = Some(&status.phase).filter(|phase| !phase.is_empty());
                let doing = doing.map_or_else(String::new, |phase| format!(", in {phase:?}"));
                let call = status.calls.last().map_or_else(String::new, |call| format!(", last {call}"));
                format!("{doing}{call}")
            };
            let cause = match status.state {
                RankState::Dead => {
                    let pid = status.pid.unwrap_or(0);
                    format!("its process {pid} ended without saying why{}", last())
                }
                RankState::Left => "it left without finishing (a panic, an early return)".into(),
                RankState::Finished if is_missing => "it finished while others still waited for it".into(),
                _ if is_missing => {
                    missing.push(status);
                    continue;
                }
                _ => continue,
            };
            return Err(member.world.fail(Notice::peer(status.rank, &cause)));
        }
        let me = member.world.library.rank;
        if member.world.was_told_to_end() {
            let cause = "it was told to end (SIGTERM), by its launcher or a person";
            return Err(member.world.fail(Notice::peer(me, cause)));
        }
        if !missing.is_empty() && waited >= member.timeout() {
            return Err(member.world.fail(Notice::timeout(me, &self.stamp, waited, &missing)));
        }
        Ok(())
    }
}

impl Drop for Exchange<'_> {
    fn drop(&mut self) {
        let (areas, regions) = (std::mem::take(&mut self.areas), std::mem::take(&mut self.regions));
        let is_flying = |lane: &Lane| !lane.flying.is_empty();
        if self.sends.iter().chain(&self.receives).any(is_flying) {
            // The run is over; the library may still write (invariant 6).
            std::mem::forget((areas, regions));
        } else {
            self.group.member.give_back(areas);
        }
    }
}
