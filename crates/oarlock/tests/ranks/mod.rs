//! Ranks that are threads of a test.

pub mod net;

use std::thread;

use oarlock::{Accelerator, AcceleratorConfig, Result};
use oarlock_comm::{Communicator, shm};

/// A world of one rank, on one thread.
pub fn alone(config: AcceleratorConfig) -> Accelerator {
    let config = AcceleratorConfig { threads: Some(1), ..config };
    Accelerator::over(Communicator::solo(), &config).unwrap()
}

/// Runs a program on every rank; one that fails tells the others, as a launcher's would.
pub fn on_ranks<R: Send + 'static>(
    world: usize,
    config: AcceleratorConfig,
    rank: impl Fn(&Accelerator) -> Result<R> + Clone + Send + 'static,
) -> Vec<Result<R>> {
    let ranks = shm::threads(world).unwrap().into_iter().map(|comm| {
        let (rank, config) = (rank.clone(), config.clone());
        thread::spawn(move || {
            let result = Accelerator::over(comm.clone(), &config).and_then(|accelerator| rank(&accelerator));
            match &result {
                Ok(_) => comm.finish(),
                Err(error) => comm.abort(&error.to_string()),
            }
            result
        })
    });
    ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
}
