//! Configuration as plain values, which the trainer, sharding, data and estimates share. Nothing here reads a text; the
//! program `oarlock` makes a [`TrainConfig`] of YAML files, flags and variables, and [`crate::settings`] parts of one of
//! DeepSpeed's and FSDP's configurations.

mod best;
mod data;
mod finetuning;
mod monitor;
mod pipeline;
mod predict;
mod preference;
mod raft;
mod reference;
mod schedule;
mod shard;
mod sparsity;
mod token_loss;
mod train;

pub use best::*;
pub use data::*;
pub use finetuning::*;
pub use monitor::*;
pub use pipeline::*;
pub use predict::*;
pub use preference::*;
pub use raft::*;
pub use reference::*;
pub use schedule::*;
pub use shard::*;
pub use sparsity::{Direction, Pattern, SparsityConfig};
pub use token_loss::*;
pub use train::*;
