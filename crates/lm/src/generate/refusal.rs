//! Why a request is not taken up.

use oarlock_engine::Error;

/// Why a request is not taken up; the text says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// As many requests are open as may be.
    #[error("{n_open} requests are open, as many as are taken at a time; try again later")]
    QueueFull {
        /// Those that are answered or wait.
        n_open: usize,
    },
    /// The engine takes no more requests.
    #[error("the engine is stopping and takes no more requests")]
    Stopping,
    /// A prompt without tokens.
    #[error("the prompt is empty; give at least one token to continue")]
    PromptEmpty,
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {n_tokens} tokens, but the longest sequence is {n_positions}; shorten it")]
    PromptTooLong {
        /// The tokens of the prompt.
        n_tokens: usize,
        /// The positions of the longest sequence.
        n_positions: usize,
    },
    /// A token that the model does not know.
    #[error(
        "the prompt holds token {id}, but the model knows {vocab_size}; the tokenizer belongs to another model"
    )]
    UnknownToken {
        /// The token.
        id: u32,
        /// How many the model knows.
        vocab_size: usize,
    },
    /// Settings of sampling that make no sense.
    #[error("{0}")]
    Sampling(String),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Usage(refusal.to_string())
    }
}
