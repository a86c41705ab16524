//! The listening side of the handshake, for all connections that have not proved anything yet. One thread serves them, none
//! waits for another, and their number and their time are limited: who is silent loses the place to who comes.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hmac::Mac;
use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::access::{is_private, origin};
use super::bytes::{Broken, closed, nonce, prepare};
use super::channel::{BUSY, Channel, DECLINED, MAGIC, RIGHT, WRONG};
use super::secret::{LinkKeys, Secret, Side};

/// Connections that have not proved anything yet. Beyond them the oldest is closed that has said nothing, of the address that
/// has the most; so an address with many takes no place of another.
pub const PLACES: usize = 256;
/// How long each of the two messages of an agent may take.
const PROOF: Duration = Duration::from_millis(500);
/// How long a connection keeps its place at least, also where many come: enough for an answer on a busy machine.
const YOUNG: Duration = Duration::from_millis(50);
/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 1024;
/// Connections that are accepted before those that are here are looked at again.
const AT_ONCE: usize = 32;
/// After an error of the system, such as that no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(5);

/// What has become of a connection.
pub enum Arrival {
    /// It has proved to know the secret.
    Proved(Channel, SocketAddr),
    /// It spoke our handshake, and was refused: it knows another secret, there was no place, or its address is public.
    Refused(IpAddr, Broken),
}

/// A listening socket behind which only those come in that prove to know the secret.
pub struct Entrance {
    listener: TcpListener,
    secret: Secret,
    only_private: bool,
    /// The oldest first.
    strangers: Vec<Stranger>,
}

/// A connection that has not proved anything yet.
struct Stranger {
    stream: TcpStream,
    address: SocketAddr,
    nonce: [u8; 32],
    /// The random number of the agent, once it is here.
    theirs: Option<[u8; 32]>,
    /// What is being read: the random number, then the proof.
    message: [u8; 32],
    read: usize,
    since: Instant,
    deadline: Instant,
}

impl Entrance {
    /// Lets those in through a listening socket who know the secret; with `only_private`, from private addresses alone.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(listener: TcpListener, secret: Secret, only_private: bool) -> std::io::Result<Entrance> {
        listener.set_nonblocking(true)?;
        // The standard library listens with a shorter queue, which strangers fill sooner.
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Entrance { listener, secret, only_private, strangers: Vec::new() })
    }

    /// What has become of connections, after at most `limit`. Those that have proved themselves are told if it is `busy`.
    pub fn wait(&mut self, limit: Duration, busy: bool) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        let ready = self.poll(limit);
        let now = Instant::now();
        let strangers = std::mem::take(&mut self.strangers);
        for (n, mut stranger) in strangers.into_iter().enumerate() {
            let heard = match ready.get(n + 1).copied().unwrap_or(true) {
                true => stranger.hear(&self.secret, busy, now),
                false => Ok(None),
            };
            match heard {
                Ok(None) if now < stranger.deadline => self.strangers.push(stranger),
                // It is closed, as it was silent.
                Ok(None) => {}
                Ok(Some(keys)) => {
                    // Otherwise it has closed meanwhile.
                    if prepare(&stranger.stream).is_ok() {
                        let channel = Channel::new(stranger.stream, Side::Store, keys);
                        arrivals.push(Arrival::Proved(channel, stranger.address));
                    }
                }
                Err(broken @ (Broken::WrongSecret | Broken::Busy)) => {
                    arrivals.push(Arrival::Refused(stranger.address.ip(), broken));
                }
                Err(_) => {}
            }
        }
        if ready.first().copied().unwrap_or(true) {
            self.accept(&mut arrivals);
        }
        arrivals
    }

    /// Which can be read: the listening socket, then the strangers; nothing where the system does not say.
    fn poll(&self, limit: Duration) -> Vec<bool> {
        let now = Instant::now();
        let left = |until: Instant| until.saturating_duration_since(now);
        let next = self.strangers.iter().map(|stranger| left(stranger.deadline)).min();
        let full = self.full_until(now).map(left);
        let limit = next.into_iter().chain(full).fold(limit, Duration::min);
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // Who waits while all places are taken is not looked at.
        let listens = if full.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut files = vec![PollFd::new(&self.listener, listens)];
        files.extend(self.strangers.iter().map(|stranger| PollFd::new(&stranger.stream, PollFlags::IN)));
        match rustix::event::poll(&mut files, Some(&limit)) {
            Ok(_) => files.iter().map(|file| !file.revents().is_empty()).collect(),
            Err(_) => {
                std::thread::sleep(PAUSE);
                Vec::new()
            }
        }
    }

    fn accept(&mut self, arrivals: &mut Vec<Arrival>) {
        for _ in 0..AT_ONCE {
            if self.full_until(Instant::now()).is_some() {
                return;
            }
            let (stream, address) = match self.listener.accept() {
                // Who comes to a socket of both families by IPv4 has an address of IPv4.
                Ok((stream, address)) => {
                    (stream, SocketAddr::new(address.ip().to_canonical(), address.port()))
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                // No file descriptor is free, for one.
                Err(_) => {
                    if let Some(index) = self.victim() {
                        self.strangers.remove(index);
                    }
                    return std::thread::sleep(PAUSE);
                }
            };
            if self.only_private {
                let ip = address.ip();
                // Who comes from the address that it reaches is on this machine.
                let own = stream.local_addr().map(|own| own.ip().to_canonical());
                if !own.is_ok_and(|own| own == ip || (is_private(own) && is_private(ip))) {
                    arrivals.push(Arrival::Refused(address.ip(), Broken::NotPrivate));
                    continue;
                }
            }
            if self.strangers.len() >= PLACES
                && let Some(index) = self.victim()
            {
                self.strangers.remove(index);
            }
            self.strangers.extend(Stranger::greet(stream, address));
        }
    }

    /// Until when nobody can take the place of another: all have theirs for a moment at least. `None`: somebody can come.
    fn full_until(&self, now: Instant) -> Option<Instant> {
        let victim = if self.strangers.len() < PLACES { None } else { self.victim() };
        victim.map(|index| self.strangers[index].since + YOUNG).filter(|until| now < *until)
    }

    /// Who gives way: of the address with the most, the oldest that has said nothing, else the oldest.
    fn victim(&self) -> Option<usize> {
        let mut counts: HashMap<u128, usize> = HashMap::new();
        for stranger in &self.strangers {
            *counts.entry(origin(stranger.address.ip())).or_default() += 1;
        }
        let count = |stranger: &Stranger| counts[&origin(stranger.address.ip())];
        let most = counts.values().copied().max().unwrap_or(0);
        let oldest = |silent: bool| {
            self.strangers.iter().position(|one| count(one) == most && (!silent || one.is_silent()))
        };
        oldest(true).or_else(|| oldest(false))
    }
}

impl Stranger {
    /// Greets a connection; `None` if it, or the system, is not able to speak.
    fn greet(mut stream: TcpStream, address: SocketAddr) -> Option<Stranger> {
        let nonce = nonce().ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.set_nodelay(true).ok()?;
        say(&mut stream, &[&MAGIC[..], &nonce].concat()).ok()?;
        let since = Instant::now();
        let deadline = since + PROOF;
        Some(Stranger { stream, address, nonce, theirs: None, message: [0; 32], read: 0, since, deadline })
    }

    fn is_silent(&self) -> bool {
        self.theirs.is_none() && self.read == 0
    }

    /// Reads what is there, and answers; the keys of the connection once it has proved itself.
    fn hear(&mut self, secret: &Secret, busy: bool, now: Instant) -> Result<Option<LinkKeys>, Broken> {
        while self.read < self.message.len() {
            match self.stream.read(&mut self.message[self.read..]) {
                Ok(0) => return Err(closed()),
                Ok(n) => self.read += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(Broken::Closed(e.to_string())),
            }
        }
        self.read = 0;
        let Some(theirs) = &self.theirs else {
            self.theirs = Some(self.message);
            let proof = secret.proof(Side::Store, &self.nonce, &self.message).finalize().into_bytes();
            self.deadline = now + PROOF;
            say(&mut self.stream, &proof)?;
            return Ok(None);
        };
        if self.message == DECLINED {
            return Err(Broken::WrongSecret);
        }
        if secret.proof(Side::Agent, &self.nonce, theirs).verify_slice(&self.message).is_err() {
            // Who hears it or not is refused.
            let _ = say(&mut self.stream, &[WRONG]);
            return Err(Broken::WrongSecret);
        }
        say(&mut self.stream, &[if busy { BUSY } else { RIGHT }])?;
        if busy { Err(Broken::Busy) } else { Ok(Some(secret.keys(&self.nonce, theirs))) }
    }
}

/// Sends a few bytes, which always find room where the other side reads.
fn say(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Broken> {
    match stream.write(bytes) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(closed()),
        Err(e) => Err(Broken::Closed(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::secret::Purpose;
    use super::*;

    fn entrance(token: &str) -> (Entrance, SocketAddr) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        (Entrance::new(listener, Secret::new(Purpose::Agents, token, "r"), false).unwrap(), address)
    }

    fn open(address: SocketAddr, purpose: Purpose, token: &str) -> Result<Channel, Broken> {
        Channel::open(TcpStream::connect(address).unwrap(), &Secret::new(purpose, token, "r"))
    }

    fn next(entrance: &mut Entrance) -> Arrival {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            if let Some(arrival) = entrance.wait(Duration::from_millis(10), false).pop() {
                return arrival;
            }
        }
        panic!("nobody has come");
    }

    #[test]
    fn who_knows_the_secret_comes_in_and_who_knows_another_is_reported() {
        let (mut entrance, at) = entrance("one");
        let agent = std::thread::spawn(move || {
            let mut channel = open(at, Purpose::Agents, "one").unwrap();
            channel.send(b"frame").unwrap();
            [open(at, Purpose::Agents, "two"), open(at, Purpose::Ranks, "one")].map(|end| end.err())
        });
        let Arrival::Proved(mut channel, _) = next(&mut entrance) else { panic!() };
        assert_eq!(channel.receive(Instant::now() + PROOF, &|| true).unwrap(), b"frame");
        for _ in 0..2 {
            assert!(matches!(next(&mut entrance), Arrival::Refused(_, Broken::WrongSecret)));
        }
        assert_eq!(agent.join().unwrap(), [Some(Broken::WrongSecret), Some(Broken::WrongSecret)]);
    }

    /// A store that does not know the secret gets nothing from which a weak one could be guessed.
    #[test]
    fn an_agent_proves_nothing_to_a_store_that_has_not_proved_itself() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let agent = std::thread::spawn(move || open(at, Purpose::Agents, "hunter2").err());
        let mut stream = listener.accept().unwrap().0;
        stream.write_all(&[&MAGIC[..], &[7; 32], &[9; 32]].concat()).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert_eq!(agent.join().unwrap(), Some(Broken::WrongSecret));
        // A random number, and that it goes.
        assert_eq!((said.len(), &said[32..]), (64, &DECLINED[..]));
    }

    #[test]
    fn who_is_silent_is_closed_in_half_a_second_and_sooner_where_others_come() {
        let (mut entrance, at) = entrance("one");
        let began = Instant::now();
        let mut first = TcpStream::connect(at).unwrap();
        while entrance.strangers.is_empty() {
            entrance.wait(Duration::from_millis(10), false);
        }
        while !entrance.strangers.is_empty() {
            entrance.wait(Duration::from_secs(9), false);
        }
        assert!((PROOF..Duration::from_secs(5)).contains(&began.elapsed()), "{:?}", began.elapsed());
        first.set_read_timeout(Some(Duration::from_secs(9))).unwrap();
        let mut said = Vec::new();
        let _ = first.read_to_end(&mut said);
        assert_eq!(said.len(), 40, "the greeting and the end");

        let _many: Vec<TcpStream> = (0..3 * PLACES)
            .map(|_| {
                let stream = TcpStream::connect(at).unwrap();
                entrance.wait(Duration::ZERO, false);
                assert!(entrance.strangers.len() <= PLACES);
                stream
            })
            .collect();
    }

    #[test]
    fn many_who_reconnect_keep_nobody_out() {
        let (mut entrance, at) = entrance("one");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut held = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        held.extend(TcpStream::connect(at));
                        if held.len() > 300 {
                            held.drain(..150);
                        }
                    }
                });
            }
            let agent = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                let began = Instant::now();
                // It may lose its place, and then it comes again, as every caller does.
                while open(at, Purpose::Agents, "one").is_err() {
                    assert!(began.elapsed() < Duration::from_secs(20));
                }
                began.elapsed()
            });
            while !matches!(next_or_none(&mut entrance), Some(Arrival::Proved(..))) {}
            let took = agent.join().unwrap();
            over.store(true, Ordering::Relaxed);
            assert!(took < Duration::from_secs(3), "{took:?}");
        });
    }

    fn next_or_none(entrance: &mut Entrance) -> Option<Arrival> {
        entrance.wait(Duration::from_millis(10), false).pop()
    }

    #[test]
    fn without_a_secret_public_addresses_are_refused() {
        // A connection over loopback is private, so the address of the peer is made up.
        let (mut entrance, at) = entrance("");
        entrance.only_private = true;
        let agent = std::thread::spawn(move || open(at, Purpose::Agents, "").is_ok());
        assert!(matches!(next(&mut entrance), Arrival::Proved(..)));
        assert!(agent.join().unwrap());
    }

    /// One address has many connections, another one: those of the first are closed.
    #[test]
    fn an_address_with_many_takes_no_place_of_another() {
        let (mut entrance, at) = entrance("one");
        let mut streams = Vec::new();
        for n in 0..10u8 {
            streams.push(TcpStream::connect(at).unwrap());
            while entrance.strangers.len() <= usize::from(n) {
                entrance.wait(Duration::from_millis(10), false);
            }
        }
        // The oldest is alone at its address.
        entrance.strangers[0].address.set_ip([10, 0, 0, 9].into());
        for _ in 0..8 {
            entrance.strangers.remove(entrance.victim().unwrap());
        }
        let left: Vec<IpAddr> = entrance.strangers.iter().map(|one| one.address.ip()).collect();
        assert_eq!(left, [IpAddr::from([10, 0, 0, 9]), IpAddr::from([127, 0, 0, 1])]);
    }
}
