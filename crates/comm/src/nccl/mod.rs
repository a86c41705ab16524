//! Collectives between GPUs by NCCL, in front of a transport of host memory that the ranks have met by.
//!
//! Regions are in memory of the GPU. A collective first compares the requests of all ranks over the host's transport, which
//! has the named failures and the patience; then it is work of a stream of its own, behind the launches that it was told to
//! come after, and the host goes on. Everything else is the host transport's.

mod connect;
mod join;
mod pending;
mod transport;
mod watch;

pub use join::{Choice, over};
