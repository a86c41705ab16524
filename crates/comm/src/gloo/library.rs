//! Gloo as a library of messages: its TCP transport behind the C++ shim. A connection that breaks is recorded, and its messages
//! are never done; the world decides what that means.

use std::collections::VecDeque;
use std::ffi::{CString, c_int, c_void};
use std::net::IpAddr;
use std::os::fd::IntoRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::mesh::Link;
use super::sealed::{Sealed, open, seal};
use crate::error::{Error, Result};
use crate::gloo_shim::{Shim, shim};
use crate::messages::{ByteSpan, InFlight, Library, Lost, Message, NOTICES};

/// Notices of each rank that are received ahead. A rank sends at most two: its failure, and that it has left.
const AHEAD: usize = 2;
/// How long a rank waits at its end until the others have ended too, so that nothing in flight is lost.
const PARTING: Duration = Duration::from_secs(2);
/// The longest text of an error.
const TEXT: usize = 512;

/// The text that the shim has left.
fn text(buffer: &[u8]) -> String {
    crate::stamp::text(buffer)
}

/// The connections of this rank that broke.
struct Losses {
    any: AtomicBool,
    all: Mutex<Vec<Option<Lost>>>,
}

impl Losses {
    fn all(&self) -> MutexGuard<'_, Vec<Option<Lost>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, rank: usize, said: &str) {
        let lost = || Lost { since: Instant::now(), cause: cause(said) };
        self.all()[rank].get_or_insert_with(lost);
        self.any.store(true, Ordering::Release);
    }
}

/// What Gloo says about a broken connection, in our words.
fn cause(said: &str) -> String {
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    // A text begins with the place in Gloo's sources.
    let said = said.rsplit_once("] ").filter(|_| !said.ends_with(']')).map_or(said, |(_, rest)| rest);
    if has(&["wrong proof"]) {
        "what came over its connection was altered on the way, or is not from it (the proof is wrong)".into()
    } else if has(&["closed by peer", "reset by peer", "Broken pipe", "Socket closed"]) {
        "its process ended without saying why (its connection is closed)".into()
    } else if has(&["timed out", "unreachable", "No route to host"]) {
        "its machine does not answer any more (its process, the machine or the network is down)".into()
    } else {
        format!("its connection broke: {said}")
    }
}

/// Notices that are received ahead, with their memory.
type Ahead = VecDeque<(Box<[u8]>, InFlight)>;

/// The connections of this rank to all others.
pub(super) struct Gloo {
    shim: &'static Shim,
    world: NonNull<c_void>,
    rank: usize,
    size: usize,
    losses: Arc<Losses>,
    /// The notices of each rank that are received ahead, with their memory.
    ahead: Mutex<Vec<Ahead>>,
}

// SAFETY: the world of the shim is never freed, and its functions may be called from any thread at any time.
unsafe impl Send for Gloo {}
// SAFETY: as above.
unsafe impl Sync for Gloo {}

/// A message in flight.
struct GlooMessage {
    shim: &'static Shim,
    /// `None` when it is done, or can never be.
    message: Option<NonNull<c_void>>,
    peer: usize,
    bytes: usize,
    losses: Arc<Losses>,
}

// SAFETY: a message of the shim may be asked from any thread.
unsafe impl Send for GlooMessage {}

impl Gloo {
    /// Hands the connections to Gloo: one for each rank, `None` for this one.
    pub(super) fn new(rank: usize, links: Vec<Option<Link>>, address: IpAddr) -> Result<Gloo> {
        let shim = shim().map_err(|why| Error::system("start Gloo", why))?;
        let size = links.len();
        let mut fds: Vec<c_int> = Vec::with_capacity(size);
        // What seals a connection lives as long as it, which is never freed.
        let mut sealed: Vec<*mut c_void> = Vec::with_capacity(size);
        for link in links {
            let (stream, keys) = link.map_or((None, None), |link| (Some(link.stream), link.keys));
            fds.push(stream.map_or(-1, IntoRawFd::into_raw_fd));
            let keys = keys.map(|keys| Box::into_raw(Box::new(Sealed::new(&keys))));
            sealed.push(keys.map_or(std::ptr::null_mut(), <*mut Sealed>::cast));
        }
        let address = CString::new(address.to_string()).unwrap_or_default();
        let mut error = [0u8; TEXT];
        // SAFETY: pointers to locals that outlive the call; one descriptor for each rank, given away, and what seals it, which
        // the shim hands to the two calls while it holds the lock of the connection.
        let world = unsafe {
            let (at, bytes) = (error.as_mut_ptr().cast(), error.len());
            let (rank, size) = (rank as c_int, size as c_int);
            (shim.open)(rank, size, fds.as_ptr(), sealed.as_ptr(), seal, open, address.as_ptr(), at, bytes)
        };
        let world = NonNull::new(world).ok_or_else(|| Error::system("start Gloo", text(&error)))?;
        let losses = Losses { any: AtomicBool::new(false), all: Mutex::new(vec![None; size]) };
        Ok(Gloo {
            shim,
            world,
            rank,
            size,
            losses: Arc::new(losses),
            ahead: Mutex::new((0..size).map(|_| VecDeque::new()).collect()),
        })
    }

    /// Begins a message.
    ///
    /// # Safety
    /// As those of [`Library`].
    unsafe fn begin(&self, receives: bool, peer: usize, slot: usize, span: ByteSpan) -> InFlight {
        let mut error = [0u8; TEXT];
        // SAFETY: the world is never freed; the caller's promise about the bytes; a buffer with its size.
        let message = unsafe {
            let (text, bytes) = (error.as_mut_ptr().cast(), error.len());
            let (receives, peer) = (c_int::from(receives), peer as c_int);
            (self.shim.begin)(
                self.world.as_ptr(),
                receives,
                peer,
                slot as u64,
                span.at.cast(),
                span.bytes,
                text,
                bytes,
            )
        };
        let message = NonNull::new(message);
        if message.is_none() {
            self.losses.record(peer, &text(&error));
        }
        Box::new(GlooMessage {
            shim: self.shim,
            message,
            peer,
            bytes: span.bytes,
            losses: self.losses.clone(),
        })
    }
}

impl Library for Gloo {
    fn name(&self) -> &'static str {
        "Gloo"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    unsafe fn send(&self, to: usize, tag: usize, span: ByteSpan) -> Result<InFlight> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.begin(false, to, tag, span) })
    }

    unsafe fn receive(&self, from: usize, tag: usize, span: ByteSpan) -> Result<InFlight> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.begin(true, from, tag, span) })
    }

    /// Gloo cannot be asked what has arrived, so notices of all ranks are received ahead. A connection without traffic is
    /// found to be broken by them.
    fn take_notice(&self, bytes: usize) -> Result<Option<Vec<u8>>> {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        for (rank, ahead) in ahead.iter_mut().enumerate().filter(|(rank, _)| *rank != self.rank) {
            while ahead.len() < AHEAD {
                let mut buffer = vec![0u8; bytes].into_boxed_slice();
                let span = ByteSpan { at: buffer.as_mut_ptr(), bytes };
                // SAFETY: nobody touches the buffer before the message is done, and it is kept beside the message.
                let message = unsafe { self.begin(true, rank, NOTICES, span) };
                ahead.push_back((buffer, message));
            }
            if let Some((_, message)) = ahead.front_mut()
                && message.poll()?.is_some()
                && let Some((buffer, _)) = ahead.pop_front()
            {
                return Ok(Some(buffer.into_vec()));
            }
        }
        Ok(None)
    }

    /// The sender waits for word that the receive has begun.
    fn gains_from_early_receives(&self) -> bool {
        true
    }

    /// Its own thread moves messages, and wakes who waits for one.
    fn wakes(&self) -> bool {
        true
    }

    fn lost(&self, rank: usize) -> Option<Lost> {
        if !self.losses.any.load(Ordering::Acquire) {
            return None;
        }
        self.losses.all()[rank].clone()
    }

    /// Says that nothing more comes, and waits shortly until all others have said so.
    fn end(&self) {
        let peers = (0..self.size).filter(|&rank| rank != self.rank);
        for rank in peers.clone() {
            // SAFETY: the world is never freed.
            unsafe { (self.shim.half_close)(self.world.as_ptr(), rank as c_int) };
        }
        let began = Instant::now();
        while peers.clone().any(|rank| self.lost(rank).is_none()) && began.elapsed() < PARTING {
            // Finds the ends of connections.
            while self
                .ahead
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter_mut()
                .flatten()
                .any(|(_, message)| message.poll().is_ok_and(|done| done.is_some()))
            {}
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Message for GlooMessage {
    fn poll(&mut self) -> Result<Option<usize>> {
        let Some(message) = self.message else { return Ok(None) };
        let mut error = [0u8; TEXT];
        // SAFETY: a message that is not freed, and a buffer with its size.
        match unsafe { (self.shim.poll)(message.as_ptr(), error.as_mut_ptr().cast(), error.len()) } {
            0 => Ok(None),
            1 => {
                self.message = None;
                // SAFETY: the message is done, and nobody has another pointer to it.
                unsafe { (self.shim.free)(message.as_ptr()) };
                Ok(Some(self.bytes))
            }
            _ => {
                // What the shim has of it stays: the run is over.
                self.message = None;
                self.losses.record(self.peer, &text(&error));
                Ok(None)
            }
        }
    }

    fn wait(&mut self, limit: Duration) {
        match self.message {
            // SAFETY: a message that is not freed.
            Some(message) => unsafe { (self.shim.wait)(message.as_ptr(), limit.as_micros() as u64) },
            None => std::thread::sleep(limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::wire::DataKeys;

    #[test]
    fn what_gloo_says_is_told_in_our_words() {
        let closed =
            cause("[/build/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:4711");
        assert_eq!(closed, "its process ended without saying why (its connection is closed)");
        let down = cause("[gloo/pair.cc:1] Read error [10.0.0.1]:4711: Connection timed out");
        assert!(down.starts_with("its machine does not answer"), "{down}");
        assert_eq!(cause("[gloo/pair.cc:1] odd: 7"), "its connection broke: odd: 7");
        assert!(cause("a record of 10.0.0.1 has a wrong proof").contains("altered on the way"));
    }

    /// Two ranks whose connection leads through `relay`, which sees each stretch of bytes on its way to the second.
    fn through(keys: bool, relay: impl FnMut(&mut [u8]) + Send + 'static) -> (Gloo, Gloo) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let pair = || {
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (one, listener.accept().unwrap().0)
        };
        let ((one, near), (far, other)) = (pair(), pair());
        type Relay = Box<dyn FnMut(&mut [u8]) + Send>;
        let pass = |mut from: TcpStream, mut to: TcpStream, mut relay: Relay| {
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(n @ 1..) = from.read(&mut bytes) {
                    relay(&mut bytes[..n]);
                    if to.write_all(&bytes[..n]).is_err() {
                        return;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Write);
            })
        };
        pass(near.try_clone().unwrap(), far.try_clone().unwrap(), Box::new(relay));
        pass(far, near, Box::new(|_: &mut [u8]| ()));
        let link = |stream, (send, receive): (u8, u8)| {
            let keys = keys.then_some(DataKeys { send: [send; 16], receive: [receive; 16] });
            Some(Link { stream, keys })
        };
        let at = IpAddr::from([127, 0, 0, 1]);
        let first = Gloo::new(0, vec![None, link(one, (1, 2))], at).unwrap();
        (first, Gloo::new(1, vec![link(other, (2, 1)), None], at).unwrap())
    }

    /// Sends bytes from the first rank to the second; what arrives, or what is said of the connection.
    fn send(ranks: &(Gloo, Gloo), bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let (mut from, mut to) = (bytes.to_vec(), vec![0u8; bytes.len()]);
        let span = |bytes: &mut Vec<u8>| ByteSpan { at: bytes.as_mut_ptr(), bytes: bytes.len() };
        // SAFETY: both stay until the message is done, or for good.
        let (mut sent, mut received) = unsafe {
            (ranks.0.send(1, 3, span(&mut from)).unwrap(), ranks.1.receive(0, 3, span(&mut to)).unwrap())
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        let (mut is_sent, mut is_received) = (false, false);
        loop {
            received.wait(Duration::from_millis(1));
            // A message that is half received is not told of the end; what is received ahead is.
            assert_eq!(ranks.1.take_notice(64).unwrap(), None);
            is_sent = is_sent || sent.poll().unwrap().is_some();
            is_received = is_received || received.poll().unwrap().is_some();
            if is_sent && is_received {
                return Ok(to);
            }
            if let Some(lost) = ranks.1.lost(0) {
                std::mem::forget((from, to));
                return Err(lost.cause);
            }
            assert!(Instant::now() < deadline, "neither arrived nor lost");
        }
    }

    #[test]
    fn sealed_messages_arrive_whole_and_nobody_on_the_way_reads_them() {
        if !oarlock_must::have_gloo(crate::gloo_obstacle()) {
            return;
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let its = seen.clone();
        let ranks = through(true, move |bytes| its.lock().unwrap().extend_from_slice(bytes));
        // Of every length around that of a record, and many of them.
        for n in [1, 15, 16, 47, 48, 1000, 65_487, 65_488, 65_489, 65_536, 200_000, 5_000_000] {
            let bytes: Vec<u8> = (0..n).map(|i: usize| (i * 7 + n) as u8).collect();
            assert_eq!(send(&ranks, &bytes).as_ref(), Ok(&bytes), "{n}");
        }
        let marker = b"weights of the run".repeat(40);
        for _ in 0..50 {
            assert_eq!(send(&ranks, &marker).as_ref(), Ok(&marker));
        }
        assert!(!seen.lock().unwrap().windows(16).any(|part| part == &marker[..16]));
    }

    /// A bit that is turned on the way, wherever it is, ends the connection with that reason, and nothing of the record arrives.
    #[test]
    fn what_is_altered_on_the_way_is_never_used() {
        if !oarlock_must::have_gloo(crate::gloo_obstacle()) {
            return;
        }
        for (sealed, at) in [(true, 3), (true, 2), (true, 40), (true, 150), (true, 70_000), (false, 150)] {
            let mut seen = 0;
            let ranks = through(sealed, move |bytes| {
                if (seen..seen + bytes.len()).contains(&at) {
                    bytes[at - seen] ^= 0x40;
                }
                seen += bytes.len();
            });
            let bytes = vec![7; 200_000];
            match (sealed, send(&ranks, &bytes)) {
                (true, Err(cause)) => assert!(cause.contains("altered on the way"), "{at}: {cause}"),
                // This is what the seal is for.
                (false, Ok(received)) => assert_ne!(received, bytes),
                (_, other) => panic!("{at}: {:?}", other.map(|bytes| bytes.len())),
            }
        }
    }
}
