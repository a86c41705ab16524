//! How long the forward passes of a module take, while somebody asks; nothing is measured otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The stopwatch of a module. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Latency(Arc<AtomicU64>);

/// Instead of nanoseconds, where nobody asks.
const OFF: u64 = u64::MAX;

impl Default for Latency {
    fn default() -> Latency {
        Latency(Arc::new(AtomicU64::new(OFF)))
    }
}

impl Latency {
    /// Adds up times from now on, beginning at zero.
    pub fn start(&self) {
        self.0.store(0, Relaxed);
    }

    /// The time since the start; measures no more.
    pub fn stop(&self) -> Duration {
        match self.0.swap(OFF, Relaxed) {
            OFF => Duration::ZERO,
            nanos => Duration::from_nanos(nanos),
        }
    }

    /// Runs `f`, and adds its time if somebody asks.
    pub fn time<R>(&self, f: impl FnOnce() -> R) -> R {
        if self.0.load(Relaxed) == OFF {
            return f();
        }
        let begin = Instant::now();
        let result = f();
        let nanos = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(OFF);
        // Saturates below what says that nobody asks.
        let add = |so_far: u64| (so_far != OFF).then(|| so_far.saturating_add(nanos).min(OFF - 1));
        // A stopwatch that was stopped in the meantime stays so.
        let _ = self.0.fetch_update(Relaxed, Relaxed, add);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_between_start_and_stop() {
        let latency = Latency::default();
        let pause = || std::thread::sleep(Duration::from_millis(2));
        latency.time(pause);
        assert_eq!(latency.stop(), Duration::ZERO);
        latency.start();
        latency.clone().time(pause);
        latency.time(pause);
        assert!(latency.stop() >= Duration::from_millis(4));
        latency.time(pause);
        assert_eq!(latency.stop(), Duration::ZERO);
    }
}
