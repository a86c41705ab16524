//! The signals to a launcher, noted so that it can end its ranks before it ends itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{FORBIDDEN, SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::error::{Error, Result};

/// The signals that end a run: SIGTERM, SIGINT, SIGHUP, SIGQUIT.
pub const STOPPING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// Catches signals while it lives.
pub struct StopSignals {
    received: Arc<AtomicUsize>,
    hooks: Vec<signal_hook::SigId>,
}

impl StopSignals {
    /// Notes the signals of [`STOPPING`] from now on; they no longer end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn catch() -> Result<StopSignals> {
        StopSignals::these(&STOPPING)
    }

    /// The same for signals of the caller's choice. SIGHUP stays ignored if this process was started so, as nohup does.
    ///
    /// # Errors
    /// When one of them cannot be caught.
    pub fn these(numbers: &[i32]) -> Result<StopSignals> {
        let mut signals = StopSignals { received: Arc::default(), hooks: Vec::new() };
        for &signal in numbers {
            let number = usize::try_from(signal).ok().filter(|_| StopSignals::can_catch(signal));
            let number = number.ok_or_else(|| Error::Argument {
                operation: "catch signals",
                expected: "signals that can be caught".into(),
                got: signal.to_string(),
            })?;
            if signal == SIGHUP && is_ignored(signal) {
                continue;
            }
            let hook = signal_hook::flag::register_usize(signal, signals.received.clone(), number);
            signals.hooks.push(hook.map_err(|e| Error::system(format!("catch signal {signal}"), e))?);
        }
        Ok(signals)
    }

    /// Whether a process can catch this signal.
    pub fn can_catch(signal: i32) -> bool {
        signal > 0 && !FORBIDDEN.contains(&signal)
    }

    /// The last signal that came.
    pub fn received(&self) -> Option<i32> {
        self.flag().get()
    }

    /// The same, each signal once: the last one that came since this was asked before.
    pub fn take(&self) -> Option<i32> {
        i32::try_from(self.received.swap(0, Ordering::Relaxed)).ok().filter(|&signal| signal != 0)
    }

    pub(super) fn flag(&self) -> SignalFlag {
        SignalFlag(self.received.clone())
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.hooks.iter().for_each(|&hook| {
            signal_hook::low_level::unregister(hook);
        });
    }
}

/// Whether this process ignores a signal, as far as /proc says.
fn is_ignored(signal: i32) -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| ignores(&status, signal))
}

/// The same, from the text of /proc/PID/status.
fn ignores(status: &str, signal: i32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| set.checked_shr(bit).is_some_and(|set| set & 1 == 1))
}

/// The last signal that was noted.
#[derive(Clone, Default)]
pub(super) struct SignalFlag(Arc<AtomicUsize>);

impl SignalFlag {
    pub(super) fn get(&self) -> Option<i32> {
        i32::try_from(self.0.load(Ordering::Relaxed)).ok().filter(|&signal| signal != 0)
    }

    pub(super) fn set(&self, signal: i32) {
        self.0.store(signal.unsigned_abs() as usize, Ordering::Relaxed);
    }
}

/// The name of a signal, as SIGTERM.
pub fn signal_name(signal: i32) -> Option<&'static str> {
    signal_hook::low_level::signal_name(signal)
}

/// The signal of a name, with or without SIG.
pub fn signal_of_name(name: &str) -> Option<i32> {
    let name = name.trim().to_ascii_uppercase();
    let bare = name.strip_prefix("SIG").unwrap_or(&name);
    (1..64).find(|&signal| signal_name(signal).is_some_and(|known| known.strip_prefix("SIG") == Some(bare)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_the_same_signals() {
        assert_eq!(signal_of_name("SIGUSR1"), Some(10));
        assert_eq!(signal_of_name(" term "), Some(15));
        assert_eq!(signal_of_name("SIGNOTHING"), None);
        assert!(STOPPING.iter().all(|&signal| signal_of_name(signal_name(signal).unwrap()) == Some(signal)));
    }

    #[test]
    fn what_a_process_ignores_is_read_by_signal() {
        let nohup = "Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000002\n";
        assert!(ignores(nohup, SIGHUP) && !ignores(nohup, SIGINT));
        assert!(ignores("SigIgn:\t8000000000000000", 64) && !ignores("SigIgn:\t8000000000000000", 65));
        assert!(!ignores("", SIGHUP) && !ignores("SigIgn:\tx", SIGHUP) && !ignores(nohup, 0));
    }

    #[test]
    fn a_signal_that_cannot_be_caught_is_refused() {
        for signal in [9, 19, 11, -1] {
            assert!(StopSignals::these(&[signal]).is_err(), "{signal}");
        }
        assert_eq!(StopSignals::these(&[12]).unwrap().received(), None);
    }

    #[test]
    fn a_signal_is_taken_once() {
        let signals = StopSignals { received: Arc::default(), hooks: Vec::new() };
        signals.flag().set(SIGTERM);
        assert_eq!(
            (signals.received(), signals.take(), signals.take()),
            (Some(SIGTERM), Some(SIGTERM), None)
        );
    }
}
