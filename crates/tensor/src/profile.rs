//! Where the time goes: calls, seconds and floating-point operations by op, when switched on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Accounts are kept.
const ACCOUNTS: u8 = 1;
/// Each run of an op is kept.
const EVENTS: u8 = 2;
/// Times of scopes are kept.
const SCOPES: u8 = 4;

/// Times of ops by name, and one by one. Both are off until [`Profile::enable`] or [`Profile::enable_events`] is called.
#[derive(Default)]
pub struct Profile {
    /// What is kept, as bits.
    enabled: AtomicU8,
    ops: Mutex<BTreeMap<(&'static str, bool), OpTime>>,
    events: Mutex<Vec<OpEvent>>,
    scopes: Mutex<BTreeMap<Scope, Duration>>,
    /// Nanoseconds.
    recomputing: AtomicU64,
}

/// A part of a program that is timed with everything in it, like one of torch's `record_function`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Its name.
    pub name: &'static str,
    /// What tells scopes of one name apart, such as the address of what runs.
    pub id: usize,
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

/// One run of an op.
#[derive(Clone, Copy, Debug)]
pub struct OpEvent {
    /// The op.
    pub op: &'static str,
    /// Whether its memory was copied to the host and back, since the device has no form for the op.
    pub staged: bool,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub time: Duration,
    /// Floating-point operations that it had to do (0 for ops bound by memory).
    pub flops: u64,
    /// Bytes that it had to read and write.
    pub bytes: u64,
    /// The thread that called it; its helpers are not told.
    pub thread: ThreadId,
}

impl Profile {
    /// Starts counting, from zero.
    pub fn enable(&self) {
        self.ops.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.enabled.fetch_or(ACCOUNTS, Ordering::Relaxed);
    }

    /// Stops counting and returns the accounts by the names of the ops, with "(staged)" where the device has no form for
    /// an op: its memory was copied to the host and back.
    pub fn take(&self) -> Vec<(Cow<'static, str>, OpTime)> {
        self.enabled.fetch_and(!ACCOUNTS, Ordering::Relaxed);
        let ops = std::mem::take(&mut *self.ops.lock().unwrap_or_else(PoisonError::into_inner));
        let shown = |(op, staged): (&'static str, bool)| match staged {
            true => Cow::Owned(format!("{op} (staged)")),
            false => Cow::Borrowed(op),
        };
        ops.into_iter().map(|(op, time)| (shown(op), time)).collect()
    }

    /// Starts to keep each run of an op, from none.
    pub fn enable_events(&self) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.enabled.fetch_or(EVENTS, Ordering::Relaxed);
    }

    /// Stops keeping the runs of ops and returns them, in the order in which they ended.
    pub fn take_events(&self) -> Vec<OpEvent> {
        self.enabled.fetch_and(!EVENTS, Ordering::Relaxed);
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts to add up the times of scopes, from zero.
    pub fn enable_scopes(&self) {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.enabled.fetch_or(SCOPES, Ordering::Relaxed);
    }

    /// Stops adding up the times of scopes and returns them.
    pub fn take_scopes(&self) -> BTreeMap<Scope, Duration> {
        self.enabled.fetch_and(!SCOPES, Ordering::Relaxed);
        std::mem::take(&mut *self.scopes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f` as a scope; `scope` is asked only while scopes are timed.
    pub fn scope<R>(&self, scope: impl FnOnce() -> Scope, f: impl FnOnce() -> R) -> R {
        if self.enabled.load(Ordering::Relaxed) & SCOPES == 0 {
            return f();
        }
        let start = Instant::now();
        let result = f();
        let time = start.elapsed();
        *self.scopes.lock().unwrap_or_else(PoisonError::into_inner).entry(scope()).or_default() += time;
        result
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

    /// Whether ops are timed.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed) & (ACCOUNTS | EVENTS) != 0
    }

    /// Runs `f` and books it under `op`.
    pub fn time<R>(&self, op: &'static str, flops: u64, bytes: u64, f: impl FnOnce() -> R) -> R {
        self.time_as((op, false), flops, bytes, f)
    }

    /// As [`Profile::time`], for an op that may be staged.
    pub(crate) fn time_as<R>(
        &self,
        (op, staged): (&'static str, bool),
        flops: u64,
        bytes: u64,
        f: impl FnOnce() -> R,
    ) -> R {
        let enabled = self.enabled.load(Ordering::Relaxed);
        if enabled == 0 {
            return f();
        }
        let start = Instant::now();
        let result = f();
        self.book((op, staged), flops, bytes, start);
        result
    }

    /// Books an op that began at `start` and has just ended.
    pub(crate) fn book(&self, (op, staged): (&'static str, bool), flops: u64, bytes: u64, start: Instant) {
        let (enabled, time) = (self.enabled.load(Ordering::Relaxed), start.elapsed());
        if enabled & EVENTS != 0 {
            let event = OpEvent { op, staged, start, time, flops, bytes, thread: thread::current().id() };
            self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
        if enabled & ACCOUNTS == 0 {
            return;
        }
        let mut ops = self.ops.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = ops.entry((op, staged)).or_default();
        entry.calls += 1;
        entry.time += time;
        entry.flops += flops;
        entry.bytes += bytes;
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
        assert_eq!((&*ops[0].0, ops[0].1.calls, ops[0].1.flops, ops[0].1.bytes), ("b", 2, 4, 8));
        assert!(profile.take().is_empty());
    }
    #[test]
    fn scopes_add_up_between_start_and_end() {
        let profile = Profile::default();
        let scope = |id| move || Scope { name: "layer", id };
        let pause = || thread::sleep(Duration::from_millis(2));
        profile.scope(scope(1), pause);
        profile.enable_scopes();
        profile.scope(scope(1), || profile.scope(scope(2), pause));
        profile.scope(scope(1), pause);
        let times = profile.take_scopes();
        let of = |id| times[&Scope { name: "layer", id }];
        assert!(of(1) >= Duration::from_millis(4) && of(2) >= Duration::from_millis(2) && of(2) < of(1));
        profile.scope(scope(3), pause);
        assert!(profile.take_scopes().is_empty());
    }

    #[test]
    fn events_are_kept_one_by_one_beside_the_accounts() {
        let profile = Profile::default();
        profile.enable_events();
        profile.time("a", 1, 2, || ());
        profile.enable();
        profile.time("a", 3, 4, || ());
        let events: Vec<_> = profile.take_events().iter().map(|e| (e.op, e.flops, e.bytes)).collect();
        assert_eq!(events, [("a", 1, 2), ("a", 3, 4)]);
        profile.time("a", 5, 6, || ());
        assert!(profile.take_events().is_empty(), "off again");
        assert_eq!(profile.take()[0].1.flops, 8, "the accounts went on");
    }
}
