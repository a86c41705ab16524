//! What is predicted after training: answers, to be compared with those that were expected, or the scores of answers.

/// What is done with the evaluation data after training, row by row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Predict {
    /// They are answered.
    Answers(PredictArgs),
    /// Both answers of each pair are scored by a reward model.
    Scores,
}

/// How answers are generated and kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PredictArgs {
    /// The most tokens of an answer.
    pub max_new_tokens: usize,
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens that together have this probability.
    pub top_p: f32,
    /// Above 1 makes tokens of the text so far less likely.
    pub repetition_penalty: f32,
    /// Leave special tokens out of answers.
    pub skip_special_tokens: bool,
}
