//! Ranks that are threads of a test.

pub mod net;

use oarlock::{Accelerator, AcceleratorConfig, Result};
use oarlock_comm::{Communicator, shm};

/// A world of one rank, on one thread.
pub fn alone(config: AcceleratorConfig) -> Accelerator {
    let config = AcceleratorConfig { threads: Some(1), ..config };
    Accelerator::over(Communicator::solo(), &config).unwrap()
}

/// Runs a program on every rank; one that fails tells the others, as a launcher's would.
pub fn on_ranks<R: Send>(
    world: usize,
    config: AcceleratorConfig,
    rank: impl Fn(&Accelerator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    shm::try_on_threads(world, |comm| rank(&Accelerator::over(comm, &config)?)).unwrap()
}
