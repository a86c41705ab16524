//! Starting ranks: the same command again, once for each rank, watched until all have ended.

pub mod agents;
mod processes;

pub use processes::{Outcome, STARTED, explain, is_our_rank, is_rank, run_ranks};
