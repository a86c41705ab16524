//! Machines that come and go, as the rounds of a launch: what the agents agree on.

use super::agents::{Agent, AgentsError, Decision as Agreed, Event as Heard, Failure as Told, Meeting};
use super::failure::Failure;
use super::rounds::{Decision, Event, Round, Rounds};
use super::spec::{Launch, Nodes};
use crate::error::Result;

/// This machine's part in a run whose machines meet.
pub(super) struct Elastic(Agent);

/// The meeting that a launch describes; none if its machines are known.
///
/// # Errors
/// If one of its settings makes no sense.
pub(super) fn meeting(launch: &Launch) -> Result<Option<Meeting>> {
    let Nodes::Elastic { ranks, count, endpoint, conf } = &launch.nodes else { return Ok(None) };
    let mut meeting = Meeting::new(endpoint.clone(), launch.run_id.clone(), count.clone());
    meeting.local_ranks = *ranks;
    meeting.max_restarts = launch.restarts.max;
    let conf: Vec<String> = conf.iter().map(|(key, value)| format!("{key}={value}")).collect();
    meeting.configure(&conf.join(","), &|name| std::env::var(name).ok())?;
    Ok(Some(meeting))
}

impl Elastic {
    /// Meets the other machines' agents; `None` if this process is to end.
    ///
    /// # Errors
    /// If they do not come together.
    pub(super) fn join(meeting: &Meeting, stop: &dyn Fn() -> bool) -> Result<Option<Elastic>> {
        Ok(unless_stopped(Agent::join(meeting, stop))?.map(Elastic))
    }
}

impl Rounds for Elastic {
    fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Round>> {
        let round = unless_stopped(self.0.next_round(stop))?;
        Ok(round.map(|round| Round {
            restart: round.restart,
            node_rank: round.node_rank,
            local_ranks: round.local_ranks,
            master: (round.master_addr, round.master_port),
        }))
    }

    fn poll(&mut self) -> Result<Event> {
        Ok(event(self.0.poll()?))
    }

    fn failed(&mut self, failure: &Failure) -> Result<Decision> {
        let told = Told { rank: failure.rank, cause: failure.end.exit.to_string() };
        Ok(match self.0.failed(&told)? {
            Agreed::Restart { .. } => Decision::Restart,
            Agreed::Abort { reason } => Decision::GiveUp(Some(reason)),
        })
    }

    fn done(&mut self, stop: &dyn Fn() -> bool) -> Result<Event> {
        Ok(event(self.0.done(stop)?))
    }
}

fn event(heard: Heard) -> Event {
    match heard {
        Heard::Nothing | Heard::AllDone => Event::Nothing,
        Heard::Restart { reason } => Event::Restart(reason),
        Heard::Abort { reason } => Event::Abort(reason),
    }
}

fn unless_stopped<T>(result: std::result::Result<T, AgentsError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(AgentsError::Stopped { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
