//! How a communicator ends while others may use it: its handle, which nobody gets afterward, and an abort in a thread of
//! its own.
//!
//! An abort waits for the stream of its collectives, and so for those of other communicators in the same stream. Whoever
//! aborts several has begun with all of them before it waits for one.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use super::api::Handle;
use crate::error::Result;

/// The library's handle, for one call at a time.
pub(super) struct Live {
    /// Null when it has ended.
    handle: AtomicPtr<c_void>,
    /// Held for one call of the library. NCCL does not tell threads apart outside of a group, which one thread begins and
    /// ends under this lock.
    call: Mutex<()>,
}

impl Live {
    pub fn new(handle: Handle) -> Live {
        Live { handle: AtomicPtr::new(handle), call: Mutex::new(()) }
    }

    /// Gives the handle to one call; `None` if there is none any more.
    pub fn with<R>(&self, call: impl FnOnce(Handle) -> R) -> Option<R> {
        let _held = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = self.handle.load(Ordering::Acquire);
        (!handle.is_null()).then(|| call(handle))
    }

    /// Whether a call has the handle now.
    pub fn is_in_call(&self) -> bool {
        matches!(self.call.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.handle.load(Ordering::Acquire).is_null()
    }

    /// Takes the handle away, so that no call begins with it any more.
    pub fn take(&self) -> Option<Taken> {
        let handle = self.handle.swap(null_mut(), Ordering::AcqRel);
        (!handle.is_null()).then_some(Taken(handle))
    }

    /// Returns when the call is over that has the handle, or after so long.
    pub fn wait_for_call(&self, patience: Duration) {
        let begin = Instant::now();
        while self.is_in_call() && begin.elapsed() < patience {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A handle that nobody else has any more, but for a call that had it before.
pub(super) struct Taken(Handle);

// SAFETY: a handle is only a name, which NCCL takes from any thread.
unsafe impl Send for Taken {}

impl Taken {
    /// The handle.
    pub fn handle(self) -> Handle {
        self.0
    }
}

/// Whether a communicator is being ended, and what came of it.
#[derive(Default)]
pub(super) struct End(Arc<Ending>);

#[derive(Default)]
struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

/// What ends it.
type Job = Box<dyn FnOnce() -> Result<()> + Send>;

#[derive(Default)]
enum State {
    #[default]
    NotBegun,
    /// With the job until somebody has taken it.
    Begun(Option<Job>),
    /// Whoever asks first is told of an error.
    Over(Result<()>),
}

impl End {
    /// Does this in a thread of its own, unless something has begun before.
    pub fn begin(&self, job: impl FnOnce() -> Result<()> + Send + 'static) {
        {
            let mut state = self.0.state();
            if !matches!(*state, State::NotBegun) {
                return;
            }
            *state = State::Begun(Some(Box::new(job)));
        }
        let ending = self.0.clone();
        if thread::Builder::new().name("nccl abort".into()).spawn(move || ending.run()).is_err() {
            // Where the system has no thread, whoever ends it waits for it.
            self.0.run();
        }
    }

    /// Returns when what has begun is over; `None` if it is not by then.
    pub fn wait(&self, until: Instant) -> Option<Result<()>> {
        let mut state = self.0.state();
        loop {
            match &mut *state {
                State::NotBegun => return Some(Ok(())),
                State::Over(result) => return Some(std::mem::replace(result, Ok(()))),
                State::Begun(_) => {}
            }
            let left = until.checked_duration_since(Instant::now())?;
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Ending {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let job = match &mut *self.state() {
            State::Begun(job) => job.take(),
            State::NotBegun | State::Over(_) => None,
        };
        let Some(job) = job else { return };
        let result = job();
        *self.state() = State::Over(result);
        self.changed.notify_all();
    }
}
