//! Training: optimizer, schedule, and the loop that the trainer runs on the accelerator.

mod optimizer;
pub mod schedule;

pub use optimizer::{AdamWConfig, Optimizer};
pub use schedule::Schedule;
