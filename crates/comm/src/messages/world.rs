//! The ranks that exchange messages, as one of them sees them: the library, where each rank runs, what it was doing last, and
//! the first failure.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::Zeroable;
use signal_hook::consts::SIGTERM;

use super::library::{ByteSpan, InFlight, Library, Lost, NOTICES};
use super::notice::{FINISHED, LEFT, MAX_RANKS, Notice};
use super::rank_info::RankInfo;
use crate::cores::available_cores;
use crate::error::{Error, Result};
use crate::ledger::{RankState, RankStatus};
use crate::procfs;
use crate::stamp::{Stamp, StampWords};

/// Failures within this time count as one: that of the lowest rank.
const SETTLE: Duration = Duration::from_millis(200);
/// How long a rank that was asked to end (SIGTERM) looks for the reason.
const REASON: Duration = Duration::from_millis(300);
/// How long a rank that has finished waits for the others at the end of its process.
const END: Duration = Duration::from_secs(1800);
/// Calls that are kept of each rank.
const KEPT_CALLS: usize = 16;

pub(super) struct World {
    pub(super) library: Box<dyn Library>,
    state: Mutex<State>,
    /// Set by SIGTERM, with which launchers end the ranks of a run that failed.
    asked_to_end: Arc<AtomicBool>,
    /// This process is in no session now, so SIGTERM ends it.
    is_idle: Arc<AtomicBool>,
    /// The ranks of this machine, and those that share this rank's cores.
    near: [AtomicUsize; 2],
}

/// A notice in flight to some ranks, with the memory that it is sent from.
type SentNotice = (Box<Notice>, Vec<(usize, InFlight)>);

struct State {
    infos: Vec<RankInfo>,
    peers: Vec<PeerState>,
    /// The number of the current session: the library starts once in a process, which may train several times.
    session: u64,
    failure: Option<(Notice, Instant)>,
    notices: Vec<SentNotice>,
    asked_at: Option<Instant>,
}

/// The first channel that no group of this process has used, in any session.
static NEXT_CHANNEL: AtomicUsize = AtomicUsize::new(1);

/// What a rank has told about itself.
#[derive(Clone, Default)]
struct PeerState {
    /// The last session that it has finished, and that it has left without.
    finished: u64,
    left: u64,
    phase: String,
    calls: VecDeque<StampWords>,
}

static WORLD: OnceLock<World> = OnceLock::new();

impl World {
    /// The world of this process; the first time `start` starts its library.
    pub(super) fn get(start: impl FnOnce() -> Result<Box<dyn Library>>) -> Result<&'static World> {
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(world) = WORLD.get() {
            return Ok(world);
        }
        let library = start()?;
        let (asked_to_end, is_idle) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        signal_hook::flag::register_conditional_default(SIGTERM, is_idle.clone())
            .and_then(|_| signal_hook::flag::register(SIGTERM, asked_to_end.clone()))
            .map_err(|e| Error::system("catch SIGTERM", e))?;
        let state = State {
            infos: vec![RankInfo::zeroed(); library.size()],
            peers: vec![PeerState::default(); library.size()],
            session: 0,
            failure: None,
            notices: Vec::new(),
            asked_at: None,
        };
        let world = WORLD.get_or_init(|| World {
            library,
            state: Mutex::new(state),
            asked_to_end,
            is_idle,
            near: [AtomicUsize::new(1), AtomicUsize::new(1)],
        });
        at_the_end();
        Ok(world)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first channel that no group of this rank uses.
    pub(super) fn next_channel() -> usize {
        NEXT_CHANNEL.load(Ordering::Relaxed)
    }

    /// From now on groups of this rank use channels after this one.
    pub(super) fn take_channel(channel: usize) {
        NEXT_CHANNEL.fetch_max(channel + 1, Ordering::Relaxed);
    }

    /// Begins the next session of this process.
    pub(super) fn begin(&self) -> Result<u64> {
        if self.library.size() > MAX_RANKS {
            return Err(Error::Join(format!("{} ranks; at most {MAX_RANKS} can be", self.library.size())));
        }
        let mut state = self.state();
        let me = &state.peers[self.library.rank()];
        if state.session > me.finished.max(me.left) {
            let rank = self.library.rank();
            return Err(Error::Join(format!("rank {rank} has already joined; each rank is one process")));
        }
        state.session += 1;
        self.is_idle.store(false, Ordering::Relaxed);
        Ok(state.session)
    }

    pub(super) fn set_infos(&self, infos: Vec<RankInfo>) {
        if let Some(own) = infos.get(self.library.rank()) {
            let here = infos.iter().filter(|info| info.machine == own.machine);
            let sharing = here.clone().filter(|info| info.cores == own.cores).count();
            self.near[0].store(here.count(), Ordering::Relaxed);
            self.near[1].store(sharing, Ordering::Relaxed);
        }
        self.state().infos = infos;
    }

    /// Receives notices, and fails with the first failure of the run if there is one.
    pub(super) fn check(&self) -> Result<()> {
        self.receive_notices()?;
        if self.state().failure.is_some() {
            return Err(self.settle_failure());
        }
        match self.first_lost() {
            Some((rank, lost)) if lost.since.elapsed() >= SETTLE => {
                let doing = self.status(rank).doing();
                Err(self.fail(Notice::peer(rank, &(lost.cause + &doing))))
            }
            _ => Ok(()),
        }
    }

    /// The rank of the session whose connection broke first. It may have told others why, or its process is on this machine:
    /// that is known [`SETTLE`] later.
    fn first_lost(&self) -> Option<(usize, Lost)> {
        let lost = (0..self.library.size()).filter_map(|rank| Some((rank, self.library.lost(rank)?)));
        let mut lost: Vec<(usize, Lost)> = lost.collect();
        if !lost.is_empty() {
            let state = self.state();
            // Those that have ended as they should have no connection any more.
            lost.retain(|(rank, _)| state.peers[*rank].finished.max(state.peers[*rank].left) < state.session);
        }
        lost.into_iter().min_by_key(|(_, lost)| lost.since)
    }

    /// Reports a failure to all ranks, unless there is one already; returns the first.
    pub(super) fn fail(&self, notice: Notice) -> Error {
        // Another rank may have failed before.
        let _ = self.receive_notices();
        let is_first = {
            let mut state = self.state();
            let mine = notice.of(self.library.rank(), state.session);
            let is_first = state.failure.is_none();
            if is_first {
                state.failure = Some((mine, Instant::now()));
            }
            is_first.then_some(mine)
        };
        if let Some(mine) = is_first {
            self.send(mine);
        }
        self.settle_failure()
    }

    /// The failure, once others of the same moment had time to arrive.
    fn settle_failure(&self) -> Error {
        loop {
            // A notice that cannot be received changes nothing any more.
            let received = self.receive_notices();
            let failure = self.state().failure;
            match failure {
                Some((_, since)) if received.is_ok() && since.elapsed() < SETTLE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some((notice, _)) => return notice.error(&|| self.statuses()),
                None => return Error::Join("the failure was not recorded".into()),
            }
        }
    }

    /// Tells all ranks that this one has finished its session, or left it.
    pub(super) fn leave(&self, kind: u64) {
        let session = self.state().session;
        self.publish(Notice::plain(kind).of(self.library.rank(), session));
    }

    /// Applies a notice of this rank and sends it.
    fn publish(&self, notice: Notice) {
        let is_new = {
            self.is_idle.store(true, Ordering::Relaxed);
            let me = &mut self.state().peers[self.library.rank()];
            // A rank that has finished or left stays so.
            let is_new = notice.session > me.finished.max(me.left);
            match notice.kind {
                _ if !is_new => {}
                FINISHED => me.finished = notice.session,
                _ => me.left = notice.session,
            }
            is_new
        };
        if is_new {
            self.send(notice);
        }
    }

    fn send(&self, notice: Notice) {
        let kept = Box::new(notice);
        let span = ByteSpan { at: std::ptr::from_ref(&*kept).cast_mut().cast(), bytes: size_of::<Notice>() };
        let others = (0..self.library.size()).filter(|&rank| rank != self.library.rank());
        // SAFETY: the box is only read, and kept in `notices` until all messages are sent or have no connection; the world
        // lives as long as the process. A rank that it cannot be sent to has ended, or finds out by itself.
        let send = |rank| Some((rank, unsafe { self.library.send(rank, NOTICES, span) }.ok()?));
        let messages = others.filter_map(send).collect();
        self.state().notices.push((kept, messages));
    }

    /// Receives the notices of others, and completes those that were sent.
    pub(super) fn receive_notices(&self) -> Result<()> {
        while let Some(bytes) = self.library.take_notice(size_of::<Notice>())? {
            let Some(notice) = Notice::from_bytes(&bytes) else { continue };
            let mut state = self.state();
            let Some(peer) = state.peers.get_mut(notice.from as usize) else { continue };
            match notice.kind {
                FINISHED => peer.finished = notice.session,
                LEFT => peer.left = notice.session,
                _ if notice.is_failure() => {
                    // Of failures within the same moment every rank keeps that of the lowest rank.
                    let now = Instant::now();
                    match &state.failure {
                        Some((other, since)) if other.from < notice.from || since.elapsed() >= SETTLE => {}
                        other => state.failure = Some((notice, other.map_or(now, |(_, since)| since))),
                    }
                }
                _ => {}
            }
        }
        let mut state = self.state();
        // A message that cannot be sent has no receiver any more.
        let is_in_flight = |(rank, message): &mut (usize, InFlight)| {
            matches!(message.poll(), Ok(None)) && self.library.lost(*rank).is_none()
        };
        state.notices.iter_mut().for_each(|(_, messages)| messages.retain_mut(is_in_flight));
        state.notices.retain(|(_, messages)| !messages.is_empty());
        Ok(())
    }

    /// Records the collective and the phase of a rank.
    pub(super) fn record_call(&self, rank: usize, stamp: &Stamp, phase: &str) {
        let peer = &mut self.state().peers[rank];
        phase.clone_into(&mut peer.phase);
        if peer.calls.len() == KEPT_CALLS {
            peer.calls.pop_front();
        }
        peer.calls.push_back(stamp.words());
    }

    pub(super) fn set_phase(&self, phase: &str) {
        phase.clone_into(&mut self.state().peers[self.library.rank()].phase);
    }

    pub(super) fn phase(&self) -> String {
        self.state().peers[self.library.rank()].phase.clone()
    }

    /// How many ranks this machine has, and how many of them share each core of this rank.
    pub(super) fn ranks_here(&self) -> (usize, usize) {
        static CORES: OnceLock<usize> = OnceLock::new();
        let cores = *CORES.get_or_init(|| available_cores().len().max(1));
        let [here, sharing] = self.near.each_ref().map(|count| count.load(Ordering::Relaxed));
        (here, sharing.div_ceil(cores))
    }

    /// The state of a rank and its process, which is 0 where it is not known.
    pub(super) fn rank_state(&self, rank: usize) -> (RankState, u32) {
        let (peer, info, session, here) = {
            let state = self.state();
            let peer = &state.peers[rank];
            let here = state.infos[self.library.rank()].machine;
            ((peer.finished, peer.left), state.infos[rank], state.session, here)
        };
        let pid = info.pid as u32;
        let at = match () {
            () if pid == 0 => RankState::Absent,
            () if peer.0 >= session => RankState::Finished,
            () if peer.1 >= session => RankState::Left,
            // Nothing is known about processes of other machines.
            () if info.machine == here => procfs::state(pid, info.start),
            () => RankState::Running,
        };
        (at, pid)
    }

    /// The status of each rank.
    pub(super) fn statuses(&self) -> Vec<RankStatus> {
        (0..self.library.size()).map(|rank| self.status(rank)).collect()
    }

    pub(super) fn status(&self, rank: usize) -> RankStatus {
        let (at, pid) = self.rank_state(rank);
        let state = self.state();
        let peer = &state.peers[rank];
        let calls = peer.calls.iter().map(|words| Stamp::from_words(*words).call(rank)).collect();
        let pid = Some(pid).filter(|&pid| pid != 0);
        let is_elsewhere = state.infos[rank].machine != state.infos[self.library.rank()].machine;
        RankStatus { rank, state: at, pid, phase: peer.phase.clone(), calls, is_elsewhere }
    }

    /// Whether the launcher or a user has asked this rank to end.
    pub(super) fn is_asked_to_end(&self) -> bool {
        self.asked_to_end.load(Ordering::Relaxed)
    }

    /// Whether the launcher or a user has asked this rank to end, and no reason was found in time.
    pub(super) fn was_asked_to_end(&self) -> bool {
        if !self.is_asked_to_end() {
            return false;
        }
        let at = *self.state().asked_at.get_or_insert_with(Instant::now);
        at.elapsed() >= REASON
    }

    /// This rank's index among those of `ranks` that share its cores, and their number.
    pub(super) fn sharing_cores(&self, ranks: &[usize]) -> (usize, usize) {
        let state = self.state();
        let location = |rank: usize| (state.infos[rank].machine, state.infos[rank].cores);
        let here = |rank: &usize| location(*rank) == location(self.library.rank());
        let mut before = ranks.iter().copied().filter(here);
        let place = before.clone().position(|rank| rank == self.library.rank());
        (place.unwrap_or(0), before.by_ref().count().max(1))
    }

    /// The machine of each of `ranks`, numbered in order of appearance.
    pub(super) fn machines(&self, ranks: &[usize]) -> Vec<usize> {
        let state = self.state();
        let mut machines: Vec<u64> = Vec::new();
        let mut number = |&rank: &usize| {
            let machine = state.infos[rank].machine;
            let at = machines.iter().position(|&other| other == machine);
            at.unwrap_or_else(|| {
                machines.push(machine);
                machines.len() - 1
            })
        };
        ranks.iter().map(&mut number).collect()
    }

    /// The end of the process: the library ends if all ranks have finished, and not if one failed, as that would wait for all.
    fn end(&self) {
        {
            let state = self.state();
            let is_finished = state.peers[self.library.rank()].finished >= state.session;
            if state.failure.is_some() || !is_finished || state.session == 0 {
                return;
            }
        }
        let began = Instant::now();
        while began.elapsed() < END {
            let all = (0..self.library.size()).map(|rank| self.status(rank));
            let waited_for = all.filter(|status| status.state != RankState::Finished).collect::<Vec<_>>();
            if waited_for.is_empty() && self.state().notices.is_empty() {
                return self.library.end();
            }
            let is_lost = |status: &RankStatus| matches!(status.state, RankState::Dead | RankState::Left);
            if waited_for.iter().any(is_lost) || self.check().is_err() || self.was_asked_to_end() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends the library at the end of the process, however `main` ends.
fn at_the_end() {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
    }
    extern "C" fn end() {
        if let Some(world) = WORLD.get() {
            world.end();
        }
    }
    // SAFETY: `atexit` of the C library has this type; `end` touches statics that are never dropped. If registering fails
    // the library does not end, which the launcher of MPI reports.
    let _ = unsafe { atexit(end) };
}
