//! Ranks of several machines through MPI. `README.md` beside this file has the protocol and its numbered invariants.

mod exchange;
mod headers;
mod join;
mod library;
mod member;
mod notice;
mod rank_info;
mod transport;
mod world;

use std::sync::Arc;

use crate::communicator::Communicator;
use crate::error::Result;
use crate::launched::Launched;

/// Joins the ranks that `mpirun` or `srun` started; returns when all have joined. If the wait is long, `notify` is called
/// once with the reason.
pub(crate) fn join(place: &Launched, notify: &dyn Fn(&str)) -> Result<Communicator> {
    let world = join::join(place, notify)?;
    Ok(Communicator::new(Arc::new(transport::Mpi::world(world))))
}
