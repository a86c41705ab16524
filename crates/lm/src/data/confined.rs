//! Runs code that strangers have written (templates, grammars) where it can be given up: on a thread of its own, with bounds to its
//! memory and its time, and with its panics as values.
//!
//! The bounds of memory hold in programs whose allocator is [`oarlock_comm::MeteredAllocator`], as that of `oarlock` is.
//! A thread that goes beyond its bounds cannot be ended, only left: it sleeps, or goes on until the program ends. So the
//! caller ends with an error, and does not try the same again and again.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{io, thread};

use oarlock_comm::{Exceeded, MemoryLimits, Meter};

use super::fence::fenced;

/// How often the caller looks at a thread that works.
const TICK: Duration = Duration::from_millis(20);

/// How many looks a thread gets at most, whatever its processor time: it may also sleep or wait.
const MAX_TICKS: u32 = 30_000;

/// What code may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Bytes at a time.
    pub(crate) bytes: u64,
    /// Pieces of memory at a time.
    pub(crate) n_pieces: u64,
    /// Bytes in all, also those that were given back.
    pub(crate) total_bytes: u64,
    /// Bytes of stack. What is not used takes no memory.
    pub(crate) stack_bytes: usize,
    /// The processor time that it may take. Neither a busy machine nor a stopped program counts.
    pub(crate) time: Duration,
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) enum Abandoned {
    Exceeded(Exceeded),
    TooSlow,
    Panicked,
    NoThread(io::Error),
}

/// A thread that waits for work.
struct Room {
    meter: &'static Meter,
    /// Where the system tells its processor time.
    statistics: Arc<OnceLock<PathBuf>>,
    stack_bytes: usize,
    work: Sender<Box<dyn FnOnce() + Send>>,
}

/// The threads that have nothing to do. There are as many as threads that ask at a time.
static IDLE: Mutex<Vec<Room>> = Mutex::new(Vec::new());

/// What `body` returns.
///
/// # Errors
/// When it goes beyond the bounds or panics, and when there is no thread for it.
pub(crate) fn run<T: Send + 'static>(
    bounds: Bounds,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Abandoned> {
    // Few different sizes, so that threads are used again.
    let stack_bytes = bounds.stack_bytes.next_power_of_two();
    let room = Room::with_stack(stack_bytes).map_err(Abandoned::NoThread)?;
    let (tell, message) = sync_channel(1);
    let meter = room.meter;
    let limits = MemoryLimits {
        bytes: bounds.bytes,
        n_pieces: bounds.n_pieces,
        total_bytes: bounds.total_bytes,
        // What repeats itself without an end asks for memory now and then, and is noticed before the stack ends.
        stack_bytes: bounds.stack_bytes / 4,
    };
    let work = move || {
        let done = fenced(|| meter.run(limits, body));
        drop(tell.send(done));
    };
    if room.work.send(Box::new(work)).is_err() {
        return Err(Abandoned::Panicked);
    }
    let mut begin = None;
    for _ in 0..MAX_TICKS {
        match message.recv_timeout(TICK) {
            Ok(done) => {
                IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(room);
                return done.ok_or(Abandoned::Panicked);
            }
            Err(RecvTimeoutError::Disconnected) => return Err(Abandoned::Panicked),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Some(held) = meter.held() {
            return Err(Abandoned::Exceeded(held));
        }
        let Some(now) = room.processor_time() else { continue };
        if now.saturating_sub(*begin.get_or_insert(now)) > bounds.time {
            return Err(Abandoned::TooSlow);
        }
    }
    Err(Abandoned::TooSlow)
}

impl Room {
    fn with_stack(stack_bytes: usize) -> io::Result<Room> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = idle.iter().position(|room| room.stack_bytes >= stack_bytes) {
            return Ok(idle.swap_remove(at));
        }
        drop(idle);
        let (work, next) = channel::<Box<dyn FnOnce() + Send>>();
        let statistics: Arc<OnceLock<PathBuf>> = Arc::default();
        let own = statistics.clone();
        let thread = thread::Builder::new().name("confined".into()).stack_size(stack_bytes);
        thread.spawn(move || {
            if let Ok(name) = std::fs::read_link("/proc/thread-self") {
                let _ = own.set(Path::new("/proc").join(name).join("schedstat"));
            }
            next.iter().for_each(|work| work());
        })?;
        Ok(Room { meter: Meter::new(), statistics, stack_bytes, work })
    }

    /// The processor time that the thread has had, where the system tells it.
    fn processor_time(&self) -> Option<Duration> {
        let text = oarlock_comm::read_text(self.statistics.get()?, oarlock_comm::MAX_CONFIG_BYTES).ok()?;
        text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        bytes: 1 << 20,
        n_pieces: 1000,
        total_bytes: 1 << 24,
        stack_bytes: 1 << 20,
        time: Duration::from_millis(200),
    };

    #[test]
    fn results_come_back_and_panics_are_values() {
        assert_eq!(run(BOUNDS, || 7).unwrap(), 7);
        assert!(matches!(run(BOUNDS, || [1][std::hint::black_box(1)]), Err(Abandoned::Panicked)));
        assert_eq!(run(BOUNDS, || "after a panic".len()).unwrap(), 13);
    }

    #[test]
    fn what_goes_beyond_its_bounds_is_given_up() {
        let much = run(BOUNDS, || vec![1_u8; std::hint::black_box(1 << 30)].len());
        assert!(matches!(much, Err(Abandoned::Exceeded(Exceeded::Memory))), "{much:?}");
        let slow = run(BOUNDS, || while std::hint::black_box(true) {});
        assert!(matches!(slow, Err(Abandoned::TooSlow)), "{slow:?}");
    }
}
