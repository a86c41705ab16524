//! The rounds of a run: which machines take part in each, and what the other machines decide. The machines are known from
//! the start, or agents bring them together.

use super::agents::{Agent, AgentsError, Decision, Event, Meeting, Round};
use super::failure::Failure;
use super::spec::{Launch, Nodes};
use crate::console::eprint;
use crate::error::{Error, Result};

/// The rounds of a run. `stop` says whether this process is to end; a wait then ends, too.
pub(super) trait Rounds {
    /// Waits until the machines of the next round are together; `None` if this process is to end.
    fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Round>>;
    /// What the other machines have decided since the last call.
    fn poll(&mut self) -> Result<Event>;
    /// Reports that ranks of this machine have failed; where that is final, they would fail so again. `None` if this process is to
    /// end.
    fn failed(
        &mut self,
        failure: &Failure,
        is_final: bool,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Decision>>;
    /// Reports that the ranks of this machine have succeeded. Waits for the others, which can still fail.
    fn done(&mut self, stop: &dyn Fn() -> bool) -> Result<Event>;
}

/// Machines that are known, each of which counts its own restarts.
pub(super) struct Known {
    round: Round,
    begun: bool,
    max_restarts: u32,
}

impl Known {
    /// The machines of a launch.
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
        // They do not meet, so that their ranks have nothing but the token that the user gave all machines.
        let mut meeting = Meeting::new((launch.master.addr.clone(), 0), launch.run_id.clone(), 1..=1);
        if ranks.len() > 1 {
            // Whatever else is said of a meeting has no effect.
            let is_of_token = |word: &&str| {
                let key = word.split('=').next().unwrap_or_default().trim();
                ["token", "token_file", "encryption"].contains(&key)
            };
            let words: Vec<&str> = launch.rdzv_conf.split(',').filter(is_of_token).collect();
            meeting.configure(&words.join(","), &variable)?;
        }
        let round = Round {
            number: 1,
            restart: 0,
            node_rank: *this,
            local_ranks: ranks.clone(),
            master_addr: launch.master.addr.clone(),
            master_port: launch.master.port,
            token: meeting.access.token.unwrap_or_default(),
            encrypts: meeting.encryption,
        };
        Ok(Known { round, begun: false, max_restarts: launch.restarts.max })
    }
}

impl Rounds for Known {
    fn next(&mut self, _: &dyn Fn() -> bool) -> Result<Option<Round>> {
        self.round.restart += u32::from(self.begun);
        self.round.number += u64::from(self.begun);
        self.begun = true;
        Ok(Some(self.round.clone()))
    }

    fn poll(&mut self) -> Result<Event> {
        Ok(Event::Nothing)
    }

    fn failed(
        &mut self,
        failure: &Failure,
        is_final: bool,
        _: &dyn Fn() -> bool,
    ) -> Result<Option<Decision>> {
        Ok(Some(match self.round.restart < self.max_restarts && !is_final {
            true => Decision::Restart { reason: failure.end.exit.to_string() },
            false => Decision::Abort { reason: None },
        }))
    }

    fn done(&mut self, _: &dyn Fn() -> bool) -> Result<Event> {
        Ok(Event::AllDone)
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The meeting that a launch describes; `None` if its machines need not meet: there is one, or they are known with their
/// ranks and start another program. Those of an Oarlock run (`own`) always meet, since their ranks need a token of
/// the round, and what happens on one of them ends or restarts all.
pub(super) fn meeting(launch: &Launch, own: bool) -> Result<Option<Meeting>> {
    let mut meeting = match &launch.nodes {
        Nodes::Elastic { ranks, count, endpoint } => {
            let mut meeting = Meeting::new(endpoint.clone(), launch.run_id.clone(), count.clone());
            meeting.local_ranks = *ranks;
            meeting
        }
        Nodes::Static { ranks, this } if (own || launch.meets) && ranks.len() > 1 => {
            let endpoint = (launch.master.addr.clone(), launch.master.port);
            let mut meeting = Meeting::new(endpoint, launch.run_id.clone(), ranks.len()..=ranks.len());
            meeting.local_ranks = launch.local_ranks();
            meeting.place = Some(*this);
            meeting.join_timeout = oarlock_comm::join_limit()?;
            meeting
        }
        Nodes::Static { .. } => return Ok(None),
    };
    meeting.outage = Some(oarlock_comm::link_timeout()?);
    meeting.configure(&launch.rdzv_conf, &variable)?;
    meeting.max_restarts = launch.restarts.max;
    if !launch.quiet {
        meeting.report = |text| eprint(&format!("note: {text}\n"));
    }
    if own {
        meeting.same = launch.same.iter().cloned().collect();
    }
    Ok(Some(meeting))
}

impl Rounds for Agent {
    fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Round>> {
        unless_stopped(self.next_round(stop))
    }

    fn poll(&mut self) -> Result<Event> {
        Ok(Agent::poll(self)?)
    }

    fn failed(
        &mut self,
        failure: &Failure,
        is_final: bool,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Decision>> {
        let cause = failure.end.exit.to_string();
        unless_stopped(Agent::failed(self, failure.rank, &cause, is_final, stop))
    }

    fn done(&mut self, stop: &dyn Fn() -> bool) -> Result<Event> {
        Ok(Agent::done(self, stop)?)
    }
}

/// `None` if the wait ended because this process is to end.
pub(super) fn unless_stopped<T>(result: std::result::Result<T, AgentsError>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(AgentsError::Stopped { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
