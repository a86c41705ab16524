//! A profile of a run: every so many steps where the time of a step went, by phase and by op, and what memory holds. As a
//! table, as a line, and as a record of profile.jsonl.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

use oarlock_tensor::OpTime;
use serde_json::{Map, Value, json};

use super::file_error::{Result, io_error};
use super::files::{LineFile, Rest};
use super::progress::{bar, thousands};
use super::speed::{Phase, PhaseTimes};
use super::terminal::readable;

/// The file of the records.
const PROFILE: &str = "profile.jsonl";

/// Columns of a full bar in the table.
const BAR: usize = 24;

/// Ops that are shown to a person; the record has all.
const DEAREST: usize = 10;

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

/// What the ops of an interval took, by their names.
pub type Ops = Vec<(Cow<'static, str>, OpTime)>;

/// Some steps of a run.
#[derive(Clone, Debug)]
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
    /// Their ops on rank 0, the dearest first.
    pub ops: Ops,
    /// Operations per second that the products of one rank reach at most; 0 where that is not known.
    pub peak_flops: f64,
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
        let log = LineFile::resume(&folder.join(PROFILE), "current_steps", step, Rest::Dropped)?;
        let before = PhaseTimes::default();
        Ok(Profiler { every: every.max(1), log, n_steps: 0, n_tokens: 0, before, peak_pss: 0 })
    }

    /// Counts a step; whether an interval ends with it.
    pub fn count(&mut self, n_tokens: u64) -> bool {
        self.n_steps += 1;
        self.n_tokens += n_tokens;
        self.n_steps >= self.every
    }

    /// Ends an interval: `so_far` are the times of the whole run, `ops` those of the interval.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn end(
        &mut self,
        step: u64,
        so_far: PhaseTimes,
        memory: MemoryNow,
        mut ops: Ops,
        peak_flops: f64,
    ) -> Result<Profiled> {
        self.peak_pss = self.peak_pss.max(memory.pss);
        ops.sort_by(|(a, x), (b, y)| y.time.cmp(&x.time).then_with(|| a.cmp(b)));
        let times = so_far.since(&self.before);
        let (n_steps, n_tokens, peak_pss) = (self.n_steps, self.n_tokens, self.peak_pss);
        (self.n_steps, self.n_tokens, self.before) = (0, 0, so_far);
        let profiled = Profiled { step, n_steps, times, n_tokens, memory, peak_pss, ops, peak_flops };
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
            readable(self.memory.pss),
            readable(self.peak_pss),
            readable(self.memory.peak_rss),
            readable(self.memory.in_use),
            readable(self.memory.taken),
        )
    }

    /// What an op takes of a step: milliseconds and the share.
    fn of_step(&self, op: &OpTime) -> (f64, f64) {
        let ms = 1e3 * op.time.as_secs_f64() / self.n_steps.max(1) as f64;
        let whole = self.ms_of_step();
        (ms, if whole > 0.0 { ms / whole } else { 0.0 })
    }

    /// The share of the peak that an op of products reaches.
    fn of_peak(&self, op: &OpTime) -> Option<f64> {
        let share = op.flops as f64 / op.time.as_secs_f64() / self.peak_flops;
        (op.flops > 0 && self.peak_flops > 0.0 && share.is_finite()).then_some(share)
    }

    /// The ops that a person is shown, the dearest first.
    fn dearest(&self) -> impl Iterator<Item = &(Cow<'static, str>, OpTime)> {
        self.ops.iter().take(DEAREST)
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
        if !self.ops.is_empty() {
            let _ = writeln!(
                out,
                "  {:<24} {:>6} {:>11} {:>6} {:>9} {:>8} {:>7}",
                "op", "calls", "ms", "share", "GFLOP/s", "of peak", "GB/s"
            );
        }
        for (name, op) in self.dearest() {
            let ((ms, share), seconds) = (self.of_step(op), op.time.as_secs_f64());
            let rate = |n: u64| {
                if n > 0 && seconds > 0.0 {
                    format!("{:.1}", n as f64 / seconds / 1e9)
                } else {
                    String::new()
                }
            };
            let row = format!(
                "  {name:<24} {:>6} {ms:>11.1} {:>5.0}% {:>9} {:>8} {:>7}",
                op.calls / self.n_steps.max(1),
                100.0 * share,
                rate(op.flops),
                self.of_peak(op).map_or(String::new(), |share| format!("{:.0}%", 100.0 * share)),
                rate(op.bytes),
            );
            let _ = writeln!(out, "{}", row.trim_end());
        }
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
        let ops: Vec<String> = self
            .dearest()
            .map(|(name, op)| {
                let (ms, share) = self.of_step(op);
                let of_peak = self
                    .of_peak(op)
                    .map_or(String::new(), |share| format!(", {:.0}% of peak", 100.0 * share));
                format!("{name} {ms:.1} ms ({:.0}%{of_peak})", 100.0 * share)
            })
            .collect();
        let ops = if ops.is_empty() { String::new() } else { format!("; ops: {}", ops.join(", ")) };
        format!(
            "profile of {}: {}; {:.1} ms a step, {} tok/s; {}{ops}",
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
        let ops: Map<String, Value> = self
            .ops
            .iter()
            .map(|(name, op)| {
                let account = json!({
                    "calls": op.calls,
                    "ms": micros(self.of_step(op).0),
                    "flops": op.flops,
                    "bytes": op.bytes,
                    "of_peak": self.of_peak(op).map(|share| (share * 1e4).round() / 1e4),
                });
                (name.to_string(), account)
            })
            .collect();
        json!({
            "current_steps": self.step,
            "steps": self.n_steps,
            "step_ms": micros(self.ms_of_step()),
            "phases": phases,
            "ops": ops,
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
        MemoryNow { pss: 300_000_000, peak_rss: 500_000_000, in_use: 100_000_000, taken: 120_000_000 };

    /// Of two steps; the cheapest first, as their names have it.
    fn ops() -> Ops {
        let op = |calls, ms, flops, bytes| OpTime { calls, time: Duration::from_millis(ms), flops, bytes };
        vec![("add".into(), op(6, 2, 0, 8_000_000)), ("linear forward".into(), op(4, 40, 3_200_000_000, 0))]
    }

    #[test]
    fn an_interval_is_told_in_three_forms() {
        let folder = tempfile::tempdir().unwrap();
        let mut profiler = Profiler::new(folder.path(), 2, 0).unwrap();
        assert!(!profiler.count(1000) && profiler.count(1000));
        let first = profiler.end(2, times([2, 40, 80, 10, 4, 20, 0, 44]), MEMORY, ops(), 100e9).unwrap();
        assert!(!profiler.count(500) && profiler.count(500));
        let lower = MemoryNow { pss: 200 << 20, ..MEMORY };
        let second =
            profiler.end(4, times([4, 60, 120, 15, 6, 30, 100, 65]), lower, Vec::new(), 0.0).unwrap();
        assert_eq!(second.times.total(), Duration::from_millis(200), "only its own time");
        assert_eq!((second.peak_pss, second.memory.pss), (300_000_000, 200 << 20));
        assert_eq!(
            first.line(),
            "profile of steps 1 to 2: data 1.0 ms (1%), forward 20.0 ms (20%), backward 40.0 ms (40%), \
             reduce 5.0 ms (5%), clip 2.0 ms (2%), optimizer 10.0 ms (10%), save 0.0 ms (0%), other 22.0 ms (22%); \
             100.0 ms a step, 10,000 tok/s; PSS 300 MB (highest so far 300 MB, peak RSS 500 MB), buffers 100 MB in \
             use, 120 MB taken from the system; ops: linear forward 20.0 ms (20%, 80% of peak), add 1.0 ms (1%)"
        );
        let table = first.table();
        assert!(table.starts_with("profile of steps 1 to 2, for a step on rank 0\n"), "{table}");
        assert!(table.contains("\n  backward        40.0 ms   40%  ━━━━━━━━━╸\n"), "{table}");
        assert!(table.contains("\n  save             0.0 ms    0%\n"), "{table}");
        assert!(table.contains("\n  all            100.0 ms        10,000 tok/s\n"), "{table}");
        assert!(
            table.contains("\n  linear forward                2        20.0    20%      80.0      80%\n"),
            "{table}"
        );
        assert!(
            table.contains(
                "\n  add                           3         1.0     1%                        4.0\n"
            ),
            "{table}"
        );
        let text = std::fs::read_to_string(folder.path().join(PROFILE)).unwrap();
        let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(records.len(), 2);
        assert_eq!(records[0]["phases"]["forward_ms"], 20.0);
        assert_eq!((&records[1]["step_ms"], &records[1]["phases"]["save_ms"]), (&json!(100.0), &json!(50.0)));
        assert_eq!(records[1]["highest_pss_bytes"], 300_000_000);
        let add = json!({"calls": 6, "ms": 1.0, "flops": 0, "bytes": 8_000_000, "of_peak": null});
        assert_eq!(
            (&records[0]["ops"]["add"], &records[0]["ops"]["linear forward"]["of_peak"]),
            (&add, &json!(0.8))
        );
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
            profiler.end(step, times([0; 8]), MEMORY, Vec::new(), 0.0).unwrap();
        }
        let mut resumed = Profiler::new(folder.path(), 1, 2).unwrap();
        assert_eq!(steps(), [1, 2]);
        assert!(resumed.count(1));
        // No time at all divides by nothing.
        assert!(
            resumed
                .end(3, times([0; 8]), MEMORY, Vec::new(), 0.0)
                .unwrap()
                .line()
                .contains("0.0 ms a step, 0 tok/s")
        );
        assert_eq!(steps(), [1, 2, 3]);
        Profiler::new(folder.path(), 1, 0).unwrap();
        assert_eq!(steps(), [0; 0]);
    }
}
