//! RAFT: how many answers each prompt gets, how they are made, and what scores them.

use super::predict::PredictArgs;
use super::reference::ReferenceArgs;

/// Rejection sampling fine-tuning (Dong et al. 2023).
#[derive(Clone, Debug, PartialEq)]
pub struct RaftArgs {
    /// `num_generations`: the answers to each prompt.
    pub num_generations: usize,
    /// How they are made.
    pub sampling: PredictArgs,
    /// What scores them.
    pub reward: RewardArgs,
    /// `min_reward`: the best answer to a prompt is trained on where its reward is above; `None` takes it in every case.
    pub min_reward: Option<f64>,
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
