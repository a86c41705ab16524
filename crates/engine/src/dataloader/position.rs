//! Where a loader stands: the epoch, and how much of it was given.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shared by all handles of a loader.
#[derive(Default)]
pub(super) struct Position(Mutex<EpochPosition>);

/// A position in the order of the epochs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EpochPosition {
    pub epoch: u64,
    /// Units (samples, or ready-made batches) of the epoch that were given, to all ranks together.
    pub given: usize,
    /// Whether the next iteration goes on there, instead of beginning the epoch.
    pub resumes: bool,
}

impl Position {
    fn place(&self) -> MutexGuard<'_, EpochPosition> {
        // Numbers, whole at every moment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self) -> EpochPosition {
        *self.place()
    }

    pub fn epoch(&self) -> u64 {
        self.place().epoch
    }

    /// Another epoch begins at its beginning; the same one stays where it is.
    pub fn set_epoch(&self, epoch: u64) {
        let mut place = self.place();
        if place.epoch != epoch {
            *place = EpochPosition { epoch, ..EpochPosition::default() };
        }
    }

    /// The next iteration goes on there.
    pub fn resume(&self, epoch: u64, given: usize) {
        *self.place() = EpochPosition { epoch, given, resumes: true };
    }

    /// An iteration begins: its epoch, and what of it was given before.
    pub fn begin(&self) -> (u64, usize) {
        let mut place = self.place();
        let given = if place.resumes { place.given } else { 0 };
        *place = EpochPosition { epoch: place.epoch, given, resumes: false };
        (place.epoch, given)
    }

    /// An iteration of `epoch` gave so much.
    pub fn advance(&self, epoch: u64, given: usize) {
        let mut place = self.place();
        if place.epoch == epoch {
            place.given = given;
        }
    }

    /// An iteration of `epoch` came to its end. Whoever called `set_epoch` meanwhile knows better.
    pub fn end(&self, epoch: u64) {
        let mut place = self.place();
        if place.epoch == epoch {
            *place = EpochPosition { epoch: epoch.saturating_add(1), ..EpochPosition::default() };
        }
    }
}
