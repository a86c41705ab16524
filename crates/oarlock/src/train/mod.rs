//! Training: the story of a step, the run around it, and what a step needs (optimizer, schedule).
//!
//! Begin with `step`.

mod data;
mod flops;
mod journal;
mod model;
mod monitors;
mod optimizer;
mod options;
mod resume;
mod run;
pub mod scale;
pub mod schedule;
mod step;

pub use optimizer::{Optimizer, OptimizerConfig, Stepped};
pub(crate) use options::engine_options;
pub use options::{accelerator_config, missing_class};
pub use run::{run, started};
pub use scale::{LossScaler, LossScalerState, ScaleAtMinimum, Verdict};
pub use schedule::Schedule;
pub use step::{StepReport, evaluate, train_step};
