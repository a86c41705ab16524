//! The rank processes of one run, as their owner holds them.

use std::process::{ChildStderr, ChildStdout, Command};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::exit::{Ending, Grace};
use super::guard::Guard;
use super::signals::{STOPPING, SignalFlag, StopSignals};
use super::stopped::{AllStopped, Stops};
use super::supervisor::{Started, Supervisor};
use crate::error::{Error, Result};
use crate::shm::ShmHost;

/// The rank processes of one run. Dropping it ends them; so does the death of this process, whatever its cause.
pub struct RankGroup {
    /// Starts the ranks and outlives them: for the kernel the parent of a child is the thread that started it.
    supervisor: Option<JoinHandle<()>>,
    ending: mpsc::Receiver<Ending>,
    stop: SignalFlag,
    stops: Arc<Mutex<Stops>>,
    pids: Vec<u32>,
    outputs: Vec<(Option<ChildStdout>, Option<ChildStderr>)>,
}

impl RankGroup {
    /// Starts one process for each command; its index in the list is its rank. The commands say where output goes. With a
    /// host the ranks can join its shared memory.
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
        let (stop, stops) = (SignalFlag::default(), Arc::<Mutex<Stops>>::default());
        let (started, starts) = mpsc::channel();
        let (ended, ending) = mpsc::channel();
        let (stop_asked, its_stops, signals) = (stop.clone(), stops.clone(), signals.flag());
        let supervise = move || {
            let start = |commands| -> Result<(Supervisor, Vec<Started>)> {
                let mut supervisor = Supervisor {
                    host,
                    ranks: Vec::new(),
                    grace,
                    signals,
                    stop: stop_asked,
                    stops: its_stops,
                    guard: Guard::start()?,
                };
                match supervisor.start(commands) {
                    Ok(started) => Ok((supervisor, started)),
                    Err(error) => {
                        supervisor.kill_all();
                        Err(error)
                    }
                }
            };
            // Nobody receives if the owner is gone; then `stop` is set.
            match start(commands) {
                Ok((supervisor, ranks)) => {
                    let _ = started.send(Ok(ranks));
                    let _ = ended.send(supervisor.run());
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        };
        let builder = std::thread::Builder::new().name("ranks".into());
        let supervisor = builder
            .spawn(supervise)
            .map_err(|e| Error::system("start the thread that supervises the ranks", e))?;
        let (pids, outputs) =
            starts.recv().map_err(|e| Error::system("start the ranks", e))??.into_iter().unzip();
        Ok(RankGroup { supervisor: Some(supervisor), ending, stop, stops, pids, outputs })
    }

    /// The process of each rank.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The pipes of a rank, if its command asked for them and they were not taken before.
    pub fn take_output(&mut self, rank: usize) -> (Option<ChildStdout>, Option<ChildStderr>) {
        self.outputs.get_mut(rank).map_or((None, None), std::mem::take)
    }

    /// The ranks, once all that still run have been stopped for so long; each time once. They are left as they are: who has stopped
    /// them may have meant it.
    pub fn stopped_for(&self, limit: Duration) -> Option<AllStopped> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner).longer_than(limit)
    }

    /// Ends the run: SIGTERM, and SIGKILL after the grace period.
    pub fn stop(&self) {
        self.stop.set(STOPPING[0]);
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    /// When the supervising thread was lost.
    pub fn wait(self) -> Result<Ending> {
        self.ending.recv().map_err(|_| lost())
    }

    /// Waits at most `time`; how the run ended, if all ranks have ended by then.
    ///
    /// # Errors
    /// When the supervising thread was lost.
    pub fn wait_for(&mut self, time: Duration) -> Result<Option<Ending>> {
        match self.ending.recv_timeout(time) {
            Ok(ending) => Ok(Some(ending)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(lost()),
        }
    }
}

fn lost() -> Error {
    Error::system("supervise the ranks", "the supervising thread ended early")
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            self.stop();
            // It has no error to give.
            let _ = supervisor.join();
        }
    }
}
