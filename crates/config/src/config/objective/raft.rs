//! Stage raft: how many answers each prompt gets, how they are made, and what scores them.

use crate::config::predict::PredictArgs;
use crate::config::reference::ReferenceArgs;
use crate::settings::keys::Range::Any;
use crate::settings::keys::Status::{NoEffect, Used};
use crate::settings::keys::ValueType::{Choice, Float, Int, List, Path, Text};
use crate::settings::section::{Effect, Recorded, section};

section! {
    /// Rejection sampling fine-tuning (Dong et al. 2023).
    #[derive(Clone, Debug, PartialEq)]
    pub struct RaftArgs of Method with RaftParts {
        /// How answers are made.
        sampling: PredictArgs,
        /// What scores them.
        reward: RewardArgs,
        /// `min_reward`: the best answer to a prompt is trained on where its reward is above; `None` takes it in every case.
        min_reward: Option<f64>,
    }

    /// The keys of rejection sampling.
    pub const RAFT_KEYS = [
        REWARD_MODEL: Option<String> = (Path, "reward_model", "", Used, "Stage raft: folder of the reward model (from stage rm) that scores answers, instead of reward_function");
        REWARD_FUNCTION: Option<String> = (Choice(&["exact_match", "regex", "length"]), "reward_function", "", Used, "Stage raft (our own): rule that scores answers; exact_match: 1 if the final answer equals that of the data; regex: 1 if reward_pattern matches; length: the fraction of max_new_tokens");
        REWARD_PATTERN: Option<String> = (Text, "reward_pattern", "", Used, "With reward_function regex (our own): the regular expression; {answer} is replaced by the final answer of the data");
        NUM_GENERATIONS: usize = (Int(1), "num_generations", "4", Used, "Stage raft (our own): answers per prompt; the best one is trained on") => Computes num_generations;
        MIN_REWARD: Option<f64> = (Float(Any), "min_reward", "", Used, "Stage raft (our own): train on the best answer only if its reward is higher; unset: 0 with reward_function, no threshold with reward_model");
        REWARD_MODEL_ADAPTERS: Vec<String> = (List, "reward_model_adapters", "", NoEffect("stage raft takes a whole reward model"), "Adapters of the reward model");
        REWARD_MODEL_QUANTIZATION_BIT: Option<usize> = (Int(2), "reward_model_quantization_bit", "", NoEffect("stage raft takes a whole reward model"), "Bits of the reward model");
        REWARD_MODEL_TYPE: String = (Choice(&["lora", "full", "api"]), "reward_model_type", "lora", NoEffect("stage raft takes a whole reward model"), "Kind of the reward model");
    ];
}

impl RaftArgs {
    /// What a run records of them.
    pub(super) fn record(&self) -> Vec<Recorded> {
        let RaftParts { sampling, reward, min_reward } = self.parts();
        let own = vec![
            Recorded::computes("objective", "the model's best answers"),
            Recorded::printed("sampling", Some(&sampling), Effect::Computes),
            Recorded::computes("min_reward", min_reward),
            match &reward {
                // Its weights are compared by their fingerprints.
                RewardArgs::Model(ReferenceArgs { model, adapters: _, quantization: _ }) => {
                    Recorded::path("reward_model", model.as_deref())
                }
                rule => Recorded::printed("reward_function", Some(rule), Effect::Computes),
            },
        ];
        [own, self.recorded()].concat()
    }
}

/// What scores answers.
#[derive(Clone, Debug, PartialEq)]
pub enum RewardArgs {
    /// 1 where the final answer is that of the data, else 0.
    ExactMatch,
    /// 1 where this pattern is found, else 0; `{answer}` in it stands for the final answer of the data.
    Regex(String),
    /// The share of `max_new_tokens` that the answer has.
    Length,
    /// A model with a value head.
    Model(ReferenceArgs),
}
