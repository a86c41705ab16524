//! Ranks that are all stopped: nobody among them can say so, and no limit of theirs runs.

use std::fmt;
use std::time::{Duration, Instant};

use super::signals::signal_name;

/// What counts of the time between two looks at most: the launcher may have been stopped as well.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// Ranks that have all been stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllStopped {
    /// Their processes.
    pub pids: Vec<u32>,
    /// The signal, if it was one: a debugger or the freezer of a control group can hold them as well.
    pub signal: Option<i32>,
    /// For how long.
    pub time: Duration,
}

impl AllStopped {
    /// After this time the user is told.
    pub const NOTICE: Duration = Duration::from_secs(30);
    /// The most processes that are listed.
    const LISTED: usize = 16;
}

impl fmt::Display for AllStopped {
    /// Only who has stopped them knows whether it was meant, so it says what lets them go on. For the process that started them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "all ranks have been stopped for {} s", self.time.as_secs())?;
        match self.signal {
            Some(signal) => write!(f, " ({}); `", signal_name(signal).unwrap_or("a signal"))?,
            None => {
                write!(f, ", by a debugger, the freezer of a control group or a signal; after a signal `")?
            }
        }
        match self.pids.len() <= AllStopped::LISTED {
            true => {
                write!(f, "kill -CONT")?;
                self.pids.iter().try_for_each(|pid| write!(f, " {pid}"))?;
            }
            false => write!(f, "pkill -CONT -P {}", std::process::id())?,
        }
        write!(f, "` lets them go on")
    }
}

/// How long all ranks have been stopped, if they are.
#[derive(Default)]
pub(super) struct Stops {
    now: Option<(AllStopped, Instant)>,
    /// The owner has heard of it.
    reported: bool,
}

impl Stops {
    /// What a look at the ranks has found: the processes and the signal, where all are stopped.
    pub(super) fn look(&mut self, all: Option<(Vec<u32>, Option<i32>)>, now: Instant) {
        let Some((pids, signal)) = all else {
            *self = Stops::default();
            return;
        };
        let before = self.now.as_ref();
        let time = before.map_or(Duration::ZERO, |(stopped, looked)| {
            stopped.time + now.saturating_duration_since(*looked).min(LONGEST_GAP)
        });
        self.now = Some((AllStopped { pids, signal, time }, now));
    }

    /// The ranks, once they have been stopped for so long; each time once.
    pub(super) fn longer_than(&mut self, limit: Duration) -> Option<AllStopped> {
        let (stopped, _) =
            self.now.as_ref().filter(|(stopped, _)| stopped.time >= limit && !self.reported)?;
        self.reported = true;
        Some(stopped.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_stay_stopped_are_told_once_each_time() {
        let (mut stops, begin) = (Stops::default(), Instant::now());
        let second = |n: u64| begin + Duration::from_secs(n);
        let limit = Duration::from_secs(3);
        let all = || Some((vec![7, 8], Some(19)));
        for round in 0..2 {
            for n in 0..3 {
                stops.look(all(), second(10 * round + n));
                assert_eq!(stops.longer_than(limit), None);
            }
            stops.look(all(), second(10 * round + 3));
            assert_eq!(
                stops.longer_than(limit),
                Some(AllStopped { pids: vec![7, 8], signal: Some(19), time: limit })
            );
            stops.look(all(), second(10 * round + 4));
            assert_eq!(stops.longer_than(limit), None, "it is reported once");
            stops.look(None, second(10 * round + 5));
        }
    }

    #[test]
    fn what_lets_them_go_on_is_told() {
        let reported =
            |pids: Vec<u32>, signal| AllStopped { pids, signal, time: AllStopped::NOTICE }.to_string();
        assert_eq!(
            reported(vec![7, 8], Some(19)),
            "all ranks have been stopped for 30 s (SIGSTOP); `kill -CONT 7 8` lets them go on"
        );
        let many = reported((0..99).collect(), Some(19));
        assert!(many.contains(&format!("`pkill -CONT -P {}`", std::process::id())), "{many}");
        assert!(reported(vec![7], None).contains("a debugger"));
    }

    #[test]
    fn the_time_in_which_the_launcher_was_stopped_does_not_count() {
        let (mut stops, begin) = (Stops::default(), Instant::now());
        stops.look(Some((vec![7], None)), begin);
        stops.look(Some((vec![7], None)), begin + Duration::from_secs(3600));
        assert_eq!(stops.longer_than(Duration::from_secs(2)), None);
        assert!(stops.longer_than(Duration::from_secs(1)).is_some());
    }
}
