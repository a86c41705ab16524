//! The engine: it trains any module on any ranks, and knows no language model.
//!
//! It has ten rooms. A training step goes through them from the top to the bottom:
//!
//! | room | job |
//! |---|---|
//! | [`dataloader`] | gives each rank its own batches of a data set |
//! | [`accelerator`] | is what a training loop calls: prepares, runs passes, steps, saves; DeepSpeed's engine and torch's DDP on the same parts |
//! | [`optim`] | updates weights by a rule, with learning rates, their schedules and the loss scale |
//! | [`checkpoint`] | writes the state of a run and the weights of a model to files, and reads them |
//! | [`parallel`] | divides the layers of a model over ranks (pipeline) and each sequence (sequence parallelism) |
//! | [`shard`] | divides weights, gradients and optimizer state over ranks: gathers and reduces them around the passes |
//! | [`nn`] | is what models are made of: modules, layers, losses; values that hold tensors |
//! | [`distributed`] | starts ranks, knows which rank a thread is, and has their groups and collectives |
//! | [`disk`] | writes large files past the page cache, and knows which files a run may write ([`Outputs`]) |
//! | [`report`] | is what people see: errors, text for a terminal, progress, logs, profiles |

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests compare within tolerances"))]

// The derives name the library from outside.
extern crate self as oarlock;

pub mod accelerator;
pub mod checkpoint;
pub mod dataloader;
pub mod disk;
pub mod distributed;
pub mod nn;
pub mod optim;
pub mod parallel;
pub mod report;
pub mod shard;

pub use accelerator::{
    Accelerator, AcceleratorConfig, ApplyPadding, Checkpointed, DataLoaderConfiguration, DeepSpeedPlugin,
    DevicePlacement, DeviceSpecific, DivideBy, DummyOptim, DummyScheduler, Ema, Ends, GradientAccumulation,
    GradientState, HookHandle, KeyAverage, LocalSgd, LocalSteps, LogWith, Loss, OffloadDevice, Pad,
    PartOutput, PartPasses, Plan, Prepare, Prepared, PreparedOptimizer, PreparedScheduler, ProfileConfig,
    ProfileSchedule, Profiler, ProjectConfiguration, STARTING_BATCH_SIZE, SaveModel, SchedulerSteps,
    ShardSize, Stateful, SwanLabRun, Tracker, TrackerOptions, WandbRun,
};
pub use checkpoint::{ClientState, Frozen};
pub use dataloader::PreparedLoader;
pub use disk::{Outputs, Writer};
pub use distributed::ReduceOp;
pub use nn::nested::{Nested, Parcel};
pub use oarlock_comm::MeteredAllocator;
pub use oarlock_tensor::{DType, Device, Gradients, Tape, Tensor};
pub use report::error::{Error, Occupied, Result};
pub use shard::{OuterStep, ParamSlice, Placements, SeededInit, ShardingConfig, WeightSource};
