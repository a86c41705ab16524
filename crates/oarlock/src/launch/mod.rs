//! Starting ranks: the same command again, once for each rank, watched until all have ended.

mod processes;

pub use processes::{Outcome, STARTED, explain, is_our_rank, is_rank, run_ranks};
