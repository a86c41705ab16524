//! Ranks that another launcher started find each other, with no file inherited: local rank 0 makes the segment and hands
//! it to the others over a socket. The README explains the protocol and numbers its invariants.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::group::Member;
use super::origin::{Origin, RUN, holder, named};
use super::segment::{FORMAT, Segment, Token};
use super::socket::{Connection, Listener, Received, wait};
use super::transport::SharedMemory;
use crate::call::digest;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::{Launched, join_limit};

/// After this time it tells for whom it waits.
const NOTICE: Duration = Duration::from_secs(5);
/// How long a rank of a run that just ended may still hold the name.
const GRACE: Duration = Duration::from_secs(2);
/// The host tells all when the time is over; who waits for its word gives it this much more.
const SLACK: Duration = Duration::from_secs(2);
/// Connections that have not said who they are; beyond, the oldest goes.
const STRANGERS: usize = 64;

const MAGIC: u64 = u64::from_le_bytes(*b"oarlock1");
/// The first byte of each record after the first.
const REFUSED: u8 = 0;
const WELCOME: u8 = 1;
const JOINED: u8 = 2;
const GO: u8 = 3;

/// What a rank says of itself, all that is read before it is believed.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Hello {
    magic: u64,
    /// Of the program.
    version: u64,
    /// Of the address and the name of the run.
    run: u64,
    origin_mark: u64,
    origin_pid: u64,
    rank: u64,
    local_rank: u64,
    world_size: u64,
}

/// Joins the ranks of this machine; returns when all have. `tell` hears for whom it waits, if it does for long.
pub(super) fn join(place: &Launched, tell: &dyn Fn(&str)) -> Result<Communicator> {
    let limit = join_limit()?;
    let uid = rustix::process::getuid().as_raw();
    // Process numbers mean nothing outside their namespace, so ranks of two never meet.
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let name = format!("oarlock-{uid}-{:016x}", digest(format!("{namespace:?} {}", place.run).as_bytes()));
    let origin = Origin::of_this_process(&place.own)?;
    let meeting = Meeting { place, name, uid, origin, limit, tell };
    let member = match place.local_rank {
        0 => meeting.host()?,
        _ => meeting.guest()?,
    };
    Ok(Communicator::new(Arc::new(SharedMemory::world(member))))
}

struct Meeting<'a> {
    place: &'a Launched,
    name: String,
    uid: u32,
    origin: Origin,
    limit: Duration,
    tell: &'a dyn Fn(&str),
}

/// A connection of the host, and its rank once it has said so.
struct Peer {
    connection: Connection,
    rank: Option<usize>,
    joined: bool,
}

impl Peer {
    fn name(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank}, {}", named(self.connection.pid)),
            None => named(self.connection.pid),
        }
    }

    fn tell(&self, kind: u8, rest: &[u8], file: Option<&Segment>) {
        let record: Vec<u8> = std::iter::once(kind).chain(rest.iter().copied()).collect();
        // A peer that is gone is noticed when it is listened to.
        let _ = self.connection.send(&record, file.map(Segment::file));
    }
}

impl Meeting<'_> {
    fn hello(&self) -> Hello {
        let backwards: Vec<u8> = self.place.run.bytes().rev().collect();
        Hello {
            magic: MAGIC,
            version: digest(format!("{} {FORMAT}", env!("CARGO_PKG_VERSION")).as_bytes()),
            run: digest(&backwards),
            origin_mark: self.origin.mark,
            origin_pid: u64::from(self.origin.pid),
            rank: self.place.rank as u64,
            local_rank: self.place.local_rank as u64,
            world_size: self.place.world_size as u64,
        }
    }

    /// Local rank 0: gathers the others, hands them the segment, and sees all of them in it.
    fn host(&self) -> Result<Member> {
        let listener = self.listen()?;
        let mut peers = Vec::new();
        let outcome = self.gather(&listener, &mut peers).and_then(|()| {
            listener.close();
            self.seat(&mut peers)
        });
        match outcome {
            Ok(mut member) => {
                peers.iter().for_each(|peer| peer.tell(GO, &[], None));
                // As long as this rank lives no other run takes the name.
                member.name = Some(listener);
                Ok(member)
            }
            Err(error) => {
                let text = match &error {
                    Error::Join(text) => text.clone(),
                    error => error.to_string(),
                };
                peers.iter().for_each(|peer| peer.tell(REFUSED, text.as_bytes(), None));
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
            if Instant::now() > deadline {
                return Err(self.taken());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn taken(&self) -> Error {
        let who = holder(&self.name).map_or_else(|| "another process".into(), named);
        Error::Join(format!(
            "another run on this machine has the same address ({}): {who} is its first rank; wait for its end, or give \
             one of the two another --master_port",
            self.place.run
        ))
    }

    /// Accepts until every rank has said who it is.
    fn gather(&self, listener: &Listener, peers: &mut Vec<Peer>) -> Result<()> {
        let deadline = Instant::now() + self.limit;
        let mut notice = Some(self.notice());
        // The last who was sent away, which may explain who is missing.
        let mut refused = None;
        loop {
            while let Some(connection) = listener.accept()? {
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
                            refused = Some(format!("; {} was sent away: {text}", peers[index].name()));
                            peers.remove(index).tell(REFUSED, text.as_bytes(), None);
                        }
                    },
                    (Received::Closed, None) => drop(peers.remove(index)),
                    (_, Some(_)) => return Err(ended(&peers.remove(index).name())),
                }
            }
            let n_known = peers.iter().filter(|peer| peer.rank.is_some()).count();
            if n_known + 1 == self.place.world_size {
                peers.retain(|peer| peer.rank.is_some());
                return Ok(());
            }
            if peers.len() - n_known > STRANGERS
                && let Some(oldest) = peers.iter().position(|peer| peer.rank.is_none())
            {
                peers.remove(oldest);
            }
            if Instant::now() >= deadline {
                return Err(self.missing(peers, refused.unwrap_or_default()));
            }
            if notice.is_some_and(|at| Instant::now() >= at) {
                notice = None;
                self.tell_waits(&format!("ranks {} of {}", self.absent(peers), self.place.world_size));
            }
            let files: Vec<_> = peers.iter().map(|peer| peer.connection.as_fd()).collect();
            wait(&[&[listener.as_fd()], files.as_slice()].concat(), notice.unwrap_or(deadline));
        }
    }

    fn notice(&self) -> Instant {
        Instant::now() + NOTICE.min(self.limit / 2)
    }

    fn tell_waits(&self, whom: &str) {
        (self.tell)(&format!(
            "rank {} waits for {whom}, at most {} s; if no launcher started this process, its variables are left over \
             from another run: unset {} and the others of {}",
            self.place.rank,
            self.limit.as_secs(),
            self.place.world_size_variable,
            self.place.launcher,
        ));
    }

    /// The ranks that have not come.
    fn absent(&self, peers: &[Peer]) -> String {
        let here =
            |rank: &usize| *rank == self.place.rank || peers.iter().any(|peer| peer.rank == Some(*rank));
        let missing: Vec<String> =
            (0..self.place.world_size).filter(|rank| !here(rank)).map(|rank| rank.to_string()).collect();
        missing.join(", ")
    }

    fn missing(&self, peers: &[Peer], refused: String) -> Error {
        Error::Join(format!(
            "after {} s these ranks have not come: {} of {}; look for their errors above, or start all ranks of \
             {}{refused}",
            self.limit.as_secs(),
            self.absent(peers),
            self.place.world_size,
            self.place.run,
        ))
    }

    /// Whether who said `record` belongs here; its rank.
    fn check(&self, record: &[u8], peers: &[Peer]) -> std::result::Result<usize, String> {
        let mine = self.hello();
        let theirs = bytemuck::try_pod_read_unaligned::<Hello>(record).ok().filter(|h| h.magic == MAGIC);
        let Some(theirs) = theirs else { return Err("this is no rank of any run".into()) };
        if theirs.version != mine.version {
            return Err(
                "the ranks are different versions of this program; start all of them from one build".into()
            );
        }
        if (theirs.run, theirs.origin_mark, theirs.origin_pid)
            != (mine.run, mine.origin_mark, mine.origin_pid)
        {
            let launcher = |pid: u64| match u32::try_from(pid) {
                Ok(0) | Err(_) => format!("named by {RUN}"),
                Ok(pid) => format!("started by {}", named(pid)),
            };
            return Err(format!(
                "another run has the same address ({}): its first rank was {}, this one was {}; give one of the two \
                 another --master_port; if these ranks belong together, set {RUN} to the same word for all",
                self.place.run,
                launcher(mine.origin_pid),
                launcher(theirs.origin_pid),
            ));
        }
        if theirs.world_size != mine.world_size {
            return Err(format!(
                "rank {} was told of {} ranks, rank {} of {}; start all with the same number",
                mine.rank, mine.world_size, theirs.rank, theirs.world_size
            ));
        }
        let rank = theirs.rank as usize;
        if theirs.rank >= mine.world_size || theirs.local_rank >= mine.world_size {
            return Err(format!("there is no rank {} of {}", theirs.rank, mine.world_size));
        }
        let holder = match rank == self.place.rank || theirs.local_rank == 0 {
            true => Some(std::process::id()),
            false => peers.iter().find(|peer| peer.rank == Some(rank)).map(|peer| peer.connection.pid),
        };
        match holder {
            Some(pid) => Err(format!(
                "rank {rank} has come already ({}); is another run with the same address ({}) being started?",
                named(pid),
                self.place.run
            )),
            None => Ok(rank),
        }
    }

    /// Makes the segment, hands it to all, and waits until all are in it.
    fn seat(&self, peers: &mut [Peer]) -> Result<Member> {
        let (segment, token) = Segment::create(self.place.world_size)?;
        let segment = Arc::new(segment);
        let member = Member::join(segment.clone(), self.place.rank)?;
        let deadline = Instant::now() + self.limit;
        peers.iter().for_each(|peer| peer.tell(WELCOME, &token.0.to_le_bytes(), Some(&segment)));
        loop {
            for peer in peers.iter_mut() {
                match peer.connection.receive() {
                    Received::Nothing => {}
                    Received::Record(record, _) if record == [JOINED] && !peer.joined => peer.joined = true,
                    _ => return Err(ended(&peer.name())),
                }
            }
            if peers.iter().all(|peer| peer.joined) {
                return Ok(member);
            }
            if Instant::now() >= deadline {
                let late: Vec<String> = peers.iter().filter(|peer| !peer.joined).map(Peer::name).collect();
                let seconds = self.limit.as_secs();
                return Err(Error::Join(format!(
                    "came, but did not join within {seconds} s: {}",
                    late.join("; ")
                )));
            }
            let files: Vec<_> = peers.iter().map(|peer| peer.connection.as_fd()).collect();
            wait(&files, deadline);
        }
    }

    /// Every other rank.
    fn guest(&self) -> Result<Member> {
        let host = self.connect()?;
        if host.uid != self.uid {
            return Err(Error::Join(format!(
                "{} of user {} holds the meeting place of this run; choose another --master_port",
                named(host.pid),
                host.uid
            )));
        }
        // If it did not go, the host is gone, and that is what the answer will be.
        let _ = host.send(bytemuck::bytes_of(&self.hello()), None);
        let (rest, file) = self.hear(&host, WELCOME)?;
        let (Ok(token), Some(file)) = (rest.try_into().map(u128::from_le_bytes), file) else {
            return Err(Error::Join("rank 0 sent no shared memory".into()));
        };
        let segment = Segment::open(file, self.place.world_size, Token(token))?;
        let member = Member::join(Arc::new(segment), self.place.rank)?;
        let _ = host.send(&[JOINED], None);
        self.hear(&host, GO)?;
        Ok(member)
    }

    fn connect(&self) -> Result<Connection> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(1);
        let mut look = began + GRACE;
        let mut notice = Some(self.notice());
        loop {
            if let Some(connection) = Connection::open(&self.name)? {
                return Ok(connection);
            }
            if began.elapsed() >= self.limit {
                return Err(Error::Join(format!(
                    "local rank 0 has not come within {} s; look for its error above, or start all ranks of {}",
                    self.limit.as_secs(),
                    self.place.run
                )));
            }
            if Instant::now() > look {
                // A name that is held where nobody listens is that of a run whose ranks are all there.
                if holder(&self.name).is_some() {
                    return Err(self.taken());
                }
                look = Instant::now() + GRACE;
            }
            if notice.is_some_and(|at| Instant::now() >= at) {
                notice = None;
                self.tell_waits("local rank 0");
            }
            std::thread::sleep(pause);
            pause = Duration::from_millis(50).min(pause * 2);
        }
    }

    /// The next word of the host, which should be of this kind.
    fn hear(&self, host: &Connection, kind: u8) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        match host.receive_until(Instant::now() + self.limit + SLACK) {
            Received::Record(mut record, file) if record[0] == kind => Ok((record.split_off(1), file)),
            Received::Record(record, _) if record[0] == REFUSED => {
                Err(Error::Join(String::from_utf8_lossy(&record[1..]).into_owned()))
            }
            Received::Record(..) => Err(Error::Join("local rank 0 spoke out of turn".into())),
            Received::Closed => Err(ended(&format!("local rank 0, process {}", host.pid))),
            Received::Nothing => Err(Error::Join(format!(
                "local rank 0, {}, did not answer within {} s",
                named(host.pid),
                (self.limit + SLACK).as_secs()
            ))),
        }
    }
}

fn ended(who: &str) -> Error {
    Error::Join(format!("{who}, ended while the ranks were joining; look for its error above"))
}
