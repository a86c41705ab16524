//! Order between launches on a device and collectives, which work on memory that launches use as well.

use oarlock_comm::{Pending, Ready};
use oarlock_tensor::{FlatBuffer, PendingLaunches};

use crate::error::Result;

/// Launches, as a collective waits for them.
struct Launches(PendingLaunches);

impl Pending for Launches {
    fn wait(self: Box<Self>) -> oarlock_comm::Result<()> {
        let failed = |error: oarlock_tensor::Error| oarlock_comm::Error::System {
            what: "run a launch that a collective waits for".to_owned(),
            cause: error.to_string(),
        };
        self.0.wait().map_err(failed)
    }
}

/// When a collective may work on the memory of a flat buffer: when the launches that use it have run.
pub(super) fn ready(flat: &FlatBuffer) -> Ready {
    flat.pending().map_or_else(Ready::now, |launches| Ready::after(Launches(launches)))
}

/// Returns when no launch uses a flat buffer any more, so that other ranks may have it.
pub(super) fn settle(flat: &FlatBuffer) -> Result<()> {
    Ok(flat.pending().map_or(Ok(()), |launches| launches.wait())?)
}
