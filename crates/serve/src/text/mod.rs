//! From the bytes of tokens to the parts of an answer: whole characters, text before a stop string, thoughts, calls.

pub(crate) mod answer;
pub(crate) mod overlap;
pub(crate) mod sections;
pub(crate) mod stops;
pub(crate) mod utf8;
