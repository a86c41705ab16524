//! What clients ask for: bodies as values that are checked.

pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod form;
pub(crate) mod generation;
pub(crate) mod input;
pub(crate) mod message;
pub(crate) mod responses;
pub(crate) mod tools;
