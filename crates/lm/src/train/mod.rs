//! Training: the story of a step, what a step optimizes, and the run around it.
//!
//! Begin with `step`.

mod best;
mod blocks;
mod data;
mod final_files;
mod flops;
mod forecast;
mod inputs;
mod journal;
mod lock;
pub(crate) mod model;
mod monitors;
mod new_tokens;
pub mod objective;
mod obstacles;
mod options;
mod output_folder;
mod passes;
mod pool_limit;
mod preflight;
mod record;
mod resume;
mod run;
mod step;
mod token_loader;
mod written;

pub use forecast::forecast;
pub use lock::clear_lock;
pub use model::head_dims;
pub use monitors::end_trackers;
pub use objective::{
    Evaluation, Inputs, Kto, LanguageModel, Metric, NextToken, Objective, ObjectiveLoss, Preference,
    Reference, Reward,
};
pub use obstacles::{Obstacle, obstacles};
pub use options::{accelerator_config, missing_class, optimizer};
pub use preflight::{Fault, preflight};
pub use run::{run, started};
pub use step::{StepReport, evaluate, train_step};
pub use token_loader::{PreparedTokenLoader, TokenLoader};
