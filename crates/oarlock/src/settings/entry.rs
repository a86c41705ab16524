//! What was written, before it is resolved: entries with their places, in layers.

use super::node::Node;
use super::source::Place;

/// One setting as written.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name of the key.
    pub key: String,
    /// For `key.inner=value`: the setting inside the setting.
    pub inner: Option<String>,
    /// Where the name stands.
    pub place: Place,
    /// The value.
    pub value: Node,
}

impl Entry {
    /// A value for a key, both written at one place.
    pub fn new(key: &str, value: impl Into<String>, place: &Place) -> Entry {
        let value = Node::scalar(value, place.clone());
        Entry { key: key.to_owned(), inner: None, place: place.clone(), value }
    }
}

/// How the entries of a layer stand to those of the layers before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// They replace them.
    Replaces,
    /// They must say the same; a difference is a conflict.
    MustAgree,
}

/// The entries of one source.
#[derive(Clone, Debug)]
pub struct Layer {
    /// How they stand to earlier layers.
    pub authority: Authority,
    /// The entries in the order of the text.
    pub entries: Vec<Entry>,
}
