//! A snapshot: the state of a rank held constant while it is written, unit by unit.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use oarlock_tensor::FlatBuffer;

use crate::error::{Error, Result};
use crate::shard::state::Slice;

/// How many snapshots hold each unit.
#[derive(Default)]
pub(super) struct Held {
    counts: Mutex<Vec<usize>>,
    freed: Condvar,
}

impl Held {
    pub fn hold(&self, n_units: usize) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.resize(n_units, 0);
        counts.iter_mut().for_each(|count| *count += 1);
    }

    /// Waits until no snapshot holds the unit.
    pub fn wait(&self, unit: usize) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let free = |counts: &mut Vec<usize>| counts.get(unit).is_some_and(|count| *count > 0);
        drop(self.freed.wait_while(counts, free));
    }

    fn release(&self, unit: usize) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(unit) {
            *count -= 1;
        }
        self.freed.notify_all();
    }
}

/// The kinds of state of a unit: their buffers, and what to take off an element's place in the unit.
pub(super) struct HeldUnit {
    pub kinds: Vec<(&'static str, FlatBuffer, usize)>,
    /// The parameters' slices of this rank with their places in the unit.
    pub slices: Vec<(Slice, usize)>,
}

/// The state that this rank should save, constant until it is released.
pub struct Snapshot {
    pub(super) units: Vec<Option<HeldUnit>>,
    pub(super) held: Arc<Held>,
}

impl Snapshot {
    /// The number of units.
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// What this rank saves of a unit.
    pub fn slices(&self, unit: usize) -> Vec<Slice> {
        let held = self.units.get(unit).and_then(Option::as_ref);
        held.map_or(Vec::new(), |unit| unit.slices.iter().map(|(slice, _)| slice.clone()).collect())
    }

    /// Copies a part of a slice out.
    ///
    /// # Errors
    /// When it is not in this snapshot.
    pub fn read(&self, slice: &Slice, out: &mut [f32]) -> Result<()> {
        let mut rest = out;
        self.with_bytes(slice, &mut |bytes| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(bytes.len() / 4);
            bytemuck::cast_slice_mut(now).copy_from_slice(bytes);
            rest = later;
            Ok(())
        })
        .map_err(Error::io("read", "the state"))
    }

    /// Shows the bytes of a part of a slice.
    ///
    /// # Errors
    /// What `f` reports, or when it is not in this snapshot.
    pub fn with_bytes(&self, slice: &Slice, f: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Some((flat, range)) = self.find(slice) else {
            return Err(io::Error::other(format!("{:?} is not in the snapshot", slice)));
        };
        let lease = flat.read().map_err(io::Error::other)?;
        f(bytemuck::cast_slice(&lease.slice::<f32>()[range]))
    }

    /// This unit is written; the next step may change it.
    pub fn release(&mut self, unit: usize) {
        if self.units.get_mut(unit).and_then(Option::take).is_some() {
            self.held.release(unit);
        }
    }

    fn find(&self, slice: &Slice) -> Option<(&FlatBuffer, Range<usize>)> {
        self.units.iter().flatten().find_map(|unit| {
            let place = |(whole, at): &(Slice, usize)| {
                let inside = (whole.kind, &whole.name) == (slice.kind, &slice.name)
                    && whole.elements.start <= slice.elements.start
                    && slice.elements.end <= whole.elements.end;
                inside.then(|| at + slice.elements.start - whole.elements.start)
            };
            let at = unit.slices.iter().find_map(place)?;
            let (_, flat, shift) = unit.kinds.iter().find(|(kind, ..)| *kind == slice.kind)?;
            Some((flat, at - shift..at - shift + slice.elements.len()))
        })
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        (0..self.units.len()).for_each(|unit| self.release(unit));
    }
}
