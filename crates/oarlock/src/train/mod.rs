//! Training: the story of a step, the run around it, and what a step needs (optimizer, schedule).
//!
//! Begin with [`step`].

mod data;
mod journal;
mod optimizer;
mod run;
pub mod schedule;
mod step;

pub use optimizer::{Optimizer, OptimizerConfig};
pub use run::{accelerator_config, run, started};
pub use schedule::Schedule;
pub use step::{StepReport, evaluate, train_step};
