//! A text of settings as a tree whose every node knows its location. Scalars stay text: what a scalar means is decided by the
//! key that it belongs to, so that `5e-4`, which YAML 1.1 takes for a word, is a number.

use std::borrow::Cow;

use super::location::Location;
use super::problem::Problem;
use super::word::quoted;

/// More keys than any mapping of a configuration has. Every one that is wrong is reported with its place, which takes its
/// time.
const MOST_KEYS: usize = 2000;

/// A node of the tree.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it holds.
    pub data: Data,
    /// Where it stands.
    pub location: Location,
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
    /// A mapping, in the order of the text. At the top of a text a key may be repeated.
    Map(Vec<Entry>),
}

/// A key with its value, as written.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name of the key. Arguments may write `key.inner=value` for a setting inside a setting.
    pub key: String,
    /// Where the name stands.
    pub location: Location,
    /// The value.
    pub value: Node,
}

impl Node {
    /// A scalar without quotes.
    pub fn scalar(text: impl Into<String>, location: Location) -> Self {
        Node { data: Data::Scalar { text: text.into(), plain: true }, location }
    }

    /// A mapping.
    pub fn map(entries: Vec<Entry>, location: &Location) -> Self {
        Node { data: Data::Map(entries), location: location.clone() }
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

    /// The text of a scalar without blanks around it.
    pub fn word(&self) -> Option<&str> {
        match &self.data {
            Data::Scalar { text, .. } => Some(text.trim()),
            _ => None,
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
            Data::Map(entries) => to_yaml(entries),
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

    /// The entries of the root of a text; `what` names the text in messages.
    ///
    /// # Errors
    /// If it is not a mapping.
    pub fn into_entries(self, what: &str) -> Result<Vec<Entry>, Problem> {
        let described = self.describe();
        match self.data {
            Data::Map(entries) => Ok(entries),
            _ => Err(Problem::new(format!("{what} is a mapping of keys to values, not {described}"))
                .at(&self.location, "expected a mapping")),
        }
    }
}

impl Entry {
    /// A value for a key, both written at one location.
    pub fn new(key: &str, value: impl Into<String>, location: &Location) -> Entry {
        Entry::of(key, Node::scalar(value, location.clone()))
    }

    /// A value for a key that no text names.
    pub fn of(key: &str, value: Node) -> Entry {
        Entry { key: key.to_owned(), location: value.location.clone(), value }
    }
}

/// A mapping as YAML in one line.
pub fn to_yaml(entries: &[Entry]) -> String {
    let pairs = entries.iter().map(|entry| format!("{}: {}", quoted(&entry.key), entry.value.to_yaml()));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
}

/// Adds what was read to the mapping in which it stands, at this depth of the text.
///
/// # Errors
/// A key that is a list or a mapping, and inside a block one that was there before. At the top all repeated keys are
/// reported together, when they are resolved.
pub fn add_entry(entries: &mut Vec<Entry>, key: Node, value: Node, depth: usize) -> Result<(), Problem> {
    let Some(name) = key.word() else {
        return Err(Problem::new("a key is a word").at(&key.location, "this is a list or a mapping"));
    };
    if entries.len() == MOST_KEYS {
        let problem = Problem::new(format!("a mapping of more than {MOST_KEYS} keys is not a configuration"));
        return Err(problem.at(&key.location, "too many").help("is this the file that was meant?"));
    }
    if depth > 0
        && let Some(first) = entries.iter().find(|entry| entry.key == name)
    {
        return Err(written_twice(name, &key.location, &first.location));
    }
    entries.push(Entry { key: name.to_owned(), location: key.location, value });
    Ok(())
}

/// The problem of a key that stands in one mapping twice.
pub fn written_twice(key: &str, again: &Location, first: &Location) -> Problem {
    Problem::new(format!("`{key}` is written twice"))
        .at(again, "again here")
        .at(first, "first here")
        .help("remove one of them")
}

/// What stands at a path such as `zero_optimization.stage`.
pub fn find<'e>(entries: &'e [Entry], path: &str) -> Option<&'e Node> {
    let (key, rest) = split(path);
    let node = &entries.iter().find(|entry| entry.key == key)?.value;
    match (rest, &node.data) {
        (None, _) => Some(node),
        (Some(rest), Data::Map(inner)) => find(inner, rest),
        (Some(_), _) => None,
    }
}

/// The same, to be changed.
pub fn find_mut<'e>(entries: &'e mut [Entry], path: &str) -> Option<&'e mut Node> {
    let (key, rest) = split(path);
    let node = &mut entries.iter_mut().find(|entry| entry.key == key)?.value;
    let Some(rest) = rest else { return Some(node) };
    match &mut node.data {
        Data::Map(inner) => find_mut(inner, rest),
        _ => None,
    }
}

/// Writes a value at a path, over what may be there, and adds the blocks that are missing.
pub fn put(entries: &mut Vec<Entry>, path: &str, value: Node) {
    let (key, rest) = split(path);
    let at = entries.iter().position(|entry| entry.key == key).unwrap_or_else(|| {
        entries.push(Entry::of(key, Node::map(Vec::new(), &value.location)));
        entries.len() - 1
    });
    let node = &mut entries[at].value;
    let Some(rest) = rest else {
        *node = value;
        return;
    };
    if !matches!(node.data, Data::Map(_)) {
        node.data = Data::Map(Vec::new());
    }
    if let Data::Map(inner) = &mut node.data {
        put(inner, rest, value);
    }
}

fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)))
}

fn shorten(text: &str) -> Cow<'_, str> {
    const MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    if line.len() == text.len() && line.chars().count() <= MAX {
        return Cow::Borrowed(text);
    }
    Cow::Owned(line.chars().take(MAX).chain("…".chars()).collect())
}
