//! The listening side: one thread that lets agents in and looks at the clock, one for each agent. What they hear goes to
//! the [`World`]; nothing reaches it before the handshake is right.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oarlock_comm::wire::{
    Arrival, Broken, Channel, Entrance, Place, hex, listen_at, listen_everywhere, nonce, printable,
};
use oarlock_engine::distributed::launch::port;

use super::error::AgentsError;
use super::meeting::{MOST, Meeting};
use super::message::{self, Reply, Request, View};
use super::world::{Id, Refusal, Terms, World, silent};

/// How often the store looks at the clock.
const TICK: Duration = Duration::from_millis(10);
/// Lines about those who were refused.
const TOLD: usize = 16;
/// The longest that a look waits for news.
const LONGEST_LOOK: Duration = Duration::from_millis(500);
/// How long the store waits until all nodes know how the run ended.
const PARTING: Duration = Duration::from_secs(5);

/// The store of a run; it ends with the value.
pub(super) struct Store {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    world: Mutex<World>,
    /// Notified whenever the world may have changed.
    changed: Condvar,
    stop: AtomicBool,
    /// The address from which the agent that made this store connects.
    keeper: Mutex<Option<SocketAddr>>,
    known: AtomicUsize,
    silence: Duration,
    /// Who was refused and why, as the user was told.
    refused: Mutex<BTreeSet<String>>,
    report: fn(&str),
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the user that somebody was refused: each of them once, and not too many.
    fn refuse(&self, who: &str, why: &str) {
        let text = format!("{who} was refused: {why}");
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < TOLD && refused.insert(text.clone()) {
            self.world().refused(&text);
            let more = if refused.len() == TOLD { "; no more of these are shown" } else { "" };
            (self.report)(&format!("{text}{more}"));
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Store {
    /// Listens where the others look for this machine, if it is the one that keeps the list of nodes: the meeting says so, or the
    /// endpoint, whose place is given, is an address of it. `None` where it is another machine, or somebody listens there already.
    pub(super) fn bind(meeting: &Meeting, place: &Place) -> Result<Option<Store>, AgentsError> {
        let port = meeting.endpoint.1;
        let must = match meeting.keeps() {
            Some(false) => return Ok(None),
            keeps => keeps.is_some(),
        };
        let listener = match place {
            Place::Here(at) => listen_at(at),
            Place::Itself(at) if *meeting.nodes.end() == 1 => listen_at(at),
            // What this name means here it means on no other machine, so others come to one of the addresses.
            Place::Itself(_) => everywhere(port),
            // A Service or NAT leads to this machine, or there is no such name yet.
            Place::Elsewhere(_) | Place::Unknown(_) if must => everywhere(port),
            // A name that cannot be looked up is not ours; connecting says what is wrong with it.
            Place::Elsewhere(_) | Place::Unknown(_) => return Ok(None),
        };
        match listener.map_err(|e| system(format!("listen at {}", meeting.name()), e))? {
            Some(listener) => Store::listen(listener, meeting).map(Some),
            None if must => Err(AgentsError::NotHere { endpoint: meeting.name(), port }),
            None => Ok(None),
        }
    }

    pub(super) fn listen(listener: TcpListener, meeting: &Meeting) -> Result<Store, AgentsError> {
        let mut address = listener.local_addr().map_err(|e| system("ask for the own address".into(), e))?;
        let is_everywhere = address.ip().is_unspecified();
        if is_everywhere {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        // Where no port is free, the ranks report that of torch's usual one.
        let nonce = || nonce().map(|bytes| hex(&bytes)).map_err(|broken| broken.to_string());
        let mut terms = Terms::new(meeting, || port::free().unwrap_or(29500), nonce);
        terms.by_arrival = is_everywhere && meeting.local_addr.is_none();
        let entrance = Entrance::new(listener, meeting.secret(), meeting.only_private());
        let entrance = entrance.map_err(|e| system("listen without waiting".into(), e))?;
        let shared = Arc::new(Shared {
            silence: terms.silence,
            world: Mutex::new(World::new(terms, Instant::now())),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            keeper: Mutex::new(None),
            known: AtomicUsize::new(0),
            refused: Mutex::default(),
            report: meeting.report,
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("agents' store".into());
        let thread = thread
            .spawn(move || accept(entrance, &its))
            .map_err(|e| system("start a thread for the store".into(), e))?;
        Ok(Store { shared, address, thread: Some(thread) })
    }

    /// Where it can be reached from this machine.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says from which address the agent that made this store has connected, before it proves anything.
    pub(super) fn keeper_is(&self, address: SocketAddr) {
        *self.shared.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let deadline = Instant::now() + PARTING;
        self.shared.world().abort("the agent that keeps the list of nodes has left");
        self.shared.changed.notify_all();
        while !self.shared.world().all_know_end() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It has nothing to return.
            let _ = thread.join();
        }
    }
}

fn everywhere(port: u16) -> std::io::Result<Option<TcpListener>> {
    match listen_everywhere(port) {
        Err(e) if e.kind() == ErrorKind::AddrInUse => Ok(None),
        listener => listener.map(Some),
    }
}

fn system(what: String, cause: std::io::Error) -> AgentsError {
    AgentsError::System { what, cause: cause.to_string() }
}

fn accept(mut entrance: Entrance, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    let mut looked = Instant::now();
    while shared.goes_on() {
        let busy = shared.known.load(Ordering::Relaxed) >= MOST;
        for arrival in entrance.wait(TICK, busy) {
            match arrival {
                Arrival::Proved(channel, peer) => {
                    threads.retain(|thread| !thread.is_finished());
                    shared.known.fetch_add(1, Ordering::Relaxed);
                    let its = shared.clone();
                    let thread = std::thread::Builder::new().name("agents' connection".into());
                    match thread.spawn(move || connection(channel, peer, &its)) {
                        Ok(thread) => threads.push(thread),
                        // It connects again.
                        Err(_) => drop(shared.known.fetch_sub(1, Ordering::Relaxed)),
                    }
                }
                Arrival::Refused(peer, Broken::WrongSecret) => {
                    shared.refuse(&peer.to_string(), "it has another token or run id");
                }
                Arrival::Refused(peer, broken) => shared.refuse(&peer.to_string(), &broken.to_string()),
            }
        }
        // Many connections at once are no reason to look at the clock more often.
        if looked.elapsed() >= TICK {
            looked = Instant::now();
            shared.world().tick(looked);
            shared.changed.notify_all();
        }
    }
    for thread in threads {
        // It has nothing to return.
        let _ = thread.join();
    }
}

/// One agent until it goes.
fn connection(mut channel: Channel, peer: SocketAddr, shared: &Shared) {
    let keeper = *shared.keeper.lock().unwrap_or_else(PoisonError::into_inner);
    talk(&mut channel, shared, peer, Some(peer) == keeper);
    shared.known.fetch_sub(1, Ordering::Relaxed);
}

fn hear(channel: &mut Channel, shared: &Shared) -> Result<Request, Broken> {
    let bytes = channel.receive(Instant::now() + shared.silence, &|| shared.goes_on())?;
    message::read(&bytes).ok_or(Broken::Garbage("it said something that makes no sense"))
}

fn talk(channel: &mut Channel, shared: &Shared, peer: SocketAddr, keeper: bool) {
    let Ok(Request::Hello(node)) = hear(channel, shared) else { return };
    let (taken, connection) = {
        let mut world = shared.world();
        let taken = match world.comes_again(&node, Instant::now()) {
            Some(id) => Ok((Reply::WelcomeBack, id)),
            None => world.hello(&node, keeper, Instant::now()).map(|id| (Reply::Welcome, id)),
        };
        let connection = taken.as_ref().ok().and_then(|(_, id)| world.connection(*id));
        (taken, connection)
    };
    let (reply, id) = match taken {
        Ok((reply, id)) => (reply, Some(id)),
        Err(refusal) => {
            let host = printable(&node.host, 64);
            shared.refuse(&format!("{host} ({})", peer.ip()), &refusal.to_string());
            match refusal {
                Refusal::Differs(differences) => (Reply::Differs(differences), None),
                Refusal::Because(reason) => (Reply::Refused(reason), None),
            }
        }
    };
    let id_and_address = id.zip(channel.stream().local_addr().ok());
    if let Some((id, address)) = id_and_address {
        shared.world().reached(id, address.ip().to_canonical());
    }
    let sent = channel.send(&message::write(&reply));
    let Some(id) = id else { return };
    let end = match sent {
        Ok(()) => serve(channel, shared, id, connection),
        Err(broken) => broken.to_string(),
    };
    let mut world = shared.world();
    // The end of a connection that another has replaced says nothing about the node.
    if world.connection(id) == connection {
        world.lost(id, &end, Instant::now());
    }
    drop(world);
    shared.changed.notify_all();
}

/// Answers a node until it goes; how it went.
fn serve(channel: &mut Channel, shared: &Shared, id: Id, connection: Option<u64>) -> String {
    let mut round = 0;
    loop {
        let request = match hear(channel, shared) {
            Ok(request) => request,
            Err(Broken::Closed(cause)) => return format!("was lost: {cause}"),
            Err(Broken::Silent) => return silent(shared.silence),
            Err(broken) => return format!("was given up: {broken}"),
        };
        let now = Instant::now();
        let mut world = shared.world();
        if world.connection(id) != connection {
            return "came again on another connection".into();
        }
        world.seen(id, now);
        match request {
            Request::Hello(_) => return "was given up: it introduced itself twice".into(),
            Request::Leave => return "left".into(),
            // One that comes late has led to a round already.
            Request::Ready { after } if world.round_of(id) > after => {}
            Request::Ready { .. } => world.ready(id, now),
            Request::Failed { round, cause, is_final } => {
                world.failed(id, round, (&cause, is_final), now);
            }
            Request::Done { round } => world.done(id, round),
            Request::Look { wait_ms } => {
                let deadline = now + LONGEST_LOOK.min(Duration::from_millis(wait_ms.into()));
                while shared.goes_on() && !world.news(id, round) {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    world =
                        shared.changed.wait_timeout(world, left).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
        world.tick(Instant::now());
        let view = world.view(id);
        drop(world);
        shared.changed.notify_all();
        if let View::Works { round: present, .. } = &view {
            round = *present;
        }
        if let Err(broken) = channel.send(&message::write(&Reply::View(view))) {
            return format!("was lost: {broken}");
        }
    }
}
