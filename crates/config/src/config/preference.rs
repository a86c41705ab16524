//! What a step optimizes: the next token, which of two answers is better, whether an answer is wanted, a reward.

use super::raft::{RaftArgs, RewardArgs};
use super::reference::ReferenceArgs;

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
}

/// A loss of pairs of answers, with the defaults of LLaMA-Factory.
#[derive(Clone, Debug, PartialEq)]
pub struct PreferenceArgs {
    /// `pref_loss`.
    pub loss: PreferenceLoss,
    /// `pref_beta`: what differences of log-probabilities are multiplied with.
    pub beta: f32,
    /// `pref_ftx`: what the mean loss of a token of the chosen answer counts besides.
    pub ftx: f32,
    /// `pref_bco_weight`: what the loss of a classifier of single answers counts besides.
    pub bco_weight: f32,
    /// `dpo_label_smoothing`: how probable it is that a pair is the wrong way round.
    pub label_smoothing: f32,
    /// `simpo_gamma`: the margin of SimPO.
    pub simpo_gamma: f32,
    /// `ld_alpha`: what tokens count that the longer answer has beyond the length of the shorter one.
    pub ld_alpha: Option<f32>,
    /// The model that the trained one is compared with.
    pub reference: ReferenceArgs,
}

impl Default for PreferenceArgs {
    fn default() -> PreferenceArgs {
        PreferenceArgs {
            loss: PreferenceLoss::Sigmoid,
            beta: 0.1,
            ftx: 0.0,
            bco_weight: 0.0,
            label_smoothing: 0.0,
            simpo_gamma: 0.5,
            ld_alpha: None,
            reference: ReferenceArgs::default(),
        }
    }
}

/// How two answers are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreferenceLoss {
    /// DPO (Rafailov et al. 2023).
    #[default]
    Sigmoid,
    /// Of a margin of 1 (Zhao et al. 2023).
    Hinge,
    /// IPO, on means over tokens (Azar et al. 2023).
    Ipo,
    /// ORPO, without a reference (Hong et al. 2024).
    Orpo,
    /// SimPO, without a reference (Meng et al. 2024).
    Simpo,
}

impl PreferenceLoss {
    /// Whether the model is compared with a frozen one.
    pub fn has_reference(self) -> bool {
        matches!(self, PreferenceLoss::Sigmoid | PreferenceLoss::Hinge | PreferenceLoss::Ipo)
    }

    /// Whether answers count by the mean of their tokens' log-probabilities instead of the sum.
    pub fn takes_means(self) -> bool {
        !matches!(self, PreferenceLoss::Sigmoid | PreferenceLoss::Hinge)
    }
}

/// KTO (Ethayarajh et al. 2024), with the defaults of LLaMA-Factory.
#[derive(Clone, Debug, PartialEq)]
pub struct KtoArgs {
    /// `pref_beta`: what differences of log-probabilities are multiplied with.
    pub beta: f32,
    /// `kto_chosen_weight`: what a wanted answer counts.
    pub chosen_weight: f32,
    /// `kto_rejected_weight`: what an unwanted answer counts.
    pub rejected_weight: f32,
    /// `pref_ftx`: what the mean loss of a token of a wanted answer counts besides.
    pub ftx: f32,
    /// The model that the trained one is compared with.
    pub reference: ReferenceArgs,
}

impl Default for KtoArgs {
    fn default() -> KtoArgs {
        KtoArgs {
            beta: 0.1,
            chosen_weight: 1.0,
            rejected_weight: 1.0,
            ftx: 0.0,
            reference: ReferenceArgs::default(),
        }
    }
}
