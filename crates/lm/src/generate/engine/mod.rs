//! Answers to requests that come while others are answered: a model on a thread of its own.
//!
//! [`Engine::submit`] takes a [`Request`] and returns its [`Answer`], which gives a token as soon as it is chosen. Requests
//! of any lengths are answered together: each step runs one pass over the last token of every answer, and reads parts of the
//! prompts of new requests within a budget, so that a long prompt does not hold up the answers. Where an answer ends, the
//! next request takes its place.
//!
//! A model may have adapters beside its weights ([`load_with_adapters_as`](crate::adapters::load_with_adapters_as)). Each request
//! names one or none, and requests of all of them are answered together.
//!
//! Where a text goes on as it did before, the next tokens are guessed, and one pass computes the logits behind all of them
//! (`Limits::speculative_tokens`). Each token is still chosen by the sampler of its request, so guesses change no bit. On GPUs,
//! where sums of one row and of several differ, nothing is guessed.
//!
//! What prompts begin with alike is read once: the keys and values of earlier prompts are kept in pages of 64 positions.
//!
//! On a CPU an answer is a function of the model, its request and whether the engine has more than eight places, bit by bit:
//! neither the requests beside it, nor the parts that its prompt was read in, nor what was kept of earlier prompts changes a
//! token or a log-probability. With up to eight places it is that of [`Generator::generate`](super::Generator::generate). With
//! more, products are summed in another order, that of products of any number of rows, and so they always are.

mod answer;
mod draft;
#[cfg(test)]
mod exact_tests;
pub(super) mod lending;
mod limits;
mod prefixes;
pub(super) mod request;
pub(super) mod scheduler;
pub(super) mod sink;
mod speculation;
#[cfg(test)]
mod speculation_tests;
#[cfg(test)]
mod tests;
mod told;
mod worker;

pub use answer::Answer;
pub use limits::{Limits, Metrics};
pub use request::Request;
pub use sink::{Event, Failure, Finished, Timings, Token};
pub use worker::Engine;
