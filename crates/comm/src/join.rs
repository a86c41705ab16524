//! How a process joins the other ranks: in shared memory where all are on one machine, over MPI
//! or Gloo where they are not.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::Launched;
use crate::shm;
use crate::transport_kind::{TRANSPORT, TransportKind, why_no_gloo, why_no_mpi};

/// Joins the ranks that a launcher started, ours or another (see [`Launched`]); `None` where the environment names
/// neither, or a world of one. If the wait is long, `notify` is called once with a text that names the missing ranks.
///
/// # Errors
/// When what was handed down is not this run's segment, another process has taken the rank, a variable makes no sense,
/// or the ranks of another launcher do not come together.
pub fn from_env(notify: &dyn Fn(&str)) -> Result<Option<Communicator>> {
    if let Some(comm) = shm::join_inherited()? {
        // Our own launcher's ranks have a segment already.
        return match std::env::var(TRANSPORT).as_deref() {
            Ok("mpi") => Err(Error::Join(why_no_mpi())),
            Ok("gloo") => Err(Error::Join(why_no_gloo())),
            _ => Ok(Some(comm)),
        };
    }
    match Launched::from_env()? {
        Some(place) if place.world_size > 1 => join_launched(&place, notify).map(Some),
        _ => Ok(None),
    }
}

/// Joins ranks that say themselves which they are; returns when all have joined. If the wait is long, `notify` is called
/// once with a text that names the missing ranks.
///
/// # Errors
/// When they have no transport in common, or do not come together.
pub fn join_launched(place: &Launched, notify: &dyn Fn(&str)) -> Result<Communicator> {
    match place.transport()? {
        TransportKind::SharedMemory => shm::join_launched(place, notify),
        #[cfg(feature = "mpi")]
        TransportKind::Mpi => crate::mpi::join(place, notify).map(Communicator::in_background),
        #[cfg(not(feature = "mpi"))]
        TransportKind::Mpi => Err(Error::Join(why_no_mpi())),
        #[cfg(feature = "gloo")]
        TransportKind::Gloo => crate::gloo::join(place, notify).map(Communicator::in_background),
        #[cfg(not(feature = "gloo"))]
        TransportKind::Gloo => Err(Error::Join(why_no_gloo())),
    }
}
