//! What starts ranks on one machine, for [`crate::distributed`] and for launchers: the environment of a worker as
//! torchrun sets it, a free port, and why a process ended.

pub mod devices;
mod memory;
pub mod port;
mod worker_env;

pub use memory::Memory;
pub use worker_env::{WorkerEnv, default_omp_threads};
