//! Headers that are received ahead: their receives begin before the collective does, so that no sender waits for word of them.

use std::collections::VecDeque;

use super::library::{ByteSpan, InFlight, Library};
use crate::error::Result;
use crate::region::{Memory, PrivateBuffer};

/// Receives of the headers of the next two collectives of a group. A rank that begins one has had the headers of all for the one
/// before, so every rank has begun to receive what it sends. Their memory is never freed, as the last are never done.
pub(super) struct Ahead {
    ranks: Vec<usize>,
    me: usize,
    tag: usize,
    /// Bytes of a message.
    bytes: usize,
    /// A message for each rank and each of the two collectives.
    messages: *mut u8,
    /// Of each rank.
    posted: Vec<VecDeque<InFlight>>,
    /// Which half of the messages the next collective uses.
    half: usize,
}

// SAFETY: the memory belongs to this value and to the messages that are posted.
unsafe impl Send for Ahead {}

impl Ahead {
    pub(super) fn begin(
        library: &dyn Library,
        ranks: &[usize],
        me: usize,
        tag: usize,
        bytes: usize,
    ) -> Result<Ahead> {
        let buffer = PrivateBuffer::new(2 * ranks.len() * bytes)?;
        let messages = buffer.as_ptr();
        std::mem::forget(buffer);
        let posted = ranks.iter().map(|_| VecDeque::new()).collect();
        let mut ahead = Ahead { ranks: ranks.to_vec(), me, tag, bytes, messages, posted, half: 0 };
        (0..2).try_for_each(|_| ahead.post(library))?;
        Ok(ahead)
    }

    /// Where the headers of the next collective are, those of each rank `bytes` after those before.
    pub(super) fn messages(&self) -> *mut u8 {
        // There are two halves.
        self.messages.wrapping_add(self.half * self.ranks.len() * self.bytes)
    }

    /// The receive of the next header of a rank.
    pub(super) fn take(&mut self, index: usize) -> Option<InFlight> {
        self.posted[index].pop_front()
    }

    /// Begins to receive once more into the half that has been read, and goes on to the other.
    pub(super) fn post(&mut self, library: &dyn Library) -> Result<()> {
        let messages = self.messages();
        for (index, &rank) in self.ranks.iter().enumerate().filter(|(index, _)| *index != self.me) {
            // SAFETY: inside the memory, which nobody reads before the message is received, and which is never freed.
            let message = unsafe {
                let span = ByteSpan { at: messages.add(index * self.bytes), bytes: self.bytes };
                library.receive(rank, self.tag, span)
            }?;
            self.posted[index].push_back(message);
        }
        self.half = 1 - self.half;
        Ok(())
    }
}
