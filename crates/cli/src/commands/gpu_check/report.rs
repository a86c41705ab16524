//! The report of a check: a line for each check when it ends, a table of the sections, and all of it as JSON.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::console::{Outcome, print};

/// The parts of a check, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Device,
    Ops,
    Training,
    Ranks,
    Speed,
}

impl Section {
    const ALL: [Section; 5] =
        [Section::Device, Section::Ops, Section::Training, Section::Ranks, Section::Speed];

    fn name(self) -> &'static str {
        match self {
            Section::Device => "device",
            Section::Ops => "ops",
            Section::Training => "training",
            Section::Ranks => "ranks",
            Section::Speed => "speed",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Section::Device => "Device and libraries",
            Section::Ops => "Ops: the GPU beside the CPU in f32, errors relative to the largest value",
            Section::Training => "Training: losses on the GPU beside those on the CPU",
            Section::Ranks => "Ranks: losses of two ranks on one GPU beside those of one rank",
            Section::Speed => "Speed",
        }
    }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Ok,
    Failed,
    Skipped,
}

impl Verdict {
    const ALL: [Verdict; 3] = [Verdict::Ok, Verdict::Failed, Verdict::Skipped];

    fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Failed => "failed",
            Verdict::Skipped => "skipped",
        }
    }

    /// As a line begins, where what failed must be seen.
    fn word(self) -> &'static str {
        if self == Verdict::Failed { "FAILED" } else { self.name() }
    }
}

/// What a check found.
pub(super) struct Finding {
    verdict: Verdict,
    detail: String,
    numbers: Map<String, Value>,
}

impl Finding {
    pub fn new(verdict: Verdict, detail: impl Into<String>) -> Finding {
        Finding { verdict, detail: detail.into(), numbers: Map::new() }
    }

    /// All is as it should be.
    pub fn ok(detail: impl Into<String>) -> Finding {
        Finding::new(Verdict::Ok, detail)
    }

    /// It was not looked at, for this reason.
    pub fn skipped(reason: impl Into<String>) -> Finding {
        Finding::new(Verdict::Skipped, reason)
    }

    /// Good if `holds`.
    pub fn of(holds: bool, detail: impl Into<String>) -> Finding {
        Finding::new(if holds { Verdict::Ok } else { Verdict::Failed }, detail)
    }

    #[cfg(test)]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// A number for the JSON.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Finding {
        self.numbers.insert(key.to_owned(), value.into());
        self
    }
}

/// A number as JSON has it: infinities and NaN as a text.
pub(super) fn number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

struct Check {
    section: Section,
    name: String,
    finding: Finding,
    seconds: f64,
}

/// All findings so far.
pub(super) struct Report<'a> {
    quick: bool,
    /// Whether the GPU can still be used.
    answers: &'a dyn Fn() -> bool,
    section: Section,
    checks: Vec<Check>,
    facts: Map<String, Value>,
    /// After which check the GPU did not answer any more.
    lost: Option<String>,
    start: Instant,
}

impl<'a> Report<'a> {
    /// An empty one. `answers` says whether the GPU can be used; it is asked after each error.
    pub fn new(quick: bool, answers: &'a dyn Fn() -> bool) -> Report<'a> {
        Report {
            quick,
            answers,
            section: Section::Device,
            checks: Vec::new(),
            facts: Map::new(),
            lost: None,
            start: Instant::now(),
        }
    }

    /// What comes from here on belongs to this section.
    pub fn begin(&mut self, section: Section) -> Outcome {
        let gap = if self.checks.is_empty() { "" } else { "\n" };
        self.section = section;
        print(&format!("{gap}{}\n", section.title()))
    }

    /// How long the whole check has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something to know, which is neither good nor bad.
    pub fn tell(&mut self, key: &str, value: impl Into<Value>, line: impl Display) -> Outcome {
        self.facts.insert(key.to_owned(), value.into());
        print(&format!("  {line}\n"))
    }

    /// Runs a check. An error or a panic is a failure; after one the GPU may be of no use any more, and then all that
    /// follows is skipped.
    pub fn check<E: Display>(&mut self, name: &str, check: impl FnOnce() -> Result<Finding, E>) -> Outcome {
        if let Some(lost) = &self.lost {
            return self.add(name, Finding::skipped(format!("the GPU does not answer since {lost}")), 0.0);
        }
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(check));
        let seconds = start.elapsed().as_secs_f64();
        let error = match ended {
            Ok(Ok(finding)) => return self.add(name, finding, seconds),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", message(&*panic)),
        };
        if !(self.answers)() {
            self.lost = Some(format!("\"{name}\""));
        }
        self.add(name, Finding::of(false, error), seconds)
    }

    fn add(&mut self, name: &str, finding: Finding, seconds: f64) -> Outcome {
        let line = format!("  {:8}{name:36} {} ({seconds:.2} s)\n", finding.verdict.word(), finding.detail);
        self.checks.push(Check { section: self.section, name: name.to_owned(), finding, seconds });
        print(&line)
    }

    pub fn has_failed(&self) -> bool {
        self.checks.iter().any(|check| check.finding.verdict == Verdict::Failed)
    }

    fn count(&self, section: Section, verdict: Verdict) -> usize {
        let checks = self.checks.iter().filter(|check| check.section == section);
        checks.filter(|check| check.finding.verdict == verdict).count()
    }

    /// The table at the end, and what failed once more.
    pub fn summary(&self) -> String {
        let mut text = format!("\n{:10}{:>6}{:>8}{:>9}{:>10}\n", "", "ok", "failed", "skipped", "seconds");
        for section in Section::ALL {
            let [ok, failed, skipped] = Verdict::ALL.map(|verdict| self.count(section, verdict));
            let of_section = self.checks.iter().filter(|check| check.section == section);
            let seconds = of_section.fold(0.0, |sum, check| sum + check.seconds);
            text += &format!("{:10}{ok:6}{failed:8}{skipped:9}{seconds:10.1}\n", section.name());
        }
        for check in self.checks.iter().filter(|check| check.finding.verdict == Verdict::Failed) {
            text += &format!("FAILED: {}: {}: {}\n", check.section.name(), check.name, check.finding.detail);
        }
        text + if self.has_failed() { "Something does not work on this GPU.\n" } else { "Nothing failed.\n" }
    }

    /// Everything.
    pub fn json(&self) -> Value {
        let checks = self.checks.iter().map(|check| {
            json!({
                "section": check.section.name(),
                "name": check.name,
                "result": check.finding.verdict.name(),
                "detail": check.finding.detail,
                "seconds": check.seconds,
                "numbers": check.finding.numbers,
            })
        });
        let count = |verdict: Verdict| -> usize {
            Section::ALL.iter().map(|section| self.count(*section, verdict)).sum()
        };
        let [ok, failed, skipped] = Verdict::ALL.map(count);
        let seconds = self.start.elapsed().as_secs_f64();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "quick": self.quick,
            "facts": self.facts,
            "checks": checks.collect::<Vec<_>>(),
            "summary": { "ok": ok, "failed": failed, "skipped": skipped, "seconds": seconds },
        })
    }
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "without a message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_are_failures_and_a_lost_gpu_skips_the_rest() {
        let answers = std::cell::Cell::new(true);
        let asked = || answers.get();
        let mut report = Report::new(false, &asked);
        let passed = |_: crate::console::Failure| panic!("standard output is there");
        report.check::<String>("good", || Ok(Finding::ok("fine").with("x", 1.5))).unwrap_or_else(passed);
        report.check("bad", || Err("broken")).unwrap_or_else(passed);
        report.check::<String>("after", || Ok(Finding::ok("fine"))).unwrap_or_else(passed);
        answers.set(false);
        report.check::<String>("worse", || panic!("out of bounds")).unwrap_or_else(passed);
        report.check::<String>("never", || panic!("it must not run")).unwrap_or_else(passed);
        let json = report.json();
        let results: Vec<_> = json["checks"].as_array().into_iter().flatten().map(|c| &c["result"]).collect();
        assert_eq!(results, ["ok", "failed", "ok", "failed", "skipped"]);
        assert_eq!(json["checks"][0]["numbers"]["x"], 1.5);
        assert_eq!(json["checks"][3]["detail"], "panicked: out of bounds");
        assert!(report.has_failed());
        assert!(report.summary().contains("FAILED: device: worse: panicked"), "{}", report.summary());
    }
}
