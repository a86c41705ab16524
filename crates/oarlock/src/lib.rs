//! Oarlock trains language models on many ranks from one binary, and is a library for a loop and a model of one's own.
//!
//! Begin with [`Accelerator`]. ARCHITECTURE.md in the repository tells the story of a training step.

// The derives name this crate from outside.
extern crate self as oarlock;

mod accelerator;
pub mod checkpoint;
pub mod cli;
pub mod config;
mod console;
pub mod data;
pub mod dataloader;
pub mod deepspeed;
mod disk;
pub mod distributed;
mod error;
pub mod estimate;
pub mod front;
pub mod generate;
pub mod launch;
pub mod lr_scheduler;
pub mod model;
mod nearest;
mod nested;
pub mod nn;
pub mod optim;
pub mod rank;
pub mod report;
pub mod shard;
pub mod train;

pub use accelerator::{
    Accelerator, AcceleratorConfig, Accumulation, ApplyPadding, DataLoaderConfiguration, DevicePlacement,
    DeviceSpecific, DivideBy, Ends, GradientAccumulation, GradientState, HookHandle, Kept, KeyAverage,
    LocalSgd, LocalSteps, LogWith, Loss, Pad, Plan, Prepare, Prepared, PreparedOptimizer, PreparedScheduler,
    ProfileConfig, ProfileSchedule, Profiler, ProjectConfiguration, Reduction, STARTING_BATCH_SIZE,
    SaveModel, SchedulerSteps, ShardSize, Stateful, Tracker, TrackerOptions, WandbRun,
};
pub use checkpoint::ClientState;
pub use data::Batch;
pub use error::{Error, Result};
pub use nested::{Nested, Parcel};
pub use oarlock_tensor::{DType, Device, Tensor};
pub use shard::{Options, Placements, SeededInit, WeightSource};
pub use train::{Optimizer, OptimizerConfig};

/// The Rust code of the pages for newcomers, compiled by `cargo test`.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/library.md")]
    mod library {}
}
