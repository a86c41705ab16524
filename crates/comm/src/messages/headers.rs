//! The header exchange that begins each collective: every rank tells every other what it requests, and all compare.

use std::sync::PoisonError;

use bytemuck::{Pod, Zeroable};

use super::ahead::Ahead;
use super::exchange::Exchange;
use super::library::ByteSpan;
use super::member::Group;
use super::notice::Notice;
use super::pieces::pieces;
use crate::call::Request;
use crate::error::{Error, Result};
use crate::stamp::{Stamp, StampWords, text, write_text};

/// Bytes of a header message; what does not fit follows in pieces.
const MESSAGE: usize = 8192;
/// Bytes of a piece of what follows.
const PIECE: usize = 1 << 20;

/// What a header message begins with.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Header {
    stamp: StampWords,
    /// Bytes that this rank brings; the first of them follow in the message.
    bytes: u64,
    phase: [u8; 64],
}

/// Bytes that a header message carries.
pub(super) const INLINE: usize = MESSAGE - size_of::<Header>();

impl Group {
    /// Waits until all ranks of the group have requested the same collective, and gathers the bytes that each brings.
    pub(super) fn exchange_headers(&self, request: &Request, bytes: &[u8]) -> Result<(Stamp, Vec<Vec<u8>>)> {
        let stamp = Stamp::new(request);
        let world = self.member.world;
        world.check()?;
        let phase = world.phase();
        world.record_call(self.ranks[self.me], &stamp, &phase);
        let mut header = Header { stamp: stamp.words(), bytes: bytes.len() as u64, ..Header::zeroed() };
        write_text(&mut header.phase, &phase);

        let mut exchange = Exchange::tagged(self, &stamp, self.header_tag());
        let n = self.ranks.len();
        let failed = |error| self.member.fail_locally(error);
        let mut ahead = self.take_ahead().map_err(failed)?;
        let own = exchange.buffer(MESSAGE).map_err(failed)?;
        let messages = match &ahead {
            Some(ahead) => ahead.messages(),
            None => exchange.buffer(n * MESSAGE).map_err(failed)?,
        };
        let message = |index: usize| match index == self.me {
            true => own,
            // One message for each rank.
            false => messages.wrapping_add(index * MESSAGE),
        };
        let inline = bytes.len().min(INLINE);
        // SAFETY: this rank's message, which nobody reads yet, in a buffer of its own that begins at a page: aligned for a header,
        // with room for it and the bytes of a message.
        unsafe {
            message(self.me).cast::<Header>().write(header);
            message(self.me).add(size_of::<Header>()).copy_from_nonoverlapping(bytes.as_ptr(), inline);
        }
        for peer in exchange.peers() {
            // SAFETY: messages lie in the buffer; this rank's is no longer written, the others are read once received.
            unsafe {
                exchange.send(peer, ByteSpan { at: message(self.me), bytes: size_of::<Header>() + inline });
                match ahead.as_mut().and_then(|ahead| ahead.take(peer)) {
                    Some(posted) => exchange.receives[peer].in_flight.push_back(posted),
                    None => exchange.receive(peer, ByteSpan { at: message(peer), bytes: MESSAGE }),
                }
            }
        }
        let malformed = || self.member.fail_locally(Error::Join("a rank sent a malformed header".into()));
        let mut headers: Vec<Option<Header>> = vec![None; n];
        headers[self.me] = Some(header);
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); n];
        while headers.iter().any(Option::is_none) {
            let n_received = headers.iter().flatten().count() - 1;
            let count = |all: &Exchange| all.receives.iter().filter(|queue| queue.done > 0).count();
            exchange.wait_until(|all| count(all) > n_received)?;
            for index in exchange.peers() {
                if headers[index].is_none() && exchange.receives[index].done > 0 {
                    let length = exchange.receives[index].last.min(MESSAGE);
                    // SAFETY: received, in memory of this buffer, and no longer written.
                    let received = unsafe { std::slice::from_raw_parts(message(index), length) };
                    let (header, rest) =
                        received.split_at_checked(size_of::<Header>()).ok_or_else(malformed)?;
                    let header: Header = bytemuck::pod_read_unaligned(header);
                    // A library may not tell how long a message is; what is behind its end has no meaning.
                    let inline = usize::try_from(header.bytes).unwrap_or(usize::MAX).min(INLINE);
                    let rest = rest.get(..inline).ok_or_else(malformed)?;
                    world.record_call(
                        self.ranks[index],
                        &Stamp::from_words(header.stamp),
                        &text(&header.phase),
                    );
                    all[index] = rest.to_vec();
                    headers[index] = Some(header);
                }
            }
            self.compare(&headers)?;
        }
        exchange.finish()?;
        drop(exchange);
        if let Some(mut ahead) = ahead {
            ahead.post(&*world.library).map_err(failed)?;
            *self.ahead.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead);
        }
        all[self.me] = bytes[..inline].to_vec();
        let lengths: Vec<usize> = headers.iter().flatten().map(|header| header.bytes as usize).collect();
        if lengths.iter().any(|&bytes| bytes > INLINE) {
            self.gather_rest(&stamp, bytes, &lengths, &mut all)?;
        }
        Ok((stamp, all))
    }

    /// The receives that have begun, or begins them, where the library gains from it. The first channel is used again in a later
    /// session, so what is received ahead there would be lost.
    fn take_ahead(&self) -> Result<Option<Ahead>> {
        let library = &*self.member.world.library;
        if self.channel == 0 || !library.gains_from_early_receives() {
            return Ok(None);
        }
        match self.ahead.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(ahead) => Ok(Some(ahead)),
            None => Ahead::begin(library, &self.ranks, self.me, self.header_tag(), MESSAGE).map(Some),
        }
    }

    /// Gathers the bytes that did not fit in the header messages.
    fn gather_rest(&self, stamp: &Stamp, bytes: &[u8], lengths: &[usize], all: &mut [Vec<u8>]) -> Result<()> {
        let mut exchange = Exchange::new(self, stamp);
        let rests: Vec<usize> = lengths.iter().map(|bytes| bytes.saturating_sub(INLINE)).collect();
        let sum = rests.iter().try_fold(0usize, |sum, &bytes| sum.checked_add(bytes));
        let malformed = || Error::Join("ranks sent lengths that no memory has".into());
        let whole = sum.ok_or_else(malformed).and_then(|sum| exchange.buffer(sum));
        let whole = whole.map_err(|error| self.member.fail_locally(error))?;
        let first = |index: usize| rests[..index].iter().sum::<usize>();
        // They lie one after the other in the buffer.
        let rest = |index: usize| whole.wrapping_add(first(index));
        // SAFETY: this rank's part of the buffer, as long as its rest (its own header has said so), which nobody reads yet.
        unsafe {
            let mine = &bytes[bytes.len().min(INLINE)..];
            rest(self.me).copy_from_nonoverlapping(mine.as_ptr(), mine.len());
        }
        for peer in exchange.peers() {
            for (at, bytes) in pieces(rests[self.me], PIECE) {
                // SAFETY: inside this rank's part, which is no longer written.
                unsafe { exchange.send(peer, ByteSpan { at: rest(self.me).add(at), bytes }) };
            }
            for (at, bytes) in pieces(rests[peer], PIECE) {
                // SAFETY: inside that rank's part, which is read once all messages are received.
                unsafe { exchange.receive(peer, ByteSpan { at: rest(peer).add(at), bytes }) };
            }
        }
        exchange.finish()?;
        for (index, out) in all.iter_mut().enumerate() {
            // SAFETY: all messages are received, and nothing is written any more.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(rest(index), rests[index]) });
        }
        Ok(())
    }

    /// Compares the requests that have been received.
    fn compare(&self, headers: &[Option<Header>]) -> Result<()> {
        let stamp = |header: &Header| Stamp::from_words(header.stamp);
        let mut here =
            headers.iter().enumerate().filter_map(|(index, header)| Some((index, stamp(header.as_ref()?))));
        let Some((first, one)) = here.next() else { return Ok(()) };
        let Some((other, two)) = here.find(|(_, stamp)| stamp.key() != one.key()) else { return Ok(()) };
        let (first, other) = ((self.ranks[first], one), (self.ranks[other], two));
        Err(self.member.world.fail(Notice::mismatch(first, other)))
    }
}
