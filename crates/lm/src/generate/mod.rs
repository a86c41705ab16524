//! Text from a model: the prompt in one pass, then token by token over a key-value cache.

mod batch;
mod chat;
mod choices;
mod constraint;
pub mod engine;
#[cfg(feature = "tokenizers")]
mod gbnf;
mod generator;
#[cfg(feature = "tokenizers")]
mod grammar;
#[cfg(all(test, feature = "tokenizers"))]
mod grammar_tests;
mod model;
mod one;
mod own_probs;
mod perplexity;
mod refusal;
mod sampler;
#[cfg(test)]
mod tests;

pub use batch::Prompt;
pub use chat::Chat;
pub use constraint::{Constraint, TokenSet};
pub use generator::{GenerateOptions, Generation, Generator, Stop};
#[cfg(feature = "tokenizers")]
pub use grammar::{Grammar, Rule, Vocabulary};
pub use model::Model;
pub use perplexity::Perplexity;
pub use refusal::Refusal;
pub use sampler::Sampling;
