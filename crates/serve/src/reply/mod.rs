//! What clients get: answers as a whole and as streams.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod head;
pub(crate) mod logprobs;
pub(crate) mod stream;
