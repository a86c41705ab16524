//! Configuration as plain values, which the trainer, sharding, data and estimates share, each with the keys that it is read
//! from. The program `oarlock` makes a [`TrainConfig`] of YAML files, flags and variables, and [`crate::dialect`] parts of one
//! of DeepSpeed's and FSDP's configurations.

mod best;
mod data;
mod eval;
mod finetuning;
mod interval;
mod log;
mod method;
mod model;
mod monitor;
mod objective;
pub mod optimizer_keys;
mod pipeline;
mod predict;
mod ranks;
mod reference;
mod save;
mod schedule;
pub mod schedule_keys;
mod shard;
mod sparsity;
pub mod table;
mod token_loss;
mod train;

pub use best::*;
pub use data::{ChatArgs, DataArgs, DataParts, ExampleKind, Mix, MixEnd, Packing, ValSize};
pub use eval::EvalArgs;
pub use finetuning::*;
pub use interval::IntervalStrategy;
pub use log::LogArgs;
pub use model::{GgufWeights, ModelArgs, ModelParts, ModelSource, NewTokens, RopeArgs, RopeKind};
pub use monitor::*;
pub use objective::*;
pub use pipeline::*;
pub use predict::*;
pub use ranks::{MOST_RANKS, RankArgs, RankParts};
pub use reference::*;
pub use save::{Resume, SaveArgs, SaveParts};
pub use schedule::*;
pub use shard::*;
pub use sparsity::{Direction, Pattern, SparsityConfig};
pub use token_loss::*;
pub use train::{Length, OptimizerArgs, RunDescription, TrainArgs, TrainConfig, TrainParts};
