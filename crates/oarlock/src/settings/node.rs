//! A text of settings as a tree whose every node knows its place. Scalars stay text: what a scalar means is decided by the
//! key that it belongs to, so that `5e-4`, which YAML 1.1 takes for a word, is a number.

use std::borrow::Cow;

use super::source::Place;

/// A node of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it holds.
    pub data: Data,
    /// Where it stands.
    pub place: Place,
}

/// The content of a [`Node`].
#[derive(Clone, Debug)]
pub enum Data {
    /// A word, number or string. `plain` means that no quotes stood around it.
    Scalar {
        /// The text without quotes.
        text: String,
        /// Whether it stood without quotes.
        plain: bool,
    },
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the text. Keys are not checked for duplicates here.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// A scalar without quotes.
    pub fn scalar(text: impl Into<String>, place: Place) -> Self {
        Node { data: Data::Scalar { text: text.into(), plain: true }, place }
    }

    /// Whether this is YAML's null: nothing, `~` or `null`, without quotes.
    pub fn is_null(&self) -> bool {
        match &self.data {
            Data::Scalar { text, plain: true } => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }

    /// The node as YAML in one line.
    pub fn to_yaml(&self) -> String {
        match &self.data {
            Data::Scalar { text, plain: true } => text.clone(),
            Data::Scalar { text, plain: false } => serde_json::Value::from(text.as_str()).to_string(),
            Data::List(items) => {
                format!("[{}]", items.iter().map(Node::to_yaml).collect::<Vec<_>>().join(", "))
            }
            Data::Map(pairs) => {
                let pairs =
                    pairs.iter().map(|(key, value)| format!("{}: {}", key.to_yaml(), value.to_yaml()));
                format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The node in words, for messages.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Scalar { text, .. } if text.is_empty() => "nothing".to_owned(),
            Data::Scalar { text, .. } => format!("`{}`", shorten(text)),
            Data::List(_) => "a list".to_owned(),
            Data::Map(_) => "a mapping".to_owned(),
        }
    }
}

fn shorten(text: &str) -> Cow<'_, str> {
    const MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= MAX {
        return Cow::Borrowed(text);
    }
    Cow::Owned(line.chars().take(MAX).chain("…".chars()).collect())
}
