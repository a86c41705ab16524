//! Runs a section in a process of its own, reads what it tells, and ends it when a check takes too long.

use std::io::{BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::finding::Finding;
use super::part::{LOST, Line};
use super::report::Report;
use crate::console::{Failure, Outcome};
use crate::error::Error;

/// After so many processes of a section that were lost, the GPU is given up.
const MOST_PROCESSES: usize = 8;

/// A process that has ended, or was ended.
enum End {
    Late,
    Status(ExitStatus),
}

/// Makes the process that leaves so many checks out and ends in so long.
pub(super) type Make<'a> = dyn FnMut(usize, Duration) -> Result<Command, Error> + 'a;

/// Checks a section, but for `n_done` checks, for at most this time, in one process, or in several where one is lost. A check
/// that takes longer than `patience` is ended.
pub(super) fn watch(
    report: &mut Report,
    mut n_done: usize,
    (time, patience): (Duration, Duration),
    make: &mut Make<'_>,
) -> Outcome {
    let deadline = Instant::now() + time;
    for _ in 0..MOST_PROCESSES {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut process = Process::start(make(n_done, left)?)?;
        let (running, end) = process.follow(report, &mut n_done, patience)?;
        let why = match end {
            End::Status(status) if status.success() => return Ok(()),
            // What lost the GPU was told as a failure; the next process has a new context.
            End::Status(status) if status.code() == Some(i32::from(LOST)) => continue,
            End::Late => format!("did not end within {} s, and was ended", patience.as_secs_f64()),
            End::Status(status) => match status.signal() {
                Some(signal) => format!("its process was ended by signal {signal}"),
                None => format!("its process ended with code {}", status.code().unwrap_or(-1)),
            },
        };
        let Some((name, start)) = running else {
            // Before the first check or between two: another process would do the same.
            return report.add("its process", Finding::of(false, why).done_again(), 0.0);
        };
        n_done += 1;
        report.add(&name, Finding::of(false, why), start.elapsed().as_secs_f64())?;
    }
    report.add(
        "the rest",
        Finding::left(format!("the GPU was lost {MOST_PROCESSES} times in this section")),
        0.0,
    )
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(mut command: Command) -> Result<Process, Error> {
        // A group, so that what it starts ends with it.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io("start", "a process for a section"))?;
        let (send, lines) = channel();
        if let Some(out) = child.stdout.take() {
            // It ends with the pipe.
            thread::spawn(move || {
                BufReader::new(out).lines().map_while(Result::ok).all(|line| send.send(line).is_ok())
            });
        }
        Ok(Process { child, lines })
    }

    /// Passes on what it tells, until it ends or a check takes longer than `patience`: the check that was running, and when
    /// it began.
    fn follow(
        &mut self,
        report: &mut Report,
        n_done: &mut usize,
        patience: Duration,
    ) -> Result<(Option<(String, Instant)>, End), Failure> {
        let mut running = None;
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(text) => match Line::from_text(&text) {
                    Some(Line::Begin(name)) => running = Some((name, Instant::now())),
                    Some(Line::End(finding, seconds)) => {
                        let name = running.take().map(|(name, _)| name).unwrap_or_default();
                        *n_done += 1;
                        report.add(&name, finding, seconds)?;
                    }
                    Some(Line::Record(key, value, line)) => report.record(&key, value, line)?,
                    None => report.pass_on(&text)?,
                },
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().map_err(Error::io("wait for", "a section's process"))?;
                    return Ok((running, End::Status(status)));
                }
                Err(RecvTimeoutError::Timeout) => return Ok((running, End::Late)),
            }
        }
    }
}

impl Drop for Process {
    /// Ends it with all that it has started, unless it has ended itself.
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(self.child.wait());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a section finds whose process is this script, with the number of checks to leave out as `$1`.
    fn found(script: &str) -> Vec<(String, String, String)> {
        let mut report = Report::new(true);
        let hour = Duration::from_secs(3600);
        let mut make = |skip: usize, _| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh", &skip.to_string()]);
            Ok(command)
        };
        watch(&mut report, 0, (hour, Duration::from_millis(1500)), &mut make)
            .unwrap_or_else(|_| panic!("watched"));
        let json = report.json();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let checks = json["checks"].as_array().into_iter().flatten();
        checks.map(|check| (text(&check["name"]), text(&check["result"]), text(&check["detail"]))).collect()
    }

    const FINE: &str = r#"
        fine() {
            echo "{\"begin\": \"$1\"}"
            echo '{"end": {"result": "ok", "detail": "fine", "numbers": {}}, "seconds": 0}'
        }
        "#;

    fn expect(script: &str, wanted: &[(&str, &str, &str)]) {
        let found = found(&format!("{FINE}{script}"));
        let found: Vec<_> = found.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn what_hangs_is_ended_and_named_and_the_next_check_runs() {
        let script = r#"
            if [ "$1" = 0 ]; then fine a; echo '{"begin": "b"}'; sleep 1000; fi
            [ "$1" = 2 ] && fine c"#;
        let late = "did not end within 1.5 s, and was ended";
        expect(script, &[("a", "ok", "fine"), ("b", "failed", late), ("c", "ok", "fine")]);
    }

    #[test]
    fn what_crashes_is_named_and_the_next_check_runs() {
        let script = r#"
            if [ "$1" = 0 ]; then echo '{"begin": "a"}'; kill -SEGV $$; fi
            [ "$1" = 1 ] && fine b"#;
        expect(script, &[("a", "failed", "its process was ended by signal 11"), ("b", "ok", "fine")]);
    }

    #[test]
    fn a_lost_gpu_has_a_new_process_and_in_the_end_none() {
        let script = r#"fine "$1"; exit 86"#;
        let found = found(&format!("{FINE}{script}"));
        assert_eq!(found.len(), MOST_PROCESSES + 1);
        assert_eq!((found[1].0.as_str(), found[MOST_PROCESSES].1.as_str()), ("1", "skipped"));
    }

    #[test]
    fn a_process_that_checks_nothing_is_a_failure() {
        expect("exit 3", &[("its process", "failed", "its process ended with code 3")]);
    }
}
