//! Who takes part in a round of a run, and what the other machines want: nobody, in a run whose machines are known.

use super::failure::Failure;
use super::spec::{Launch, Nodes};
use crate::error::{Error, Result};

/// A start of the ranks of all machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Round {
    /// How often the ranks were started again.
    pub(super) restart: u32,
    /// This machine.
    pub(super) node_rank: usize,
    /// The ranks of each machine.
    pub(super) local_ranks: Vec<usize>,
    /// Where rank 0 listens.
    pub(super) master: (String, u16),
}

/// What has come from the other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing.
    Nothing,
    /// All start again, for this reason.
    Restart(String),
    /// The run is over, for this reason.
    Abort(String),
}

/// What follows from a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// All start again.
    Restart,
    /// The run is over, for this reason where it is another than the failure itself.
    GiveUp(Option<String>),
}

/// The machines of a run. `stop` says whether this process is to end; a wait then ends, too.
pub(super) trait Rounds {
    /// Waits until the machines of the next round are together; `None` if this process is to end.
    fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Round>>;
    /// What has come since.
    fn poll(&mut self) -> Result<Event>;
    /// Ranks of this machine have failed.
    fn failed(&mut self, failure: &Failure) -> Result<Decision>;
    /// The ranks of this machine have ended as they should. Waits for the others, whose failure may still come.
    fn done(&mut self, stop: &dyn Fn() -> bool) -> Result<Event>;
}

/// Machines that are known, each of which counts its own restarts.
pub(super) struct Known {
    round: Round,
    begun: bool,
    max_restarts: u32,
}

impl Known {
    /// Those of a launch.
    ///
    /// # Errors
    /// If this is none of them.
    pub(super) fn new(launch: &Launch) -> Result<Known> {
        let Nodes::Static { ranks, this } = &launch.nodes else {
            return Err(Error::Usage(
                "machines that come and go are not known before they have met".to_owned(),
            ));
        };
        if *this >= ranks.len() {
            let problem = format!("this is machine {this}, but the run has {}, counted from 0", ranks.len());
            return Err(Error::Usage(problem));
        }
        let master = (launch.master.addr.clone(), launch.master.port);
        let round = Round { restart: 0, node_rank: *this, local_ranks: ranks.clone(), master };
        Ok(Known { round, begun: false, max_restarts: launch.restarts.max })
    }
}

impl Rounds for Known {
    fn next(&mut self, _: &dyn Fn() -> bool) -> Result<Option<Round>> {
        self.round.restart += u32::from(self.begun);
        self.begun = true;
        Ok(Some(self.round.clone()))
    }

    fn poll(&mut self) -> Result<Event> {
        Ok(Event::Nothing)
    }

    fn failed(&mut self, _: &Failure) -> Result<Decision> {
        let left = self.round.restart < self.max_restarts;
        Ok(if left { Decision::Restart } else { Decision::GiveUp(None) })
    }

    fn done(&mut self, _: &dyn Fn() -> bool) -> Result<Event> {
        Ok(Event::Nothing)
    }
}
