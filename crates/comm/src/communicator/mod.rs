//! The handle on a group of ranks, and what its ranks can call together.

mod handle;
mod regions;
mod values;

pub use handle::{Communicator, Traffic, WeakCommunicator};
