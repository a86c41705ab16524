//! The listening side: one thread that accepts and looks at the clock, one for each connection. What they hear goes to
//! the [`World`]; nothing reaches it before the handshake is right.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::error::AgentsError;
use super::meeting::{MOST, Meeting};
use super::message::{self, Reply, Request, View};
use super::world::{Id, Refusal, Terms, World, silent};
use crate::launch::hostname;
use oarlock::launch::port;
use oarlock_comm::wire::{Broken, Channel, Secret, hex, nonce};

/// How often the store looks at the clock.
const TICK: Duration = Duration::from_millis(10);
/// Connections that have not proved anything yet.
const STRANGERS: usize = 64;
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
    strangers: AtomicUsize,
    known: AtomicUsize,
    secret: Secret,
    silence: Duration,
}

impl Shared {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

impl Store {
    /// Listens at the meeting's endpoint; `None` where that is another machine's, or somebody listens there already.
    pub(super) fn bind(meeting: &Meeting) -> Result<Option<Store>, AgentsError> {
        let (host, port) = (meeting.endpoint.0.as_str(), meeting.endpoint.1);
        // A name that cannot be looked up is not ours; connecting says what is wrong with it.
        let Ok(addresses) = (host, port).to_socket_addrs() else { return Ok(None) };
        let name = hostname();
        for address in addresses {
            match TcpListener::bind(listen_at(host, address, &name)) {
                Ok(listener) => return Store::listen(listener, meeting).map(Some),
                Err(e) if matches!(e.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
                // No such family of addresses on this machine.
                Err(e) if Errno::from_io_error(&e) == Some(Errno::AFNOSUPPORT) => {}
                Err(e) => return Err(system(format!("listen at {address}"), e)),
            }
        }
        Ok(None)
    }

    pub(super) fn listen(listener: TcpListener, meeting: &Meeting) -> Result<Store, AgentsError> {
        listener.set_nonblocking(true).map_err(|e| system("listen without waiting".into(), e))?;
        let mut address = listener.local_addr().map_err(|e| system("ask for the own address".into(), e))?;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
                SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            });
        }
        // Where no port is free, the ranks report that of torch's usual one.
        let nonce = || nonce().map_or_else(|_| String::new(), |bytes| hex(&bytes));
        let terms = Terms::new(meeting, || port::free().unwrap_or(29500), nonce);
        let shared = Arc::new(Shared {
            silence: terms.silence,
            world: Mutex::new(World::new(terms, Instant::now())),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            keeper: Mutex::new(None),
            strangers: AtomicUsize::new(0),
            known: AtomicUsize::new(0),
            secret: Secret::new(meeting.secret(), &meeting.run_id),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("agents' store".into());
        let thread = thread
            .spawn(move || accept(&listener, &its))
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

/// Where to listen for a name. The name of this machine often stands for a loopback address in its own table of hosts;
/// then the others mean another address of it.
fn listen_at(host: &str, address: SocketAddr, name: &str) -> SocketAddr {
    let is_own = !name.is_empty() && host.split('.').next() == name.split('.').next();
    match is_own && host != "localhost" && host.parse::<IpAddr>().is_err() && address.ip().is_loopback() {
        true if address.is_ipv4() => SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()),
        true => SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port()),
        false => address,
    }
}

fn system(what: String, cause: std::io::Error) -> AgentsError {
    AgentsError::System { what, cause: cause.to_string() }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let mut threads: Vec<JoinHandle<()>> = Vec::new();
    while shared.goes_on() {
        match listener.accept() {
            Ok((stream, _)) => {
                threads.retain(|thread| !thread.is_finished());
                // Beyond the limit a connection is closed unread; those that have begun end soon.
                if shared.strangers.load(Ordering::Relaxed) < STRANGERS {
                    shared.strangers.fetch_add(1, Ordering::Relaxed);
                    let its = shared.clone();
                    let thread = std::thread::Builder::new().name("agents' connection".into());
                    match thread.spawn(move || connection(stream, &its)) {
                        Ok(thread) => threads.push(thread),
                        Err(_) => drop(shared.strangers.fetch_sub(1, Ordering::Relaxed)),
                    }
                }
            }
            // No connection waits, or it has closed, or no file descriptor is free: try again later.
            Err(_) => std::thread::sleep(TICK),
        }
        shared.world().tick(Instant::now());
        shared.changed.notify_all();
    }
    for thread in threads {
        // It has nothing to return.
        let _ = thread.join();
    }
}

/// One connection from its first byte to its last.
fn connection(stream: TcpStream, shared: &Shared) {
    let peer = stream.peer_addr().ok();
    let busy = shared.known.fetch_add(1, Ordering::Relaxed) >= MOST;
    let opened = Channel::accept(stream, &shared.secret, busy, &|| shared.goes_on());
    shared.strangers.fetch_sub(1, Ordering::Relaxed);
    // A failed handshake has already sent its reason, if there is one.
    if let Ok(mut channel) = opened {
        let keeper = *shared.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        talk(&mut channel, shared, peer.is_some() && peer == keeper);
    }
    shared.known.fetch_sub(1, Ordering::Relaxed);
}

fn hear(channel: &mut Channel, shared: &Shared) -> Result<Request, Broken> {
    let bytes = channel.receive(Instant::now() + shared.silence, &|| shared.goes_on())?;
    message::read(&bytes).ok_or(Broken::Garbage("it said something that makes no sense"))
}

fn talk(channel: &mut Channel, shared: &Shared, keeper: bool) {
    let Ok(Request::Hello(node)) = hear(channel, shared) else { return };
    let taken = shared.world().hello(&node, keeper, Instant::now());
    let (reply, id) = match taken {
        Ok(id) => (Reply::Welcome, Some(id)),
        Err(Refusal::Differs(differences)) => (Reply::Differs(differences), None),
        Err(Refusal::Because(reason)) => (Reply::Refused(reason), None),
    };
    let sent = channel.send(&message::write(&reply));
    let Some(id) = id else { return };
    let end = match sent {
        Ok(()) => serve(channel, shared, id),
        Err(broken) => broken.to_string(),
    };
    shared.world().lost(id, &end, Instant::now());
    shared.changed.notify_all();
}

/// Answers a node until it goes; how it went.
fn serve(channel: &mut Channel, shared: &Shared, id: Id) -> String {
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
        world.seen(id, now);
        match request {
            Request::Hello(_) => return "was given up: it introduced itself twice".into(),
            Request::Leave => return "left".into(),
            Request::Ready => world.ready(id, now),
            Request::Failed { round, cause, is_final } => {
                let cause: String = cause.chars().filter(|c| !c.is_control()).take(1024).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_this_machine_means_all_its_addresses_and_no_other_does() {
        let at = |host: &str, address: &str| {
            listen_at(host, SocketAddr::new(address.parse().unwrap(), 5), "node-1").to_string()
        };
        assert_eq!(at("node-1", "127.0.1.1"), "0.0.0.0:5");
        assert_eq!(at("node-1.cluster", "::1"), "[::]:5");
        assert_eq!(at("node-1", "10.0.0.1"), "10.0.0.1:5");
        assert_eq!(at("localhost", "127.0.0.1"), "127.0.0.1:5");
        assert_eq!(at("127.0.0.1", "127.0.0.1"), "127.0.0.1:5");
        assert_eq!(at("node-2", "127.0.0.1"), "127.0.0.1:5");
    }
}
