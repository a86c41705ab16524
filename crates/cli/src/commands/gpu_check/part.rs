//! A section's own process: runs its checks one after the other and tells about each in a line of JSON.
//!
//! A GPU whose context is lost, a crash or a hang end this process and no other: the one that prints starts another one
//! with the check behind.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::finding::Finding;
use crate::console::{Failure, Outcome, print};

/// With this code a process ends whose GPU does not answer any more.
pub(super) const LOST: u8 = 86;

/// A line of the section's process.
pub(super) enum Line {
    /// This check begins.
    Begin(String),
    /// The last one that began ended so, after so many seconds.
    End(Finding, f64),
    /// Something to know: its name, its value, and how to say it.
    Record(String, Value, String),
}

impl Line {
    /// As it is written.
    pub fn to_json(&self) -> Value {
        match self {
            Line::Begin(name) => json!({ "begin": name }),
            Line::End(finding, seconds) => json!({ "end": finding.to_json(), "seconds": seconds }),
            Line::Record(key, value, line) => json!({ "record": key, "value": value, "line": line }),
        }
    }

    /// None if it is not one.
    pub fn from_text(text: &str) -> Option<Line> {
        let mut value: Value = serde_json::from_str(text).ok()?;
        if let Some(name) = value["begin"].as_str() {
            return Some(Line::Begin(name.to_owned()));
        }
        if let Some(key) = value["record"].as_str() {
            let (key, line) = (key.to_owned(), value["line"].as_str()?.to_owned());
            return Some(Line::Record(key, value["value"].take(), line));
        }
        Some(Line::End(Finding::from_json(value["end"].take())?, value["seconds"].as_f64()?))
    }
}

/// The checks of a section.
pub(super) struct Part<'a> {
    /// Checks that were done by processes before this one.
    skip: usize,
    /// When nothing more begins.
    end: Instant,
    /// Whether the GPU can still be used; asked after each error.
    answers: &'a dyn Fn() -> bool,
}

impl<'a> Part<'a> {
    /// One that leaves the first checks out, and those that would begin after this time.
    pub fn new(skip: usize, time: Duration, answers: &'a dyn Fn() -> bool) -> Part<'a> {
        Part { skip, end: Instant::now() + time, answers }
    }

    /// How long checks may still begin.
    pub fn time_left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Something to know, which is neither good nor bad.
    pub fn record(&mut self, key: &str, value: impl Into<Value>, line: impl Display) -> Outcome {
        write(&Line::Record(key.to_owned(), value.into(), line.to_string()))
    }

    /// Runs a check. An error or a panic is a failure; after one the GPU may be of no use any more, which ends the process.
    pub fn check<E: Display>(&mut self, name: &str, check: impl FnOnce() -> Result<Finding, E>) -> Outcome {
        if self.skip > 0 {
            self.skip -= 1;
            return Ok(());
        }
        write(&Line::Begin(name.to_owned()))?;
        if self.time_left().is_zero() {
            return write(&Line::End(Finding::left("the time was over"), 0.0));
        }
        let start = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(check));
        let seconds = start.elapsed().as_secs_f64();
        let error = match ended {
            Ok(Ok(finding)) => return write(&Line::End(finding, seconds)),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("panicked: {}", message(&*panic)),
        };
        write(&Line::End(Finding::of(false, error), seconds))?;
        if (self.answers)() { Ok(()) } else { Err(Failure::Reported(LOST)) }
    }
}

fn write(line: &Line) -> Outcome {
    print(&format!("{}\n", line.to_json()))
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
    fn lines_are_read_as_they_were_written() {
        let lines = [
            Line::Begin("a check".into()),
            Line::End(Finding::ok("fine").with("x", 1.5), 0.25),
            Line::Record("key".into(), json!([1, 2]), "two".into()),
        ];
        for line in lines {
            let text = line.to_json().to_string();
            assert_eq!(Line::from_text(&text).map(|line| line.to_json()), Some(line.to_json()));
        }
        assert!(Line::from_text("a word of a library").is_none());
    }

    #[test]
    fn a_lost_gpu_ends_the_process_and_other_errors_do_not() {
        let hour = Duration::from_secs(3600);
        let answers = std::cell::Cell::new(true);
        let asked = || answers.get();
        let mut part = Part::new(1, hour, &asked);
        part.check::<String>("done before", || panic!("it must not run")).unwrap_or_else(|_| panic!());
        part.check("bad", || Err("broken")).unwrap_or_else(|_| panic!());
        answers.set(false);
        part.check::<String>("good", || Ok(Finding::ok("fine"))).unwrap_or_else(|_| panic!());
        let lost = part.check::<String>("worse", || panic!("out of bounds"));
        assert!(matches!(lost, Err(Failure::Reported(LOST))));
    }
}
