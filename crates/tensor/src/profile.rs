//! Where the time goes: calls, seconds and floating-point operations by op, when switched on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Times of ops by name. Off until [`Profile::enable`] is called.
#[derive(Default)]
pub struct Profile {
    enabled: AtomicBool,
    ops: Mutex<BTreeMap<&'static str, OpTime>>,
    /// Nanoseconds.
    recomputing: AtomicU64,
}

/// The account of one op.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpTime {
    /// How often it ran.
    pub calls: u64,
    /// Time in it, without the ops it calls.
    pub time: Duration,
    /// Floating-point operations that it had to do (0 for ops bound by memory).
    pub flops: u64,
    /// Bytes that it had to read and write.
    pub bytes: u64,
}

impl Profile {
    /// Starts counting, from zero.
    pub fn enable(&self) {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.enabled.store(true, Ordering::Relaxed);
    }

    /// Stops counting and returns the accounts.
    pub fn take(&self) -> Vec<(&'static str, OpTime)> {
        self.enabled.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.ops.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect()
    }

    /// Time in making activations again for the backward pass, since the device was made; counted always.
    pub fn recomputing(&self) -> Duration {
        Duration::from_nanos(self.recomputing.load(Ordering::Relaxed))
    }

    /// Runs `f`, which makes activations again. Its ops are booked as they are everywhere.
    pub(crate) fn time_recomputing<R>(&self, f: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = f();
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.recomputing.fetch_add(nanos, Ordering::Relaxed);
        result
    }

    /// Runs `f` and books it under `op`.
    pub fn time<R>(&self, op: &'static str, flops: u64, bytes: u64, f: impl FnOnce() -> R) -> R {
        if !self.enabled.load(Ordering::Relaxed) {
            return f();
        }
        let start = Instant::now();
        let result = f();
        let time = start.elapsed();
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = ops.entry(op).or_default();
        entry.calls += 1;
        entry.time += time;
        entry.flops += flops;
        entry.bytes += bytes;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_when_enabled() {
        let profile = Profile::default();
        assert_eq!(profile.time("a", 1, 1, || 5), 5);
        profile.enable();
        profile.time("b", 2, 4, || ());
        profile.time("b", 2, 4, || ());
        let ops = profile.take();
        assert_eq!(ops.len(), 1);
        assert_eq!((ops[0].0, ops[0].1.calls, ops[0].1.flops, ops[0].1.bytes), ("b", 2, 4, 8));
        assert!(profile.take().is_empty());
    }
}
