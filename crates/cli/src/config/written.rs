//! What the user wrote: entries with their locations, from a file, the arguments and the environment. Nothing is
//! interpreted here except the grammar.

use std::path::Path;

use oarlock_config::lookalikes::is_argument;
use oarlock_config::settings::keys::ValueType;
use oarlock_config::settings::location::Location;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::value::boolean;

use super::table;
use super::texts::read_file;
use super::words::Words;
use super::yaml::{self, Node};

pub use oarlock_config::settings::layer::{Authority, Layer};
pub use oarlock_config::settings::node::Entry;

/// The arguments of `oarlock train`, sorted.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// The configuration file.
    pub file: Option<String>,
    /// `key=value`, `--key value`, `--key=value`, `--flag`.
    pub overrides: Layer,
    /// `--print-config`: show every value with its origin.
    pub print_config: bool,
    /// `--dry-run`: stop before anything is loaded.
    pub dry_run: bool,
}

impl Arguments {
    /// What the file says, then what the arguments say.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn layers(&self) -> Result<Vec<Layer>, Problem> {
        let mut layers = Vec::new();
        if let Some(path) = &self.file {
            layers.push(file(Path::new(path))?);
        }
        layers.push(self.overrides.clone());
        Ok(layers)
    }
}

/// Reads a configuration file, YAML or JSON.
///
/// # Errors
/// If the file cannot be read or its text is not a mapping.
pub fn file(path: &Path) -> Result<Layer, Problem> {
    let name = path.display().to_string();
    text_of_file(&name, read_file(&name, "the configuration")?)
}

/// Reads the text of a configuration file; `name` is for messages.
///
/// # Errors
/// If the text is not a mapping.
pub fn text_of_file(name: &str, text: String) -> Result<Layer, Problem> {
    Ok(Layer { authority: Authority::Replaces, entries: yaml::entries(name, text, "a configuration")? })
}

/// Sorts the arguments that follow the subcommand.
///
/// # Errors
/// Every argument that is neither a file nor a setting.
pub fn arguments(words: &Words) -> Result<Arguments, Problems> {
    let overrides = Layer { authority: Authority::Replaces, entries: Vec::new() };
    let mut out = Arguments { file: None, overrides, print_config: false, dry_run: false };
    let mut problems = Problems::default();
    let mut i = 0;
    while let Some(word) = words.get(i) {
        match word {
            "--print-config" | "--print_config" => out.print_config = true,
            "--dry-run" | "--dry_run" => out.dry_run = true,
            _ => {
                let body = word.strip_prefix("--").unwrap_or(word);
                let (flag, start) = (body.len() < word.len(), word.len() - body.len());
                if let Some((name, value)) = body.split_once('=') {
                    let location = words.part(i, start + name.len() + 1..word.len());
                    let value = argument(value, location, name);
                    let location = words.part(i, start..start + name.len());
                    out.overrides.entries.push(entry(name, flag, location, value));
                } else if flag && !body.is_empty() {
                    let location = words.part(i, start..word.len());
                    let next = words.get(i + 1).filter(|next| takes_value(body, next));
                    let value = match next {
                        Some(next) => argument(next, words.location(i + 1), body),
                        None => Node::scalar("true", location.clone()),
                    };
                    out.overrides.entries.push(entry(body, flag, location, value));
                    i += usize::from(next.is_some());
                } else if flag || word.starts_with('-') || is_argument(word) {
                    let help = "settings are written key=value or --key value";
                    problems.push(
                        Problem::new(format!("unknown argument `{word}`"))
                            .at(&words.location(i), "")
                            .help(help),
                    );
                } else if let Some(first) = &out.file {
                    problems.push(
                        Problem::new(format!("two configuration files, `{first}` and `{word}`"))
                            .at(&words.location(i), "the second file")
                            .help("name one file; settings are written key=value"),
                    );
                } else {
                    out.file = Some(word.to_owned());
                }
            }
        }
        i += 1;
    }
    problems.into_result(|| out)
}

/// The type of the key of this name.
fn value_type(name: &str) -> Option<ValueType> {
    table::find(&normal(name)).map(|key| key.value_type)
}

/// Whether the word after `--name` is its value: a flag takes one only if it is true or false.
fn takes_value(name: &str, next: &str) -> bool {
    !next.starts_with("--") && (value_type(name) != Some(ValueType::Bool) || boolean(next).is_some())
}

/// A value from the command line: words, or YAML where a mapping is meant.
fn argument(text: &str, location: Location, name: &str) -> Node {
    if (matches!(value_type(name), Some(ValueType::Map | ValueType::MapOrPath)) || text.starts_with('['))
        && let Ok(node) = yaml::parse_inside(text, &location)
    {
        return node;
    }
    Node::scalar(text, location)
}

fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// An entry for `key` or `key.inner`. The key of a flag may be written with hyphens.
fn entry(name: &str, flag: bool, location: Location, value: Node) -> Entry {
    let (key, inner) = name.split_at(name.find('.').unwrap_or(name.len()));
    let key = if flag { normal(key) + inner } else { name.to_owned() };
    Entry { key, location, value }
}
