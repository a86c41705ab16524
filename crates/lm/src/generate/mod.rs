//! Text from a model: the prompt in one pass, then token by token over a key-value cache.

mod batch;
mod chat;
mod choices;
mod generator;
mod one;
mod sampler;
#[cfg(test)]
mod tests;

pub use batch::{Model, Prompt};
pub use chat::Chat;
pub use generator::{GenerateOptions, Generation, Generator, Stop};
pub use sampler::Sampling;
