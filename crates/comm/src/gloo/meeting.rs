//! How the ranks find each other: rank 0 keeps a table of addresses at MASTER_ADDR until all have come and are connected.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::door::{self, Door, Lock};
use super::guests::{Hello, Reports, TEXT, addresses, inner, lost, plain};
use super::mesh::{self, Link, Table};
use crate::error::{Error, Result};
use crate::launched::{Launched, NOTICE};
use crate::wire::{
    Access, Broken, Channel, ENCRYPTION, INSECURE, PROMPT, Place, Purpose, Secret, TOKEN_FILE, address_of,
    bare, is_private, outer_addresses, printable,
};

/// Ports after MASTER_PORT that rank 0 takes where that is not free.
const PORTS: u16 = 8;
/// How long to wait for an answer to a connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a rank goes on where another secret is expected: the run before this one may not have ended yet.
const WRONG: Duration = Duration::from_secs(10);
/// How many ranks that were refused are named.
const TURNED_AWAY: usize = 8;

/// Where and how the ranks of a run meet.
pub(super) struct Meeting<'a> {
    place: &'a Launched,
    host: String,
    ports: Vec<u16>,
    interface: Option<IpAddr>,
    lock: Lock,
    access: Access,
    deadline: Instant,
    limit: Duration,
}

fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().trim().to_owned();
    Some(value).filter(|value| !value.is_empty())
}

fn refuse<T>(text: String) -> Result<T> {
    Err(Error::Join(text))
}

impl<'a> Meeting<'a> {
    /// Reads the environment.
    pub(super) fn new(place: &'a Launched, limit: Duration) -> Result<Meeting<'a>> {
        let missing = |name| Error::Variable {
            name,
            value: None,
            expected:
                "the machine of rank 0 and a free port there, by which the ranks of several machines meet"
                    .into(),
        };
        let host = variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
        let host = bare(&host).to_owned();
        // `Launched` has checked it.
        let port = variable("MASTER_PORT").and_then(|port| port.parse::<u16>().ok());
        let port = port.ok_or_else(|| missing("MASTER_PORT"))?;
        // torchrun keeps a store of its own there.
        let is_taken = variable("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
        let first = u16::from(is_taken);
        let ports: Vec<u16> = (first..=PORTS).filter_map(|i| port.checked_add(i)).collect();
        let interface = match variable("GLOO_SOCKET_IFNAME") {
            Some(names) => {
                let name = names.split(',').next().unwrap_or_default().trim();
                let expected = "the name of a network interface of this machine that has an address".into();
                let value = Some(names.clone());
                let name_it = || Error::Variable { name: "GLOO_SOCKET_IFNAME", value, expected };
                Some(address_of(name).ok_or_else(name_it)?)
            }
            None => None,
        };
        let mut access = Access::default();
        access.variables(&variable).map_err(|denied| Error::Join(denied.to_string()))?;
        let token = access.token.as_deref();
        let secret = Secret::new(Purpose::Ranks, token.unwrap_or_default(), &place.common_id);
        let lock = Lock { secret, only_private: token.is_none() && !access.insecure };
        Ok(Meeting { place, host, ports, interface, lock, access, deadline: Instant::now() + limit, limit })
    }

    /// Whether what ranks send is encrypted: where the run has a token, unless a variable says no.
    fn sealed(&self) -> Result<bool> {
        let value = variable(ENCRYPTION);
        let wrong = |expected: &str| Error::Variable {
            name: ENCRYPTION,
            value: value.clone(),
            expected: expected.into(),
        };
        match (value.as_deref(), self.access.token.is_some()) {
            (None, has_token) => Ok(has_token),
            (Some("0"), _) => Ok(false),
            (Some("1"), true) => Ok(true),
            (Some("1"), false) => Err(wrong("0, as the run has no token of which keys could be made")),
            _ => Err(wrong("1 or 0")),
        }
    }

    /// What the user should know about who can join; one rank of all says it.
    fn warn(&self, notify: &dyn Fn(&str)) {
        if self.place.rank != 0 {
            return;
        }
        self.access.warnings.iter().for_each(|warning| notify(warning));
        if self.access.token.is_none() && self.place.local_world_size < self.place.world_size {
            notify(&format!(
                "no token: anybody who reaches {}:{} can join this run, read what it trains on and change the weights; to keep \
                 others out: `oarlock token new > run.token`, copy it to every machine, and set {TOKEN_FILE}=run.token",
                self.host, self.ports[0]
            ));
        }
    }

    /// Whether ranks are on other machines, too.
    fn several(&self) -> bool {
        self.place.local_world_size < self.place.world_size
    }

    /// The addresses of rank 0, all of them such that the ranks may meet there.
    fn addresses(&self, port: u16) -> Result<Vec<SocketAddr>> {
        let place = Place::of(&self.host, port);
        if let Place::Unknown(why) = &place {
            return refuse(format!("MASTER_ADDR={} cannot be looked up: {why}", self.host));
        }
        let found = place.addresses().to_vec();
        match found.iter().find(|address| self.lock.only_private && !is_private(address.ip())) {
            Some(public) => refuse(format!(
                "MASTER_ADDR={} is a public address ({}), and the run has no token: anybody could join it, read what it trains on \
                 and change the weights; `oarlock token new > run.token`, copy it to every machine, and set \
                 {TOKEN_FILE}=run.token; {INSECURE}=1 lets anybody join",
                self.host,
                public.ip()
            )),
            None => Ok(found),
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Opens the door for other ranks, at the interface that is named, else at the address by which rank 0 is reached: where that
    /// is a loopback address, and there are other machines, at all addresses of this one.
    fn own_door(&self, reached_by: IpAddr) -> Result<Door> {
        let reached_by = reached_by.to_canonical();
        let address = match self.interface {
            Some(address) => address,
            None if reached_by.is_loopback() && self.several() => Ipv4Addr::UNSPECIFIED.into(),
            None => reached_by,
        };
        let at = SocketAddr::new(address, 0);
        Door::at(at, &self.lock).map_err(|e| Error::system(format!("listen at {address}"), e))
    }

    /// Connects this rank to all others; one connection for each, and the address of this rank. If the wait is long,
    /// `notify` is called once.
    pub(super) fn connect(&self, notify: &dyn Fn(&str)) -> Result<(Vec<Option<Link>>, IpAddr)> {
        self.warn(notify);
        self.addresses(0)?;
        let sealed = self.sealed()?;
        match self.place.rank {
            0 => self.host(sealed, notify),
            _ => self.come(notify),
        }
    }

    /// Rank 0: waits for all, tells all where the others are, and lets all go on when all are connected.
    fn host(&self, sealed: bool, notify: &dyn Fn(&str)) -> Result<(Vec<Option<Link>>, IpAddr)> {
        let size = self.place.world_size;
        let door = door::open_first(&self.host, &self.ports, self.several(), &self.lock)?;
        if self.several() && matches!(Place::of(&self.host, 0), Place::Elsewhere(_)) {
            notify(&format!(
                "MASTER_ADDR={} is not an address of this machine, which has rank 0; it listens at all of its addresses ({}), and the \
                 others have to reach it there, through a Service or NAT",
                self.host,
                outer_addresses()
            ));
        }
        let at = format!("{}:{}", self.host, door.address.port());
        let mut turned_away: Vec<String> = Vec::new();
        let (own, began) = (self.own_door(door.address.ip())?, Instant::now());
        let mut guests: Vec<Option<(Channel, SocketAddr)>> = (0..size).map(|_| None).collect();
        let mut notice = Some(NOTICE.min(self.limit / 2));
        let is_here = |guest: &Option<(Channel, SocketAddr)>| {
            guest.as_ref().is_some_and(|(c, _)| !is_closed(c.stream()))
        };
        loop {
            let missing: Vec<usize> = (1..size).filter(|&rank| guests[rank].is_none()).collect();
            if missing.is_empty() {
                // Who has gone meanwhile may come back.
                guests.iter_mut().filter(|guest| !is_here(guest)).for_each(|guest| *guest = None);
                if guests.iter().skip(1).all(Option::is_some) {
                    break;
                }
                continue;
            }
            let waits = |what: &str| {
                let who: Vec<String> = missing.iter().take(8).map(usize::to_string).collect();
                let more = if missing.len() > 8 {
                    format!(" and {} more", missing.len() - 8)
                } else {
                    String::new()
                };
                let strangers: String =
                    door.refused().iter().map(|(address, why)| strange(*address, why)).collect();
                format!("{what} rank {}{more} at {at}{strangers}{}", who.join(", "), turned_away.concat())
            };
            if notice.is_some_and(|notice| began.elapsed() >= notice) {
                notice = None;
                let seconds = self.limit.as_secs();
                notify(&format!("{}, at most {seconds} s", waits("rank 0 waits for")));
            }
            if self.left().is_zero() {
                let seconds = self.limit.as_secs();
                return refuse(format!("rank 0 waited {seconds} s {}", waits("in vain for")));
            }
            let Some((mut channel, hello)) = door.next(self.left().min(PAUSE)) else { continue };
            let said = match Hello::read(&hello) {
                None => Some("it said something that makes no sense".to_owned()),
                Some(hello) => match hello.obstacle(size) {
                    Some(obstacle) => Some(obstacle),
                    None if is_here(&guests[hello.rank]) => Some(format!(
                        "rank {} has joined already; do two runs use one MASTER_PORT?",
                        hello.rank
                    )),
                    None => {
                        guests[hello.rank] = Some((channel, hello.address));
                        continue;
                    }
                },
            };
            let said = said.unwrap_or_default();
            // The other side gives up with this text; if it has gone already, nothing is lost.
            let _ = channel.send(format!("no {said}").as_bytes());
            let who = channel
                .stream()
                .peer_addr()
                .map_or("a rank".into(), |peer| peer.ip().to_canonical().to_string());
            let text = format!("; {who} was refused: {said}");
            if turned_away.len() < TURNED_AWAY && !turned_away.contains(&text) {
                notify(text.trim_start_matches("; "));
                turned_away.push(text);
            }
        }
        let addresses = addresses(own.address, &guests);
        let mut guests: Vec<Channel> = guests.into_iter().flatten().map(|(channel, _)| channel).collect();
        // Who comes from the address that it reaches, or by a loopback address, is on this machine.
        let is_elsewhere =
            |channel: &Channel| match (channel.stream().local_addr(), channel.stream().peer_addr()) {
                (Ok(own), Ok(peer)) => own.ip() != peer.ip() && !peer.ip().to_canonical().is_loopback(),
                _ => false,
            };
        if let Some(text) = inner(&addresses).filter(|_| guests.iter().any(is_elsewhere)) {
            for channel in &mut guests {
                // As above.
                let _ = channel.send(format!("no {text}").as_bytes());
            }
            return refuse(text);
        }
        let table = Table::new(addresses, sealed)?;
        let sent = [b"table ".as_slice(), &table.write()].concat();
        let mut failure = None;
        for (channel, rank) in guests.iter_mut().zip(1..) {
            if let Err(broken) = channel.send(&sent) {
                failure.get_or_insert(lost(rank, &broken));
            }
        }
        let mut reports = Reports::of(guests);
        let links = match failure {
            Some(failure) => Err(failure),
            None => {
                let mut heard = || reports.hear(Duration::ZERO).map(Error::Join);
                mesh::connect(0, &table, &own, &self.lock.secret, &mut heard)
            }
        };
        let mut failure = links.as_ref().err().map(plain);
        let until = Instant::now() + mesh::LIMIT + PROMPT;
        while let Some(rank) = reports.missing().filter(|_| failure.is_none()) {
            failure = reports.hear(PAUSE);
            if failure.is_none() && Instant::now() >= until {
                failure = Some(plain(&lost(rank, &Broken::Silent)));
            }
        }
        let last = failure.as_ref().map_or_else(|| "go".to_owned(), |failure| format!("no {failure}"));
        for channel in &mut reports.guests {
            // A rank that is gone is found by its connection.
            let _ = channel.send(last.as_bytes());
        }
        match failure {
            Some(failure) => refuse(failure),
            None => Ok((links?, own.address.ip())),
        }
    }

    /// Another rank: comes to rank 0, and connects to all when all are there.
    fn come(&self, notify: &dyn Fn(&str)) -> Result<(Vec<Option<Link>>, IpAddr)> {
        let (rank, began) = (self.place.rank, Instant::now());
        let notice = NOTICE.min(self.limit / 2);
        let mut is_noticed = false;
        let seconds = self.limit.as_secs();
        let mut note = |text: &str| {
            if !is_noticed && began.elapsed() >= notice {
                is_noticed = true;
                notify(&format!("{text}, at most {seconds} s"));
            }
        };
        let (mut channel, at) = self.find(&mut note)?;
        let reached_by =
            channel.stream().local_addr().map_err(|e| Error::system("ask for the own address", e))?;
        let own = self.own_door(reached_by.ip())?;
        let hello = Hello { rank, size: self.place.world_size, address: own.address };
        channel.send(&hello.write()).map_err(|broken| lost(0, &broken))?;
        let said = loop {
            match channel.receive(Instant::now() + notice.min(self.left()), &|| true) {
                Ok(said) => break said,
                Err(Broken::Silent) => {
                    note(&format!("rank {rank} waits with rank 0 ({at}) for other ranks"));
                    if self.left().is_zero() {
                        return refuse(format!(
                            "rank {rank} waited {seconds} s with rank 0 ({at}) for other ranks"
                        ));
                    }
                }
                Err(broken) => return Err(lost(0, &broken)),
            }
        };
        let table = match said.strip_prefix(b"table ") {
            Some(table) => Table::read(table, self.place.world_size),
            None => return refuse(reason(&said)),
        };
        let table = table.ok_or_else(|| Error::Join("rank 0 sent a table that makes no sense".into()))?;
        let mut ended = || {
            let says = is_closed(channel.stream());
            says.then(|| match channel.receive(Instant::now() + PROMPT, &|| true) {
                Ok(said) => Error::Join(reason(&said)),
                Err(broken) => lost(0, &broken),
            })
        };
        let links = mesh::connect(rank, &table, &own, &self.lock.secret, &mut ended);
        let report = links.as_ref().map_or_else(plain, |_| "connected".into());
        channel.send(report.as_bytes()).map_err(|broken| lost(0, &broken))?;
        // Rank 0 waits for all as long as each may take.
        let until = Instant::now() + 2 * (mesh::LIMIT + PROMPT);
        match channel.receive(until, &|| true) {
            Ok(said) if said == b"go" => Ok((links?, own.address.ip())),
            Ok(said) => refuse(reason(&said)),
            Err(broken) => Err(lost(0, &broken)),
        }
    }

    /// Why MASTER_ADDR leads this rank to its own machine although rank 0 is on another one.
    fn astray(&self) -> Option<String> {
        // Ranks are counted machine by machine, so those of rank 0's machine have the same number on it as among all.
        let elsewhere = self.several() && self.place.rank != self.place.local_rank;
        let is_here = matches!(Place::of(&self.host, 0), Place::Here(_) | Place::Itself(_));
        (elsewhere && is_here).then(|| {
            format!(
                "MASTER_ADDR={} is the machine of rank {} itself, where nobody listens; set it to an address of the machine of \
                 rank 0",
                self.host, self.place.rank
            )
        })
    }

    /// Finds rank 0 at one of the ports.
    fn find(&self, note: &mut dyn FnMut(&str)) -> Result<(Channel, SocketAddr)> {
        let (rank, host, began) = (self.place.rank, &self.host, Instant::now());
        let astray = self.astray();
        let mut last = String::new();
        loop {
            let mut is_wrong = false;
            for &port in &self.ports {
                for address in self.addresses(port)? {
                    let limit = CONNECT.min(self.left().max(PAUSE));
                    let opened = TcpStream::connect_timeout(&address, limit);
                    match opened
                        .map_err(|e| e.to_string())
                        .map(|stream| Channel::open(stream, &self.lock.secret))
                    {
                        Ok(Ok(channel)) => return Ok((channel, address)),
                        Ok(Err(Broken::WrongSecret)) => is_wrong = true,
                        Ok(Err(broken)) => last = format!("{address}: {broken}"),
                        // What the first port says is worth more than that nobody is at the others.
                        Err(e) if port == self.ports[0] || last.is_empty() => {
                            last = format!("{address}: {e}")
                        }
                        Err(_) => {}
                    }
                }
            }
            let is_long = began.elapsed() >= WRONG.min(self.limit / 2);
            if is_wrong && is_long {
                return refuse(format!(
                    "rank 0 at {host}:{} has another run id or token; MASTER_PORT, the run id and OARLOCK_RDZV_TOKEN must be the \
                     same on all machines",
                    self.ports[0]
                ));
            }
            if let Some(astray) = astray.as_ref().filter(|_| is_long) {
                return refuse(astray.clone());
            }
            if self.left().is_zero() {
                let seconds = self.limit.as_secs();
                return refuse(format!("rank {rank} did not find rank 0 within {seconds} s at {last}"));
            }
            note(&format!("rank {rank} looks for rank 0 at {last}"));
            std::thread::sleep(PAUSE);
        }
    }
}

fn is_closed(stream: &TcpStream) -> bool {
    // A rank that waits says nothing, so something to read is an end.
    let _ = stream.set_nonblocking(true);
    let looked = stream.peek(&mut [0]);
    let _ = stream.set_nonblocking(false);
    !looked.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock)
}

/// Somebody who was refused, behind the names of those who are missing.
fn strange(address: IpAddr, why: &Broken) -> String {
    match why {
        Broken::WrongSecret => format!(
            "; {address} came with another run id or token (OARLOCK_RDZV_TOKEN must be the same on all machines)"
        ),
        why => format!("; {address} was refused: {why}"),
    }
}

/// Why rank 0 refuses.
fn reason(said: &[u8]) -> String {
    let said = printable(&String::from_utf8_lossy(said), TEXT);
    said.strip_prefix("no ").map_or_else(|| "rank 0 said something that makes no sense".into(), str::to_owned)
}
