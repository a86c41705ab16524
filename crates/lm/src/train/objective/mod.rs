//! Objectives: what a step optimizes. An objective turns a micro-batch and a language model into a loss, what the loss
//! weighs and named metrics; the trainer, evaluation, logs and the memory forecast know nothing else of it.
//!
//! One objective is one file beside this one, and its line in [`of`]. It may hold more than numbers: a second model that is
//! prepared without an optimizer, and so frozen, which runs before the pass that is recorded ([`Objective::prepare`]).

mod answers;
mod definition;
mod dry;
mod inputs;
mod kto;
mod language_model;
mod metric;
mod next_token;
mod preference;
mod preference_loss;
mod raft;
mod reward;

use oarlock_config::config::{ObjectiveArgs, TrainArgs};

pub use self::answers::Reference;
pub use self::definition::{Answering, Objective, ObjectiveContext, Source};
pub use self::dry::dry_pass;
pub use self::inputs::{Document, Inputs};
pub use self::kto::Kto;
pub use self::language_model::{LanguageModel, Unrecorded};
pub use self::metric::{Evaluation, Mean, Metric, ObjectiveLoss, Sum, Tally, Totals};
pub use self::next_token::NextToken;
pub use self::preference::Preference;
pub use self::raft::Raft;
pub use self::reward::{Reward, scores};

/// The objective of a run. One that is only looked at needs nothing of the run.
pub fn of(train: &TrainArgs, given: ObjectiveContext) -> Box<dyn Objective> {
    match &train.objective {
        ObjectiveArgs::NextToken => Box::new(NextToken { args: train.loss, seed: train.seed }),
        ObjectiveArgs::Preference(args) => Box::new(Preference::new(args.clone(), given.reference)),
        ObjectiveArgs::Kto(args) => Box::new(Kto::new(args.clone(), given.reference)),
        ObjectiveArgs::Rewards => Box::new(Reward),
        ObjectiveArgs::Raft(args) => Box::new(Raft::new(args.clone(), train, given)),
    }
}
