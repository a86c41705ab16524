//! What was written, before it is resolved: the entries of each source, in layers.

use super::node::Entry;

/// How the entries of a layer stand to those of the layers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// They replace them.
    Replaces,
    /// They must say the same; a difference is a conflict.
    MustAgree,
    /// They stand in for what nobody knows yet: where somebody has said something, that holds. What follows from them is checked
    /// once it is known.
    Assumed,
}

/// The entries of one source.
#[derive(Clone, Debug)]
pub struct Layer {
    /// How they stand to earlier layers.
    pub authority: Authority,
    /// The entries in the order of the text.
    pub entries: Vec<Entry>,
}
