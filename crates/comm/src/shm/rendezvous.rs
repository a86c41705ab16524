//! The rendezvous of ranks that another launcher started and that inherited no file: local rank 0 creates the segment and
//! sends it to the others over a socket. The README explains the protocol and numbers its invariants.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::Member;
use super::launcher_id::{LauncherId, RUN_ID};
use super::segment::{FORMAT, Segment, Token};
use super::socket::{Connection, Listener, Received, wait};
use crate::digest::digest;
use crate::error::{Error, Result};
use crate::launched::{Launched, NOTICE, join_limit};
use crate::procfs::{describe, socket_owner, sockets_named, user};
use crate::program::{build_hash, named};
use crate::wire::{hex, nonce, printable};

/// How long a rank of a run that has just ended may still have the socket name.
const GRACE: Duration = Duration::from_secs(2);
/// The host tells all ranks when the time is over; they wait this much longer for its answer.
const SLACK: Duration = Duration::from_secs(2);
/// Names of this run at which a rank looks for the host, where another user has taken the first.
const NAMES: usize = 1024;
/// Connections that are accepted before those that are here are looked at again.
const AT_ONCE: usize = 256;
/// Connections that may be open without having said who they are; beyond this number the oldest is closed.
const MAX_UNKNOWN: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"oarlock1");
/// The first byte of each record after the first.
const REFUSED: u8 = 0;
const WELCOME: u8 = 1;
const JOINED: u8 = 2;
const GO: u8 = 3;

/// What a rank says about itself: all that is read before it is trusted.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Hello {
    magic: u64,
    /// A digest of the version of the program.
    version: u64,
    /// The hash of the program.
    build: u64,
    /// A digest of the address and the name of the run.
    run: u64,
    launcher_digest: u64,
    launcher_pid: u64,
    rank: u64,
    local_rank: u64,
    world_size: u64,
}

/// Joins the ranks of this machine; returns when all have joined. If the wait is long, `notify` is called once.
pub(super) fn join(place: &Launched, notify: &dyn Fn(&str)) -> Result<Member> {
    let limit = join_limit()?;
    let uid = rustix::process::getuid().as_raw();
    // Process numbers mean nothing outside their namespace, so ranks of two namespaces never meet.
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let name = format!("oarlock-{uid}-{:016x}", digest(format!("{namespace:?} {}", place.run_id).as_bytes()));
    let launcher = LauncherId::of_this_process(&place.rank_variables)?;
    let rendezvous = Rendezvous { place, name, uid, launcher, limit, notify };
    match place.local_rank {
        0 => rendezvous.host(),
        _ => rendezvous.connect_and_join(),
    }
}

struct Rendezvous<'a> {
    place: &'a Launched,
    /// The name of the socket.
    name: String,
    uid: u32,
    launcher: LauncherId,
    limit: Duration,
    notify: &'a dyn Fn(&str),
}

/// A connection of the host, and its rank once it has said so.
struct Peer {
    connection: Connection,
    rank: Option<usize>,
    joined: bool,
}

impl Peer {
    fn describe(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank}, {}", describe(self.connection.pid)),
            None => describe(self.connection.pid),
        }
    }

    fn send(&self, kind: u8, rest: &[u8], file: Option<&Segment>) {
        let record: Vec<u8> = std::iter::once(kind).chain(rest.iter().copied()).collect();
        // A peer that is gone is noticed at the next receive.
        let _ = self.connection.send(&record, file.map(Segment::file));
    }
}

impl Rendezvous<'_> {
    fn hello(&self) -> Hello {
        let backwards: Vec<u8> = self.place.run_id.bytes().rev().collect();
        Hello {
            magic: MAGIC,
            version: digest(format!("{} {FORMAT}", env!("CARGO_PKG_VERSION")).as_bytes()),
            build: build_hash(),
            run: digest(&backwards),
            launcher_digest: self.launcher.digest,
            launcher_pid: u64::from(self.launcher.pid),
            rank: self.place.rank as u64,
            local_rank: self.place.local_rank as u64,
            world_size: self.place.world_size as u64,
        }
    }

    /// Local rank 0: accepts the others, sends them the segment, and waits until all have joined.
    fn host(&self) -> Result<Member> {
        let listener = self.listen()?;
        let mut peers = Vec::new();
        let outcome = self.accept_all(&listener, &mut peers).and_then(|()| {
            listener.close();
            self.send_segment(&mut peers)
        });
        match outcome {
            Ok(mut member) => {
                peers.iter().for_each(|peer| peer.send(GO, &[], None));
                // No other run can take the name as long as this rank lives.
                member.listener = Some(listener);
                Ok(member)
            }
            Err(error) => {
                let text = match &error {
                    Error::Join(text) => text.clone(),
                    error => error.to_string(),
                };
                peers.iter().for_each(|peer| peer.send(REFUSED, text.as_bytes(), None));
                Err(error)
            }
        }
    }

    fn listen(&self) -> Result<Listener> {
        let deadline = Instant::now() + GRACE;
        loop {
            if let Some(listener) = Listener::bind(&self.name)? {
                return Ok(listener);
            }
            // Everybody on this machine can take a name. One that nobody guesses stands in for it, which ranks of this user find.
            if self.is_of_another_user(&self.name) {
                let random = nonce().map_err(|broken| Error::system("choose a name for a socket", broken))?;
                if let Some(listener) = Listener::bind(&format!("{}-{}", self.name, hex(&random[..8])))? {
                    return Ok(listener);
                }
            }
            if Instant::now() > deadline {
                return Err(self.address_in_use());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether a name that is taken is a socket of another user. What cannot be told is not.
    fn is_of_another_user(&self, name: &str) -> bool {
        if let Ok(Some(connection)) = Connection::open(name) {
            return connection.uid != self.uid;
        }
        match socket_owner(name) {
            Some(pid) => user(pid).is_some_and(|uid| uid != self.uid),
            // Those of this user can be seen; the socket may have been closed a moment ago.
            None => sockets_named(name, NAMES).iter().any(|taken| taken == name) && self.uid != 0,
        }
    }

    fn address_in_use(&self) -> Error {
        let owner = socket_owner(&self.name).map_or_else(|| "another process".into(), describe);
        Error::Join(format!(
            "another run on this machine has the same address ({}): {owner} is its first rank; wait until it \
             ends, or give one of the two another --master_port",
            self.place.run_id
        ))
    }

    /// Accepts connections until every rank has said who it is.
    fn accept_all(&self, listener: &Listener, peers: &mut Vec<Peer>) -> Result<()> {
        let deadline = Instant::now() + self.limit;
        let mut notice = Some(self.notice_at());
        // The last rank that was refused, which may explain who is missing.
        let mut refused = None;
        loop {
            for _ in 0..AT_ONCE {
                let Some(connection) = listener.accept()? else { break };
                // Those of other users are closed at once.
                if connection.uid == self.uid {
                    peers.push(Peer { connection, rank: None, joined: false });
                }
            }
            let mut index = 0;
            while index < peers.len() {
                match (peers[index].connection.receive(), peers[index].rank) {
                    (Received::Nothing, _) => index += 1,
                    (Received::Record(record, _), None) => match self.check(&record, peers) {
                        Ok(rank) => {
                            peers[index].rank = Some(rank);
                            index += 1;
                        }
                        Err(text) => {
                            refused = Some(format!("; {} was refused: {text}", peers[index].describe()));
                            peers.remove(index).send(REFUSED, text.as_bytes(), None);
                        }
                    },
                    (Received::Closed, None) => drop(peers.remove(index)),
                    (_, Some(_)) => return Err(ended(&peers.remove(index).describe())),
                }
            }
            let n_known = peers.iter().filter(|peer| peer.rank.is_some()).count();
            if n_known + 1 == self.place.world_size {
                peers.retain(|peer| peer.rank.is_some());
                return Ok(());
            }
            if peers.len() - n_known > MAX_UNKNOWN
                && let Some(oldest) = peers.iter().position(|peer| peer.rank.is_none())
            {
                peers.remove(oldest);
            }
            // Before it gives up, which a process that got no time until then does at once.
            if notice.is_some_and(|at| Instant::now() >= at) {
                notice = None;
                self.notify_waiting(&format!("ranks {} of {}", self.absent(peers), self.place.world_size));
            }
            if Instant::now() >= deadline {
                return Err(self.missing(peers, refused.unwrap_or_default()));
            }
            let files: Vec<_> = peers.iter().map(|peer| peer.connection.as_fd()).collect();
            wait(&[&[listener.as_fd()], files.as_slice()].concat(), notice.unwrap_or(deadline));
        }
    }

    fn notice_at(&self) -> Instant {
        Instant::now() + NOTICE.min(self.limit / 2)
    }

    fn notify_waiting(&self, whom: &str) {
        (self.notify)(&format!(
            "rank {} waits for {whom}, at most {} s; if no launcher started this process, its variables are left over \
             from another run: unset {} and the others of {}",
            self.place.rank,
            self.limit.as_secs(),
            self.place.world_size_variable,
            self.place.launcher,
        ));
    }

    /// The ranks that have not connected.
    fn absent(&self, peers: &[Peer]) -> String {
        let here =
            |rank: &usize| *rank == self.place.rank || peers.iter().any(|peer| peer.rank == Some(*rank));
        let missing: Vec<String> =
            (0..self.place.world_size).filter(|rank| !here(rank)).map(|rank| rank.to_string()).collect();
        missing.join(", ")
    }

    fn missing(&self, peers: &[Peer], refused: String) -> Error {
        Error::Join(format!(
            "after {} s these ranks have not joined: {} of {}; look for their errors above, or start all ranks of \
             {}{refused}",
            self.limit.as_secs(),
            self.absent(peers),
            self.place.world_size,
            self.place.run_id,
        ))
    }

    /// The rank of the process that sent `record`, or why it is refused.
    fn check(&self, record: &[u8], peers: &[Peer]) -> std::result::Result<usize, String> {
        let mine = self.hello();
        let theirs = bytemuck::try_pod_read_unaligned::<Hello>(record).ok().filter(|h| h.magic == MAGIC);
        let Some(theirs) = theirs else { return Err("this connection is not from a rank".into()) };
        if theirs.version != mine.version {
            return Err(
                "the ranks are different versions of this program; start all of them from one build".into()
            );
        }
        if theirs.build != mine.build {
            return Err(format!(
                "rank {} is build {} of this program, and rank {} is build {}; start all of them from one build",
                theirs.rank,
                named(theirs.build),
                mine.rank,
                named(mine.build)
            ));
        }
        if (theirs.run, theirs.launcher_digest, theirs.launcher_pid)
            != (mine.run, mine.launcher_digest, mine.launcher_pid)
        {
            let launcher = |pid: u64| match u32::try_from(pid) {
                Ok(0) | Err(_) => format!("named by {RUN_ID}"),
                Ok(pid) => format!("started by {}", describe(pid)),
            };
            return Err(format!(
                "another run has the same address ({}): its first rank was {}, this one was {}; give one of the two \
                 another --master_port; if these ranks belong together, set {RUN_ID} to the same name for all",
                self.place.run_id,
                launcher(mine.launcher_pid),
                launcher(theirs.launcher_pid),
            ));
        }
        if theirs.world_size != mine.world_size {
            return Err(format!(
                "rank {} was started as one of {} ranks, rank {} as one of {}; start all with the same number",
                mine.rank, mine.world_size, theirs.rank, theirs.world_size
            ));
        }
        let rank = theirs.rank as usize;
        if theirs.rank >= mine.world_size || theirs.local_rank >= mine.world_size {
            return Err(format!("there is no rank {} of {}", theirs.rank, mine.world_size));
        }
        let owner = match rank == self.place.rank || theirs.local_rank == 0 {
            true => Some(std::process::id()),
            false => peers.iter().find(|peer| peer.rank == Some(rank)).map(|peer| peer.connection.pid),
        };
        match owner {
            Some(pid) => Err(format!(
                "rank {rank} has already connected ({}); is another run with the same address ({}) being started?",
                describe(pid),
                self.place.run_id
            )),
            None => Ok(rank),
        }
    }

    /// Creates the segment, sends it to all, and waits until all have joined.
    fn send_segment(&self, peers: &mut [Peer]) -> Result<Member> {
        let (segment, token) = Segment::create(self.place.world_size)?;
        let segment = Arc::new(segment);
        let member = Member::join(segment.clone(), self.place.rank)?;
        let deadline = Instant::now() + self.limit;
        peers.iter().for_each(|peer| peer.send(WELCOME, &token.0.to_le_bytes(), Some(&segment)));
        loop {
            for peer in peers.iter_mut() {
                match peer.connection.receive() {
                    Received::Nothing => {}
                    Received::Record(record, _) if record == [JOINED] && !peer.joined => peer.joined = true,
                    _ => return Err(ended(&peer.describe())),
                }
            }
            if peers.iter().all(|peer| peer.joined) {
                return Ok(member);
            }
            if Instant::now() >= deadline {
                let late: Vec<String> =
                    peers.iter().filter(|peer| !peer.joined).map(Peer::describe).collect();
                let seconds = self.limit.as_secs();
                return Err(Error::Join(format!(
                    "these ranks connected, but did not join within {seconds} s: {}",
                    late.join("; ")
                )));
            }
            let files: Vec<_> = peers.iter().map(|peer| peer.connection.as_fd()).collect();
            wait(&files, deadline);
        }
    }

    /// Every other rank.
    fn connect_and_join(&self) -> Result<Member> {
        let host = self.connect()?;
        // If it cannot be sent the host is gone, which the next receive reports.
        let _ = host.send(bytemuck::bytes_of(&self.hello()), None);
        let (rest, file) = self.receive(&host, WELCOME)?;
        let (Ok(token), Some(file)) = (rest.try_into().map(u128::from_le_bytes), file) else {
            return Err(Error::Join("rank 0 sent no shared memory".into()));
        };
        let segment = Segment::open(file, self.place.world_size, Token(token))?;
        let member = Member::join(Arc::new(segment), self.place.rank)?;
        let _ = host.send(&[JOINED], None);
        self.receive(&host, GO)?;
        Ok(member)
    }

    fn connect(&self) -> Result<Connection> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        let mut check_at = began + GRACE;
        let mut notice = Some(self.notice_at());
        loop {
            let squatter = match self.look()? {
                Ok(connection) => return Ok(connection),
                Err(squatter) => squatter,
            };
            if notice.is_some_and(|at| Instant::now() >= at) {
                notice = None;
                self.notify_waiting("local rank 0");
            }
            if began.elapsed() >= self.limit {
                let squatter = squatter.map_or_else(String::new, |(pid, uid)| {
                    format!("; {} of user {uid} has taken the address of this run", describe(pid))
                });
                return Err(Error::Join(format!(
                    "local rank 0 has not joined within {} s; look for its error above, or start all ranks of {}{squatter}",
                    self.limit.as_secs(),
                    self.place.run_id
                )));
            }
            if Instant::now() > check_at {
                // If the name is taken and nobody listens, it is that of a run whose ranks have all joined.
                let owner = socket_owner(&self.name);
                if owner.is_some_and(|pid| user(pid).is_none_or(|uid| uid == self.uid)) {
                    return Err(self.address_in_use());
                }
                check_at = Instant::now() + GRACE;
            }
            std::thread::sleep(pause);
            pause = Duration::from_millis(50).min(pause * 2);
        }
    }

    /// A connection to the host, if it is there, or else the process and the user that have its name.
    fn look(&self) -> Result<std::result::Result<Connection, Option<(u32, u32)>>> {
        let first = Connection::open(&self.name)?;
        let squatter = match first {
            Some(connection) if connection.uid == self.uid => return Ok(Ok(connection)),
            Some(connection) => Some((connection.pid, connection.uid)),
            // Nobody listens, or somebody who does not answer.
            None => None,
        };
        for name in sockets_named(&format!("{}-", self.name), NAMES) {
            if let Some(other) = Connection::open(&name)?.filter(|other| other.uid == self.uid) {
                return Ok(Ok(other));
            }
        }
        Ok(Err(squatter))
    }

    /// The next record of the host, which should be of this kind.
    fn receive(&self, host: &Connection, kind: u8) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        match host.receive_until(Instant::now() + self.limit + SLACK) {
            Received::Record(mut record, file) if record[0] == kind => Ok((record.split_off(1), file)),
            Received::Record(record, _) if record[0] == REFUSED => {
                Err(Error::Join(printable(&String::from_utf8_lossy(&record[1..]), record.len())))
            }
            Received::Record(..) => Err(Error::Join("local rank 0 sent an unexpected record".into())),
            Received::Closed => Err(ended(&format!("local rank 0, process {}", host.pid))),
            Received::Nothing => Err(Error::Join(format!(
                "local rank 0, {}, did not answer within {} s",
                describe(host.pid),
                (self.limit + SLACK).as_secs()
            ))),
        }
    }
}

fn ended(who: &str) -> Error {
    Error::Join(format!("{who}, ended while the ranks were joining; look for its error above"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// However late a rank looks at the clock, it has said for whom it waits when it gives up.
    #[test]
    fn who_gives_up_has_said_before_for_whom_it_waits() {
        let said = RefCell::new(Vec::new());
        let place = Launched {
            launcher: "a test",
            rank: 0,
            world_size: 2,
            world_size_variable: "WORLD_SIZE",
            local_rank: 0,
            local_world_size: 2,
            run_id: "a test".into(),
            common_id: String::new(),
            rank_variables: Vec::new(),
            is_mpi: false,
            has_address: false,
            requested: None,
        };
        let rendezvous = Rendezvous {
            place: &place,
            name: format!("oarlock-test-{}", std::process::id()),
            uid: rustix::process::getuid().as_raw(),
            launcher: LauncherId::of_this_process(&[]).unwrap(),
            limit: Duration::ZERO,
            notify: &|text| said.borrow_mut().push(text.to_owned()),
        };
        assert!(rendezvous.host().is_err() && rendezvous.connect().is_err());
        let whom = |text: &String| text.split(", at most").next().map(str::to_owned);
        let whom: Vec<String> = said.borrow().iter().filter_map(whom).collect();
        assert_eq!(whom, ["rank 0 waits for ranks 1 of 2", "rank 0 waits for local rank 0"]);
    }
}
