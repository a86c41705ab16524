//! An allocator that counts what a thread takes, and holds a thread that asks for more than it may.
//!
//! Code of other crates that runs what strangers wrote (a chat template) can ask for any amount of memory, and an
//! allocation that fails ends the process. A thread with a [`Meter`] is stopped before: its allocation never returns, and
//! whoever waits for it reads why. What it has taken stays taken, so the caller gives up after that.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// The system's allocator, which also counts for threads with a [`Meter`]. A program makes it its own:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: oarlock_comm::MeteredAllocator = oarlock_comm::MeteredAllocator;
/// # fn main() {}
/// ```
pub struct MeteredAllocator;

/// The most that a thread may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes at a time.
    pub bytes: u64,
    /// Pieces of memory at a time. What is nested is released level by level, so this also bounds the stack.
    pub n_pieces: u64,
    /// Bytes in all, also those that were given back: a bound on the work.
    pub total_bytes: u64,
    /// Bytes of stack.
    pub stack_bytes: usize,
}

/// Which limit of a thread was met first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceeded {
    /// More bytes at a time, or more pieces.
    Memory,
    /// More bytes in all.
    Work,
    /// More stack.
    Stack,
}

/// Counts what a thread takes.
#[derive(Debug)]
pub struct Meter {
    bytes: AtomicU64,
    n_pieces: AtomicU64,
    total_bytes: AtomicU64,
    max_bytes: AtomicU64,
    max_pieces: AtomicU64,
    max_total_bytes: AtomicU64,
    /// Where the stack must not grow to: it grows downwards.
    lowest: AtomicUsize,
    held: AtomicU8,
}

thread_local! {
    /// The meter of this thread. It has no destructor, so it can be read at any time.
    static METER: Cell<Option<&'static Meter>> = const { Cell::new(None) };
}

impl Meter {
    /// A meter. It is never released, since the thread that it holds is not either.
    pub fn new() -> &'static Meter {
        Box::leak(Box::new(Meter {
            bytes: AtomicU64::new(0),
            n_pieces: AtomicU64::new(0),
            total_bytes: AtomicU64::new(0),
            max_bytes: AtomicU64::new(0),
            max_pieces: AtomicU64::new(0),
            max_total_bytes: AtomicU64::new(0),
            lowest: AtomicUsize::new(0),
            held: AtomicU8::new(0),
        }))
    }

    /// What `body` returns, counted on this thread from zero. Beyond the limits it never returns, and
    /// [`held`](Self::held) says why.
    pub fn run<T>(&'static self, limits: MemoryLimits, body: impl FnOnce() -> T) -> T {
        let here = std::ptr::from_ref(&limits).addr();
        for (count, value) in [
            (&self.bytes, 0),
            (&self.n_pieces, 0),
            (&self.total_bytes, 0),
            (&self.max_bytes, limits.bytes),
            (&self.max_pieces, limits.n_pieces),
            (&self.max_total_bytes, limits.total_bytes),
        ] {
            count.store(value, Relaxed);
        }
        self.lowest.store(here.saturating_sub(limits.stack_bytes), Relaxed);
        let metered = Metered(METER.replace(Some(self)));
        let done = body();
        drop(metered);
        done
    }

    /// Why the thread is held, if it is.
    pub fn held(&self) -> Option<Exceeded> {
        match self.held.load(Relaxed) {
            1 => Some(Exceeded::Memory),
            2 => Some(Exceeded::Work),
            3 => Some(Exceeded::Stack),
            _ => None,
        }
    }

    fn take(&self, bytes: usize, n_pieces: u64) {
        let add = |count: &AtomicU64, n: u64| {
            let sum = count.load(Relaxed).saturating_add(n);
            count.store(sum, Relaxed);
            sum
        };
        let bytes = bytes as u64;
        let here = std::ptr::from_ref(&bytes).addr();
        if add(&self.bytes, bytes) > self.max_bytes.load(Relaxed)
            || add(&self.n_pieces, n_pieces) > self.max_pieces.load(Relaxed)
        {
            self.hold(1);
        } else if add(&self.total_bytes, bytes) > self.max_total_bytes.load(Relaxed) {
            self.hold(2);
        } else if here < self.lowest.load(Relaxed) {
            self.hold(3);
        }
    }

    fn give(&self, bytes: usize, n_pieces: u64) {
        // What was taken before the meter began to count may be given back now.
        self.bytes.store(self.bytes.load(Relaxed).saturating_sub(bytes as u64), Relaxed);
        self.n_pieces.store(self.n_pieces.load(Relaxed).saturating_sub(n_pieces), Relaxed);
    }

    /// Ends the thread as far as it can be ended in the middle of an allocation.
    #[cold]
    fn hold(&self, why: u8) -> ! {
        self.held.store(why, Relaxed);
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }
}

/// Puts back the meter that was there before, also after a panic.
struct Metered(Option<&'static Meter>);

impl Drop for Metered {
    fn drop(&mut self) {
        METER.set(self.0);
    }
}

fn take(bytes: usize, n_pieces: u64) {
    if let Some(meter) = METER.get() {
        meter.take(bytes, n_pieces);
    }
}

fn give(bytes: usize, n_pieces: u64) {
    if let Some(meter) = METER.get() {
        meter.give(bytes, n_pieces);
    }
}

// SAFETY: each call is passed on to the system's allocator with the arguments of the caller, who keeps the contract of
// `GlobalAlloc` for them. Counting neither allocates nor unwinds: the meter is a thread local without a destructor and
// without lazy initialization, its counts are atomics, and a held thread sleeps without an end.
unsafe impl GlobalAlloc for MeteredAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size(), 1);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size(), 1);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        give(layout.size(), 1);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Both may be there at once while the bytes are copied, but only for that moment.
        give(layout.size(), 0);
        take(new_size, 0);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Instant;

    use super::*;

    #[global_allocator]
    static ALLOCATOR: MeteredAllocator = MeteredAllocator;

    const LIMITS: MemoryLimits =
        MemoryLimits { bytes: 1 << 20, n_pieces: 1000, total_bytes: 1 << 24, stack_bytes: 1 << 18 };

    /// What becomes of a thread that does this: what it returns, or why it is held.
    fn outcome<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> Result<T, Exceeded> {
        let meter = Meter::new();
        let (tell, message) = channel();
        std::thread::Builder::new()
            .stack_size(1 << 23)
            .spawn(move || tell.send(meter.run(LIMITS, body)))
            .unwrap();
        let begin = Instant::now();
        loop {
            match message.recv_timeout(Duration::from_millis(5)) {
                Ok(done) => return Ok(done),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => panic!("the thread has ended"),
            }
            if let Some(held) = meter.held() {
                return Err(held);
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
        }
    }

    #[test]
    fn what_a_thread_may_have_it_gets() {
        let sum = outcome(|| (0..100).map(|n| vec![n; 1000].len()).sum::<usize>());
        assert_eq!(sum, Ok(100_000));
    }

    #[test]
    fn a_thread_that_asks_for_more_is_held() {
        assert_eq!(outcome(|| vec![1_u8; 1 << 40].len()), Err(Exceeded::Memory));
        assert_eq!(outcome(|| (0..5000).map(Box::new).collect::<Vec<_>>().len()), Err(Exceeded::Memory));
        let growing = || (0..1 << 22).fold(String::new(), |text, _| text + "x").len();
        assert_eq!(outcome(growing), Err(Exceeded::Memory));
        let churn = || (0..100_000).map(|n| vec![n as u8; 1 << 10].len()).sum::<usize>();
        assert_eq!(outcome(churn), Err(Exceeded::Work));
        fn deep(n: usize) -> usize {
            let boxed = std::hint::black_box(Box::new(n));
            if n == 0 { 0 } else { std::hint::black_box(deep(*boxed - 1)) + 1 }
        }
        // Each level has a box, so the pieces would also do; the stack comes first.
        let deeper = || (0..900).fold(0, |sum, n| sum + deep(n % 900)) + deep_frames(2000);
        fn deep_frames(n: usize) -> usize {
            let frame = std::hint::black_box([n; 64]);
            let _one = std::hint::black_box(String::from("x"));
            if n == 0 { 0 } else { std::hint::black_box(deep_frames(frame[0] - 1)) + 1 }
        }
        assert!(matches!(outcome(deeper), Err(Exceeded::Stack | Exceeded::Memory)));
    }

    #[test]
    fn other_threads_are_not_counted() {
        assert_eq!(vec![1_u8; 1 << 22].len(), 1 << 22);
        let body = || std::thread::spawn(|| vec![1_u8; 1 << 22].len()).join().unwrap();
        assert_eq!(outcome(body), Ok(1 << 22));
    }
}
