//! How much an engine takes on, and what it counts.

use crate::generate::generator::SPECULATIVE_TOKENS;

/// How much an engine takes on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most answers that are written at a time. With more than eight, answers may differ in rounding from those of an engine
    /// with fewer.
    pub at_once: usize,
    /// The most requests that wait for a place beside them.
    pub queue: usize,
    /// The tokens of prompts that a step reads while answers are written; it reads 32 at least. More lets prompts be read
    /// faster, and makes the pauses of answers longer meanwhile.
    pub prompt_tokens: usize,
    /// The most bytes of keys and values. `None` is room for the longest sequence of the model in every place. With less,
    /// requests wait until there is room, and sequences that need more than all of it end early.
    pub cache_bytes: Option<usize>,
    /// The most bytes of keys and values that are kept of earlier prompts, beside those; 0 keeps none.
    pub prefix_bytes: usize,
    /// The most tokens that are guessed of an answer in a pass; 0 guesses none. Fewer are guessed where guesses were wrong and
    /// where many answers are written. The tokens of an answer are the same for any number. On a GPU nothing is guessed.
    pub speculative_tokens: usize,
}

impl Limits {
    /// With the last token of an answer, the guesses are as many rows as are summed as one is.
    pub const DEFAULT_SPECULATIVE_TOKENS: usize = SPECULATIVE_TOKENS;
}

impl Default for Limits {
    /// Eight answers at a time, 64 requests that wait, 128 tokens of prompts a step, memory as the answers need it,
    /// 256 MiB of earlier prompts, and up to seven guesses.
    fn default() -> Limits {
        Limits {
            at_once: 8,
            queue: 64,
            prompt_tokens: 128,
            cache_bytes: None,
            prefix_bytes: 256 << 20,
            speculative_tokens: Limits::DEFAULT_SPECULATIVE_TOKENS,
        }
    }
}

/// What an engine has done and is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Tokens of prompts that were read.
    pub n_prompt_tokens: u64,
    /// Tokens of prompts whose keys and values were there from an earlier request.
    pub n_cached_tokens: u64,
    /// Tokens that were generated.
    pub n_generated_tokens: u64,
    /// Tokens that were guessed.
    pub n_draft_tokens: u64,
    /// Guesses that were right.
    pub n_accepted_tokens: u64,
    /// Answers that were completed.
    pub n_finished: u64,
    /// Answers that nobody wanted any more.
    pub n_cancelled: u64,
    /// Answers that ended with an error.
    pub n_failed: u64,
    /// Answers that are being written.
    pub n_running: usize,
    /// Requests that wait for a place.
    pub n_waiting: usize,
    /// Bytes of keys and values in use, in pages of 64 positions. Each page is counted once, and those that are kept of prompts
    /// only there.
    pub cache_bytes: usize,
    /// Bytes of keys and values that may be in use.
    pub max_cache_bytes: usize,
    /// Bytes of keys and values that are kept of earlier prompts.
    pub prefix_bytes: usize,
}
