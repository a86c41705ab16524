//! Regions while collectives work on them: lent like everything else of a region, until the last of these collectives is
//! over.

use std::ops::Deref;
use std::sync::{MutexGuard, PoisonError};

use crate::error::{Error, Result};
use crate::hold::Hold;
use crate::operation::Operation;
use crate::ready::Ready;
use crate::region::Region;

/// A region that a collective works on. Until it and its clones are dropped nobody else reads or writes the elements, but
/// further collectives of the same communicator, which run one after the other.
pub struct HeldRegion(Region);

fn slot(region: &Region) -> MutexGuard<'_, Option<Hold>> {
    region.hold().lock().unwrap_or_else(PoisonError::into_inner)
}

impl Region {
    /// Takes it for a collective of a communicator.
    pub(crate) fn held_by(&self, communicator: u64, operation: Operation) -> Result<HeldRegion> {
        let mut slot = slot(self);
        match &mut *slot {
            Some(hold) if hold.communicator == communicator => hold.n_collectives += 1,
            Some(_) => {
                return Err(Error::Argument {
                    operation: operation.name(),
                    expected: format!("the region {:?} while nobody else uses it", self.name()),
                    got: "one that a collective of another communicator works on: wait for its `Ready` first"
                        .to_owned(),
                });
            }
            None => {
                let lease = self.flat().write().map_err(|error| self.in_use(operation.name(), &error))?;
                *slot = Some(Hold::new(communicator, lease));
            }
        }
        Ok(HeldRegion(self.clone()))
    }
}

impl HeldRegion {
    /// `after`, and what launches are still to do to the region whatever `after` says: nothing that is called from now
    /// on, as launches need a lease.
    pub(crate) fn ready(&self, after: Ready) -> Ready {
        match self.flat().pending() {
            None => after,
            Some(launches) => after.and(Ready::after(launches)),
        }
    }

    /// Keeps it lent for good. What a failed collective worked on another rank, or a library, may still read or write.
    pub(crate) fn lose(self) {
        std::mem::forget(self);
    }
}

impl Deref for HeldRegion {
    type Target = Region;
    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Clone for HeldRegion {
    fn clone(&self) -> HeldRegion {
        // There is one as long as `self` lives.
        slot(&self.0).iter_mut().for_each(|hold| hold.n_collectives += 1);
        HeldRegion(self.0.clone())
    }
}

impl Drop for HeldRegion {
    fn drop(&mut self) {
        let mut slot = slot(&self.0);
        if let Some(hold) = &mut *slot {
            hold.n_collectives -= 1;
            if hold.n_collectives == 0 {
                *slot = None;
            }
        }
    }
}
