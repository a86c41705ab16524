//! The thread of an engine and the handle to it. What happens in which order is the scheduler's; here are only the inbox,
//! the numbers that are shown, and the end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_engine::{Error, Result};
use oarlock_tensor::Arena;

use super::answer::{Answer, Writer};
use super::limits::{Limits, Metrics};
use super::request::{Checked, Request};
use super::scheduler::Scheduler;
use crate::generate::generator::Generator;
use crate::generate::model::Model;
use crate::generate::refusal::Refusal;

/// The most bytes that lie unused between two steps. Keys and values move to larger blocks as answers grow, and the blocks that
/// they leave seldom fit anything again. Tests have small models.
pub(super) const MOST_FREE_BYTES: usize = if cfg!(test) { 64 << 10 } else { 256 << 20 };

/// A model on a thread of its own, which answers requests as they come. Dropping it stops it and waits for its thread.
#[derive(Debug)]
pub struct Engine {
    generator: Arc<Generator>,
    limits: Limits,
    /// The most positions of a text.
    longest: usize,
    begin: Instant,
    /// Requests whose answers have not ended.
    n_open: Arc<AtomicUsize>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and the handle share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Rung when a request comes, the mode changes, or the thread ends.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// Requests that the thread has not seen.
    inbox: Vec<Checked<Writer>>,
    metrics: Metrics,
    has_ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Open,
    /// No more requests are taken, those that are there are answered.
    Draining,
    Stopped,
}

impl Shared {
    /// A thread that panicked has left nothing half done: each change is one assignment.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// A limit of memory that holds no page of keys and values, or no thread.
    pub fn start(generator: Generator, limits: Limits) -> Result<Engine> {
        let begin = Instant::now();
        let scheduler = Scheduler::new(generator.as_model(), limits, Box::new(move || begin.elapsed()))?;
        let (longest, metrics) = (scheduler.longest(), scheduler.metrics());
        let state = State { mode: Mode::Open, inbox: Vec::new(), metrics, has_ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let generator = Arc::new(generator);
        let (of_thread, model) = (shared.clone(), generator.clone());
        let thread = std::thread::Builder::new()
            .name("oarlock-engine".to_owned())
            .spawn(move || {
                let ended = Ended(of_thread);
                work(&model, scheduler, &ended.0);
            })
            .map_err(|cause| Error::Usage(format!("the thread of the engine cannot be started: {cause}")))?;
        let (n_open, thread) = (Arc::default(), Mutex::new(Some(thread)));
        Ok(Engine { generator, limits, longest, begin, n_open, shared, thread })
    }

    /// Takes a request up. Its answer begins as soon as there is a place for it.
    ///
    /// # Errors
    /// A request that cannot be answered, or not now.
    pub fn submit(&self, request: Request) -> std::result::Result<Answer, Refusal> {
        let mut state = self.shared.lock();
        if state.mode != Mode::Open {
            return Err(Refusal::Stopping);
        }
        // Requests are counted in under the lock alone.
        let n_open = self.n_open.load(Ordering::Relaxed);
        if n_open >= self.limits.at_once.max(1).saturating_add(self.limits.queue) {
            return Err(Refusal::QueueFull { n_open });
        }
        let (answer, writer) = Answer::new(&self.n_open);
        let model = Model { n_positions: self.longest, ..self.generator.as_model() };
        state.inbox.push(Checked::new(request, writer, model, self.begin.elapsed())?);
        state.metrics.n_waiting += 1;
        self.shared.changed.notify_all();
        Ok(answer)
    }

    /// The model.
    pub fn generator(&self) -> &Generator {
        &self.generator
    }

    /// The most positions of a text: those of the model, or fewer where the memory for keys and values holds fewer.
    pub fn n_positions(&self) -> usize {
        self.longest
    }

    /// What was done so far, and what is being done.
    pub fn metrics(&self) -> Metrics {
        self.shared.lock().metrics
    }

    /// Takes no more requests, and waits at most so long until all answers are complete; then it stops. Whether they were.
    pub fn drain_within(&self, patience: Duration) -> bool {
        let until = Instant::now().checked_add(patience);
        let mut state = self.shared.lock();
        if state.mode == Mode::Open {
            state.mode = Mode::Draining;
        }
        self.shared.changed.notify_all();
        while !state.has_ended {
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.shared.wait(state),
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.shared.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let is_complete = state.has_ended && state.mode == Mode::Draining;
        state.mode = Mode::Stopped;
        drop(state);
        self.stop();
        is_complete
    }

    /// Stops after the step that is being taken, and waits for it. Answers that are not complete end with
    /// [`Failure::Stopped`](super::Failure::Stopped).
    pub fn stop(&self) {
        self.shared.lock().mode = Mode::Stopped;
        self.shared.changed.notify_all();
        // Held meanwhile, so that whoever else stops it waits as well.
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        // What a thread that panicked has to say is on standard error.
        let _ = thread.take().map(JoinHandle::join);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Says that the thread has ended, also where it panicked. The writers of what is left are dropped, which ends their
/// answers.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            state.mode = Mode::Stopped;
        }
        state.has_ended = true;
        state.inbox.clear();
        state.metrics = Metrics { n_running: 0, n_waiting: 0, cache_bytes: 0, ..state.metrics };
        self.0.changed.notify_all();
    }
}

fn work(generator: &Generator, mut scheduler: Scheduler<Writer>, shared: &Shared) {
    loop {
        let mut state = shared.lock();
        while state.inbox.is_empty() && scheduler.is_idle() && state.mode == Mode::Open {
            state = shared.wait(state);
        }
        match state.mode {
            Mode::Stopped => return,
            Mode::Draining if state.inbox.is_empty() && scheduler.is_idle() => return,
            Mode::Open | Mode::Draining => {}
        }
        let asked = std::mem::take(&mut state.inbox);
        drop(state);
        asked.into_iter().for_each(|asked| scheduler.add(asked));
        // The answers that a failed pass was for have ended with its error.
        let _ = scheduler.step(generator.as_model(), &Ok);
        give_back(generator.as_model().device.arena());
        let mut state = shared.lock();
        state.metrics = scheduler.metrics();
        state.metrics.n_waiting += state.inbox.len();
    }
}

/// Gives unused memory of the host back to the system where it has become much. Pieces of a GPU's segments grow together by
/// themselves.
fn give_back(arena: &Arena) {
    if !arena.is_in_segments() && arena.bytes().saturating_sub(arena.occupied()) > MOST_FREE_BYTES {
        arena.trim();
    }
}
