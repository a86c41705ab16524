//! Monitors: the scalars of a run in files that other programs show. Which scalars, and what they are plotted over,
//! is decided by the caller.

mod checksum;
pub mod csv;
pub mod jsonl;
mod protobuf;
mod record_log;
mod scalars;
pub mod swanlab;
pub mod tensorboard;
pub mod wandb;
mod yaml;

pub use scalars::Monitor;
