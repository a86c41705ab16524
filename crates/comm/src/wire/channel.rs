//! A connection whose both ends have proved to know the secret, and the connecting side of the handshake. The listening side,
//! which proves first, is `entrance.rs`.

use std::net::TcpStream;
use std::time::Instant;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use super::bytes::{Broken, PROMPT, nonce, prepare, read, write};
use super::secret::{DataKeys, LinkKeys, Secret, Side, mac};

/// The longest body of a frame.
pub const MAX_FRAME: usize = 64 << 10;

/// What the store greets with, before its random number; the last byte is the version of what follows.
pub(super) const MAGIC: [u8; 8] = *b"oarlock\x02";
const TAG: usize = 16;
/// What an agent sends in the place of its proof to a store that has proved another secret.
pub(super) const DECLINED: [u8; 32] = [0; 32];
/// The store's answer to a proof.
pub(super) const WRONG: u8 = 0;
pub(super) const RIGHT: u8 = 1;
pub(super) const BUSY: u8 = 2;

/// A connection whose both ends have proved to know the secret.
pub struct Channel {
    stream: TcpStream,
    side: Side,
    keys: LinkKeys,
    /// Frames so far, sent and received.
    counts: [u64; 2],
}

/// Places in `Channel::counts`.
const SENT: usize = 0;
const RECEIVED: usize = 1;

impl Channel {
    /// The agent's side of the handshake. It proves nothing to a store that has not proved itself, so whoever listens in the
    /// place of the store learns nothing by which a secret could be guessed.
    ///
    /// # Errors
    /// When the other side does not know the secret, does not answer in time, or is something else.
    pub fn open(mut stream: TcpStream, secret: &Secret) -> Result<Channel, Broken> {
        let (deadline, go_on) = (Instant::now() + PROMPT, || true);
        prepare(&stream)?;
        let mut magic = [0; 8];
        read(&mut stream, &mut magic, deadline, &go_on)?;
        if magic[..7] != MAGIC[..7] {
            return Err(Broken::Garbage("it greets like another kind of program"));
        }
        if magic != MAGIC {
            return Err(Broken::Garbage("it is another version of this program"));
        }
        let (mut theirs, mut proof) = ([0; 32], [0; 32]);
        read(&mut stream, &mut theirs, deadline, &go_on)?;
        let ours = nonce()?;
        write(&mut stream, &ours)?;
        read(&mut stream, &mut proof, deadline, &go_on)?;
        if secret.proof(Side::Store, &theirs, &ours).verify_slice(&proof).is_err() {
            // The store can then say who was refused; if it has gone, nothing is lost.
            let _ = write(&mut stream, &DECLINED);
            return Err(Broken::WrongSecret);
        }
        let own = secret.proof(Side::Agent, &theirs, &ours).finalize().into_bytes();
        write(&mut stream, &own)?;
        let mut answer = [0];
        read(&mut stream, &mut answer, deadline, &go_on)?;
        match answer[0] {
            RIGHT => Ok(Channel::new(stream, Side::Agent, secret.keys(&theirs, &ours))),
            WRONG => Err(Broken::WrongSecret),
            BUSY => Err(Broken::Busy),
            _ => Err(Broken::Garbage("its answer makes no sense")),
        }
    }

    pub(super) fn new(stream: TcpStream, side: Side, keys: LinkKeys) -> Channel {
        Channel { stream, side, keys, counts: [0; 2] }
    }

    /// The connection, with nothing read or written beyond the frames so far, and keys for what follows.
    pub fn into_parts(self) -> (TcpStream, DataKeys) {
        (self.stream, self.keys.data(self.side))
    }

    /// The connection under it.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// The proof of the next body that goes this way.
    fn tag(&mut self, way: usize, body: &[u8]) -> Hmac<Sha256> {
        self.counts[way] += 1;
        let key = match (way == SENT, self.side) {
            (true, Side::Agent) | (false, Side::Store) => &self.keys.to_store,
            (false, Side::Agent) | (true, Side::Store) => &self.keys.to_agent,
        };
        mac(key, &[&self.counts[way].to_le_bytes(), body])
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
