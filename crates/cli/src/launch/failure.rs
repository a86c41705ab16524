//! Why a rank failed, and what to say about it: the cause that its end suggests, and the table of all failures.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use oarlock_comm::{Ended, Exit, signal_name};
use oarlock_engine::distributed::launch::Memory;

use super::logs::{ErrorFile, Message};
use super::variables::hostname;

/// The failure of a rank.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The rank among all.
    pub rank: usize,
    /// The rank on this machine.
    pub local_rank: usize,
    /// How its process ended.
    pub end: Ended,
    /// What it wrote about it.
    pub message: Option<Message>,
    /// Where that can be read.
    pub error_file: Option<PathBuf>,
}

impl Failure {
    pub(super) fn new(rank: usize, local_rank: usize, end: Ended, file: Option<&ErrorFile>) -> Failure {
        let message = file.and_then(ErrorFile::message);
        let error_file = file.filter(|_| message.is_some()).and_then(ErrorFile::kept).map(PathBuf::from);
        Failure { rank, local_rank, end, message, error_file }
    }

    /// The exit code as Python counts it: a signal is negative.
    pub fn code(&self) -> i32 {
        match self.end.exit {
            Exit::Code(code) => code,
            Exit::Signal(signal) => -signal,
        }
    }

    /// By when it can have been the first: never, if the launcher ended the rank and it says nothing else.
    pub(super) fn began(&self) -> u64 {
        let says = self.message.as_ref().is_some_and(|message| message.seconds.is_some());
        if self.end.asked_to_end && !says { u64::MAX } else { self.seconds() }
    }

    /// Seconds since 1970: when the rank says it was, else when its end was seen.
    fn seconds(&self) -> u64 {
        let seen = self.end.at.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.message.as_ref().and_then(|message| message.seconds).unwrap_or(seen)
    }
}

/// The exit code of a process that passes a failure on, as a shell does.
pub fn exit_code(exit: Exit) -> u8 {
    match exit {
        Exit::Code(code) => u8::try_from(code & 0xff).unwrap_or(1).max(1),
        Exit::Signal(signal) => 128 | u8::try_from(signal & 0x7f).unwrap_or(0),
    }
}

/// The table of all failures, the first of them last, in the form of torchrun.
pub(super) fn table(memory: &Memory, name: &str, first: &Failure, others: &[Failure]) -> String {
    const WIDTH: usize = 60;
    let mut out = format!("{:=<WIDTH$}\n{name} FAILED\n{:-<WIDTH$}\nFailures:\n", "", "");
    for (number, failure) in others.iter().enumerate() {
        row(memory, number + 1, failure, &mut out);
    }
    if others.is_empty() {
        out.push_str("  <NO_OTHER_FAILURES>\n");
    }
    let _ = writeln!(out, "{:-<WIDTH$}\nRoot Cause (first observed failure):", "");
    row(memory, 0, first, &mut out);
    let _ = writeln!(out, "{:=<WIDTH$}", "");
    out
}

fn row(memory: &Memory, number: usize, failure: &Failure, out: &mut String) {
    let file = failure.error_file.as_ref().map_or("<N/A>".to_owned(), |path| path.display().to_string());
    let signal = match failure.end.exit {
        Exit::Signal(signal) => signal_name(signal).map_or(String::new(), |name| format!(" ({name})")),
        Exit::Code(_) => String::new(),
    };
    let _ = writeln!(out, "[{number}]:");
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "  {name:10}: {}", value.replace('\n', "\n  "));
    };
    line("time", timestamp(failure.seconds()));
    line("host", hostname());
    line("rank", format!("{} (local_rank: {})", failure.rank, failure.local_rank));
    line("exitcode", format!("{} (pid: {}){signal}", failure.code(), failure.end.pid));
    line("error_file", file);
    let text = failure.message.as_ref().map(|message| message.text.clone());
    line("traceback", text.unwrap_or_else(|| "<N/A>".to_owned()));
    if let Some(cause) = memory.explain(&failure.end) {
        line("likely", cause);
    }
}

/// `2026-11-20 18:34:02Z`.
fn timestamp(seconds: u64) -> String {
    oarlock_engine::report::log::timestamp(seconds) + "Z"
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn end(exit: Exit, asked_to_end: bool) -> Ended {
        Ended {
            pid: 41,
            exit,
            at: UNIX_EPOCH + Duration::from_secs(86_400),
            resident: Some(3 << 29),
            asked_to_end,
        }
    }

    fn failure(rank: usize, exit: Exit, asked_to_end: bool) -> Failure {
        Failure { rank, local_rank: rank, end: end(exit, asked_to_end), message: None, error_file: None }
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        for (exit, code) in
            [(Exit::Code(3), 3), (Exit::Code(256), 1), (Exit::Signal(9), 137), (Exit::Signal(15), 143)]
        {
            assert_eq!(exit_code(exit), code, "{exit:?}");
        }
        assert_eq!(failure(0, Exit::Signal(9), false).code(), -9);
    }

    #[test]
    fn a_rank_that_says_when_it_failed_may_be_first_though_its_end_came_later() {
        let wrote = |seconds| Some(Message { text: "x".to_owned(), seconds });
        let mut slow = failure(1, Exit::Signal(15), true);
        assert_eq!(slow.began(), u64::MAX);
        slow.message = wrote(None);
        assert_eq!(slow.began(), u64::MAX);
        slow.message = wrote(Some(86_000));
        assert!(slow.began() < failure(0, Exit::Code(1), false).began());
    }

    #[test]
    fn the_table_names_the_first_failure_last() {
        let mut first = failure(1, Exit::Code(3), false);
        first.message = Some(Message { text: "Traceback\nValueError".to_owned(), seconds: Some(0) });
        let text = table(&Memory::now(), "train.py", &first, &[failure(0, Exit::Signal(15), true)]);
        let text = text.replace(&hostname(), "HOST");
        let expected = "\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 1970-01-02 00:00:00Z
  host      : HOST
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 41) (SIGTERM)
  error_file: <N/A>
  traceback : <N/A>
  likely    : ended by the launcher after the first failure
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 1970-01-01 00:00:00Z
  host      : HOST
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 41)
  error_file: <N/A>
  traceback : Traceback
  ValueError
============================================================
";
        assert_eq!(text, expected);
    }
}
