//! State that lies elsewhere than where a step updates it: in files, or on the other side of the bus of a GPU.
//!
//! ```text
//! fetch   1   2   3   4          from files, and from or to pinned memory
//! update      1   2   3   4      where the step runs
//! store           1   2   3   4  back again
//! ```
//!
//! Threads of their own fetch ahead and store behind, so that both overlap the arithmetic. Copies between a GPU and pinned
//! memory only begin there: whoever uses a buffer next waits for them.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

use oarlock_tensor::FlatBuffer;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;

use crate::shard::column::Store;
use crate::shard::operands::{Operand, Piece, Staged};
use crate::shard::passes::Core;
use crate::{Error, Result};

/// The right to call for a copy from or to state at rest: of a buffer one part is read while another one is written, which
/// must not be tried at the same time.
type AtRest = Mutex<()>;

impl Core {
    /// Updates pieces of which something is not resident, through so many sets of buffers.
    pub(super) fn update_staged(
        &self,
        update: &mut dyn FnMut(&Piece, &Staged) -> Result<()>,
        pieces: &[Piece],
        buffers: usize,
    ) -> Result<()> {
        let (free, to_fill) = channel::<Staged>();
        let (filled, to_update) = channel::<Result<Staged>>();
        let (updated, to_store) = channel::<Staged>();
        let at_rest = &AtRest::default();
        for first in 0..buffers.min(pieces.len()) {
            // They go around in order, so each is for every so many pieces. The receiver is there.
            let _ = free.send(self.buffers(pieces[first..].iter().step_by(buffers))?);
        }
        std::thread::scope(|scope| {
            scope.spawn(move || self.fetch_ahead(pieces, at_rest, &to_fill, &filled));
            let storing = scope.spawn(move || self.store_behind(pieces, at_rest, &to_store, &free));
            let mut step = || -> Result<()> {
                for piece in pieces {
                    let staged = to_update.recv().map_err(|_| stopped())??;
                    update(piece, &staged)?;
                    updated.send(staged).map_err(|_| stopped())?;
                }
                Ok(())
            };
            let result = step();
            // Both threads end when their channels do.
            drop((updated, to_update));
            let stored = storing.join().unwrap_or_else(|_| Err(stopped()));
            // Who stores knows best why the updates stopped.
            stored.and(result)
        })
    }

    /// Buffers for any of these pieces, where the step runs.
    fn buffers<'a>(&self, pieces: impl Iterator<Item = &'a Piece>) -> Result<Staged> {
        let mut sizes: Vec<usize> = Vec::new();
        for piece in pieces {
            for (index, operand) in self.elsewhere(piece).enumerate() {
                let bytes = operand.bytes().len();
                match sizes.get_mut(index) {
                    Some(size) => *size = bytes.max(*size),
                    None => sizes.push(bytes),
                }
            }
        }
        let buffer = |bytes| match self.updates_beside() {
            true => FlatBuffer::borrowed_pinned(&self.device, bytes, "offload buffers"),
            false => FlatBuffer::borrowed(&self.device, bytes, "offload buffers"),
        };
        Ok(sizes.into_iter().map(buffer).collect::<oarlock_tensor::Result<_>>()?)
    }

    fn fetch_ahead(
        &self,
        pieces: &[Piece],
        at_rest: &AtRest,
        to_fill: &Receiver<Staged>,
        filled: &Sender<Result<Staged>>,
    ) {
        for piece in pieces {
            let Ok(staged) = to_fill.recv() else { return };
            let fetch = || -> Result<()> {
                self.groups[piece.group].state.gate.wait();
                let all = self.elsewhere(piece).zip(&staged);
                all.filter(|(operand, _)| operand.is_read)
                    .try_for_each(|(operand, to)| self.fetch(&operand, to, at_rest))
            };
            if filled.send(fetch().map(|()| staged)).is_err() {
                return;
            }
        }
    }

    fn fetch(&self, operand: &Operand, to: &FlatBuffer, at_rest: &AtRest) -> Result<()> {
        let bytes = operand.bytes();
        match &operand.store {
            Store::Memory(flat) => {
                let _lock = lock(at_rest);
                let from = Part { flat, range: operand.range.clone() };
                let to = Part { flat: to, range: 0..operand.range.len() };
                Ok(transfer::copy(&self.device, operand.dtype, &from, &to)?)
            }
            file @ Store::File { .. } => {
                let read = |out: &mut [u8]| file.read_bytes(out, bytes.start as u64);
                transfer::write_with(to, 0..bytes.len(), read)?
            }
        }
    }

    fn store_behind(
        &self,
        pieces: &[Piece],
        at_rest: &AtRest,
        to_store: &Receiver<Staged>,
        free: &Sender<Staged>,
    ) -> Result<()> {
        for piece in pieces {
            let Ok(staged) = to_store.recv() else { return Ok(()) };
            let mut all = self.elsewhere(piece).zip(&staged).filter(|(operand, _)| operand.is_written);
            all.try_for_each(|(operand, from)| self.store(&operand, from, at_rest))?;
            // Near the end nobody wants it any more.
            let _ = free.send(staged);
        }
        Ok(())
    }

    fn store(&self, operand: &Operand, from: &FlatBuffer, at_rest: &AtRest) -> Result<()> {
        let bytes = operand.bytes();
        match &operand.store {
            Store::Memory(flat) => {
                let _lock = lock(at_rest);
                let from = Part { flat: from, range: 0..operand.range.len() };
                let to = Part { flat, range: operand.range.clone() };
                Ok(transfer::copy(&self.device, operand.dtype, &from, &to)?)
            }
            file @ Store::File { .. } => {
                let write = |bytes_of: &[u8]| file.write_bytes(bytes_of, bytes.start as u64);
                transfer::read_with(from, 0..bytes.len(), write)?
            }
        }
    }

    /// The operands of a piece that are not resident and have elements.
    fn elsewhere(&self, piece: &Piece) -> impl Iterator<Item = Operand> {
        let operands = self.operands(piece).into_iter();
        operands.filter(|operand| !operand.range.is_empty() && !self.is_resident(&operand.store))
    }
}

fn lock(at_rest: &AtRest) -> MutexGuard<'_, ()> {
    at_rest.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stopped() -> Error {
    Error::Usage("the thread that moves offloaded state has stopped".to_string())
}
