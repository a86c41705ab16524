//! How a process joins the other ranks: in shared memory where all are on one machine, over MPI
//! or Gloo where they are not.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::Launched;
use crate::shm;
use crate::slowed::Link;
use crate::transport_kind::{TRANSPORT, TransportKind, why_no_gloo, why_no_mpi};

/// Joins the ranks that a launcher started, ours or another (see [`Launched`]); `None` where the environment names
/// neither, or a world of one. If the wait is long, `notify` is called once with a text that names the missing ranks.
/// `OARLOCK_SLOWED_LINK` slows them, as [`Communicator::slowed`] does; all ranks must have the same.
///
/// # Errors
/// When what was handed down is not this run's segment, another process has taken the rank, a variable makes no sense,
/// or the ranks of another launcher do not meet.
pub fn from_env(notify: &dyn Fn(&str)) -> Result<Option<Communicator>> {
    let link = Link::from_env()?;
    if let Some(comm) = shm::join_inherited()? {
        // Our own launcher's ranks have a segment already.
        return match std::env::var(TRANSPORT).as_deref() {
            Ok("mpi") => Err(Error::Join(why_no_mpi())),
            Ok("gloo") => Err(Error::Join(why_no_gloo())),
            _ => Ok(Some(over(link, comm, false))),
        };
    }
    match Launched::from_env()? {
        Some(place) if place.world_size > 1 => join(&place, link, notify).map(Some),
        _ => Ok(None),
    }
}

/// Joins ranks that say themselves which they are; returns when all have joined. If the wait is long, `notify` is called
/// once with a text that names the missing ranks.
///
/// # Errors
/// When they have no transport in common, or do not meet.
pub fn join_launched(place: &Launched, notify: &dyn Fn(&str)) -> Result<Communicator> {
    join(place, None, notify)
}

fn join(place: &Launched, link: Option<Link>, notify: &dyn Fn(&str)) -> Result<Communicator> {
    match place.transport()? {
        TransportKind::SharedMemory => shm::join_launched(place, notify).map(|comm| over(link, comm, false)),
        #[cfg(feature = "mpi")]
        TransportKind::Mpi => crate::mpi::join(place, notify).map(|comm| over(link, comm, true)),
        #[cfg(not(feature = "mpi"))]
        TransportKind::Mpi => Err(Error::Join(why_no_mpi())),
        TransportKind::Gloo => crate::gloo::join(place, notify).map(|comm| over(link, comm, true)),
    }
}

/// The ranks as they are used: what copies bytes through a network, or waits as if it did, works in the background.
fn over(link: Option<Link>, comm: Communicator, is_network: bool) -> Communicator {
    match link {
        Some(link) => comm.slowed(link).in_background(),
        None if is_network => comm.in_background(),
        None => comm,
    }
}
