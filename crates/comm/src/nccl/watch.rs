//! Who looks after collectives that are in their stream: a thread that ends them when another rank is lost, NCCL has
//! failed or the time is over, so that nobody who waits for the GPU waits forever.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_cuda::driver::Event;
use oarlock_cuda::nccl::Comm;

use crate::error::{Error, Result};
use crate::patience::Wait;
use crate::transport::Transport;

/// The time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// How long an abort may take, if ranks have no less patience with each other.
const ABORT: Duration = Duration::from_secs(10);
/// How long the host may take to notice the end of another rank that NCCL has noticed.
const NOTICE: Duration = Duration::from_secs(2);
/// The exit code of a process whose GPU does not give up its collectives: that of a failed run.
const GPU_HANGS: i32 = 1;
/// How long a collective is left alone: nearly all are over by then, and a look is a call of the driver.
const ALONE: Duration = Duration::from_secs(1);

/// A collective that may not be over.
struct Flight {
    event: Arc<Event>,
    /// What it is, for reports.
    what: String,
    since: Instant,
    wait: Wait,
}

#[derive(Default)]
struct State {
    flights: VecDeque<Flight>,
    comms: Vec<Weak<Comm>>,
    /// What ended the run, as this rank knows it.
    failure: Option<Error>,
    has_ended: bool,
}

/// What the thread and its owners share.
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    host: Arc<dyn Transport>,
}

/// The thread, with what it looks after: all communicators of a rank.
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all that hangs, and tells the other ranks; returns the first failure of the run.
    fn end(&self, error: Error) -> Error {
        let comms = {
            let mut state = self.state();
            if let Some(first) = &state.failure {
                return first.clone();
            }
            state.failure = Some(error.clone());
            state.flights.clear();
            std::mem::take(&mut state.comms)
        };
        match &error {
            // The others say themselves whose failure it is.
            Error::PeerFailed { cause, .. } => self.host.abort(cause),
            other => self.host.abort(&other.to_string()),
        }
        let error = self.host.failure().unwrap_or(error);
        self.state().failure = Some(error.clone());
        self.abort(&comms, &error);
        error
    }

    /// Aborts communicators. All of them share a stream, which is empty when the last one has given up, so that none is
    /// waited for before all were told. A process that could not free its memory any more ends.
    fn abort(&self, comms: &[Weak<Comm>], error: &Error) {
        let comms: Vec<Arc<Comm>> = comms.iter().filter_map(Weak::upgrade).collect();
        comms.iter().for_each(|comm| comm.begin_abort());
        let patience = self.host.patience().limit().min(ABORT);
        let until = Instant::now() + patience;
        // The first failure is the one to report, so that only a communicator that hangs counts.
        let hangs =
            |comm: &Arc<Comm>| matches!(comm.wait_for_abort(until), Err(oarlock_cuda::Error::Late { .. }));
        if comms.iter().any(hangs) {
            let seconds = patience.as_secs_f64();
            eprintln!(
                "error: {error}; this process ends, since NCCL has not aborted the collectives of its GPU in \
                 {seconds:.0} s"
            );
            // What ends a process in order waits for the GPU as well.
            signal_hook::low_level::exit(GPU_HANGS);
        }
    }

    /// The failure of another rank that NCCL has met. NCCL names nobody, and may notice it before the host, which names the
    /// rank.
    fn failure_behind(&self, error: &oarlock_cuda::Error) -> Option<Error> {
        let is_remote = matches!(error, oarlock_cuda::Error::Nccl(error) if error.is_remote());
        let until = Instant::now() + NOTICE;
        loop {
            let failure = self.host.failure();
            if failure.is_some() || !is_remote || Instant::now() >= until {
                return failure;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What has gone wrong with the collectives that are not over, if anything has.
    fn look(&self) -> Option<Error> {
        let mut guard = self.state();
        let state = &mut *guard;
        while let Some(first) = state.flights.front_mut().filter(|first| first.since.elapsed() >= ALONE) {
            match first.event.is_done() {
                Ok(true) => drop(state.flights.pop_front()),
                Ok(false) => {
                    if self.host.patience().is_over(&mut first.wait, self.host.rank(), false, Vec::new) {
                        let waited = first.wait.waited().as_secs_f64();
                        let cause = format!("its GPU has not done {} in {waited:.1} s", first.what);
                        return Some(Error::PeerFailed { rank: self.host.rank(), cause });
                    }
                    break;
                }
                Err(error) => return Some(Error::system(format!("run {}", first.what), error)),
            }
        }
        let what = state.flights.front()?.what.clone();
        if let Some(failure) = self.host.failure() {
            return Some(failure);
        }
        let comms: Vec<Arc<Comm>> = state.comms.iter().filter_map(Weak::upgrade).collect();
        // Nobody waits for the state meanwhile.
        drop(guard);
        let error = comms.iter().find_map(|comm| comm.async_error().err())?;
        Some(self.failure_behind(&error).unwrap_or_else(|| Error::system(format!("run {what}"), error)))
    }

    fn run(&self) {
        loop {
            let mut state = self.state();
            while state.flights.is_empty() && !state.has_ended {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if !state.has_ended {
                let waited = self.changed.wait_timeout_while(state, LOOK, |state| !state.has_ended);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.has_ended {
                return;
            }
            drop(state);
            if let Some(error) = self.look() {
                self.end(error);
            }
        }
    }
}

impl Watch {
    /// Begins, for a rank that has met the others by `host`.
    pub fn new(host: Arc<dyn Transport>) -> std::io::Result<Arc<Watch>> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), host });
        let run = shared.clone();
        let thread = std::thread::Builder::new().name("nccl watch".into()).spawn(move || run.run())?;
        Ok(Arc::new(Watch { shared, thread: Some(thread) }))
    }

    /// Looks after a communicator, too.
    pub fn add_comm(&self, comm: &Arc<Comm>) {
        let mut state = self.shared.state();
        state.comms.retain(|comm| comm.strong_count() > 0);
        state.comms.push(Arc::downgrade(comm));
    }

    /// Looks after a communicator no longer, and does not hold it afterward.
    pub fn remove_comm(&self, comm: &Arc<Comm>) {
        self.shared.state().comms.retain(|other| other.as_ptr() != Arc::as_ptr(comm));
    }

    /// Looks after a collective until its event is done.
    pub fn add(&self, event: &Arc<Event>, what: String) {
        let (since, wait) = (Instant::now(), Wait::begin());
        self.shared.state().flights.push_back(Flight { event: event.clone(), what, since, wait });
        self.shared.changed.notify_all();
    }

    /// Fails if the run has failed.
    pub fn check(&self) -> Result<()> {
        self.shared.state().failure.clone().map_or(Ok(()), Err)
    }

    /// Ends the run because of something that only this rank has seen.
    pub fn fail(&self, cause: &str) -> Error {
        self.shared.end(Error::PeerFailed { rank: self.shared.host.rank(), cause: cause.to_string() })
    }

    /// Ends the run because a call of NCCL has failed.
    pub fn fail_of_nccl(&self, error: &oarlock_cuda::Error) -> Error {
        match self.shared.failure_behind(error) {
            Some(failure) => self.shared.end(failure),
            None => self.fail(&error.to_string()),
        }
    }

    /// Aborts all communicators of a rank whose run has failed.
    pub fn abort(&self, error: &Error) {
        let comms = std::mem::take(&mut self.shared.state().comms);
        self.shared.abort(&comms, error);
    }

    /// Returns when the event of a collective is done, or with what ended the run.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let mut pause = Duration::from_micros(20);
        loop {
            self.check()?;
            if event.is_done().map_err(|error| self.fail(&error.to_string()))? {
                // After an abort it is done, too.
                return self.check();
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(1));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.state().has_ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            drop(thread.join());
        }
    }
}
