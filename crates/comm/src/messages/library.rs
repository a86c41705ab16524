//! What a library of point-to-point messages does for the protocol, and the bytes and queues of messages.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::error::Result;

/// The tag of notices; that of a channel is its number plus 1.
pub(crate) const NOTICES: usize = 0;

/// A library that moves messages between the ranks of a world: MPI or Gloo. Messages between two ranks with one tag arrive in
/// the order in which they are sent. No call waits, except the one that ends the library.
pub(crate) trait Library: Send + Sync {
    /// Its name in messages.
    fn name(&self) -> &'static str;
    /// This rank.
    fn rank(&self) -> usize;
    /// The number of ranks.
    fn size(&self) -> usize;

    /// Begins to send.
    ///
    /// # Safety
    /// The bytes stay where they are and nobody writes them until [`Message::poll`] returns that they are sent, or for good
    /// if it never does.
    unsafe fn send(&self, to: usize, tag: usize, span: ByteSpan) -> Result<InFlight>;

    /// Begins to receive at most the bytes of `span`.
    ///
    /// # Safety
    /// The bytes stay where they are and nobody else touches them until [`Message::poll`] returns that they are received, or
    /// for good if it never does.
    unsafe fn receive(&self, from: usize, tag: usize, span: ByteSpan) -> Result<InFlight>;

    /// Takes the next notice of any rank ([`NOTICES`]), if one has arrived. It has `bytes` bytes.
    fn take_notice(&self, bytes: usize) -> Result<Option<Vec<u8>>>;

    /// Whether the connection to a rank is broken, since when and why, as far as the library tells. Messages to and from this
    /// rank are never done.
    fn lost(&self, _rank: usize) -> Option<Lost> {
        None
    }

    /// Whether a message arrives sooner where its receive began before it was sent, so that the receives of headers begin before
    /// their collective does.
    fn gains_from_early_receives(&self) -> bool {
        false
    }

    /// Whether [`Message::wait`] returns as soon as the message is done, without calls that make the library move it.
    fn wakes(&self) -> bool {
        false
    }

    /// Ends the library in this process, once all ranks have finished.
    fn end(&self);
}

/// A connection that broke.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) since: Instant,
    pub(crate) cause: String,
}

/// A message in flight. Its bytes belong to the library until it is done, also if it is dropped before.
pub(crate) trait Message: Send {
    /// Whether it is done; the bytes that were received.
    fn poll(&mut self) -> Result<Option<usize>>;

    /// Sleeps for `limit`, or less if the message is done before.
    fn wait(&mut self, limit: Duration) {
        std::thread::sleep(limit);
    }
}

pub(crate) type InFlight = Box<dyn Message>;

/// The bytes of a message.
#[derive(Clone, Copy)]
pub(crate) struct ByteSpan {
    pub(crate) at: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: an address and a length; every access keeps its own promises.
unsafe impl Send for ByteSpan {}

/// Messages in one direction between two ranks: those that are queued and those in flight, oldest first.
pub(crate) struct MessageQueue {
    /// The other rank, in the world.
    pub(crate) peer: usize,
    pub(crate) queued: VecDeque<ByteSpan>,
    pub(crate) in_flight: VecDeque<InFlight>,
    /// Messages that are done.
    pub(crate) done: usize,
    /// The bytes of the last of them.
    pub(crate) last: usize,
}

impl MessageQueue {
    pub(crate) fn to(peer: usize) -> MessageQueue {
        MessageQueue { peer, queued: VecDeque::new(), in_flight: VecDeque::new(), done: 0, last: 0 }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.queued.is_empty() && self.in_flight.is_empty()
    }
}
