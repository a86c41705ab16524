//! The thread that starts the ranks, watches them and ends them.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use super::exit::{Ended, Ending, Exit, FailedRank, Grace};
use super::guard::Guard;
use super::signals::SignalFlag;
use super::stopped::Stops;
use crate::error::{Error, Result};
use crate::ledger::SILENT_END;
use crate::memory::resident;
use crate::procfs;
use crate::shm::ShmHost;

/// How often the ranks are polled.
const POLL: Duration = Duration::from_millis(10);

/// How often their memory is read.
const SAMPLE: Duration = Duration::from_millis(250);

/// From SIGTERM to SIGKILL for processes that ranks have started and left behind.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// How long a killed process may take to be gone; one that the kernel holds is not waited for.
const KILLED: Duration = Duration::from_secs(1);

/// A second signal after this time kills all ranks at once.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// What is asked about the processes of a rank.
const CHANGES: WaitOptions = WaitOptions::NOHANG.union(WaitOptions::UNTRACED).union(WaitOptions::CONTINUED);

/// A started rank: its process and pipes.
pub(super) type Started = (u32, (Option<ChildStdout>, Option<ChildStderr>));

pub(super) struct Supervisor {
    pub(super) host: Option<Arc<ShmHost>>,
    pub(super) ranks: Vec<Rank>,
    pub(super) grace: Grace,
    /// Signals to this process.
    pub(super) signals: SignalFlag,
    /// Set when the owner stops the run.
    pub(super) stop: SignalFlag,
    /// For the owner: how long all ranks have been stopped.
    pub(super) stops: Arc<Mutex<Stops>>,
    pub(super) guard: Guard,
}

/// A rank's process, which leads a group of its own.
pub(super) struct Rank {
    pid: Pid,
    end: Option<Ended>,
    /// No child of this process is left in the group.
    gone: bool,
    /// The guard knows the group.
    guarded: bool,
    resident: Option<u64>,
    /// The signal that has stopped it.
    stopped: Option<i32>,
}

impl Supervisor {
    pub(super) fn start(&mut self, commands: Vec<Command>) -> Result<Vec<Started>> {
        // Orphans of ranks become children of this process, which can then see when a group is empty. If it fails they are
        // only harder to see.
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let mut started = Vec::with_capacity(commands.len());
        for (rank, mut command) in commands.into_iter().enumerate() {
            if let Some(host) = &self.host {
                host.attach(rank, &mut command);
            }
            command.process_group(0);
            die_with_parent(&mut command);
            self.guard.watches(&mut command)?;
            let mut child = command.spawn().map_err(|e| {
                let program = command.get_program();
                let what = format!("start rank {rank} ({})", program.to_string_lossy());
                Error::system(what, start_error(program, &e))
            })?;
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                self.ranks.push(Rank {
                    pid,
                    end: None,
                    gone: false,
                    guarded: true,
                    resident: None,
                    stopped: None,
                });
            }
            started.push((child.id(), (child.stdout.take(), child.stderr.take())));
        }
        Ok(started)
    }

    /// Supervises the ranks until all have ended.
    pub(super) fn run(mut self) -> Ending {
        let mut signal: Option<(i32, Instant)> = None;
        let mut first_exit = None;
        let mut failed_at = None;
        // When all were asked to end.
        let mut asked: Option<Instant> = None;
        let mut sampled = None;
        while !self.poll(asked.is_some(), &mut first_exit) {
            if sampled.is_none_or(|at: Instant| at.elapsed() >= SAMPLE) {
                self.sample();
                sampled = Some(Instant::now());
            }
            match (signal, self.signals.get()) {
                (None, Some(number)) => {
                    self.signals.set(0);
                    signal = Some((number, Instant::now()));
                    self.send(Signal::from_named_raw(number).unwrap_or(Signal::TERM));
                    asked.get_or_insert_with(Instant::now);
                }
                (Some((_, at)), Some(_)) if at.elapsed() >= SECOND_SIGNAL => self.send(Signal::KILL),
                _ => {}
            }
            let failed =
                first_exit.is_some() || self.host.as_ref().is_some_and(|host| host.failure().is_some());
            if failed && failed_at.is_none() {
                failed_at = Some(Instant::now());
            }
            let due = failed_at.is_some_and(|at| at.elapsed() >= self.grace.term);
            if asked.is_none() && (due || self.stop.get().is_some()) {
                self.send(Signal::TERM);
                asked = Some(Instant::now());
            }
            if asked.is_some_and(|at| at.elapsed() >= self.grace.kill) {
                self.send(Signal::KILL);
            }
            std::thread::sleep(POLL);
        }
        self.sweep();
        self.ending(signal.map(|(number, _)| number), first_exit)
    }

    fn ending(&self, signal: Option<i32>, first_exit: Option<usize>) -> Ending {
        // A signal may have come after they had ended.
        let signal = signal.or(self.signals.get());
        let lost = |rank: &Rank| Ended {
            pid: rank.number(),
            exit: Exit::Code(-1),
            at: SystemTime::now(),
            resident: rank.resident,
            asked_to_end: true,
        };
        let ranks: Vec<Ended> =
            self.ranks.iter().map(|rank| rank.end.unwrap_or_else(|| lost(rank))).collect();
        let reported = self.host.as_ref().and_then(|host| host.failure());
        let reported = reported.map(|cause| with_signal(cause, &ranks));
        let seen =
            first_exit.map(|rank| (rank, Error::PeerFailed { rank, cause: ranks[rank].exit.to_string() }));
        let failed = match (reported, seen) {
            (Some(cause @ Error::PeerFailed { rank, .. }), _) => Some((rank.min(ranks.len() - 1), cause)),
            (Some(cause), first) => Some((first.map_or(0, |(rank, _)| rank), cause)),
            (None, seen) => seen,
        };
        let stopped = signal.is_some() || self.stop.get().is_some();
        let failed = failed.filter(|_| !stopped);
        Ending {
            failed: failed.map(|(rank, cause)| FailedRank { rank, end: ranks[rank], cause }),
            ranks,
            signal,
        }
    }

    /// Collects the ranks that have ended and reports the first failure to all. True once all ranks have ended.
    fn poll(&mut self, asked: bool, first_exit: &mut Option<usize>) -> bool {
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let before = rank.end.is_some();
            rank.collect(asked);
            if let (false, Some(end)) = (before, rank.end)
                && !end.exit.is_success()
            {
                if !asked {
                    first_exit.get_or_insert(number);
                }
                if let Some(host) = &self.host {
                    host.report_failure(number, &end.exit.to_string());
                }
            }
        }
        self.report_absent();
        self.release_gone();
        self.ranks.iter().all(|rank| rank.end.is_some())
    }

    /// A rank that ended well before it joined the others would keep them waiting.
    fn report_absent(&self) {
        let Some(host) = &self.host else { return };
        let ended = |rank: &Rank| rank.end.is_some_and(|end| end.exit.is_success());
        if self.ranks.iter().any(ended) {
            let ended: Vec<usize> = (0..self.ranks.len()).filter(|&rank| ended(&self.ranks[rank])).collect();
            host.report_absent(&ended);
        }
    }

    /// Tells the guard which groups are gone: their numbers can be used again.
    fn release_gone(&mut self) {
        for rank in self.ranks.iter_mut().filter(|rank| rank.gone && rank.guarded) {
            self.guard.remove(rank.pid);
            rank.guarded = false;
        }
    }

    fn sample(&mut self) {
        let mut running = 0;
        let (mut pids, mut signal) = (Vec::new(), None);
        for rank in self.ranks.iter_mut().filter(|rank| rank.end.is_none()) {
            let pid = rank.number();
            rank.resident = resident(pid).or(rank.resident);
            // Of those that a debugger or a control group holds no signal is known.
            if running == 0 && (rank.stopped.is_some() || procfs::is_held(pid)) {
                signal = signal.or(rank.stopped);
                pids.push(pid);
            } else {
                running += 1;
            }
        }
        let all = (running == 0 && !pids.is_empty()).then_some((pids, signal));
        self.stops.lock().unwrap_or_else(PoisonError::into_inner).look(all, Instant::now());
    }

    /// Signals all groups that still have processes. Until a process is waited for, its number belongs to it.
    fn send(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| !rank.gone) {
            // It may have left its group, or have ended just now.
            if rustix::process::kill_process_group(rank.pid, signal).is_err() && rank.end.is_none() {
                let _ = rustix::process::kill_process(rank.pid, signal);
            }
        }
    }

    /// Ends the processes that ended ranks have left behind in their groups.
    fn sweep(&mut self) {
        for (signal, time) in [(Signal::TERM, LEFT_BEHIND), (Signal::KILL, KILLED)] {
            if self.all_gone() {
                return;
            }
            self.send(signal);
            let begin = Instant::now();
            while !self.all_gone() && begin.elapsed() < time {
                std::thread::sleep(POLL);
            }
        }
    }

    fn all_gone(&mut self) -> bool {
        for rank in &mut self.ranks {
            rank.collect(true);
        }
        self.release_gone();
        self.ranks.iter().all(|rank| rank.gone)
    }

    /// Ends a run that could not be started.
    pub(super) fn kill_all(mut self) -> Ending {
        self.send(Signal::KILL);
        let begin = Instant::now();
        while !self.all_gone() && begin.elapsed() < KILLED {
            std::thread::sleep(POLL);
        }
        Ending { failed: None, ranks: Vec::new(), signal: None }
    }
}

impl Rank {
    /// Collects the status of the processes of the group that have ended.
    fn collect(&mut self, asked: bool) {
        while !self.gone {
            match rustix::process::waitpgid(self.pid, CHANGES) {
                Ok(Some((pid, status))) if pid == self.pid => self.changed(status, asked),
                // An orphan.
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return,
                Err(_) => {
                    // It may have left its group.
                    if self.end.is_none() {
                        match rustix::process::waitpid(Some(self.pid), CHANGES) {
                            Ok(None) => return,
                            Ok(Some((_, status))) => {
                                self.changed(status, asked);
                                if self.end.is_none() {
                                    return;
                                }
                            }
                            // Another part of this process waited for the child; it is gone.
                            Err(_) => self.ended(None, asked),
                        }
                    }
                    self.gone = true;
                }
            }
        }
    }

    /// The number of its process.
    fn number(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// It has ended, was stopped or goes on.
    fn changed(&mut self, status: WaitStatus, asked: bool) {
        if status.stopped() {
            self.stopped = status.stopping_signal();
        } else if status.continued() {
            self.stopped = None;
        } else {
            self.ended(Some(status), asked);
        }
    }

    fn ended(&mut self, status: Option<WaitStatus>, asked: bool) {
        self.end = Some(Ended {
            pid: self.number(),
            exit: status.map_or(Exit::Code(-1), Exit::of),
            at: SystemTime::now(),
            resident: self.resident,
            asked_to_end: asked,
        });
    }
}

/// The failure of a run, as the launcher knows it: another rank that found the process of a rank dead knows no signal.
fn with_signal(cause: Error, ranks: &[Ended]) -> Error {
    match cause {
        Error::PeerFailed { rank, cause } => {
            let signal =
                ranks.get(rank).filter(|end| matches!(end.exit, Exit::Signal(_)) && !end.asked_to_end);
            match signal.filter(|_| cause.contains(SILENT_END)) {
                Some(end) => Error::PeerFailed { rank, cause: end.exit.to_string() },
                None => Error::PeerFailed { rank, cause },
            }
        }
        other => other,
    }
}

/// Why a program cannot be started, and what to do.
fn start_error(program: &OsStr, error: &io::Error) -> String {
    let path = Path::new(program);
    let is_path = program.as_encoded_bytes().contains(&b'/');
    let why = match error.kind() {
        ErrorKind::NotFound if !is_path => "no folder of PATH has a program of this name",
        ErrorKind::NotFound if path.exists() => {
            "the file is there, but not the interpreter that its first line or its format asks for"
        }
        ErrorKind::PermissionDenied if path.is_dir() => "it is a folder, not a program",
        ErrorKind::PermissionDenied if path.is_file() => "`chmod +x` makes it a program",
        _ => return error.to_string(),
    };
    format!("{error}: {why}")
}

/// Lets the kernel end the child when this thread ends, even by SIGKILL.
fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec it makes two system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the request.
            if rustix::process::getppid() != Some(parent) {
                return Err(Errno::SRCH.into());
            }
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_signal_of_a_rank_counts_more_than_the_word_of_another_that_found_it_dead() {
        let end = |exit, asked_to_end| Ended {
            pid: 7,
            exit,
            at: SystemTime::UNIX_EPOCH,
            resident: None,
            asked_to_end,
        };
        let message = |text: &str, last: Ended| {
            let cause = Error::PeerFailed { rank: 1, cause: text.to_owned() };
            with_signal(cause, &[end(Exit::Code(1), false), last]).to_string()
        };
        let found = "its process 7 ended without saying why";
        let killed = end(Exit::Signal(9), false);
        assert_eq!(message(found, killed), "rank 1 failed: it was ended by signal 9 (SIGKILL)");
        assert_eq!(message("no memory", killed), "rank 1 failed: no memory");
        for other in [end(Exit::Signal(9), true), end(Exit::Code(3), false)] {
            assert_eq!(message(found, other), format!("rank 1 failed: {found}"));
        }
    }

    #[test]
    fn a_program_that_cannot_start_is_told_with_what_to_do() {
        let there = tempfile::tempdir().unwrap();
        let why = |name: &str, text: &str, mode: u32| {
            let path = there.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            start_error(path.as_os_str(), &Command::new(&path).spawn().unwrap_err())
        };
        assert!(why("a", "#!/bin/sh\n", 0o644).contains("chmod +x"));
        assert!(why("b", "#!/no/such/interpreter\n", 0o755).contains("interpreter"));
        let folder = start_error(there.path().as_os_str(), &Command::new(there.path()).spawn().unwrap_err());
        assert!(folder.contains("folder"), "{folder}");
        let nowhere = Command::new("no-such-program").spawn().unwrap_err();
        assert!(start_error(OsStr::new("no-such-program"), &nowhere).contains("PATH"));
    }
}
