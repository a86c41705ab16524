//! This process as a rank, the groups it is in, and the meeting: who calls what, compared by all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use super::exchange::Exchange;
use super::library::Span;
use super::notice::{LEFT, Notice};
use super::world::{Person, World};
use crate::call::{Operation, Stamp, StampWords, digest, mix, text};
use crate::cores::available_cores;
use crate::error::{Error, Result};
use crate::launched::{Launched, join_limit};
use crate::liveness::process;
use crate::region::Private;
use crate::transport::Request;

/// How long to wait for a rank that lives but does not come, unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// After this time it tells for whom it waits.
const NOTICE: Duration = Duration::from_secs(5);
/// Tags are at least so many, of which notices have one.
pub(super) const CHANNELS: usize = 32_000;
/// Bytes of a post; what does not fit follows in pieces.
const POST: usize = 1024;
/// Bytes of a piece of what follows.
const PIECE: usize = 1 << 20;

/// How a post begins.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    stamp: StampWords,
    /// Bytes that this rank brings, of which the post holds the first.
    bytes: u64,
    phase: [u8; 64],
}

const INLINE: usize = POST - size_of::<Head>();

/// This process in one world; dropped with the last communicator of the rank.
pub(super) struct Member {
    pub(super) world: &'static World,
    timeout_ms: AtomicU64,
    /// Areas of earlier exchanges.
    free: Mutex<Vec<Private>>,
}

impl Member {
    /// Joins the ranks that MPI started, as `place` says.
    pub(super) fn join(place: &Launched, tell: &dyn Fn(&str)) -> Result<Group> {
        let limit = join_limit()?;
        let world = World::get(limit, NOTICE.min(limit / 2), tell)?;
        let (rank, size) = (world.library.rank, world.library.size);
        if (rank, size) != (place.rank, place.world_size) {
            return Err(Error::Join(format!(
                "{} says rank {} of {}, but the MPI library of this program says rank {rank} of {size}; start it with \
                 the mpirun of the MPI it was built with, and with srun say --mpi=pmix or what else that library speaks",
                place.launcher, place.rank, place.world_size
            )));
        }
        let session = world.begin()?;
        let member = Arc::new(Member {
            world,
            timeout_ms: AtomicU64::new(limit.as_millis() as u64),
            free: Mutex::default(),
        });
        let mine = member.person();
        let request = Request {
            sequence: session,
            operation: Operation::Agree,
            elements: 0,
            dtype: None,
            subject: "the start",
            detail: 0,
            site: std::panic::Location::caller(),
        };
        let first = Group { member, channel: 0, ranks: (0..size).collect(), me: rank };
        let (_, all) = first.meet(&request, bytemuck::bytes_of(&mine))?;
        let read = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned::<Person>(bytes).ok();
        let people: Vec<Person> = all.iter().filter_map(read).collect();
        if people.len() != size || people.iter().any(|person| person.version != mine.version) {
            return Err(Error::Join(
                "the ranks are different versions of this program; start one build on all machines".into(),
            ));
        }
        let channel = people.iter().map(|person| person.next_channel).max().unwrap_or(1) as usize;
        World::take_channel(channel);
        world.meet_people(people);
        first.member.set_timeout(TIMEOUT);
        Ok(Group { channel, ..first })
    }

    fn person(&self) -> Person {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let host = [read("/proc/sys/kernel/random/boot_id"), read("/proc/sys/kernel/hostname")].concat();
        let pid = std::process::id();
        let cores = available_cores();
        Person {
            version: digest(format!("{} mpi 1", env!("CARGO_PKG_VERSION")).as_bytes()),
            machine: digest(format!("{} {namespace:?}", host.trim()).as_bytes()),
            cores: cores.iter().fold(cores.len() as u64, |sum, &core| mix(sum, core as u64)),
            pid: u64::from(pid),
            start: process(pid).map_or(0, |(_, start)| start),
            next_channel: World::next_channel() as u64,
        }
    }

    pub(super) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms.load(Ordering::Relaxed))
    }

    pub(super) fn set_timeout(&self, limit: Duration) {
        self.timeout_ms.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A failure of this rank alone: tells the others, and gives back the first failure of the run.
    pub(super) fn fail_alone(&self, error: Error) -> Error {
        match self.world.fail(Notice::peer(self.world.library.rank, &error.to_string())) {
            Error::PeerFailed { rank, .. } if rank == self.world.library.rank => error,
            first => first,
        }
    }

    /// Memory for messages, of an earlier exchange where some fits.
    pub(super) fn area(&self, bytes: usize) -> Result<Private> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        match free.iter().position(|area| (bytes..=2 * bytes.max(4096)).contains(&area.bytes())) {
            Some(index) => Ok(free.swap_remove(index)),
            None => Private::new(bytes),
        }
    }

    pub(super) fn give_back(&self, areas: Vec<Private>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.extend(areas);
        // The latest few: collectives repeat.
        let old = free.len().saturating_sub(4);
        free.drain(..old);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // Finished stays finished.
        self.world.leave(LEFT);
    }
}

/// The ranks that exchange messages on one channel.
pub(super) struct Group {
    pub(super) member: Arc<Member>,
    pub(super) channel: usize,
    /// Ranks of the world, in the order of the group.
    pub(super) ranks: Vec<usize>,
    /// This rank's place among them.
    pub(super) me: usize,
}

impl Group {
    pub(super) fn tag(&self) -> usize {
        self.channel + 1
    }

    /// Waits until all ranks of the group ask for the same as this one, and gathers the bytes that each brings.
    pub(super) fn meet(&self, request: &Request, bytes: &[u8]) -> Result<(Stamp, Vec<Vec<u8>>)> {
        let stamp = Stamp::new(request);
        let world = self.member.world;
        world.check()?;
        let phase = world.phase();
        world.heard(self.ranks[self.me], &stamp, &phase);
        let mut head = Head { stamp: stamp.words(), bytes: bytes.len() as u64, ..Head::zeroed() };
        let mut end = phase.len().min(head.phase.len());
        while !phase.is_char_boundary(end) {
            end -= 1;
        }
        head.phase[..end].copy_from_slice(&phase.as_bytes()[..end]);

        let mut exchange = Exchange::new(self, &stamp);
        let n = self.ranks.len();
        let posts = exchange.area(n * POST).map_err(|error| self.member.fail_alone(error))?;
        // SAFETY: one post for each rank, inside the area.
        let post = |index: usize| unsafe { posts.add(index * POST) };
        let inline = bytes.len().min(INLINE);
        // SAFETY: this rank's post, which nobody reads yet; head and bytes fit.
        unsafe {
            post(self.me).cast::<Head>().write(head);
            post(self.me).add(size_of::<Head>()).copy_from_nonoverlapping(bytes.as_ptr(), inline);
        }
        for peer in exchange.peers() {
            // SAFETY: posts lie in the area; this rank's is not written any more, each other is read once it has come.
            unsafe {
                exchange.send(peer, Span { at: post(self.me), bytes: size_of::<Head>() + inline });
                exchange.receive(peer, Span { at: post(peer), bytes: POST });
            }
        }
        let mut heads: Vec<Option<Head>> = vec![None; n];
        heads[self.me] = Some(head);
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); n];
        while heads.iter().any(Option::is_none) {
            let arrived = heads.iter().flatten().count() - 1;
            let count = |all: &Exchange| all.receives.iter().filter(|lane| lane.done > 0).count();
            exchange.wait_until(|all| count(all) > arrived)?;
            for index in exchange.peers() {
                if heads[index].is_none() && exchange.receives[index].done > 0 {
                    let came = exchange.receives[index].last;
                    // SAFETY: it has come, in memory of this area, and nobody writes it any more.
                    let came = unsafe { std::slice::from_raw_parts(post(index), came.min(POST)) };
                    let (head, rest) = came.split_at_checked(size_of::<Head>()).ok_or_else(|| {
                        self.member.fail_alone(Error::Join("a rank sent what is no post".into()))
                    })?;
                    let head: Head = bytemuck::pod_read_unaligned(head);
                    world.heard(self.ranks[index], &Stamp::from_words(head.stamp), &text(&head.phase));
                    all[index] = rest.to_vec();
                    heads[index] = Some(head);
                }
            }
            self.compare(&heads)?;
        }
        exchange.finish()?;
        drop(exchange);
        all[self.me] = bytes[..inline].to_vec();
        let lengths: Vec<usize> = heads.iter().flatten().map(|head| head.bytes as usize).collect();
        if lengths.iter().any(|&bytes| bytes > INLINE) {
            self.follow(&stamp, bytes, &lengths, &mut all)?;
        }
        Ok((stamp, all))
    }

    /// Gathers what did not fit in the posts.
    fn follow(&self, stamp: &Stamp, bytes: &[u8], lengths: &[usize], all: &mut [Vec<u8>]) -> Result<()> {
        let mut exchange = Exchange::new(self, stamp);
        let rests: Vec<usize> = lengths.iter().map(|bytes| bytes.saturating_sub(INLINE)).collect();
        let whole = exchange.area(rests.iter().sum()).map_err(|error| self.member.fail_alone(error))?;
        let first = |index: usize| rests[..index].iter().sum::<usize>();
        // SAFETY: the rests lie one after the other in the area.
        let rest = |index: usize| unsafe { whole.add(first(index)) };
        // SAFETY: this rank's place in the area, which nobody reads yet.
        unsafe {
            let mine = &bytes[bytes.len().min(INLINE)..];
            rest(self.me).copy_from_nonoverlapping(mine.as_ptr(), mine.len());
        }
        for peer in exchange.peers() {
            for (at, bytes) in pieces(rests[self.me], PIECE) {
                // SAFETY: inside this rank's place, which is not written any more.
                unsafe { exchange.send(peer, Span { at: rest(self.me).add(at), bytes }) };
            }
            for (at, bytes) in pieces(rests[peer], PIECE) {
                // SAFETY: inside that rank's place, which is read once all has come.
                unsafe { exchange.receive(peer, Span { at: rest(peer).add(at), bytes }) };
            }
        }
        exchange.finish()?;
        for (index, out) in all.iter_mut().enumerate() {
            // SAFETY: all has come, and nobody writes any more.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(rest(index), rests[index]) });
        }
        Ok(())
    }

    /// Compares what the ranks that are here called.
    fn compare(&self, heads: &[Option<Head>]) -> Result<()> {
        let stamp = |head: &Head| Stamp::from_words(head.stamp);
        let mut here =
            heads.iter().enumerate().filter_map(|(index, head)| Some((index, stamp(head.as_ref()?))));
        let Some((first, one)) = here.next() else { return Ok(()) };
        let Some((other, two)) = here.find(|(_, stamp)| stamp.key() != one.key()) else { return Ok(()) };
        let (first, other) = ((self.ranks[first], one), (self.ranks[other], two));
        Err(self.member.world.fail(Notice::mismatch(first, other)))
    }
}

/// `length` bytes or elements in pieces of at most `piece`: where each begins, and how long it is.
pub(super) fn pieces(length: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..length).step_by(piece).map(move |at| (at, piece.min(length - at)))
}
