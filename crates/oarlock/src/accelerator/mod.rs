//! The accelerator: what a training loop needs to run on many ranks. Oarlock's own trainer is such a loop.

mod accumulation;
mod buffers;
mod collectives;
mod config;
mod deepspeed_plugin;
mod dummies;
mod environment;
mod gradient_state;
mod handle;
mod hooks;
pub(crate) mod loaders;
mod local_sgd;
mod memory;
mod metrics;
mod numbering;
mod optimizer;
mod options;
mod passes;
mod plan;
mod plugins;
mod prepare;
mod prepared;
pub(crate) mod prepared_state;
mod processes;
mod profile;
mod project;
mod resolved;
mod save_model;
mod saving;
mod scheduler;
mod seed;
mod stateful;
mod token_loader;
mod trackers;
mod tracking;
mod weights;

pub use collectives::{Pad, Reduction};
pub use config::{
    AcceleratorConfig, DataLoaderConfiguration, DevicePlacement, DivideBy, Ends, GradientAccumulation,
    SchedulerSteps,
};
pub use deepspeed_plugin::{DeepSpeedPlugin, OffloadDevice};
pub use dummies::{DummyOptim, DummyScheduler};
pub(crate) use environment::MIXED_PRECISION;
pub use gradient_state::GradientState;
pub use handle::Accelerator;
pub use hooks::HookHandle;
pub use local_sgd::{LocalSgd, LocalSteps};
pub use memory::STARTING_BATCH_SIZE;
pub use optimizer::PreparedOptimizer;
pub(crate) use options::engine_options;
pub use passes::Loss;
pub use plan::Plan;
pub use prepare::Prepare;
pub use prepared::Prepared;
pub use processes::ApplyPadding;
pub use profile::{KeyAverage, ProfileConfig, ProfileSchedule, Profiler};
pub use project::ProjectConfiguration;
pub(crate) use resolved::{Resolved, hidden_size_of};
pub use save_model::{SaveModel, ShardSize};
pub use scheduler::PreparedScheduler;
pub use seed::DeviceSpecific;
pub use stateful::{Checkpointed, Stateful};
pub use token_loader::{PreparedTokenLoader, TokenLoader};
pub use trackers::{LogWith, Tracker, TrackerOptions, WandbRun};
