//! The accelerator: what a training loop needs to run on many ranks. Oarlock's own trainer is such a loop.
//!
//! | room | job |
//! |---|---|
//! | `handle` | the [`Accelerator`], and what all that it prepared has in common: a part for each room |
//! | `settings` | what it is told by its configuration, launchers and plugins, and what `prepare` makes of that |
//! | `ranks` | devices and axes of the ranks, collectives on tensors and objects, metrics, seeds |
//! | `models` | prepared models: their recorded passes, weights and averages; torch's DDP |
//! | `steps` | the accumulation window, prepared optimizers and schedulers, local SGD |
//! | `saving` | checkpoints of a loop, and models for other programs |
//! | `monitoring` | trackers and profiles |
//! | [`deepspeed`] | DeepSpeed's API on the same parts |

pub mod deepspeed;
mod handle;
mod models;
mod monitoring;
mod ranks;
mod saving;
mod settings;
pub(crate) mod steps;

pub use handle::Accelerator;
pub use models::ddp::DistributedDataParallel;
pub use models::ema::Ema;
pub use models::memory::STARTING_BATCH_SIZE;
pub use models::parts::{PartOutput, PartPasses};
pub use models::passes::Loss;
pub use models::prepare::Prepare;
pub use models::prepared::Prepared;
pub use monitoring::profile::{KeyAverage, ProfileConfig, ProfileSchedule, Profiler};
pub use monitoring::trackers::{LogWith, SwanLabRun, Tracker, TrackerOptions, WandbRun};
pub use ranks::collectives::Pad;
pub use ranks::processes::ApplyPadding;
pub use ranks::seed::DeviceSpecific;
pub use saving::hooks::HookHandle;
pub use saving::save_model::{SaveModel, ShardSize};
pub use saving::stateful::{Checkpointed, Stateful};
pub use settings::config::{
    AcceleratorConfig, DataLoaderConfiguration, DevicePlacement, DivideBy, Ends, GradientAccumulation,
    SchedulerSteps,
};
pub use settings::deepspeed_plugin::{DeepSpeedPlugin, OffloadDevice};
pub use settings::dummies::{DummyOptim, DummyScheduler};
pub use settings::plan::Plan;
pub use settings::project::ProjectConfiguration;
pub use steps::gradient_state::GradientState;
pub use steps::local_sgd::{LocalSgd, LocalSteps};
pub use steps::optimizer::PreparedOptimizer;
pub use steps::scheduler::PreparedScheduler;
