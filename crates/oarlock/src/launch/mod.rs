//! Starting ranks: a description of what to start, the environment of each rank, and the processes, watched until all
//! have ended.

pub mod devices;
pub mod environment;
mod processes;
pub mod spec;

pub use processes::{Outcome, STARTED, explain, is_our_rank, is_rank, run_ranks};
pub use spec::Launch;
