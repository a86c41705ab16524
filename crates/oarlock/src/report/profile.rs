//! A profile of a run: every so many steps where the time of a step went, and what memory holds. As a table, as a
//! line, and as a record of profile.jsonl.

use std::fmt::Write;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::files::LineFile;
use super::progress::{bar, memory, thousands};
use super::speed::{Phase, PhaseTimes};
use super::{Result, io_error};

/// The file of the records.
const PROFILE: &str = "profile.jsonl";

/// Columns of a full bar in the table.
const BAR: usize = 24;

/// What rank 0 holds at the end of an interval, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNow {
    /// Its proportional share of resident memory.
    pub pss: u64,
    /// The most that was resident at any time.
    pub peak_rss: u64,
    /// Buffers in use.
    pub in_use: u64,
    /// Buffers taken from the system, in use or free.
    pub taken: u64,
}

/// Some steps of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profiled {
    /// The last of them.
    pub step: u64,
    /// How many.
    pub n_steps: u64,
    /// Their time, all together.
    pub times: PhaseTimes,
    /// Their tokens, of all ranks.
    pub n_tokens: u64,
    /// Memory behind the last of them.
    pub memory: MemoryNow,
    /// The highest PSS so far.
    pub peak_pss: u64,
}

/// Watches a run and cuts it into intervals.
#[derive(Debug)]
pub struct Profiler {
    every: u64,
    log: LineFile,
    n_steps: u64,
    n_tokens: u64,
    before: PhaseTimes,
    peak_pss: u64,
}

impl Profiler {
    /// Removes the file of an earlier run, of which a new one may write none.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn forget(folder: &Path) -> Result<()> {
        let path = folder.join(PROFILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(io_error("remove", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// A profile every `every` steps, into a file of `folder`. Records of steps after `step`, where the run begins or
    /// resumes, are removed, because the run writes them again.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn new(folder: &Path, every: u64, step: u64) -> Result<Profiler> {
        let log = LineFile::resume(&folder.join(PROFILE), "current_steps", step)?;
        let before = PhaseTimes::default();
        Ok(Profiler { every: every.max(1), log, n_steps: 0, n_tokens: 0, before, peak_pss: 0 })
    }

    /// Counts a step; whether an interval ends with it.
    pub fn count(&mut self, n_tokens: u64) -> bool {
        self.n_steps += 1;
        self.n_tokens += n_tokens;
        self.n_steps >= self.every
    }

    /// Ends an interval: `so_far` are the times of the whole run.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn end(&mut self, step: u64, so_far: PhaseTimes, memory: MemoryNow) -> Result<Profiled> {
        self.peak_pss = self.peak_pss.max(memory.pss);
        let times = so_far.since(&self.before);
        let (n_steps, n_tokens, peak_pss) = (self.n_steps, self.n_tokens, self.peak_pss);
        (self.n_steps, self.n_tokens, self.before) = (0, 0, so_far);
        let profiled = Profiled { step, n_steps, times, n_tokens, memory, peak_pss };
        self.log.push(&profiled.record().to_string())?;
        Ok(profiled)
    }
}

impl Profiled {
    /// Milliseconds of a phase in a step.
    fn ms(&self, phase: Phase) -> f64 {
        1e3 * self.times.of(phase).as_secs_f64() / self.n_steps.max(1) as f64
    }

    fn ms_of_step(&self) -> f64 {
        1e3 * self.times.total().as_secs_f64() / self.n_steps.max(1) as f64
    }

    fn share(&self, phase: Phase) -> f64 {
        let total = self.times.total().as_secs_f64();
        if total > 0.0 { self.times.of(phase).as_secs_f64() / total } else { 0.0 }
    }

    fn tokens_per_second(&self) -> f64 {
        let seconds = self.times.total().as_secs_f64();
        if seconds > 0.0 { self.n_tokens as f64 / seconds } else { 0.0 }
    }

    fn steps(&self) -> String {
        match self.n_steps {
            0 | 1 => format!("step {}", self.step),
            n => format!("steps {} to {}", self.step + 1 - n.min(self.step), self.step),
        }
    }

    fn memory(&self) -> String {
        format!(
            "PSS {} (highest so far {}, peak RSS {}), buffers {} in use, {} taken from the system",
            memory(self.memory.pss),
            memory(self.peak_pss),
            memory(self.memory.peak_rss),
            memory(self.memory.in_use),
            memory(self.memory.taken),
        )
    }

    /// A row for every phase, for a terminal.
    pub fn table(&self) -> String {
        let mut out = format!("profile of {}, for a step on rank 0\n", self.steps());
        for phase in Phase::ALL {
            let share = self.share(phase);
            let cells = bar(share, BAR);
            let filled = cells.trim_end_matches('─');
            let row = format!(
                "  {:<9} {:>10.1} ms {:>4.0}%  {filled}",
                phase.name(),
                self.ms(phase),
                100.0 * share
            );
            let _ = writeln!(out, "{}", row.trim_end());
        }
        let _ = writeln!(
            out,
            "  {:<9} {:>10.1} ms        {} tok/s",
            "all",
            self.ms_of_step(),
            thousands(self.tokens_per_second())
        );
        let _ = write!(out, "  memory    {}", self.memory());
        out
    }

    /// The same in one line, where there is no terminal and for running_log.txt.
    pub fn line(&self) -> String {
        let phases: Vec<String> = Phase::ALL
            .into_iter()
            .map(|phase| {
                format!("{} {:.1} ms ({:.0}%)", phase.name(), self.ms(phase), 100.0 * self.share(phase))
            })
            .collect();
        format!(
            "profile of {}: {}; {:.1} ms a step, {} tok/s; {}",
            self.steps(),
            phases.join(", "),
            self.ms_of_step(),
            thousands(self.tokens_per_second()),
            self.memory()
        )
    }

    /// The same for programs.
    fn record(&self) -> Value {
        let micros = |ms: f64| (ms * 1e3).round() / 1e3;
        let phases: Map<String, Value> = Phase::ALL
            .into_iter()
            .map(|phase| (format!("{}_ms", phase.name()), json!(micros(self.ms(phase)))))
            .collect();
        json!({
            "current_steps": self.step,
            "steps": self.n_steps,
            "step_ms": micros(self.ms_of_step()),
            "phases": phases,
            "tokens_per_second": (self.tokens_per_second() * 100.0).round() / 100.0,
            "pss_bytes": self.memory.pss,
            "highest_pss_bytes": self.peak_pss,
            "peak_rss_bytes": self.memory.peak_rss,
            "buffers_in_use_bytes": self.memory.in_use,
            "buffers_taken_bytes": self.memory.taken,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn times(ms: [u64; 8]) -> PhaseTimes {
        PhaseTimes::from_millis(ms)
    }

    const MEMORY: MemoryNow =
        MemoryNow { pss: 300 << 20, peak_rss: 500 << 20, in_use: 100 << 20, taken: 120 << 20 };

    #[test]
    fn an_interval_is_told_in_three_forms() {
        let folder = tempfile::tempdir().unwrap();
        let mut profiler = Profiler::new(folder.path(), 2, 0).unwrap();
        assert!(!profiler.count(1000) && profiler.count(1000));
        let first = profiler.end(2, times([2, 40, 80, 10, 4, 20, 0, 44]), MEMORY).unwrap();
        assert!(!profiler.count(500) && profiler.count(500));
        let lower = MemoryNow { pss: 200 << 20, ..MEMORY };
        let second = profiler.end(4, times([4, 60, 120, 15, 6, 30, 100, 65]), lower).unwrap();
        assert_eq!(second.times.total(), Duration::from_millis(200), "only its own time");
        assert_eq!((second.peak_pss, second.memory.pss), (300 << 20, 200 << 20));
        assert_eq!(
            first.line(),
            "profile of steps 1 to 2: data 1.0 ms (1%), forward 20.0 ms (20%), backward 40.0 ms (40%), \
             reduce 5.0 ms (5%), clip 2.0 ms (2%), optimizer 10.0 ms (10%), save 0.0 ms (0%), other 22.0 ms (22%); \
             100.0 ms a step, 10,000 tok/s; PSS 300 MB (highest so far 300 MB, peak RSS 500 MB), buffers 100 MB in \
             use, 120 MB taken from the system"
        );
        let table = first.table();
        assert!(table.starts_with("profile of steps 1 to 2, for a step on rank 0\n"), "{table}");
        assert!(table.contains("\n  backward        40.0 ms   40%  ━━━━━━━━━╸\n"), "{table}");
        assert!(table.contains("\n  save             0.0 ms    0%\n"), "{table}");
        assert!(table.contains("\n  all            100.0 ms        10,000 tok/s\n"), "{table}");
        let text = std::fs::read_to_string(folder.path().join(PROFILE)).unwrap();
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0]["phases"]["forward_ms"], 20.0);
        assert_eq!((&records[1]["step_ms"], &records[1]["phases"]["save_ms"]), (&json!(100.0), &json!(50.0)));
        assert_eq!(records[1]["highest_pss_bytes"], 300 << 20);
    }

    #[test]
    fn a_resumed_run_tells_again_what_came_after_its_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let steps = || {
            let text = std::fs::read_to_string(folder.path().join(PROFILE)).unwrap();
            let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["current_steps"].as_u64();
            text.lines().filter_map(step).collect::<Vec<_>>()
        };
        let mut profiler = Profiler::new(folder.path(), 1, 0).unwrap();
        for step in 1..=3 {
            assert!(profiler.count(1));
            profiler.end(step, times([0; 8]), MEMORY).unwrap();
        }
        let mut resumed = Profiler::new(folder.path(), 1, 2).unwrap();
        assert_eq!(steps(), [1, 2]);
        assert!(resumed.count(1));
        // No time at all divides by nothing.
        assert!(resumed.end(3, times([0; 8]), MEMORY).unwrap().line().contains("0.0 ms a step, 0 tok/s"));
        assert_eq!(steps(), [1, 2, 3]);
        Profiler::new(folder.path(), 1, 0).unwrap();
        assert_eq!(steps(), [0; 0]);
    }
}
