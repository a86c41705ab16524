//! The engine: it trains any module on any ranks, and knows no language model.
//!
//! A step, from the outside in: an [`Accelerator`] prepares a model ([`nn`]), an optimizer ([`optim`], with its
//! [`lr_scheduler`]) and loaders ([`dataloader`]). Forward and backward passes gather and reduce what is sharded
//! ([`shard`]), along a [`pipeline`] and over parts of sequences ([`sequence_parallel`]) where there are any. State goes to
//! checkpoints ([`checkpoint`]) and weights to files ([`weights`]), by the rules for what a run may write ([`Outputs`]).
//! [`distributed`] starts ranks, [`rank`] and [`launch`] are what one knows of its launcher, and [`report`] logs.
//! [`deepspeed`] is DeepSpeed's own engine on the same parts.

// The derives name the library from outside.
extern crate self as oarlock;

pub mod accelerator;
pub mod checkpoint;
pub mod dataloader;
pub mod deepspeed;
pub mod disk;
pub mod distributed;
pub mod error;
pub mod launch;
pub mod lr_scheduler;
pub mod nested;
pub mod nn;
pub mod optim;
pub mod panics;
pub mod pipeline;
pub mod rank;
pub mod report;
pub mod sequence_parallel;
pub mod shard;
pub mod terminal;
pub mod weights;

pub use accelerator::{
    Accelerator, AcceleratorConfig, ApplyPadding, Checkpointed, DataLoaderConfiguration, DeepSpeedPlugin,
    DevicePlacement, DeviceSpecific, DivideBy, DummyOptim, DummyScheduler, Ema, Ends, GradientAccumulation,
    GradientState, HookHandle, KeyAverage, LocalSgd, LocalSteps, LogWith, Loss, OffloadDevice, Pad,
    PartOutput, PartPasses, Plan, Prepare, Prepared, PreparedOptimizer, PreparedScheduler, ProfileConfig,
    ProfileSchedule, Profiler, ProjectConfiguration, ReduceOp, STARTING_BATCH_SIZE, SaveModel,
    SchedulerSteps, ShardSize, Stateful, Tracker, TrackerOptions, WandbRun,
};
pub use checkpoint::{ClientState, Frozen};
pub use dataloader::PreparedLoader;
pub use disk::{Outputs, Writer};
pub use error::{Error, Occupied, Result};
pub use nested::{Nested, Parcel};
pub use oarlock_comm::MeteredAllocator;
pub use oarlock_tensor::{DType, Device, Gradients, Tape, Tensor};
pub use shard::{OuterStep, ParamSlice, Placements, SeededInit, ShardingConfig, WeightSource};
