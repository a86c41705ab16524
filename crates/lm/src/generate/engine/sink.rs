//! What comes of a request: tokens and an end, and where they go.

use std::ops::ControlFlow;
use std::time::Duration;

use oarlock_engine::Result;

use crate::generate::generator::Stop;

/// What an answer gives, in this order: the prompt where asked for, tokens, and then one of the others.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The tokens of the prompt, where the request asks for their log-probabilities. The first one has none.
    Prompt(Vec<Token>),
    /// The next token.
    Token(Token),
    /// The answer is complete.
    Finished(Finished),
    /// The answer ends unfinished.
    Failed(Failure),
}

/// A token of an answer or a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// The token.
    pub id: u32,
    /// Its natural log-probability in the model's own distribution: at temperature 1, before bias and penalties. `None` where
    /// the request asks for none.
    pub logprob: Option<f32>,
    /// As many of the likeliest tokens as the request asks for, with their log-probabilities, the likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// The end of a complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Why it ends.
    pub stop: Stop,
    /// The tokens of the prompt.
    pub n_prompt: usize,
    /// Those of them whose keys and values were there from an earlier request.
    pub n_cached: usize,
    /// The tokens of the answer, without the one that ended it.
    pub n_tokens: usize,
    /// How long it took.
    pub timings: Timings,
}

/// How long the parts of an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// From the submission until the request had a place.
    pub waiting: Duration,
    /// From then on until the first token.
    pub prompt: Duration,
    /// From the first token until the end.
    pub answer: Duration,
}

/// Why an answer ends unfinished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The engine was stopped.
    #[error("the engine stopped before the answer was complete")]
    Stopped,
    /// What the request asks for cannot be given: no token may follow, or its constraint takes too much.
    #[error("{0}")]
    Request(String),
    /// What the model or the sampler reports.
    #[error("{0}")]
    Generation(String),
}

/// Where an answer goes.
pub(in crate::generate) trait Sink {
    /// Takes the tokens of the prompt, where asked for.
    fn prompt(&mut self, _tokens: Vec<Token>) {}
    /// Takes a token; says whether more are wanted.
    fn token(&mut self, token: Token) -> ControlFlow<()>;
    /// Whether nobody wants the answer any more.
    fn is_cancelled(&self) -> bool {
        false
    }
    /// Takes the end, or what went wrong.
    fn end(self, end: Result<Finished>);
}
