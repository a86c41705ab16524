//! What is new of an answer, and what the answers took.

use std::time::Duration;

use crate::events::Token;
use crate::text::answer::Shown;
use crate::text::sections::Part;

/// Why an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    /// In the words of OpenAI's API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// What is new of one answer.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) choice: usize,
    /// The tokens of its prompt, where asked for.
    pub(crate) prompt: Vec<Token>,
    pub(crate) parts: Vec<Part>,
    pub(crate) tokens: Vec<Token>,
    /// The stop string that has ended the answer.
    pub(crate) stop: Option<String>,
    /// Nothing more comes of this answer.
    pub(crate) finish: Option<Finish>,
    /// Nothing more comes of any answer.
    pub(crate) totals: Option<Totals>,
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) n_prompt_tokens: usize,
    pub(crate) n_cached_tokens: usize,
    pub(crate) n_answer_tokens: usize,
    pub(crate) n_thought_tokens: usize,
    /// Of the sequence that took longest.
    pub(crate) prompt_time: Duration,
    pub(crate) answer_time: Duration,
}

impl Delta {
    pub(crate) fn show(&mut self, shown: Shown) {
        self.parts.extend(shown.parts);
        self.tokens.extend(shown.tokens);
    }
}
