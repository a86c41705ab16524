//! Ranks of several machines through MPI. How they meet, and the numbered invariants: see `README.md` beside this file.

mod exchange;
mod library;
mod member;
mod notice;
mod transport;
mod world;

use std::sync::Arc;

use crate::communicator::Communicator;
use crate::error::Result;
use crate::launched::Launched;

/// Joins the ranks that `mpirun` or `srun` started; returns when all have come. `tell` hears for whom it waits, if it does
/// for long.
pub(crate) fn join(place: &Launched, tell: &dyn Fn(&str)) -> Result<Communicator> {
    let member = member::Member::join(place, tell)?;
    Ok(Communicator::new(Arc::new(transport::Mpi::world(member))))
}
