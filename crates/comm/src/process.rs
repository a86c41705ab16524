//! The processes of a run: starts them, watches them, and ends all when one fails.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::error::{Error, Result};
use crate::shm::ShmHost;

/// How often the ranks are looked at.
const WATCH: Duration = Duration::from_millis(10);

/// The signals that end a run: SIGTERM, SIGINT, SIGHUP, SIGQUIT.
pub const STOPPING: [i32; 4] = [SIGTERM, SIGINT, SIGHUP, SIGQUIT];

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned a code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
}

impl Exit {
    fn of(status: ExitStatus) -> Exit {
        status.signal().map_or_else(|| Exit::Code(status.code().unwrap_or(-1)), Exit::Signal)
    }

    /// Whether it ended as it should.
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "it ended with exit code {code}"),
            Exit::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "it was ended by signal {signal} ({name})"),
                None => write!(f, "it was ended by signal {signal}"),
            },
        }
    }
}

/// How long the other ranks have to end by themselves when one has failed.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    /// From the failure to SIGTERM.
    pub term: Duration,
    /// From SIGTERM to SIGKILL.
    pub kill: Duration,
}

impl Grace {
    /// All is over in less than two seconds.
    pub const SHORT: Grace = Grace { term: Duration::from_millis(1000), kill: Duration::from_millis(500) };
}

/// The rank that failed first.
#[derive(Clone, Debug)]
pub struct FailedRank {
    /// The rank.
    pub rank: usize,
    /// How its process ended.
    pub exit: Exit,
    /// What the ranks agreed was the first failure.
    pub cause: Error,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Who failed first, if anyone did.
    pub failed: Option<FailedRank>,
    /// How each rank ended.
    pub exits: Vec<Exit>,
    /// The signal to the launcher that ended the run, if one did.
    pub signal: Option<i32>,
}

impl Ending {
    /// Whether all ranks ended as they should.
    pub fn is_success(&self) -> bool {
        self.failed.is_none() && self.signal.is_none() && self.exits.iter().all(|e| e.is_success())
    }
}

/// Catches SIGINT, SIGTERM and SIGHUP while it lives, so that the launcher can end its ranks before it ends itself.
pub struct StopSignals {
    received: Arc<AtomicUsize>,
    hooks: Vec<signal_hook::SigId>,
}

impl StopSignals {
    /// From now on these signals are noted and no longer end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn catch() -> Result<StopSignals> {
        let mut signals = StopSignals { received: Arc::default(), hooks: Vec::new() };
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            let hook = signal_hook::flag::register_usize(signal, signals.received.clone(), signal as usize);
            signals.hooks.push(hook.map_err(|e| Error::system(format!("catch signal {signal}"), e))?);
        }
        Ok(signals)
    }
}

impl Drop for StopSignals {
    fn drop(&mut self) {
        self.hooks.iter().for_each(|&hook| {
            signal_hook::low_level::unregister(hook);
        });
    }
}

/// The rank processes of one run. Dropping it ends them; so does the death of this process, whatever its cause.
pub struct RankGroup {
    /// Starts the ranks and outlives them: the kernel counts a child's parent as dead with the thread that started it.
    watcher: Option<JoinHandle<Ending>>,
    stop: Arc<AtomicUsize>,
    pids: Vec<u32>,
    outputs: Vec<(Option<ChildStdout>, Option<ChildStderr>)>,
}

impl RankGroup {
    /// Starts one process for each command; the place in the list is the rank. Where output goes is the commands' choice.
    ///
    /// # Errors
    /// When there is not one command for each rank of the host, or a process cannot be started; then none is left.
    pub fn spawn(
        host: Arc<ShmHost>,
        commands: Vec<Command>,
        grace: Grace,
        signals: &StopSignals,
    ) -> Result<RankGroup> {
        if commands.len() != host.world_size() {
            return Err(Error::Argument {
                operation: "spawn",
                expected: format!("{} commands", host.world_size()),
                got: commands.len().to_string(),
            });
        }
        let stop = Arc::new(AtomicUsize::new(0));
        let (started, starts) = mpsc::channel();
        let flags = [stop.clone(), signals.received.clone()];
        let watch = move || {
            let mut watch =
                Watch { exits: vec![None; commands.len()], children: Vec::new(), host, grace, flags };
            let outcome = watch.start(commands);
            let failed = outcome.is_err();
            // The launcher may have gone; then the flags say so.
            let _ = started.send(outcome);
            match failed {
                true => watch.kill_all(),
                false => watch.until_all_ended(),
            }
        };
        let builder = std::thread::Builder::new().name("ranks".into());
        let watcher =
            builder.spawn(watch).map_err(|e| Error::system("start a thread that watches the ranks", e))?;
        let (pids, outputs) =
            starts.recv().map_err(|e| Error::system("start the ranks", e))??.into_iter().unzip();
        Ok(RankGroup { watcher: Some(watcher), stop, pids, outputs })
    }

    /// The process of each rank.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The pipes of a rank, if its command asked for them and nobody took them yet.
    pub fn take_output(&mut self, rank: usize) -> (Option<ChildStdout>, Option<ChildStderr>) {
        self.outputs.get_mut(rank).map_or((None, None), std::mem::take)
    }

    /// Ends the run as SIGTERM to the launcher would.
    pub fn stop(&self) {
        self.stop.store(SIGTERM as usize, Ordering::Relaxed);
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    /// When the watching thread itself was lost.
    pub fn wait(mut self) -> Result<Ending> {
        match self.watcher.take().map(JoinHandle::join) {
            Some(Ok(ending)) => Ok(ending),
            _ => Err(Error::system("watch the ranks", "the watching thread ended early")),
        }
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            self.stop();
            // It has no error to give.
            let _ = watcher.join();
        }
    }
}

type Started = (u32, (Option<ChildStdout>, Option<ChildStderr>));

struct Watch {
    host: Arc<ShmHost>,
    children: Vec<Child>,
    exits: Vec<Option<Exit>>,
    grace: Grace,
    flags: [Arc<AtomicUsize>; 2],
}

impl Watch {
    fn start(&mut self, commands: Vec<Command>) -> Result<Vec<Started>> {
        let mut started = Vec::with_capacity(commands.len());
        for (rank, mut command) in commands.into_iter().enumerate() {
            self.host.attach(rank, &mut command);
            die_with_parent(&mut command);
            let mut child = command.spawn().map_err(|e| {
                Error::system(format!("start rank {rank} ({})", command.get_program().to_string_lossy()), e)
            })?;
            started.push((child.id(), (child.stdout.take(), child.stderr.take())));
            self.children.push(child);
        }
        Ok(started)
    }

    fn until_all_ended(mut self) -> Ending {
        let mut first_exit = None;
        let mut signal = None;
        // When it began that all must end, and how far that has come.
        let mut ending: Option<Instant> = None;
        let mut asked = false;
        let received = |flags: &[Arc<AtomicUsize>]| {
            flags.iter().map(|f| f.load(Ordering::Relaxed) as i32).find(|&signal| signal != 0)
        };
        while !self.reap(&mut first_exit) {
            if signal.is_none() && received(&self.flags).is_some() {
                signal = received(&self.flags);
                self.signal_all(Signal::TERM);
                (asked, ending) = (true, ending.or(Some(Instant::now())));
            }
            if ending.is_none() && self.host.failure().is_some() {
                ending = Some(Instant::now());
            }
            let since = ending.map_or(Duration::ZERO, |e| e.elapsed());
            if !asked && since >= self.grace.term {
                self.signal_all(Signal::TERM);
                asked = true;
            }
            if since >= self.grace.term + self.grace.kill {
                self.signal_all(Signal::KILL);
            }
            std::thread::sleep(WATCH);
        }
        // From a terminal it reaches the ranks as well, and they may have ended of it first.
        let signal = signal.or(received(&self.flags));
        let exits: Vec<Exit> = self.exits.iter().map(|e| e.unwrap_or(Exit::Code(-1))).collect();
        let failed = self.host.failure().map(|cause| {
            let rank = match (&cause, first_exit) {
                (Error::PeerFailed { rank, .. }, _) => (*rank).min(exits.len() - 1),
                (_, first) => first.unwrap_or(0),
            };
            FailedRank { rank, exit: exits[rank], cause }
        });
        Ending { failed: failed.filter(|_| signal.is_none()), exits, signal }
    }

    /// Notes who has ended, and the first that failed for all to see. Whether all have ended.
    fn reap(&mut self, first_exit: &mut Option<usize>) -> bool {
        for (rank, child) in self.children.iter_mut().enumerate() {
            if self.exits[rank].is_some() {
                continue;
            }
            let exit = match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => Exit::of(status),
                // Somebody else waited for our child; it is gone.
                Err(_) => Exit::Code(-1),
            };
            self.exits[rank] = Some(exit);
            if !exit.is_success() {
                first_exit.get_or_insert(rank);
                self.host.report_failure(rank, &exit.to_string());
            }
        }
        self.exits.iter().all(Option::is_some)
    }

    fn signal_all(&self, signal: Signal) {
        for (child, exit) in self.children.iter().zip(&self.exits) {
            if let (Some(pid), None) = (Pid::from_raw(child.id() as i32), exit) {
                // It may have ended just now; until it is waited for its number belongs to it.
                let _ = rustix::process::kill_process(pid, signal);
            }
        }
    }

    /// The end of a run that did not come to start.
    fn kill_all(mut self) -> Ending {
        self.signal_all(Signal::KILL);
        for child in &mut self.children {
            // Killed, so this ends; whether it ended well is no question.
            let _ = child.wait();
        }
        Ending { failed: None, exits: Vec::new(), signal: None }
    }
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
                return Err(rustix::io::Errno::SRCH.into());
            }
            Ok(())
        });
    }
}
