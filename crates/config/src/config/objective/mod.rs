//! What a step optimizes, by stage. A stage is one file beside this one, with its arguments and its keys, and its lines here.

mod ppo;
mod preference;
mod raft;

use super::reference::ReferenceArgs;
use crate::settings::keys::{Row, joined, n_rows};
use crate::settings::section::Recorded;

pub use self::preference::{KtoArgs, KtoParts, PreferenceArgs, PreferenceLoss, PreferenceParts};
pub use self::raft::{RaftArgs, RaftParts, RewardArgs};

/// The stages in which the model answers prompts.
macro_rules! answering {
    () => {
        "stage raft"
    };
}
pub(super) use answering;

/// The keys of stages.
pub(super) mod keys {
    use crate::settings::keys::Status::Among;
    use crate::settings::keys::ValueType::Choice;
    use crate::settings::keys::{Group::Method, key, key_table};

    pub use crate::config::objective::{ppo::*, preference::*, raft::*};

    key_table! {
        /// The key that chooses a stage.
        pub const STAGES = [
            STAGE: String = key(Method, Choice(&["pt", "sft", "rm", "ppo", "dpo", "kto", "raft"]), "stage", "pt", Among(&["pt", "sft", "dpo", "kto", "rm", "raft"], "pretraining, supervised fine-tuning, preferences (dpo, kto), reward models (rm) and rejection sampling (raft) are there"), "Training stage: pretraining (pt), supervised fine-tuning (sft), preference pairs (dpo), unpaired preferences (kto), reward model (rm), or rejection sampling (raft, our own)"),
        ];
    }
}

const TABLES: &[&[Row]] =
    &[keys::PREFERENCE_KEYS, keys::KTO_KEYS, keys::PPO_KEYS, keys::COMPARISON_KEYS, keys::RAFT_KEYS];
pub(super) const STAGE_KEYS: &[Row] = &joined::<{ n_rows(TABLES) }>(TABLES);

/// What a step optimizes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ObjectiveArgs {
    /// The next token of texts, and of the answers of conversations (`stage: pt` and `sft`).
    #[default]
    NextToken,
    /// Which of two answers is better (`stage: dpo`).
    Preference(PreferenceArgs),
    /// Whether an answer is wanted (`stage: kto`).
    Kto(KtoArgs),
    /// A number for each answer that is larger for the better one (`stage: rm`).
    Rewards,
    /// The next token of the model's own best answers (`stage: raft`).
    Raft(RaftArgs),
}

impl ObjectiveArgs {
    /// The model that the trained one is compared with, where the loss has one.
    pub fn reference(&self) -> Option<&ReferenceArgs> {
        match self {
            ObjectiveArgs::Preference(args) if args.loss.has_reference() => Some(&args.reference),
            ObjectiveArgs::Kto(args) => Some(&args.reference),
            ObjectiveArgs::Raft(RaftArgs { reward: RewardArgs::Model(model), .. }) => Some(model),
            _ => None,
        }
    }

    /// The key that names this model.
    pub fn reference_key(&self) -> &'static str {
        if self.scores_with_reference() { "reward_model" } else { "ref_model" }
    }

    /// Whether this model is one with a value head, which scores answers.
    pub fn scores_with_reference(&self) -> bool {
        matches!(self, ObjectiveArgs::Raft(_))
    }

    /// Whether the run answers prompts and trains on its answers.
    pub fn makes_answers(&self) -> bool {
        matches!(self, ObjectiveArgs::Raft(_))
    }

    /// Whether dropout is switched off: differences of log-probabilities would be those of what is dropped.
    pub fn is_without_dropout(&self) -> bool {
        matches!(self, ObjectiveArgs::Preference(_) | ObjectiveArgs::Kto(_))
    }

    /// What a run records of it.
    pub fn record(&self) -> Vec<Recorded> {
        match self {
            ObjectiveArgs::NextToken => vec![Recorded::computes("objective", "the next token")],
            ObjectiveArgs::Preference(args) => args.record(),
            ObjectiveArgs::Kto(args) => args.record(),
            ObjectiveArgs::Rewards => vec![Recorded::computes("objective", "a reward")],
            ObjectiveArgs::Raft(args) => args.record(),
        }
    }
}
