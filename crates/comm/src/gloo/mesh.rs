//! The connections between all ranks: each connects to those before it and waits for those after it. Both ends prove to know
//! the secret, and say who they are.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::rand::{GetRandomFlags, getrandom};

use super::door::Door;
use crate::error::{Error, Result};
use crate::launched::link_timeout;
use crate::wire::{Channel, DataKeys, Secret};

/// How long connecting to all may take.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
/// How long to wait for an answer to a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// How often a rank that waits for others looks whether one of them has given up.
const LOOK: Duration = Duration::from_millis(100);
/// How long to try where the system says that nothing is there.
const REFUSED: Duration = Duration::from_secs(5);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest between two attempts of the system to send again what was not received. Its own limit doubles up to minutes, and
/// a network that is back after an outage would wait for it.
const SEND_AGAIN: Duration = Duration::from_secs(1);

/// A connection to another rank that both have proved, and the keys of what is sent, if that is encrypted.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) keys: Option<DataKeys>,
}

/// Where each rank is reached, and a number of this start, so that nobody of another start is taken for one of this.
pub(super) struct Table {
    nonce: [u8; 16],
    /// Whether what is sent is encrypted: rank 0 decides for all.
    sealed: bool,
    addresses: Vec<SocketAddr>,
}

impl Table {
    pub(super) fn new(addresses: Vec<SocketAddr>, sealed: bool) -> Result<Table> {
        let mut nonce = [0; 16];
        match getrandom(&mut nonce[..], GetRandomFlags::empty()) {
            Ok(16) => Ok(Table { nonce, sealed, addresses }),
            _ => Err(Error::system("ask for random bytes", "the system has none")),
        }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        [self.nonce.as_slice(), &[u8::from(self.sealed)], addresses.join(" ").as_bytes()].concat()
    }

    /// The table that rank 0 sent.
    pub(super) fn read(bytes: &[u8], size: usize) -> Option<Table> {
        let (nonce, rest) = bytes.split_at_checked(16)?;
        let (&sealed, addresses) = rest.split_first()?;
        let addresses: Option<Vec<SocketAddr>> =
            std::str::from_utf8(addresses).ok()?.split(' ').map(|address| address.parse().ok()).collect();
        let addresses = addresses.filter(|all| all.len() == size)?;
        Some(Table { nonce: nonce.try_into().ok()?, sealed: sealed != 0, addresses })
    }

    /// A connection for what ranks send.
    fn link(&self, channel: Channel) -> Link {
        let (stream, keys) = channel.into_parts();
        Link { stream, keys: self.sealed.then_some(keys) }
    }

    /// What the rank that connects says first.
    fn hello(&self, from: usize, to: usize) -> Vec<u8> {
        let ranks = [from as u32, to as u32].map(u32::to_le_bytes).concat();
        [self.nonce.as_slice(), &ranks].concat()
    }
}

/// Connects rank `me` to all others, unless `ended` says that another could not.
pub(super) fn connect(
    me: usize,
    table: &Table,
    door: &Door,
    secret: &Secret,
    ended: &mut dyn FnMut() -> Option<Error>,
) -> Result<Vec<Option<Link>>> {
    let deadline = Instant::now() + LIMIT;
    let silence = u32::try_from(link_timeout()?.as_secs()).unwrap_or(u32::MAX);
    let n = table.addresses.len();
    let mut links: Vec<Option<Link>> = (0..n).map(|_| None).collect();
    for (to, link) in links.iter_mut().enumerate().take(me) {
        *link = Some(reach(me, to, table, secret, deadline, ended)?);
    }
    while let Some(missing) = (me + 1..n).find(|&rank| links[rank].is_none()) {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::Join(format!(
                "rank {missing} did not reach rank {me} at {} within {} s; do firewalls let the machines connect to each \
                 other? GLOO_SOCKET_IFNAME names the network interface to use",
                door.address,
                LIMIT.as_secs()
            )));
        }
        let Some((mut channel, hello)) = door.next(left.min(LOOK)) else {
            match ended() {
                Some(error) => return Err(error),
                None => continue,
            }
        };
        // Who comes again has given up its first connection.
        let from = (me + 1..n).find(|&from| hello == table.hello(from, me));
        if let Some(from) = from
            && channel.send(b"ok").is_ok()
        {
            links[from] = Some(table.link(channel));
        }
    }
    for link in links.iter().flatten() {
        prepare(&link.stream, silence).map_err(|e| Error::system("set up a connection", e))?;
    }
    Ok(links)
}

/// Connects to a rank before this one.
fn reach(
    me: usize,
    to: usize,
    table: &Table,
    secret: &Secret,
    deadline: Instant,
    ended: &mut dyn FnMut() -> Option<Error>,
) -> Result<Link> {
    let (address, began) = (table.addresses[to], Instant::now());
    loop {
        let opened = TcpStream::connect_timeout(&address, CONNECT.min(left(deadline).max(PAUSE)));
        // It has listened since before the table was sent, so an answer that nothing is there is final but for a moment's disorder.
        let kinds = [ErrorKind::ConnectionRefused, ErrorKind::NetworkUnreachable, ErrorKind::HostUnreachable];
        let is_refused = opened.as_ref().is_err_and(|e| kinds.contains(&e.kind()));
        let said = opened.map_err(|e| e.to_string()).and_then(|stream| {
            let mut channel = Channel::open(stream, secret).map_err(|broken| broken.to_string())?;
            channel.send(&table.hello(me, to)).map_err(|broken| broken.to_string())?;
            // It may be busy with connecting to others first.
            let answer = channel.receive(deadline.min(Instant::now() + LIMIT), &|| true);
            answer.map_err(|broken| broken.to_string()).map(|_| table.link(channel))
        });
        match said {
            Ok(link) => return Ok(link),
            Err(cause) if left(deadline).is_zero() || (is_refused && began.elapsed() >= REFUSED) => {
                return Err(Error::Join(format!(
                    "rank {me} does not reach rank {to} at {address}: {cause}; do firewalls let the machines connect to each \
                     other? GLOO_SOCKET_IFNAME names the network interface to use"
                )));
            }
            Err(_) => std::thread::sleep(PAUSE),
        }
        if let Some(error) = ended() {
            return Err(error);
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Has the system look whether the other machine is there, also when nothing is sent.
fn prepare(stream: &TcpStream, seconds: u32) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    let (third, all) = (Duration::from_secs(u64::from(seconds.div_ceil(3))), seconds.saturating_mul(1000));
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, third)?;
    sockopt::set_tcp_keepintvl(stream, third)?;
    sockopt::set_tcp_keepcnt(stream, 2)?;
    sockopt::set_tcp_user_timeout(stream, all)?;
    send_again_within(stream, SEND_AGAIN);
    Ok(())
}

/// Limits the time between two attempts to send. A system older than Linux 6.15 does not know the option; then a network that
/// is back is noticed later.
fn send_again_within(stream: &TcpStream, limit: Duration) {
    // The C library's bindings do not name it yet.
    const TCP_RTO_MAX_MS: libc::c_int = 44;
    let ms = limit.as_millis() as libc::c_int;
    let (value, len) = (std::ptr::from_ref(&ms).cast(), size_of_val(&ms) as libc::socklen_t);
    // SAFETY: the file is open as long as the stream, and the value is one integer.
    let _ = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, value, len) };
}

#[cfg(test)]
mod tests {
    use super::super::door::Lock;
    use super::*;
    use crate::wire::{Broken, PROMPT, Purpose};

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let addresses =
            vec!["10.0.0.1:7".parse().unwrap(), "[::1]:8".parse().unwrap(), "10.0.0.2:9".parse().unwrap()];
        let table = Table::new(addresses, true).unwrap();
        let read = Table::read(&table.write(), 3).unwrap();
        assert_eq!((read.nonce, read.sealed), (table.nonce, true));
        assert_eq!(read.addresses, table.addresses);
        assert!(Table::read(&table.write(), 4).is_none());
        assert!(Table::read(b"short", 1).is_none());
        assert!(Table::read(&[0xff; 64], 1).is_none());
    }

    #[test]
    fn ranks_connect_and_strangers_of_other_starts_do_not() {
        let secret = Secret::new(Purpose::Ranks, "t", "r");
        let lock = Lock { secret: secret.clone(), only_private: false };
        let doors: Vec<Door> =
            (0..3).map(|_| Door::at("127.0.0.1:0".parse().unwrap(), &lock).unwrap()).collect();
        let table = Table::new(doors.iter().map(|door| door.address).collect(), true).unwrap();
        // It knows the secret, and the number of another start.
        let mut other = Channel::open(TcpStream::connect(doors[0].address).unwrap(), &secret).unwrap();
        other.send(&Table::new(table.addresses.clone(), true).unwrap().hello(1, 0)).unwrap();
        let links: Vec<Vec<Option<Link>>> = std::thread::scope(|scope| {
            let (table, secret) = (&table, &secret);
            let all: Vec<_> = doors
                .into_iter()
                .enumerate()
                .map(|(rank, door)| {
                    scope.spawn(move || connect(rank, table, &door, secret, &mut || None).unwrap())
                })
                .collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let (one, other) = (links[a][b].as_ref().unwrap(), links[b][a].as_ref().unwrap());
            assert_eq!(one.stream.local_addr().unwrap(), other.stream.peer_addr().unwrap());
            let (one, other) = (one.keys.as_ref().unwrap(), other.keys.as_ref().unwrap());
            assert!(one.send == other.receive && one.receive == other.send && one.send != one.receive);
        }
        let answer = other.receive(Instant::now() + PROMPT, &|| true);
        assert!(matches!(answer, Err(Broken::Closed(_))), "{answer:?}");
    }
}
