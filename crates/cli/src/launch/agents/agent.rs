//! One node's side: finds the store or becomes it, shows that the node lives, and asks what to do.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_comm::wire::{Broken, Channel, Place, Secret, hex, nonce};

use super::error::{AgentsError, NO_ADDRESS};
use super::link::{ANSWER, CONNECT, Link, converse};
use super::meeting::{Meeting, is_host};
use super::message::{Node, Reply, Request, View};
use super::round::{Decision, Event, Round};
use super::store::Store;
use super::world::same;
use crate::launch::variables::hostname;

/// How long a node that is done waits for the others.
const EXIT_BARRIER: Duration = Duration::from_secs(300);
const LOOK_MS: u32 = 200;
/// After this time an agent that waits for an answer says so.
const NOTICE: Duration = Duration::from_secs(5);
/// How long an endpoint may lead a node to itself: another on its machine may keep the list, and start a little later.
const ASTRAY: Duration = Duration::from_secs(30);

/// The agent of this node. Dropping it leaves the run; if it keeps the list of nodes, it first informs the others.
pub struct Agent {
    link: Arc<Link>,
    beat: Option<JoinHandle<()>>,
    /// The round that this node was last part of.
    round: u64,
    secret: Secret,
    /// Whether ranks encrypt what they send.
    encrypts: bool,
    /// Kept by the one that could listen at the endpoint; dropped after the link.
    store: Option<Store>,
}

/// Why an attempt to join came to nothing.
struct JoinFailure {
    tried: String,
    /// It is no matter of when the other machine starts.
    is_wrong: bool,
}

impl Agent {
    /// Joins the meeting: listens at its endpoint if that is this machine's and free, and connects to it.
    ///
    /// # Errors
    /// When there is no answer in time, the endpoint is not a store of this run, or this node does not fit the run.
    pub fn join(meeting: &Meeting, stop: &dyn Fn() -> bool) -> Result<Agent, AgentsError> {
        meeting.check()?;
        let deadline = Instant::now() + meeting.join_timeout;
        let mut pause = Duration::from_millis(20);
        let (began, mut reported, mut is_first) = (Instant::now(), false, true);
        loop {
            let place = Place::of(&meeting.endpoint.0, meeting.endpoint.1);
            if let Some(how) = meeting.how_found(&place).filter(|_| std::mem::take(&mut is_first)) {
                (meeting.report)(&how);
            }
            let is_here = matches!(place, Place::Here(_) | Place::Itself(_));
            let astray = meeting.keeps() == Some(false) && is_here;
            let JoinFailure { tried, is_wrong } = match Agent::try_join(meeting, &place)? {
                Ok(agent) => return Ok(agent),
                Err(tried) => tried,
            };
            // Others may start later, so that nobody listens yet is reported later than what no start of theirs mends.
            if !reported && (astray || is_wrong || began.elapsed() >= NOTICE) {
                reported = true;
                let why = if astray {
                    ", which is this machine itself and not the one that keeps the list of nodes"
                } else {
                    ""
                };
                let seconds = deadline.saturating_duration_since(Instant::now()).as_secs();
                (meeting.report)(&format!(
                    "no agent answers at {}{why}: {tried}; it is tried for {seconds} s more",
                    meeting.name()
                ));
            }
            if astray && began.elapsed() >= ASTRAY {
                return Err(AgentsError::Astray { endpoint: meeting.name(), tried });
            }
            if stop() {
                return Err(AgentsError::Stopped { waiting: "looking for the other agents" });
            }
            if Instant::now() >= deadline {
                let seconds = meeting.join_timeout.as_secs();
                return Err(AgentsError::Unreachable { endpoint: meeting.name(), seconds, tried });
            }
            std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
            pause = Duration::from_millis(500).min(pause * 2);
        }
    }

    /// One attempt; inside, why it may be worth another.
    fn try_join(meeting: &Meeting, place: &Place) -> Result<Result<Agent, JoinFailure>, AgentsError> {
        for address in place.addresses() {
            meeting.check_address(address.ip())?;
        }
        let store = Store::bind(meeting, place)?;
        let addresses = match (&store, place) {
            (Some(store), _) => vec![store.address()],
            (None, Place::Unknown(why)) => {
                return Ok(Err(JoinFailure { tried: format!("{NO_ADDRESS} ({why})"), is_wrong: true }));
            }
            (None, place) => place.addresses().to_vec(),
        };
        let secret = meeting.secret();
        let (mut tried, mut is_wrong) = (Vec::new(), true);
        for address in addresses {
            let stream = match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => stream,
                Err(e) => {
                    // A machine that starts later refuses until then, and may not be there at all.
                    is_wrong &= e.kind() == ErrorKind::NetworkUnreachable;
                    tried.push(format!("{address}: {e}"));
                    continue;
                }
            };
            if let (Some(store), Ok(own)) = (&store, stream.local_addr()) {
                store.keeper_is(own);
            }
            let endpoint = meeting.name();
            match Channel::open(stream, &secret) {
                Ok(channel) => return Agent::introduce(channel, meeting, secret, store),
                Err(Broken::WrongSecret) => return Err(AgentsError::WrongToken { endpoint }),
                Err(Broken::Garbage(what)) => {
                    return Err(AgentsError::Stranger { endpoint, cause: what.into() });
                }
                Err(Broken::Silent) => {
                    tried.push(format!("{address}: what listens there says nothing, as no agent does"));
                }
                // It may be busy, or about to end.
                Err(broken) => {
                    is_wrong = false;
                    tried.push(format!("{address}: {broken}"));
                }
            }
        }
        Ok(Err(JoinFailure { tried: tried.join("; "), is_wrong }))
    }

    fn introduce(
        mut channel: Channel,
        meeting: &Meeting,
        secret: Secret,
        store: Option<Store>,
    ) -> Result<Result<Agent, JoinFailure>, AgentsError> {
        let endpoint = meeting.name();
        let system = |what: &str, cause: String| AgentsError::System { what: what.into(), cause };
        let address =
            channel.stream().peer_addr().map_err(|e| system("ask for an address", e.to_string()))?;
        let id = nonce().map_err(|broken| system("name this agent", broken.to_string()))?;
        let hello = Node {
            id: hex(&id[..16]),
            host: hostname(),
            pid: std::process::id(),
            local_ranks: meeting.local_ranks,
            place: meeting.place,
            same: same(meeting),
        };
        match converse(&mut channel, &Request::Hello(hello.clone()), ANSWER, &|| true) {
            Ok(Reply::Welcome) => {}
            Ok(Reply::Differs(differences)) => return Err(AgentsError::Differs { endpoint, differences }),
            Ok(Reply::Refused(reason)) => return Err(AgentsError::Refused { endpoint, reason }),
            Ok(_) => return Err(AgentsError::Stranger { endpoint, cause: "it answered out of turn".into() }),
            Err(broken) => return Ok(Err(JoinFailure { tried: broken.to_string(), is_wrong: false })),
        }
        let (place, secret_of_link) = ((endpoint, address), secret.clone());
        // So that there is time to come again before this node is lost.
        let limits = (ANSWER.min(meeting.silence() / 3), meeting.patience());
        let link = Link::new(channel, place, secret_of_link, hello, limits, meeting.report);
        let link = Arc::new(link);
        // Often enough to learn of the end before the store stops.
        let (its, every) = (link.clone(), meeting.keep_alive);
        let beat = std::thread::Builder::new().name("agent's sign of life".into());
        let beat = beat.spawn(move || its.beat(every)).map_err(|e| AgentsError::System {
            what: "start a thread that shows that this node lives".into(),
            cause: e.to_string(),
        })?;
        let encrypts = meeting.encryption && meeting.access.token.is_some();
        Ok(Ok(Agent { link, beat: Some(beat), round: 0, secret, encrypts, store }))
    }

    /// Whether this agent keeps the list of nodes.
    pub fn keeps_the_list(&self) -> bool {
        self.store.is_some()
    }

    /// Comes to the next round with no ranks running; returns when it is decided who takes part, and this node does.
    ///
    /// # Errors
    /// When too few nodes come in time, the run has ended, or the store is lost.
    pub fn next_round(&mut self, stop: &dyn Fn() -> bool) -> Result<Round, AgentsError> {
        let mut request = Request::Ready { after: self.round };
        let stopped = AgentsError::Stopped { waiting: "waiting for the other nodes" };
        loop {
            let Some(view) = self.link.ask(&request, stop)? else { return Err(stopped) };
            request = Request::Look { wait_ms: LOOK_MS };
            match view {
                View::Works { round, restart, node_rank, local_ranks, master_addr, master_port, nonce }
                    if round != self.round && node_rank < local_ranks.len() =>
                {
                    if !is_host(&master_addr) {
                        let (endpoint, cause) = (
                            self.link.endpoint().to_owned(),
                            "it says that ranks meet where no machine can be".into(),
                        );
                        return Err(AgentsError::StoreLost { endpoint, cause });
                    }
                    self.round = round;
                    let token = self.secret.of_round(round, &nonce);
                    return Ok(Round {
                        number: round,
                        restart,
                        node_rank,
                        local_ranks,
                        master_addr,
                        master_port,
                        token,
                        encrypts: self.encrypts,
                    });
                }
                // The round was over before this node heard of it.
                View::Restart { .. } => request = Request::Ready { after: self.round },
                View::Waiting { .. } | View::Works { .. } => {}
                View::Aborted { reason } => return Err(AgentsError::Ended { reason }),
                View::AllDone => return Err(AgentsError::Ended { reason: "the run is done".into() }),
            }
            if stop() {
                return Err(stopped);
            }
        }
    }

    /// What there is to know, at once.
    ///
    /// # Errors
    /// When the store is lost.
    pub fn poll(&mut self) -> Result<Event, AgentsError> {
        Ok(event(self.link.heard()?))
    }

    /// Reports the rank of the run that failed first on this node, and how it ended. The first failure of a round uses one
    /// restart, for all nodes together, or ends the run where none is left, or where it would come again in every round
    /// (`is_final`).
    ///
    /// # Errors
    /// When the store is lost, or `stop` ends the wait for it.
    pub fn failed(
        &mut self,
        rank: usize,
        cause: &str,
        is_final: bool,
        stop: &dyn Fn() -> bool,
    ) -> Result<Decision, AgentsError> {
        let cause = format!("rank {rank}: {cause}").chars().take(1024).collect();
        let view = self.link.ask(&Request::Failed { round: self.round, cause, is_final }, stop)?;
        Ok(match view.ok_or(AgentsError::Stopped { waiting: "reporting a failure" })? {
            View::Restart { reason } => Decision::Restart { reason },
            View::Aborted { reason } => Decision::Abort { reason: Some(reason) },
            View::AllDone => Decision::Abort { reason: Some("the run is done".into()) },
            View::Waiting { .. } | View::Works { .. } => {
                Decision::Restart { reason: "this node takes part in no round".into() }
            }
        })
    }

    /// Reports that all ranks of this node succeeded, and waits for the other nodes, up to 300 s. Another node's failure
    /// meanwhile is a [`Restart`](Event::Restart) for this one too; [`Nothing`](Event::Nothing) means that the time, or
    /// the caller's patience, was over while others still worked.
    ///
    /// # Errors
    /// When the store is lost.
    pub fn done(&mut self, stop: &dyn Fn() -> bool) -> Result<Event, AgentsError> {
        let deadline = Instant::now() + EXIT_BARRIER;
        let mut request = Request::Done { round: self.round };
        loop {
            let Some(view) = self.link.ask(&request, stop)? else { return Ok(Event::Nothing) };
            let event = event(view);
            if event != Event::Nothing || Instant::now() >= deadline || stop() {
                return Ok(event);
            }
            request = Request::Look { wait_ms: LOOK_MS };
        }
    }
}

fn event(view: View) -> Event {
    match view {
        View::Waiting { .. } | View::Works { .. } => Event::Nothing,
        View::Restart { reason } => Event::Restart { reason },
        View::Aborted { reason } => Event::Abort { reason },
        View::AllDone => Event::AllDone,
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.link.end();
        if let Some(beat) = self.beat.take() {
            // It has nothing to return.
            let _ = beat.join();
        }
        self.link.leave();
        drop(self.store.take());
    }
}
