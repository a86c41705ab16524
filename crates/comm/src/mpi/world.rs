//! The ranks that MPI started together, as one of them knows them: the library, who lives where, what each said last, and
//! the first failure.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

use bytemuck::{Pod, Zeroable};
use signal_hook::consts::SIGTERM;

use super::library::{Flight, Library, Span};
use super::notice::{FINISHED, LEFT, MAX_RANKS, Notice};
use crate::call::{Stamp, StampWords};
use crate::error::{Error, Result};
use crate::ledger::{RankState, RankStatus};
use crate::liveness;

/// The tag of notices; a channel's is its number and one.
const NOTICES: usize = 0;
/// Failures of the same moment are told as one: that of the lowest rank.
const SETTLE: Duration = Duration::from_millis(200);
/// How long a rank that was told to end (SIGTERM) looks for the reason.
const REASON: Duration = Duration::from_millis(300);
/// How long a rank that has finished waits for the others at the end of its process.
const END: Duration = Duration::from_secs(1800);
/// Calls that are kept of each rank.
const KEPT_CALLS: usize = 16;

/// Where a rank runs: what it says of itself when it joins.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Person {
    /// Of the program.
    pub(super) version: u64,
    /// Of the machine and its namespace of processes.
    pub(super) machine: u64,
    /// Of the cores that it may run on.
    pub(super) cores: u64,
    pub(super) pid: u64,
    pub(super) start: u64,
    /// The first channel that no group of this rank uses.
    pub(super) next_channel: u64,
}

pub(super) struct World {
    pub(super) library: Library,
    state: Mutex<State>,
    /// Set by SIGTERM, with which launchers end the ranks of a run that failed.
    told_to_end: Arc<AtomicBool>,
    /// This process is in no world now, so that SIGTERM ends it.
    is_outside: Arc<AtomicBool>,
}

struct State {
    people: Vec<Person>,
    known: Vec<Known>,
    session: u64,
    failure: Option<(Notice, Instant)>,
    /// Notices on their way, with the bytes that they are read from.
    flights: Vec<(Box<Notice>, Vec<Flight>)>,
    told_at: Option<Instant>,
}

/// The first channel that no group of this process has used, in any world.
static NEXT_CHANNEL: AtomicUsize = AtomicUsize::new(1);

/// What a rank has said of itself.
#[derive(Clone, Default)]
struct Known {
    /// The last session that it has finished, and that it has left without.
    finished: u64,
    left: u64,
    phase: String,
    calls: VecDeque<StampWords>,
}

static WORLD: OnceLock<World> = OnceLock::new();

impl World {
    /// The world of this process; starts MPI the first time. MPI cannot be told to wait a while only, so a thread waits.
    pub(super) fn get(limit: Duration, notice: Duration, tell: &dyn Fn(&str)) -> Result<&'static World> {
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(world) = WORLD.get() {
            return Ok(world);
        }
        let (started, start) = mpsc::channel();
        std::thread::Builder::new()
            .name("mpi start".into())
            // If nobody listens any more the process is about to end.
            .spawn(move || drop(started.send(Library::start())))
            .map_err(|e| Error::system("start a thread that starts MPI", e))?;
        let library = match start.recv_timeout(notice) {
            Err(mpsc::RecvTimeoutError::Timeout) => {
                tell(&format!(
                    "MPI waits for other ranks to start, at most {} s; look whether all machines have this program, and \
                     whether they reach each other",
                    limit.as_secs()
                ));
                start.recv_timeout(limit.saturating_sub(notice))
            }
            other => other,
        };
        let library = library.map_err(|_| {
            let seconds = limit.as_secs();
            Error::Join(format!(
                "MPI did not start within {seconds} s: other ranks have not come, or machines do not reach each other"
            ))
        })??;
        let (told_to_end, is_outside) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        signal_hook::flag::register_conditional_default(SIGTERM, is_outside.clone())
            .and_then(|_| signal_hook::flag::register(SIGTERM, told_to_end.clone()))
            .map_err(|e| Error::system("catch SIGTERM", e))?;
        let state = State {
            people: vec![Person::zeroed(); library.size],
            known: vec![Known::default(); library.size],
            session: 0,
            failure: None,
            flights: Vec::new(),
            told_at: None,
        };
        let world =
            WORLD.get_or_init(|| World { library, state: Mutex::new(state), told_to_end, is_outside });
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

    /// Begins the next world of this process.
    pub(super) fn begin(&self) -> Result<u64> {
        if self.library.size > MAX_RANKS {
            return Err(Error::Join(format!("{} ranks; at most {MAX_RANKS} can be", self.library.size)));
        }
        let mut state = self.state();
        let me = &state.known[self.library.rank];
        if state.session > me.finished.max(me.left) {
            let rank = self.library.rank;
            return Err(Error::Join(format!("rank {rank} has already joined; each rank is one process")));
        }
        state.session += 1;
        self.is_outside.store(false, Ordering::Relaxed);
        Ok(state.session)
    }

    pub(super) fn meet_people(&self, people: Vec<Person>) {
        self.state().people = people;
    }

    /// Whether the first failure of the run is known here, after looking for news; once it is, it stays.
    pub(super) fn check(&self) -> Result<()> {
        self.listen()?;
        if self.state().failure.is_none() {
            return Ok(());
        }
        Err(self.settled())
    }

    /// Tells all ranks of a failure, unless there is one already, and returns the first.
    pub(super) fn fail(&self, notice: Notice) -> Error {
        // Somebody may have failed before.
        let _ = self.listen();
        let is_first = {
            let mut state = self.state();
            let mine = notice.of(self.library.rank, state.session);
            let is_first = state.failure.is_none();
            if is_first {
                state.failure = Some((mine, Instant::now()));
            }
            is_first.then_some(mine)
        };
        if let Some(mine) = is_first {
            self.send(mine);
        }
        self.settled()
    }

    /// The failure, after those of the same moment had their time to arrive.
    fn settled(&self) -> Error {
        loop {
            // What cannot be heard changes nothing any more.
            let heard = self.listen();
            let failure = self.state().failure;
            match failure {
                Some((_, since)) if heard.is_ok() && since.elapsed() < SETTLE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Some((notice, _)) => return notice.error(&|| self.statuses()),
                None => return Error::Join("the failure was not recorded".into()),
            }
        }
    }

    /// Says that this rank has finished its world, or left it.
    pub(super) fn leave(&self, kind: u64) {
        let session = self.state().session;
        self.note(Notice::plain(kind).of(self.library.rank, session));
    }

    /// Takes note of a notice of this rank and sends it.
    fn note(&self, notice: Notice) {
        let is_news = {
            self.is_outside.store(true, Ordering::Relaxed);
            let me = &mut self.state().known[self.library.rank];
            // Whoever has left before stays so, and who has finished.
            let is_news = notice.session > me.finished.max(me.left);
            match notice.kind {
                _ if !is_news => {}
                FINISHED => me.finished = notice.session,
                _ => me.left = notice.session,
            }
            is_news
        };
        if is_news {
            self.send(notice);
        }
    }

    fn send(&self, notice: Notice) {
        let kept = Box::new(notice);
        let span = Span { at: std::ptr::from_ref(&*kept).cast_mut().cast(), bytes: size_of::<Notice>() };
        let others = (0..self.library.size).filter(|&rank| rank != self.library.rank);
        // SAFETY: the box is only read, and kept in `flights` until all have gone; the world lives as long as the process.
        // Whom it cannot be sent to has ended, or notices by itself.
        let flights =
            others.filter_map(|rank| unsafe { self.library.send(rank, NOTICES, span) }.ok()).collect();
        self.state().flights.push((kept, flights));
    }

    /// Takes in what others say, and looks after what was sent.
    pub(super) fn listen(&self) -> Result<()> {
        while let Some(bytes) = self.library.take(NOTICES, size_of::<Notice>())? {
            let Some(notice) = Notice::from_bytes(&bytes) else { continue };
            let mut state = self.state();
            let Some(known) = state.known.get_mut(notice.from as usize) else { continue };
            match notice.kind {
                FINISHED => known.finished = notice.session,
                LEFT => known.left = notice.session,
                _ if notice.is_failure() => {
                    // Of failures of one moment every rank keeps the same.
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
        // A message that cannot be sent has nobody to go to.
        let is_under_way = |flight: &mut Flight| matches!(self.library.poll(flight), Ok(None));
        state.flights.iter_mut().for_each(|(_, flights)| flights.retain_mut(is_under_way));
        state.flights.retain(|(_, flights)| !flights.is_empty());
        Ok(())
    }

    /// Writes down what a rank said it was doing.
    pub(super) fn heard(&self, rank: usize, stamp: &Stamp, phase: &str) {
        let known = &mut self.state().known[rank];
        phase.clone_into(&mut known.phase);
        if known.calls.len() == KEPT_CALLS {
            known.calls.pop_front();
        }
        known.calls.push_back(stamp.words());
    }

    pub(super) fn set_phase(&self, phase: &str) {
        phase.clone_into(&mut self.state().known[self.library.rank].phase);
    }

    pub(super) fn phase(&self) -> String {
        self.state().known[self.library.rank].phase.clone()
    }

    /// What is known of each rank.
    pub(super) fn statuses(&self) -> Vec<RankStatus> {
        (0..self.library.size).map(|rank| self.status(rank)).collect()
    }

    pub(super) fn status(&self, rank: usize) -> RankStatus {
        let state = self.state();
        let (known, person) = (&state.known[rank], &state.people[rank]);
        let (pid, is_here) = (person.pid as u32, person.machine == state.people[self.library.rank].machine);
        let at = match () {
            () if pid == 0 => RankState::Absent,
            () if known.finished >= state.session => RankState::Finished,
            () if known.left >= state.session => RankState::Left,
            // A process of another machine is only heard of.
            () if is_here => liveness::look(pid, person.start),
            () => RankState::Running,
        };
        let calls = known.calls.iter().map(|words| Stamp::from_words(*words).call(rank)).collect();
        let pid = Some(pid).filter(|&pid| pid != 0);
        RankStatus { rank, state: at, pid, phase: known.phase.clone(), calls }
    }

    /// Whether the launcher, or a person, has told this rank to end, and no reason was seen in the time for it.
    pub(super) fn was_told_to_end(&self) -> bool {
        if !self.told_to_end.load(Ordering::Relaxed) {
            return false;
        }
        let at = *self.state().told_at.get_or_insert_with(Instant::now);
        at.elapsed() >= REASON
    }

    /// This rank's place among those of `ranks` that share its cores, and how many they are.
    pub(super) fn sharing_cores(&self, ranks: &[usize]) -> (usize, usize) {
        let state = self.state();
        let home = |rank: usize| (state.people[rank].machine, state.people[rank].cores);
        let here = |rank: &usize| home(*rank) == home(self.library.rank);
        let mut before = ranks.iter().copied().filter(here);
        let place = before.clone().position(|rank| rank == self.library.rank);
        (place.unwrap_or(0), before.by_ref().count().max(1))
    }

    /// The machine of each of `ranks`, numbered as they come.
    pub(super) fn machines(&self, ranks: &[usize]) -> Vec<usize> {
        let state = self.state();
        let mut known: Vec<u64> = Vec::new();
        let mut number = |&rank: &usize| {
            let machine = state.people[rank].machine;
            let at = known.iter().position(|&other| other == machine);
            at.unwrap_or_else(|| {
                known.push(machine);
                known.len() - 1
            })
        };
        ranks.iter().map(&mut number).collect()
    }

    /// The end of the process: MPI ends well where all ranks have finished, and not at all where one failed, as its end
    /// waits for all.
    fn end(&self) {
        {
            let state = self.state();
            let is_finished = state.known[self.library.rank].finished >= state.session;
            if state.failure.is_some() || !is_finished || state.session == 0 {
                return;
            }
        }
        let began = Instant::now();
        while began.elapsed() < END {
            let all = (0..self.library.size).map(|rank| self.status(rank));
            let waited_for = all.filter(|status| status.state != RankState::Finished).collect::<Vec<_>>();
            if waited_for.is_empty() && self.state().flights.is_empty() {
                return self.library.end();
            }
            let is_lost = |status: &RankStatus| matches!(status.state, RankState::Dead | RankState::Left);
            if waited_for.iter().any(is_lost) || self.check().is_err() || self.was_told_to_end() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Lets MPI end with the process, whichever way `main` does.
fn at_the_end() {
    unsafe extern "C" {
        fn atexit(function: extern "C" fn()) -> std::ffi::c_int;
    }
    extern "C" fn end() {
        if let Some(world) = WORLD.get() {
            world.end();
        }
    }
    // SAFETY: a function of C's library with this type; ours touches statics that are never dropped. If it is not kept
    // MPI does not end, which the launcher reports.
    let _ = unsafe { atexit(end) };
}
