//! The processes of a run: starts them, watches them, and ends all when one fails.
//!
//! Each rank leads a process group, so that what it starts ends with it. Three things see to it that nothing is left:
//! the thread that watches, the kernel, which kills a rank when that thread is gone, and the [`guard`], which kills
//! the groups when this process is. What has left its rank's group (`setsid`) is none of ours.

mod exit;
mod guard;
mod signals;
mod watch;

use std::process::{ChildStderr, ChildStdout, Command};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use exit::{Ended, Exit};
pub use signals::{STOPPING, StopSignals, signal_name, signal_of_name};

use crate::error::{Error, Result};
use crate::shm::ShmHost;
use guard::Guard;
use signals::Flag;
use watch::{Started, Watch};

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
    pub end: Ended,
    /// What the ranks agreed was the first failure.
    pub cause: Error,
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Who failed first, if anyone did, unless a signal or [`RankGroup::stop`] ended the run.
    pub failed: Option<FailedRank>,
    /// How each rank ended.
    pub ranks: Vec<Ended>,
    /// The signal to the launcher that ended the run, if one did.
    pub signal: Option<i32>,
}

impl Ending {
    /// Whether all ranks ended as they should.
    pub fn is_success(&self) -> bool {
        self.failed.is_none() && self.signal.is_none() && self.ranks.iter().all(|end| end.exit.is_success())
    }
}

/// The rank processes of one run. Dropping it ends them; so does the death of this process, whatever its cause.
pub struct RankGroup {
    /// Starts the ranks and outlives them: the kernel counts a child's parent as dead with the thread that started it.
    watcher: Option<JoinHandle<()>>,
    ending: mpsc::Receiver<Ending>,
    stop: Flag,
    pids: Vec<u32>,
    outputs: Vec<(Option<ChildStdout>, Option<ChildStderr>)>,
}

impl RankGroup {
    /// Starts one process for each command; the place in the list is the rank. Where output goes is the commands'
    /// choice. With a host the ranks can meet in its shared memory.
    ///
    /// # Errors
    /// When there is no command, or not one for each rank of the host, or a process cannot be started; then none is
    /// left.
    pub fn spawn(
        host: impl Into<Option<Arc<ShmHost>>>,
        commands: Vec<Command>,
        grace: Grace,
        signals: &StopSignals,
    ) -> Result<RankGroup> {
        let host = host.into();
        let expected = host.as_ref().map_or(commands.len().max(1), |host| host.world_size());
        if commands.len() != expected {
            return Err(Error::Argument {
                operation: "spawn",
                expected: format!("{expected} commands"),
                got: commands.len().to_string(),
            });
        }
        let stop = Flag::default();
        let (started, starts) = mpsc::channel();
        let (ended, ending) = mpsc::channel();
        let (wish, signals) = (stop.clone(), signals.flag());
        let watch = move || {
            let start = |commands| -> Result<(Watch, Vec<Started>)> {
                let mut watch =
                    Watch { host, ranks: Vec::new(), grace, signals, stop: wish, guard: Guard::start()? };
                match watch.start(commands) {
                    Ok(started) => Ok((watch, started)),
                    Err(error) => {
                        watch.kill_all();
                        Err(error)
                    }
                }
            };
            // The launcher may have gone; then the flags say so.
            match start(commands) {
                Ok((watch, ranks)) => {
                    let _ = started.send(Ok(ranks));
                    let _ = ended.send(watch.until_all_ended());
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        };
        let builder = std::thread::Builder::new().name("ranks".into());
        let watcher =
            builder.spawn(watch).map_err(|e| Error::system("start a thread that watches the ranks", e))?;
        let (pids, outputs) =
            starts.recv().map_err(|e| Error::system("start the ranks", e))??.into_iter().unzip();
        Ok(RankGroup { watcher: Some(watcher), ending, stop, pids, outputs })
    }

    /// The process of each rank.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The pipes of a rank, if its command asked for them and nobody took them yet.
    pub fn take_output(&mut self, rank: usize) -> (Option<ChildStdout>, Option<ChildStderr>) {
        self.outputs.get_mut(rank).map_or((None, None), std::mem::take)
    }

    /// Ends the run: SIGTERM, and SIGKILL after the grace.
    pub fn stop(&self) {
        self.stop.set(STOPPING[0]);
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    /// When the watching thread itself was lost.
    pub fn wait(self) -> Result<Ending> {
        self.ending.recv().map_err(|_| lost())
    }

    /// Waits a while; the end, if all ranks have ended by then.
    ///
    /// # Errors
    /// When the watching thread itself was lost.
    pub fn wait_for(&mut self, time: Duration) -> Result<Option<Ending>> {
        match self.ending.recv_timeout(time) {
            Ok(ending) => Ok(Some(ending)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }
}

fn lost() -> Error {
    Error::system("watch the ranks", "the watching thread ended early")
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
