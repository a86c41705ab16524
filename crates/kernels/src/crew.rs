//! Threads that help their caller with one job at a time, and wait for the next one awake for a moment.
//!
//! A step of generation is hundreds of small products, and to wake a sleeping thread takes as long as one of them. What
//! holds:
//!
//! 1. A job is open from when its caller publishes it until that caller closes it. A helper enters an open job at most
//!    once, and no closed one.
//! 2. A caller returns, or panics, only when its job is closed and no helper is inside. So what a job borrows outlives
//!    every use.
//! 3. Nobody waits for a helper that has not entered: one that sleeps, or has no core, delays nothing.
//! 4. While a job is open, other calls (of other threads, or from within the job) get no helper. Their callers do all of
//!    the work, and nobody waits for a lock.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a helper without a job stays awake: longer than what one thread does alone between two products.
const AWAKE: Duration = Duration::from_micros(200);
/// How long it does so without offering its core to others.
const GREEDY: Duration = Duration::from_micros(20);

/// Bit of [`Shared::state`] that says whether the job is open. Below it the helpers inside are counted, above it the jobs.
const OPEN: u64 = 1 << 16;
/// The helpers inside.
const INSIDE: u64 = OPEN - 1;
/// From one job to the next.
const NEXT_JOB: u64 = OPEN << 1;

/// The most helpers that [`INSIDE`] can count.
const MOST: usize = INSIDE as usize;

/// Helpers of one caller at a time.
#[derive(Debug)]
pub(crate) struct Crew {
    shared: Arc<Shared>,
    /// Held by the caller whose job is open.
    caller: Mutex<()>,
    n_helpers: usize,
}

/// A job: `work` is called with each number below `n`.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(usize) + Sync),
    n: usize,
}

struct Shared {
    /// The number of the job, whether it is open, and how many helpers are inside.
    state: AtomicU64,
    /// Written by the caller while nobody is inside and nothing open.
    job: UnsafeCell<Job>,
    /// The next number of the job.
    next: AtomicUsize,
    /// What a helper has panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Helpers that sleep, or are about to.
    n_asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    is_over: AtomicBool,
}

// SAFETY: `job` is written only by the caller that holds `Crew::caller`, before it opens the job, and read only by helpers
// that have entered since; entering and opening are ordered by `state`. What it points to may be shared by threads (`Sync`).
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Crew {
    /// Starts so many helpers.
    ///
    /// # Errors
    /// When the operating system refuses one of them.
    pub(crate) fn start(n_helpers: usize) -> std::io::Result<Crew> {
        if n_helpers > MOST {
            return Err(std::io::Error::other(format!("at most {MOST} threads can help")));
        }
        let nothing: &'static (dyn Fn(usize) + Sync) = &|_| ();
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(Job { work: nothing, n: 0 }),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            n_asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        // Dropped with those that were started, where one is refused.
        let crew = Crew { shared, caller: Mutex::new(()), n_helpers };
        for i in 0..n_helpers {
            let shared = crew.shared.clone();
            thread::Builder::new().name(format!("oarlock-{}", i + 1)).spawn(move || help(&shared))?;
        }
        Ok(crew)
    }

    /// How many helpers there are.
    pub(crate) fn n_helpers(&self) -> usize {
        self.n_helpers
    }

    /// Calls `work` with each number below `n` once, from this thread and from helpers.
    pub(crate) fn run(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
        let _mine = match self.caller.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..n).for_each(work),
        };
        let shared = &*self.shared;
        type Work<'a> = &'a (dyn Fn(usize) + Sync + 'a);
        // SAFETY: this only forgets how long `work` lives: by (2) until nobody uses it any more.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let job = Job { work, n };
        // SAFETY: the last job is closed and empty (2), so no helper reads this.
        unsafe { *shared.job.get() = job };
        shared.next.store(0, Ordering::Relaxed);
        let open = ((shared.state.load(Ordering::Relaxed) & !INSIDE) + NEXT_JOB) | OPEN;
        // In one order with what helpers do before they sleep.
        shared.state.store(open, Ordering::SeqCst);
        if shared.n_asleep.load(Ordering::SeqCst) > 0 {
            let _guard = shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            // No more than the job has use for.
            (1..n.min(self.n_helpers + 1)).for_each(|_| shared.wake.notify_one());
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.work_off(job)));
        if own.is_err() {
            // What is left of the job is not begun.
            shared.next.store(n, Ordering::Relaxed);
        }
        shared.state.fetch_and(!OPEN, Ordering::AcqRel);
        wait(|| shared.state.load(Ordering::Acquire) & INSIDE == 0, None);
        let helper = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = own.err().or(helper) {
            resume_unwind(payload);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _guard = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// Takes numbers of a job as long as there are any.
    fn work_off(&self, job: Job) {
        // SAFETY: the caller is inside the job, or has published it and not closed it yet (2).
        let work = unsafe { &*job.work };
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= job.n {
                return;
            }
            work(i);
        }
    }

    /// Whether a job is open that a helper has not been in whose last one was `seen`.
    fn has_job(&self, seen: u64) -> bool {
        let state = self.state.load(Ordering::SeqCst);
        state & OPEN != 0 && state & !INSIDE != seen
    }

    /// Enters the open job; `seen` becomes that one.
    fn enter(&self, seen: &mut u64) -> Option<Job> {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & OPEN != 0 && state & !INSIDE != *seen {
            match self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    *seen = state & !INSIDE;
                    // SAFETY: this thread is inside, so the job is not replaced.
                    return Some(unsafe { *self.job.get() });
                }
                Err(now) => state = now,
            }
        }
        None
    }

    /// Sleeps until there may be a job.
    fn doze(&self, seen: u64) {
        let guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_asleep.fetch_add(1, Ordering::SeqCst);
        // A caller that opens a job after this look sees that somebody sleeps, and waits for the lock to wake them.
        if !self.has_job(seen) && !self.is_over.load(Ordering::SeqCst) {
            drop(self.wake.wait(guard));
        }
        self.n_asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The life of a helper.
fn help(shared: &Shared) {
    let mut seen = 0;
    while !shared.is_over.load(Ordering::Relaxed) {
        let Some(job) = shared.enter(&mut seen) else {
            if !wait(|| shared.has_job(seen), Some(AWAKE)) {
                shared.doze(seen);
            }
            continue;
        };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| shared.work_off(job))) {
            shared.next.store(job.n, Ordering::Relaxed);
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
        }
        shared.state.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Stays awake until something holds, or for so long; whether it holds.
fn wait(holds: impl Fn() -> bool, limit: Option<Duration>) -> bool {
    const LOOKS: usize = 32;
    let begin = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if holds() {
                return true;
            }
            std::hint::spin_loop();
        }
        let waited = begin.elapsed();
        if limit.is_some_and(|limit| waited > limit) {
            return false;
        }
        if waited > GREEDY {
            thread::yield_now();
        }
    }
}
