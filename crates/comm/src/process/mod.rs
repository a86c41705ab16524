//! The processes of a run: starts them, supervises them, and ends all when one fails.
//!
//! Each rank leads a process group, so that what it starts ends with it. Three things make sure that nothing is left:
//! the supervising thread, the kernel, which kills a rank when that thread is gone, and the [`guard`], which kills the
//! groups when this process is gone. A process that has left its rank's group (`setsid`) is not ended.

mod exit;
mod group;
mod guard;
mod signals;
mod stopped;
mod supervisor;

pub use exit::{Ended, Ending, Exit, FailedRank, Grace};
pub use group::RankGroup;
pub use signals::{STOPPING, StopSignals, signal_name, signal_of_name};
pub use stopped::AllStopped;
