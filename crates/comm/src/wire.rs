//! Bytes between processes that know the same secret: a handshake of fixed size in which both prove that, then frames of
//! limited length, each with its proof. Nothing is parsed before its proof is right, and every read has a limit.
//!
//! One side is the *store*, which listens, and the other the *agent*, which connects. Agents of a launch and ranks that meet
//! over Gloo speak so.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The longest body of a frame.
pub const MAX_FRAME: usize = 64 << 10;
/// How long a handshake, and the rest of a frame that has begun, may take.
pub const PROMPT: Duration = Duration::from_secs(5);
/// A read looks this often whether it is still wanted.
const SLICE: Duration = Duration::from_millis(100);

/// The last byte is the version of what follows.
const MAGIC: [u8; 8] = *b"oarlock\x01";
const TAG: usize = 16;
/// The store's answer to a proof.
const WRONG: u8 = 0;
const RIGHT: u8 = 1;
const BUSY: u8 = 2;

/// Why nothing more comes from the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It closed the connection, or the system did.
    Closed(String),
    /// It said nothing in time.
    Silent,
    /// The caller stopped waiting.
    Stopped,
    /// It does not know the secret.
    WrongSecret,
    /// It has too many connections.
    Busy,
    /// It speaks something else.
    Garbage(&'static str),
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Broken::Closed(cause) => f.write_str(cause),
            Broken::Silent => f.write_str("it did not answer in time"),
            Broken::Stopped => f.write_str("the wait was stopped"),
            Broken::WrongSecret => f.write_str("it does not know the secret"),
            Broken::Busy => f.write_str("it has too many connections"),
            Broken::Garbage(what) => f.write_str(what),
        }
    }
}

/// Proves the knowledge of a secret.
#[derive(Clone)]
pub struct Secret([u8; 32]);

fn mac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // A key of any length is accepted.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn digest(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    mac(key, parts).finalize().into_bytes().into()
}

impl Secret {
    /// The secret of a run: its token, bound to its name.
    pub fn new(token: &str, run_id: &str) -> Secret {
        Secret(digest(token.as_bytes(), &[b"run ", run_id.as_bytes()]))
    }

    /// The token of a round, in hex: whoever does not know the secret cannot tell it from the nonce, which is no secret.
    pub fn of_round(&self, round: u64, nonce: &str) -> String {
        hex(&digest(&self.0, &[b"round ", &round.to_le_bytes(), nonce.as_bytes()]))
    }
}

/// A connection whose both ends have proved to know the secret.
pub struct Channel {
    stream: TcpStream,
    keys: [[u8; 32]; 2],
    counts: [u64; 2],
}

/// Places in `Channel::keys`.
const SENT: usize = 0;
const RECEIVED: usize = 1;

impl Channel {
    /// The agent's side of the handshake.
    ///
    /// # Errors
    /// When the other side does not know the secret, does not answer in time, or is something else.
    pub fn open(mut stream: TcpStream, secret: &Secret) -> Result<Channel, Broken> {
        let (deadline, go_on) = (Instant::now() + PROMPT, || true);
        prepare(&stream)?;
        let mut greeting = [0; 40];
        read(&mut stream, &mut greeting, deadline, &go_on)?;
        let (magic, theirs) = greeting.split_at(8);
        if magic[..7] != MAGIC[..7] {
            return Err(Broken::Garbage("it greets like another kind of program"));
        }
        if magic != MAGIC {
            return Err(Broken::Garbage("it is another version of this program"));
        }
        let ours = nonce()?;
        let mut proof = [0; 64];
        proof[..32].copy_from_slice(&ours);
        proof[32..].copy_from_slice(&digest(&secret.0, &[b"agent", theirs, &ours]));
        write(&mut stream, &proof)?;
        let mut answer = [0; 33];
        read(&mut stream, &mut answer, deadline, &go_on)?;
        match answer[0] {
            RIGHT => {}
            WRONG => return Err(Broken::WrongSecret),
            BUSY => return Err(Broken::Busy),
            _ => return Err(Broken::Garbage("its answer makes no sense")),
        }
        mac(&secret.0, &[b"store", theirs, &ours])
            .verify_slice(&answer[1..])
            .map_err(|_| Broken::WrongSecret)?;
        Ok(Channel::new(stream, secret, theirs, &ours, [b"to store", b"to agent"]))
    }

    /// The store's side of the handshake, as long as `go_on` says so. `busy`: all places are taken.
    ///
    /// # Errors
    /// As [`open`](Channel::open), and when it is busy.
    pub fn accept(
        mut stream: TcpStream,
        secret: &Secret,
        busy: bool,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Channel, Broken> {
        let deadline = Instant::now() + PROMPT;
        prepare(&stream)?;
        let ours = nonce()?;
        write(&mut stream, &[&MAGIC[..], &ours].concat())?;
        let mut proof = [0; 64];
        read(&mut stream, &mut proof, deadline, go_on)?;
        let (theirs, proof) = proof.split_at(32);
        let right = mac(&secret.0, &[b"agent", &ours, theirs]).verify_slice(proof).is_ok();
        let mut answer = [0; 33];
        answer[0] = match (right, busy) {
            (false, _) => WRONG,
            (true, true) => BUSY,
            (true, false) => RIGHT,
        };
        if right {
            answer[1..].copy_from_slice(&digest(&secret.0, &[b"store", &ours, theirs]));
        }
        write(&mut stream, &answer)?;
        match (right, busy) {
            (false, _) => Err(Broken::WrongSecret),
            (true, true) => Err(Broken::Busy),
            (true, false) => Ok(Channel::new(stream, secret, &ours, theirs, [b"to agent", b"to store"])),
        }
    }

    fn new(stream: TcpStream, secret: &Secret, store: &[u8], agent: &[u8], ways: [&[u8; 8]; 2]) -> Channel {
        let keys = ways.map(|way| digest(&secret.0, &[way, store, agent]));
        Channel { stream, keys, counts: [0; 2] }
    }

    /// The connection, with nothing read or written beyond the frames so far.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The connection under it.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The proof of the next body that goes this way.
    fn tag(&mut self, way: usize, body: &[u8]) -> Hmac<Sha256> {
        self.counts[way] += 1;
        mac(&self.keys[way], &[&self.counts[way].to_le_bytes(), body])
    }

    /// Sends one frame: length, proof, body.
    ///
    /// # Errors
    /// When the connection is broken, the other side does not read, or the body is longer than [`MAX_FRAME`].
    pub fn send(&mut self, body: &[u8]) -> Result<(), Broken> {
        if body.len() > MAX_FRAME {
            return Err(Broken::Garbage("a frame of our own is too long"));
        }
        let tag = self.tag(SENT, body).finalize().into_bytes();
        let frame = [&(body.len() as u32).to_le_bytes(), &tag[..TAG], body].concat();
        write(&mut self.stream, &frame)
    }

    /// Receives one frame that begins before `deadline`, as long as `go_on` says so.
    ///
    /// # Errors
    /// When the connection is broken, nothing comes in time, or what comes has no right proof.
    pub fn receive(&mut self, deadline: Instant, go_on: &dyn Fn() -> bool) -> Result<Vec<u8>, Broken> {
        let mut head = [0; 4 + TAG];
        read(&mut self.stream, &mut head[..1], deadline, go_on)?;
        let prompt = Instant::now() + PROMPT;
        read(&mut self.stream, &mut head[1..], prompt, go_on)?;
        let (length, proof) = head.split_at(4);
        let length = length.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
        if length > MAX_FRAME {
            return Err(Broken::Garbage("a frame is too long"));
        }
        let mut body = vec![0; length];
        read(&mut self.stream, &mut body, prompt, go_on)?;
        let tag = self.tag(RECEIVED, &body);
        tag.verify_truncated_left(proof).map_err(|_| Broken::Garbage("a frame has a wrong proof"))?;
        Ok(body)
    }
}

/// Bytes as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes.
///
/// # Errors
/// When the system has none.
pub fn nonce() -> Result<[u8; 32], Broken> {
    let mut nonce = [0u8; 32];
    match rustix::rand::getrandom(&mut nonce[..], rustix::rand::GetRandomFlags::empty()) {
        Ok(32) => Ok(nonce),
        _ => Err(Broken::Closed("the system has no random bytes".into())),
    }
}

fn prepare(stream: &TcpStream) -> Result<(), Broken> {
    let closed = |e: std::io::Error| Broken::Closed(e.to_string());
    stream.set_nonblocking(false).map_err(closed)?;
    stream.set_nodelay(true).map_err(closed)?;
    stream.set_read_timeout(Some(SLICE)).map_err(closed)?;
    stream.set_write_timeout(Some(PROMPT)).map_err(closed)
}

fn write(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Broken> {
    stream.write_all(bytes).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => Broken::Silent,
        _ => Broken::Closed(e.to_string()),
    })
}

/// Fills the buffer. The limit is for all of it, so who sends a byte now and then gains nothing.
fn read(
    stream: &mut TcpStream,
    mut buffer: &mut [u8],
    deadline: Instant,
    go_on: &dyn Fn() -> bool,
) -> Result<(), Broken> {
    while !buffer.is_empty() {
        if !go_on() {
            return Err(Broken::Stopped);
        }
        match stream.read(buffer) {
            Ok(0) => return Err(Broken::Closed("it closed the connection".into())),
            Ok(n) => buffer = &mut buffer[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(Broken::Closed(e.to_string())),
        }
        if !buffer.is_empty() && Instant::now() >= deadline {
            return Err(Broken::Silent);
        }
    }
    Ok(())
}
