//! Small uploads that nobody waits for: the bytes go to a ring of pinned memory at once, and to the GPU in the order of its
//! stream.

use std::sync::{Mutex, PoisonError};

use oarlock_cuda::Result;
use oarlock_cuda::driver::{Pinned, Slice, Stream};

/// Bytes of a slot: the ids of 65,536 tokens.
const SLOT: usize = 256 << 10;
/// As many uploads can be in flight before one waits for the oldest.
const SLOTS: usize = 16;
/// The most bytes that go through the ring. What is larger, such as the weights of a model, is copied while the host waits.
const MOST: usize = 4 * SLOT;

/// A ring of pinned memory.
#[derive(Default)]
pub(super) struct Uploads(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    /// Made when they are first needed.
    slots: Vec<Pinned>,
    next: usize,
}

impl Uploads {
    /// Copies bytes to a GPU behind what the stream was given before. The host may change them afterward.
    ///
    /// # Errors
    /// What an earlier launch met.
    pub fn write(&self, stream: &Stream, bytes: &[u8], to: Slice<'_>) -> Result<()> {
        if bytes.len() > MOST || bytes.len() != to.bytes() {
            return stream.write_now(bytes, to);
        }
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (i, part) in bytes.chunks(SLOT).enumerate() {
            let to = to.part(i * SLOT..i * SLOT + part.len())?;
            match ring.slot(stream)? {
                Some(slot) => {
                    // After the upload that was there before.
                    slot.write(|slot| slot[..part.len()].copy_from_slice(part))?;
                    stream.copy_to_device(slot, 0, to)?;
                }
                // Where no memory can be pinned.
                None => stream.write_now(part, to)?,
            }
        }
        Ok(())
    }
}

impl Ring {
    /// A new slot, or the one that was used longest ago; `None` where there is neither.
    fn slot(&mut self, stream: &Stream) -> Result<Option<&mut Pinned>> {
        if self.slots.len() < SLOTS {
            match stream.context().alloc_pinned(SLOT) {
                Ok(slot) => {
                    self.slots.push(slot);
                    return Ok(self.slots.last_mut());
                }
                Err(oarlock_cuda::Error::Driver(error)) if error.is_out_of_memory() => {}
                Err(error) => return Err(error),
            }
        }
        let slot = self.next;
        self.next = (slot + 1) % self.slots.len().max(1);
        Ok(self.slots.get_mut(slot))
    }
}
