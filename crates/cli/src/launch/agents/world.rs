//! Who takes part in which round: the store's knowledge, moved by what nodes say and by the time, which is an argument.
//! No input and no sockets here. The README numbers the invariants.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use oarlock_comm::wire::printable;

use super::error::{Difference, list};
use super::meeting::{MOST, Meeting};
use super::message::{Node, TEXT, View};

/// A node. They are numbered in the order of arrival, except that the one that keeps the list is the first.
pub(super) type Id = u64;
const KEEPER: Id = 0;
/// Why a silent node is lost.
pub(super) fn silent(silence: Duration) -> String {
    format!("gave no sign of life for {} s", silence.as_secs_f64())
}

/// Why a node was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Differs(Vec<Difference>),
    Because(String),
}

impl std::fmt::Display for Refusal {
    /// As the machine of the store tells it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Because(reason) => f.write_str(reason),
            Refusal::Differs(differences) => f.write_str(&list(differences, "on it", "here")),
        }
    }
}

/// What is fixed for the whole run.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub min: usize,
    pub max: usize,
    pub max_restarts: u32,
    pub join_timeout: Duration,
    pub last_call: Duration,
    /// A node that was silent for so long is lost.
    pub silence: Duration,
    /// What every node must say of itself.
    pub same: BTreeMap<String, String>,
    /// The machine of the store by the name of the endpoint.
    pub master_addr: String,
    /// That name means this machine on this machine alone, or is none of its addresses: ranks meet at the address by which other
    /// nodes have come.
    pub by_arrival: bool,
    /// Finds a port for the ranks of a round.
    pub free_port: fn() -> u16,
    /// What sets a round apart from all others.
    pub nonce: fn() -> Result<String, String>,
    /// Nodes have numbers from the start: none can stand in for another, and the loss of one is a failure.
    pub numbered: bool,
}

impl Terms {
    pub(super) fn new(
        meeting: &Meeting,
        free_port: fn() -> u16,
        nonce: fn() -> Result<String, String>,
    ) -> Terms {
        Terms {
            min: *meeting.nodes.start(),
            max: *meeting.nodes.end(),
            max_restarts: meeting.max_restarts,
            join_timeout: meeting.join_timeout,
            last_call: meeting.last_call,
            silence: meeting.silence(),
            same: same(meeting),
            master_addr: meeting.local_addr.clone().unwrap_or_else(|| meeting.endpoint.0.clone()),
            by_arrival: false,
            free_port,
            nonce,
            numbered: meeting.place.is_some(),
        }
    }
}

/// What a node is called.
fn name(node: &Node) -> String {
    let host = printable(&node.host, 64);
    format!("{host} (process {})", node.pid)
}

/// Everything that must be the same on all nodes of a meeting.
pub(super) fn same(meeting: &Meeting) -> BTreeMap<String, String> {
    let (min, max) = (meeting.nodes.start(), meeting.nodes.end());
    let own = [
        ("the build of this program", oarlock_comm::build().to_owned()),
        ("--nnodes", format!("{min}:{max}")),
        ("--max-restarts", meeting.max_restarts.to_string()),
    ];
    let mut same = meeting.same.clone();
    same.extend(own.map(|(name, value)| (name.to_owned(), value)));
    same.into_iter().map(|(name, value)| (printable(&name, TEXT), short(&value))).collect()
}

/// A value as it travels; the end of a long one is distinguished by its digest.
fn short(value: &str) -> String {
    match value.len() > TEXT / 4 {
        true => {
            let mut digest = DefaultHasher::new();
            value.hash(&mut digest);
            format!("{} ({:016x})", printable(value, 200), digest.finish())
        }
        false => printable(value, TEXT),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    /// Its ranks are still ending, or it has not requested a round yet.
    Busy,
    /// It can take part.
    Ready,
    /// It does, at this place.
    Works(usize),
    /// Its ranks ended well.
    Done(usize),
}

#[derive(Debug)]
struct Member {
    /// The random name of its agent.
    agent: String,
    /// The connections that it has had: only the last one speaks for it.
    connections: u64,
    name: String,
    local_ranks: usize,
    place: Option<usize>,
    seen: Instant,
    state: MemberState,
    /// The address of the store's machine by which it has come.
    reached: Option<IpAddr>,
    /// It took part in a round before.
    worked: bool,
    /// It knows how the run ended.
    knows_end: bool,
}

#[derive(Debug)]
enum Phase {
    Gathering {
        since: Instant,
        /// Since when there are enough.
        enough: Option<Instant>,
        /// Why the last round is over; empty before the first.
        why: String,
        /// All nodes of the last round are still here, so no other node is awaited.
        whole: bool,
    },
    Working {
        nodes: Vec<Id>,
        local_ranks: Vec<usize>,
        master_addr: String,
        port: u16,
        nonce: String,
    },
    Done,
    Aborted(String),
}

#[derive(Debug)]
pub(super) struct World {
    terms: Terms,
    members: BTreeMap<Id, Member>,
    next: Id,
    phase: Phase,
    /// Rounds decided so far.
    round: u64,
    restart: u32,
    /// Who was lost or refused, for messages.
    lost: Vec<String>,
}

impl World {
    pub(super) fn new(terms: Terms, now: Instant) -> World {
        let phase = Phase::Gathering { since: now, enough: None, why: String::new(), whole: false };
        World {
            terms,
            members: BTreeMap::new(),
            next: KEEPER + 1,
            phase,
            round: 0,
            restart: 0,
            lost: Vec::new(),
        }
    }

    /// A node introduces itself; `keeper`, if it is on the machine of the store and has made it.
    pub(super) fn hello(&mut self, node: &Node, keeper: bool, now: Instant) -> Result<Id, Refusal> {
        match &self.phase {
            Phase::Done => return Err(Refusal::Because("the run is done".into())),
            Phase::Aborted(reason) => return Err(Refusal::Because(format!("the run has ended: {reason}"))),
            _ if self.members.len() >= MOST => return Err(Refusal::Because("it has too many nodes".into())),
            _ => {}
        }
        let names: Vec<&String> = self.terms.same.keys().chain(node.same.keys()).collect();
        let value = |map: &BTreeMap<String, String>, name: &str| {
            map.get(name).cloned().unwrap_or_else(|| "not known".into())
        };
        let mut differences: Vec<Difference> = names
            .into_iter()
            .filter(|name| self.terms.same.get(*name) != node.same.get(*name))
            .map(|name| Difference {
                what: name.clone(),
                joining: value(&node.same, name),
                store: value(&self.terms.same, name),
            })
            .collect();
        differences.sort_by(|a, b| a.what.cmp(&b.what));
        differences.dedup();
        if !differences.is_empty() {
            return Err(Refusal::Differs(differences));
        }
        if !(1..=MOST).contains(&node.local_ranks) {
            return Err(Refusal::Because(format!(
                "it has {} ranks; 1 to {MOST} are possible",
                node.local_ranks
            )));
        }
        self.check_place(node.place)?;
        let member = Member {
            agent: node.id.clone(),
            connections: 1,
            name: name(node),
            local_ranks: node.local_ranks,
            place: node.place,
            seen: now,
            state: MemberState::Busy,
            reached: None,
            worked: false,
            knows_end: false,
        };
        let id = if keeper && !self.members.contains_key(&KEEPER) { KEEPER } else { self.next };
        self.next = self.next.max(id + 1);
        self.members.insert(id, member);
        Ok(id)
    }

    /// A node that is known comes again on another connection: an outage has broken the last one, or nobody knows yet that it has.
    pub(super) fn comes_again(&mut self, node: &Node, now: Instant) -> Option<Id> {
        let known = self.members.iter_mut().find(|(_, member)| member.agent == node.id);
        let (&id, member) = known.filter(|_| !node.id.is_empty())?;
        (member.connections, member.seen) = (member.connections + 1, now);
        Some(id)
    }

    /// The number of a node's last connection.
    pub(super) fn connection(&self, id: Id) -> Option<u64> {
        self.members.get(&id).map(|member| member.connections)
    }

    /// The round that a node is part of; 0 for none.
    pub(super) fn round_of(&self, id: Id) -> u64 {
        let state = self.members.get(&id).map(|member| member.state);
        if matches!(state, Some(MemberState::Works(_) | MemberState::Done(_))) { self.round } else { 0 }
    }

    /// A node has come by this address of the store's machine.
    pub(super) fn reached(&mut self, id: Id, address: IpAddr) {
        if let Some(member) = self.members.get_mut(&id) {
            member.reached = Some(address);
        }
    }

    /// Where the ranks of these nodes meet.
    fn master_addr(&self, nodes: &[Id]) -> String {
        let outer = |id: &Id| self.members.get(id)?.reached.filter(|ip| !ip.is_loopback());
        let arrival = nodes.iter().find_map(outer).filter(|_| self.terms.by_arrival);
        arrival.map_or_else(|| self.terms.master_addr.clone(), |ip| ip.to_string())
    }

    /// Refuses a number that no node can have, or that another has.
    fn check_place(&self, place: Option<usize>) -> Result<(), Refusal> {
        let refuse = |text: String| Err(Refusal::Because(text));
        match place {
            Some(_) if !self.terms.numbered => refuse("it has a number, and the nodes here have none".into()),
            None if self.terms.numbered => {
                refuse("it has no number, and the nodes here have one each".into())
            }
            Some(place) if place >= self.terms.max => {
                refuse(format!("it says that it is machine {place} of {}", self.terms.max))
            }
            Some(place) => match self.members.values().find(|member| member.place == Some(place)) {
                Some(other) => refuse(format!(
                    "{} is machine {place} already; give each machine its own number, or, if that one is gone, try \
                     again in {} s",
                    other.name,
                    self.terms.silence.as_secs()
                )),
                None => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// A node gave a sign of life.
    pub(super) fn seen(&mut self, id: Id, now: Instant) {
        if let Some(member) = self.members.get_mut(&id) {
            member.seen = now;
        }
    }

    /// Somebody was not let in, which may explain who is missing.
    pub(super) fn refused(&mut self, text: &str) {
        self.lost.push(text.to_owned());
    }

    /// A node can take part in a round. Where there is a place for it in a round that runs, all restart, and that
    /// costs no restart.
    pub(super) fn ready(&mut self, id: Id, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let before = std::mem::replace(&mut member.state, MemberState::Ready);
        let name = member.name.clone();
        if matches!(
            (&self.phase, before),
            (Phase::Working { .. }, MemberState::Works(_) | MemberState::Done(_))
        ) {
            return self.gather(format!("{name} restarts"), true, now);
        }
        if let Phase::Working { nodes, .. } = &self.phase
            && nodes.len() < self.terms.max
            && self.members.values().all(|member| !matches!(member.state, MemberState::Done(_)))
        {
            self.gather(format!("{name} joins"), true, now);
        }
    }

    /// A rank of a node failed. The first failure of a round counts; what follows from it does not. One
    /// that is final would come again in every round.
    pub(super) fn failed(&mut self, id: Id, round: u64, (cause, is_final): (&str, bool), now: Instant) {
        let part = |member: &Member| matches!(member.state, MemberState::Works(_) | MemberState::Done(_));
        let works = matches!(self.phase, Phase::Working { .. }) && round == self.round;
        if !works || !self.members.get(&id).is_some_and(part) {
            return;
        }
        let reason = format!("{}: {cause}", self.members[&id].name);
        match is_final {
            true => self.abort(&reason),
            false => self.fail(reason, true, now),
        }
    }

    /// Something failed that uses a restart, or ends the run where none is left.
    fn fail(&mut self, reason: String, whole: bool, now: Instant) {
        if self.restart < self.terms.max_restarts {
            self.restart += 1;
            self.gather(reason, whole, now);
        } else {
            let n = self.terms.max_restarts;
            let budget = if n == 0 { String::new() } else { format!("; all {n} restarts are used") };
            self.phase = Phase::Aborted(reason + &budget);
        }
    }

    /// All ranks of a node ended well.
    pub(super) fn done(&mut self, id: Id, round: u64) {
        if round == self.round
            && let Some(member) = self.members.get_mut(&id)
            && let MemberState::Works(place) = member.state
        {
            member.state = MemberState::Done(place);
            self.end_if_all_are_done();
        }
    }

    fn end_if_all_are_done(&mut self) {
        if let Phase::Working { nodes, .. } = &self.phase {
            let works = |id: &Id| {
                self.members.get(id).is_some_and(|member| matches!(member.state, MemberState::Works(_)))
            };
            if !nodes.iter().any(works) {
                self.phase = Phase::Done;
            }
        }
    }

    /// A node is gone. Without it the round cannot go on, unless it was done; without the keeper nothing can.
    pub(super) fn lost(&mut self, id: Id, how: &str, now: Instant) {
        let Some(member) = self.members.remove(&id) else { return };
        let reason = format!("{} {how}", member.name);
        if id == KEEPER {
            return self.abort(&format!("{reason}; it keeps the list of nodes"));
        }
        match (&mut self.phase, member.state) {
            (Phase::Working { .. }, MemberState::Works(_)) if self.terms.numbered => {
                self.lost.push(reason.clone());
                self.fail(reason, false, now);
            }
            (Phase::Working { .. }, MemberState::Works(_)) => {
                self.lost.push(reason.clone());
                self.gather(reason, false, now);
            }
            (Phase::Working { .. }, MemberState::Done(_)) => self.end_if_all_are_done(),
            (Phase::Gathering { whole, .. }, _) if member.worked => {
                *whole = false;
                self.lost.push(reason);
            }
            _ => {}
        }
    }

    fn gather(&mut self, why: String, whole: bool, now: Instant) {
        for member in self.members.values_mut() {
            if matches!(member.state, MemberState::Works(_) | MemberState::Done(_)) {
                member.state = MemberState::Busy;
            }
        }
        self.phase = Phase::Gathering { since: now, enough: None, why, whole };
    }

    /// What the time brings: silent nodes are lost, rounds begin, waits end.
    pub(super) fn tick(&mut self, now: Instant) {
        let silence = self.terms.silence;
        let lost: Vec<Id> = self
            .members
            .iter()
            .filter(|(_, member)| now.saturating_duration_since(member.seen) > silence)
            .map(|(&id, _)| id)
            .collect();
        for id in lost {
            self.lost(id, &silent(silence), now);
        }
        let ready: Vec<Id> = self
            .members
            .iter()
            .filter(|(_, member)| member.state == MemberState::Ready)
            .map(|(&id, _)| id)
            .collect();
        let all_ready = ready.len() == self.members.len();
        // Ranks meet on its machine, so no round is without it.
        let keeper = ready.first() == Some(&KEEPER);
        let Phase::Gathering { since, enough, whole, .. } = &mut self.phase else { return };
        if ready.len() < self.terms.min {
            *enough = None;
        } else {
            let enough = *enough.get_or_insert(now);
            let called = now.saturating_duration_since(enough) >= self.terms.last_call;
            if keeper && (ready.len() >= self.terms.max || (all_ready && (*whole || called))) {
                return self.begin(ready);
            }
        }
        if now.saturating_duration_since(*since) >= self.terms.join_timeout {
            self.phase = Phase::Aborted(self.missing(&ready));
        }
    }

    /// Places go by the numbers that nodes have, or else by their order of arrival, so the keeper is first.
    fn begin(&mut self, mut nodes: Vec<Id>) {
        let nonce = match (self.terms.nonce)() {
            Ok(nonce) => nonce,
            // Two rounds with one token would be open to each other's ranks.
            Err(cause) => return self.abort(&format!("no round can begin: {cause}")),
        };
        nodes.sort_by_key(|id| self.members.get(id).and_then(|member| member.place));
        nodes.truncate(self.terms.max);
        let mut local_ranks = Vec::with_capacity(nodes.len());
        for (place, id) in nodes.iter().enumerate() {
            if let Some(member) = self.members.get_mut(id) {
                (member.state, member.worked) = (MemberState::Works(place), true);
                local_ranks.push(member.local_ranks);
            }
        }
        self.round += 1;
        let (port, master_addr) = ((self.terms.free_port)(), self.master_addr(&nodes));
        self.phase = Phase::Working { nodes, local_ranks, master_addr, port, nonce };
    }

    fn missing(&self, ready: &[Id]) -> String {
        let name = |id: &Id| self.members[id].name.clone();
        let seconds = self.terms.join_timeout.as_secs_f64();
        let busy: Vec<String> = self
            .members
            .keys()
            .filter(|id| !ready.contains(id))
            .map(|id| format!("{} is not ready", name(id)))
            .collect();
        let here: Vec<String> = ready.iter().map(name).collect();
        let here = if here.is_empty() { "none".into() } else { here.join(", ") };
        let mut text = format!(
            "after {seconds} s {} of at least {} nodes are ready: {here}",
            ready.len(),
            self.terms.min
        );
        for more in busy.iter().chain(&self.lost) {
            text = format!("{text}; {more}");
        }
        text
    }

    /// What a node is to know.
    pub(super) fn view(&mut self, id: Id) -> View {
        let here = self.members.values().filter(|member| member.state == MemberState::Ready).count();
        let Some(member) = self.members.get_mut(&id) else {
            return View::Aborted { reason: "this node was given up: it gave no sign of life".into() };
        };
        match (&self.phase, member.state) {
            (Phase::Done, MemberState::Done(_)) => {
                member.knows_end = true;
                View::AllDone
            }
            // Who waited for a place gets none.
            (Phase::Done, _) => {
                member.knows_end = true;
                View::Aborted { reason: "the run is done".into() }
            }
            (Phase::Aborted(reason), _) => {
                member.knows_end = true;
                View::Aborted { reason: reason.clone() }
            }
            (Phase::Gathering { why, .. }, MemberState::Busy) if member.worked => {
                View::Restart { reason: why.clone() }
            }
            (
                Phase::Working { local_ranks, master_addr, port, nonce, .. },
                MemberState::Works(place) | MemberState::Done(place),
            ) => View::Works {
                round: self.round,
                restart: self.restart,
                node_rank: place,
                local_ranks: local_ranks.clone(),
                master_addr: master_addr.clone(),
                master_port: *port,
                nonce: nonce.clone(),
            },
            _ => View::Waiting { here },
        }
    }

    /// Ends the run, unless it has ended.
    pub(super) fn abort(&mut self, reason: &str) {
        if !matches!(self.phase, Phase::Done | Phase::Aborted(_)) {
            self.phase = Phase::Aborted(reason.into());
        }
    }

    /// Whether all nodes know how the run ended.
    pub(super) fn all_know_end(&self) -> bool {
        let ended = matches!(self.phase, Phase::Done | Phase::Aborted(_));
        ended && self.members.values().all(|member| member.knows_end)
    }

    /// Whether the next look of a node would find something else than waiting or work that goes on.
    pub(super) fn news(&mut self, id: Id, round: u64) -> bool {
        match self.view(id) {
            View::Waiting { .. } => false,
            View::Works { round: present, .. } => present != round,
            _ => true,
        }
    }
}
