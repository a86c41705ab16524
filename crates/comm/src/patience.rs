//! How long a rank waits for the others in a collective: when it reports that, and when it gives up.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::ledger::{RankStatus, list};

/// What counts of the time between two checks at most. A process that was stopped meanwhile has not waited.
const LONGEST_GAP: Duration = Duration::from_secs(1);

/// A rank that waits in a collective for ranks that are alive.
#[derive(Clone, Debug)]
pub struct LongWait {
    /// The rank that waits: the lowest of those that do.
    pub rank: usize,
    /// How long it has waited.
    pub waited: Duration,
    /// The ranks that have not come, and what each is doing.
    pub missing: Vec<RankStatus>,
}

impl fmt::Display for LongWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {} has waited {:.0} s for {}",
            self.rank,
            self.waited.as_secs_f64(),
            list(&self.missing)
        )
    }
}

/// What a wait is reported to.
pub type Report = Arc<dyn Fn(&LongWait) + Send + Sync>;

/// The patience of a rank, in all of its groups.
pub struct Patience {
    limit_ms: AtomicU64,
    report: Mutex<Option<(Duration, Report)>>,
}

/// The time of one wait.
pub struct Wait {
    waited: Duration,
    checked: Instant,
    /// When the next report is due; it doubles.
    next_report: Option<Duration>,
}

impl Default for Patience {
    /// Waits for [`Patience::LIMIT`] and reports nothing.
    fn default() -> Patience {
        Patience { limit_ms: AtomicU64::new(Patience::LIMIT.as_millis() as u64), report: Mutex::new(None) }
    }
}

impl Patience {
    /// The limit until another is set: that of torch, since a rank may have much to prepare alone.
    pub const LIMIT: Duration = Duration::from_secs(1800);

    /// How long to wait for a rank that is alive.
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.load(Ordering::Relaxed))
    }

    /// Sets how long to wait for a rank that is alive.
    pub fn set_limit(&self, limit: Duration) {
        self.limit_ms.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Has waits reported that last longer than `after`, and again each time they have lasted twice as long.
    pub fn set_report(&self, after: Duration, report: Report) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some((after, report));
    }

    /// As [`Patience::set_report`], unless waits are reported already.
    pub fn set_default_report(&self, after: Duration, report: Report) {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((after, report));
    }

    /// Looks at a wait of `rank` for others that are alive: reports it when that is due, if `reports`, and says whether
    /// it has lasted too long.
    pub fn is_over(
        &self,
        wait: &mut Wait,
        rank: usize,
        reports: bool,
        missing: impl FnOnce() -> Vec<RankStatus>,
    ) -> bool {
        let now = Instant::now();
        let limit = self.limit();
        // One gap alone never exhausts a short limit: ranks that go on after a stop do not all get a core at once.
        wait.waited += (now - wait.checked).min(LONGEST_GAP).min(limit / 3);
        wait.checked = now;
        if wait.waited >= limit {
            return true;
        }
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((after, report)) = report {
            let due = wait.next_report.unwrap_or(after);
            if wait.waited >= due {
                wait.next_report = Some(due * 2);
                if reports {
                    report(&LongWait { rank, waited: wait.waited, missing: missing() });
                }
            }
        }
        false
    }
}

impl Wait {
    /// A wait that begins now.
    pub fn begin() -> Wait {
        Wait { waited: Duration::ZERO, checked: Instant::now(), next_report: None }
    }

    /// How long it has lasted, at the last look.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_has_not_waited() {
        let (patience, mut wait) = (Patience::default(), Wait::begin());
        patience.set_limit(Duration::from_secs(60));
        // An hour between two checks.
        wait.checked -= Duration::from_secs(3600);
        assert!(!patience.is_over(&mut wait, 0, true, Vec::new));
        assert_eq!(wait.waited, LONGEST_GAP);
        // Nor has one whose limit is as short as the gap.
        let mut short = Wait::begin();
        patience.set_limit(LONGEST_GAP);
        short.checked -= Duration::from_secs(3600);
        assert!(!patience.is_over(&mut short, 0, true, Vec::new));
        patience.set_limit(Duration::from_secs(60));
        wait.waited = Duration::from_secs(60);
        assert!(patience.is_over(&mut wait, 0, true, Vec::new));
    }

    #[test]
    fn a_default_report_replaces_none() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let to = |name: &'static str| {
            let said = said.clone();
            Arc::new(move |_: &LongWait| said.lock().unwrap().push(name)) as Report
        };
        let patience = Patience::default();
        let is_over = |patience: &Patience| {
            let mut wait = Wait { waited: Duration::from_secs(9), ..Wait::begin() };
            patience.is_over(&mut wait, 0, true, Vec::new)
        };
        patience.set_default_report(Duration::from_secs(5), to("default"));
        assert!(!is_over(&patience));
        patience.set_report(Duration::from_secs(5), to("program"));
        patience.set_default_report(Duration::from_secs(5), to("default"));
        assert!(!is_over(&patience));
        assert_eq!(*said.lock().unwrap(), ["default", "program"]);
    }

    #[test]
    fn reports_come_at_doubling_intervals_from_the_one_that_reports() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let patience = Patience::default();
        let to = said.clone();
        patience.set_report(
            Duration::from_secs(5),
            Arc::new(move |wait| to.lock().unwrap().push(wait.to_string())),
        );
        for reports in [true, false] {
            let mut wait = Wait::begin();
            for _ in 0..25 {
                wait.checked -= Duration::from_secs(1);
                patience.is_over(&mut wait, 3, reports, Vec::new);
            }
        }
        let found = said.lock().unwrap().clone();
        assert_eq!(
            found,
            ["rank 3 has waited 5 s for ", "rank 3 has waited 10 s for ", "rank 3 has waited 20 s for "]
        );
    }
}
