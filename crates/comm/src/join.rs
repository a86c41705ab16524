//! How a process finds the other ranks: in shared memory where all are on one machine, through MPI where they are not.

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::Launched;
use crate::shm;

/// The variable that says by which way ranks meet, for tests and comparison.
pub(crate) const TRANSPORT: &str = "OARLOCK_TRANSPORT";

/// A way for ranks to meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Shared memory of one machine.
    SharedMemory,
    /// Messages of MPI.
    Mpi,
}

/// Whether this program was built with the feature `mpi`.
pub const HAS_MPI: bool = cfg!(feature = "mpi");

impl Launched {
    /// How the ranks of this world meet: as `OARLOCK_TRANSPORT` says, else in shared memory where one machine has them all, else
    /// through MPI.
    ///
    /// # Errors
    /// [`Error::SeveralMachines`] where neither can be; [`Error::Join`] where MPI is asked for and cannot be.
    pub fn way(&self) -> Result<Way> {
        let has_mpi = self.speaks_mpi && HAS_MPI;
        let one_machine = self.world_size == self.local_world_size;
        match self.wish {
            Some(Way::Mpi) if has_mpi => Ok(Way::Mpi),
            Some(Way::Mpi) => Err(Error::Join(no_mpi())),
            Some(Way::SharedMemory) | None if one_machine => Ok(Way::SharedMemory),
            None if has_mpi => Ok(Way::Mpi),
            _ => Err(Error::SeveralMachines {
                world_size: self.world_size,
                local_world_size: self.local_world_size,
                launcher: self.launcher,
            }),
        }
    }
}

fn no_mpi() -> String {
    match HAS_MPI {
        true => format!("{TRANSPORT}=mpi asks for MPI: start the ranks with mpirun or srun"),
        false => format!("{TRANSPORT}=mpi asks for MPI: build with `cargo build --release --features mpi`"),
    }
}

/// This process's place among the ranks that a launcher started, ours or another (see [`Launched`]); `None` where the
/// environment names neither, or a world of one. `tell` hears once for whom it waits, when that takes long.
///
/// # Errors
/// When what was handed down is not this run's segment, another process has taken the rank, a variable makes no sense,
/// or the ranks of another launcher do not come together.
pub fn from_env(tell: &dyn Fn(&str)) -> Result<Option<Communicator>> {
    if let Some(comm) = shm::handed_down()? {
        // Our own launcher's ranks have a segment already.
        return match std::env::var(TRANSPORT).is_ok_and(|wish| wish == "mpi") {
            true => Err(Error::Join(no_mpi())),
            false => Ok(Some(comm)),
        };
    }
    match Launched::from_env()? {
        Some(place) if place.world_size > 1 => join_launched(&place, tell).map(Some),
        _ => Ok(None),
    }
}

/// This process's place among ranks that say themselves which they are; returns when all have come. `tell` hears once
/// for whom it waits, if it does for long.
///
/// # Errors
/// When there is no way for them to meet, or they do not come together.
pub fn join_launched(place: &Launched, tell: &dyn Fn(&str)) -> Result<Communicator> {
    match place.way()? {
        Way::SharedMemory => shm::join_launched(place, tell),
        #[cfg(feature = "mpi")]
        Way::Mpi => crate::mpi::join(place, tell),
        #[cfg(not(feature = "mpi"))]
        Way::Mpi => Err(Error::Join(no_mpi())),
    }
}
