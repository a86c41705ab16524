//! A listening socket behind which only those are let in that prove to know the secret. It listens as long as the value lives.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::wire::{Arrival, Broken, Channel, Entrance, PROMPT, Secret};

/// How often it looks whether it is still wanted.
const TICK: Duration = Duration::from_millis(5);
/// Connections that have proved themselves, and have not said what they want.
const UNHEARD: usize = 256;
/// Addresses of the refused that are kept.
const KEPT: usize = 8;

/// What a door lets in by.
#[derive(Clone)]
pub(super) struct Lock {
    pub(super) secret: Secret,
    /// The run has no token, so private addresses alone come in.
    pub(super) only_private: bool,
}

pub(super) struct Door {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Those who were let in, each with the first frame that it has sent.
    guests: mpsc::Receiver<(Channel, Vec<u8>)>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    unheard: AtomicUsize,
    /// Who knew our handshake but another secret, or came from a public address.
    refused: Mutex<Vec<(IpAddr, Broken)>>,
}

impl Door {
    pub(super) fn at(address: SocketAddr, lock: &Lock) -> std::io::Result<Door> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let entrance = Entrance::new(listener, lock.secret.clone(), lock.only_private)?;
        let shared = Arc::new(Shared::default());
        let (let_in, guests) = mpsc::channel();
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("gloo door".into());
        let thread = thread.spawn(move || accept(entrance, &its, &let_in))?;
        Ok(Door { address, guests, shared, thread: Some(thread) })
    }

    /// The next who is let in before the deadline, and the first frame that it has sent.
    pub(super) fn next(&self, limit: Duration) -> Option<(Channel, Vec<u8>)> {
        self.guests.recv_timeout(limit).ok()
    }

    /// Who was refused, each address once and the first few, and why.
    pub(super) fn refused(&self) -> Vec<(IpAddr, Broken)> {
        self.shared.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to return.
            let _ = thread.join();
        }
    }
}

fn accept(mut entrance: Entrance, shared: &Arc<Shared>, let_in: &mpsc::Sender<(Channel, Vec<u8>)>) {
    while !shared.stop.load(Ordering::Relaxed) {
        for arrival in entrance.wait(TICK, false) {
            match arrival {
                Arrival::Proved(channel, _) if shared.unheard.load(Ordering::Relaxed) < UNHEARD => {
                    hear(channel, shared, let_in);
                }
                // It is closed, and comes again.
                Arrival::Proved(..) => {}
                Arrival::Refused(address, broken) => {
                    let mut refused = shared.refused.lock().unwrap_or_else(PoisonError::into_inner);
                    let is_new = refused.iter().all(|(other, _)| *other != address);
                    if refused.len() < KEPT && is_new {
                        refused.push((address, broken));
                    }
                }
            }
        }
    }
}

/// Waits for the first frame of one who has proved itself.
fn hear(mut channel: Channel, shared: &Arc<Shared>, let_in: &mpsc::Sender<(Channel, Vec<u8>)>) {
    shared.unheard.fetch_add(1, Ordering::Relaxed);
    let (its, let_in) = (shared.clone(), let_in.clone());
    let thread = std::thread::Builder::new().name("gloo connection".into());
    let spawned = thread.spawn(move || {
        let goes_on = || !its.stop.load(Ordering::Relaxed);
        let first = channel.receive(Instant::now() + PROMPT, &goes_on);
        its.unheard.fetch_sub(1, Ordering::Relaxed);
        if let Ok(first) = first {
            // If nobody waits any more, the connection closes.
            let _ = let_in.send((channel, first));
        }
    });
    if spawned.is_err() {
        shared.unheard.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The addresses at which the machine with this name or address listens, with this port; `None` of them where it has none.
pub(super) fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|e| Error::Join(format!("MASTER_ADDR={host} cannot be looked up: {e}")))?;
    Ok(found.collect())
}

/// Opens a door at the first of the ports that is free, at the address that `host` stands for on this machine.
pub(super) fn open_first(host: &str, ports: &[u16], lock: &Lock) -> Result<Door> {
    let mut last = String::from("it has no address");
    for &port in ports {
        for address in addresses(host, port)? {
            match Door::at(listen_at(host, address), lock) {
                Ok(door) => return Ok(door),
                Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
                    last = format!("{} is no address of this machine, which has rank 0", address.ip());
                }
                Err(e) if Errno::from_io_error(&e) == Some(Errno::AFNOSUPPORT) => {}
                Err(e) => last = format!("port {port}: {e}"),
            }
        }
    }
    Err(Error::Join(format!("rank 0 cannot listen at MASTER_ADDR={host}: {last}")))
}

/// Where to listen for a name. The name of this machine often stands for a loopback address in its own table of hosts; then
/// the others mean another address of it.
fn listen_at(host: &str, address: SocketAddr) -> SocketAddr {
    let is_name = host != "localhost" && host.parse::<IpAddr>().is_err();
    match (is_name && address.ip().is_loopback(), address.is_ipv4()) {
        (true, true) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()),
        (true, false) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port()),
        (false, _) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::wire::{PLACES, Purpose};

    #[test]
    fn only_those_who_know_the_secret_are_let_in() {
        let secret = Secret::new(Purpose::Ranks, "token", "run");
        let lock = Lock { secret: secret.clone(), only_private: false };
        let door = Door::at("127.0.0.1:0".parse().unwrap(), &lock).unwrap();
        let connect = || TcpStream::connect(door.address).unwrap();
        let mut garbage = connect();
        garbage.write_all(&[0xff; 4096]).unwrap();
        // More than there are places for strangers; most are closed.
        let silent: Vec<TcpStream> = (0..2 * PLACES).map(|_| connect()).collect();
        drop(silent);
        let mut other = None;
        let deadline = Instant::now() + PROMPT + PROMPT;
        // A place may be taken for a moment.
        while Instant::now() < deadline && !matches!(other, Some(Broken::WrongSecret)) {
            other = Channel::open(connect(), &Secret::new(Purpose::Ranks, "other", "run")).err();
        }
        assert_eq!(other, Some(Broken::WrongSecret));
        let mut channel = loop {
            match Channel::open(connect(), &secret) {
                Ok(channel) => break channel,
                Err(_) => assert!(Instant::now() < deadline),
            }
        };
        channel.send(b"first").unwrap();
        let (_, first) = door.next(PROMPT).unwrap();
        assert_eq!(first, b"first");
        assert!(door.next(Duration::from_millis(10)).is_none());
        assert_eq!(door.refused(), [(IpAddr::from([127, 0, 0, 1]), Broken::WrongSecret)]);
        let address = door.address;
        drop(door);
        assert!(TcpStream::connect(address).is_err(), "nothing listens any more");
        // What was not let in is closed.
        let mut rest = Vec::new();
        let _ = garbage.read_to_end(&mut rest);
    }

    #[test]
    fn a_name_of_this_machine_means_all_its_addresses() {
        let at = |host: &str, address: &str| listen_at(host, address.parse().unwrap()).to_string();
        assert_eq!(at("node-1", "127.0.1.1:5"), "0.0.0.0:5");
        assert_eq!(at("node-1", "[::1]:5"), "[::]:5");
        assert_eq!(at("node-1", "10.0.0.1:5"), "10.0.0.1:5");
        assert_eq!(at("localhost", "127.0.0.1:5"), "127.0.0.1:5");
        assert_eq!(at("127.0.0.1", "127.0.0.1:5"), "127.0.0.1:5");
    }
}
