//! A listening socket behind which only those are let in that prove to know the secret. It listens as long as the value lives.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::wire::{Arrival, Broken, Channel, Entrance, PROMPT, Place, Secret, listen_at, listen_everywhere};

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
    /// Opens a door at an address of this machine, or at all of them where it is none in particular.
    pub(super) fn at(address: SocketAddr, lock: &Lock) -> std::io::Result<Door> {
        Door::of(
            match address.ip().is_unspecified() {
                true => listen_everywhere(address.port())?,
                false => TcpListener::bind(address)?,
            },
            lock,
        )
    }

    fn of(listener: TcpListener, lock: &Lock) -> std::io::Result<Door> {
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

/// Opens a door at the first of the ports that is free, where `host` is on this machine. If `several` machines have ranks, and the
/// host is not an address of this machine that others can use as well, at all of its addresses.
pub(super) fn open_first(host: &str, ports: &[u16], several: bool, lock: &Lock) -> Result<Door> {
    let fail = |why: String| Error::Join(format!("rank 0 cannot listen at MASTER_ADDR={host}: {why}"));
    let mut last = String::from("it has no address");
    for &port in ports {
        let listener = match Place::of(host, port) {
            Place::Here(at) => listen_at(&at),
            Place::Itself(at) if !several => listen_at(&at),
            Place::Elsewhere(at) if !several => {
                let ip = at.first().map_or(host.to_owned(), |at| at.ip().to_string());
                return Err(fail(format!("{ip} is not an address of this machine, which has rank 0")));
            }
            Place::Unknown(why) => return Err(fail(why)),
            Place::Itself(_) | Place::Elsewhere(_) => listen_everywhere(port).map(Some),
        };
        match listener.map(|listener| listener.map(|listener| Door::of(listener, lock))) {
            Ok(Some(Ok(door))) => return Ok(door),
            Ok(None) => last = format!("port {port} is taken"),
            Ok(Some(Err(e))) | Err(e) => last = format!("port {port}: {e}"),
        }
    }
    Err(fail(last))
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
}
