//! What clients get: answers as a whole and as streams.

pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod head;
pub(crate) mod items;
pub(crate) mod logprobs;
pub(crate) mod responses;
pub(crate) mod stream;
