//! The configurations of a data set, which stand in the YAML at the head of its README.md.

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};

/// How deep values may be nested, and how long a header may be.
const MAX_DEPTH: usize = 32;
const MAX_BYTES: usize = 4 << 20;

/// The most patterns, and the longest one.
const MAX_PATTERNS: usize = 20_000;
const MAX_PATTERN_BYTES: usize = 1000;

/// One configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) is_default: bool,
    /// The folder that its patterns begin in.
    pub(crate) folder: Option<String>,
    /// Splits with their patterns. `None` if they follow from the names of the files.
    pub(crate) splits: Option<Vec<(String, Vec<String>)>>,
}

/// The configurations of a text, in its order.
///
/// # Errors
/// A header that is not YAML, or does not have the form of `configs`.
pub(crate) fn configs(readme: &str) -> Result<Vec<Config>, String> {
    let Some(header) = header(readme) else { return Ok(Vec::new()) };
    if header.len() > MAX_BYTES {
        return Err("the YAML at the head of its README.md is too long".to_owned());
    }
    let mut parser = Parser::new_from_str(header);
    let root = document(&mut parser)?;
    match root.get("configs") {
        None | Some(Yaml::Null) => Ok(Vec::new()),
        Some(Yaml::List(items)) => bounded(items.iter().map(config).collect::<Result<_, _>>()?),
        Some(_) => Err("`configs` in its README.md is not a list".to_owned()),
    }
}

/// A card that names more patterns than people write would take for ever to compare with the files.
fn bounded(configs: Vec<Config>) -> Result<Vec<Config>, String> {
    let splits = configs.iter().flat_map(|config| config.splits.iter().flatten());
    let patterns: Vec<&String> = splits.flat_map(|(_, patterns)| patterns).collect();
    match patterns.len() > MAX_PATTERNS || patterns.iter().any(|pattern| pattern.len() > MAX_PATTERN_BYTES) {
        true => Err("its README.md has too many patterns of data_files, or too long ones".to_owned()),
        false => Ok(configs),
    }
}

/// What stands between the first line `---` and the next one.
fn header(readme: &str) -> Option<&str> {
    let text = readme.strip_prefix('\u{feff}').unwrap_or(readme);
    let begin = text.strip_prefix("---")?.split_once('\n').filter(|(rest, _)| rest.trim().is_empty())?.1;
    let mut end = 0;
    for line in begin.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&begin[..end]);
        }
        end += line.len();
    }
    None
}

fn config(value: &Yaml) -> Result<Config, String> {
    let name = value.get("config_name").and_then(Yaml::text);
    let name = name.ok_or("a configuration in its README.md has no config_name")?.to_owned();
    let splits = match value.get("data_files") {
        None | Some(Yaml::Null) => None,
        Some(files) => Some(splits(files).ok_or_else(|| {
            format!("data_files of {name:?} in its README.md is no pattern, no list of them, and no list of split and path")
        })?),
    };
    let folder = value.get("data_dir").and_then(Yaml::text).map(str::to_owned);
    let is_default =
        value.get("default").and_then(Yaml::text).is_some_and(|text| text.eq_ignore_ascii_case("true"));
    Ok(Config { name, is_default, folder, splits })
}

/// A pattern, a list of patterns, or a list of splits with patterns.
fn splits(files: &Yaml) -> Option<Vec<(String, Vec<String>)>> {
    if let Some(patterns) = patterns(files) {
        return Some(vec![("train".to_owned(), patterns)]);
    }
    let Yaml::List(items) = files else { return None };
    items
        .iter()
        .map(|item| Some((item.get("split")?.text()?.to_owned(), patterns(item.get("path")?)?)))
        .collect()
}

fn patterns(value: &Yaml) -> Option<Vec<String>> {
    match value {
        Yaml::Text(text) => Some(vec![text.clone()]),
        Yaml::List(items) => items.iter().map(|item| item.text().map(str::to_owned)).collect(),
        _ => None,
    }
}

/// What is read of YAML: aliases stand for nothing.
enum Yaml {
    Null,
    Text(String),
    List(Vec<Yaml>),
    Map(Vec<(String, Yaml)>),
}

impl Yaml {
    fn get(&self, key: &str) -> Option<&Yaml> {
        let Yaml::Map(entries) = self else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    fn text(&self) -> Option<&str> {
        match self {
            Yaml::Text(text) => Some(text),
            _ => None,
        }
    }
}

fn next<'t>(parser: &mut Parser<'t, StrInput<'t>>) -> Result<Event<'t>, String> {
    match parser.next_event() {
        Some(Ok((event, _))) => Ok(event),
        Some(Err(error)) => Err(format!("the head of its README.md is not YAML: {}", error.info())),
        None => Err("the YAML at the head of its README.md has no end".to_owned()),
    }
}

fn document<'t>(parser: &mut Parser<'t, StrInput<'t>>) -> Result<Yaml, String> {
    loop {
        match next(parser)? {
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => {}
            Event::StreamEnd => return Ok(Yaml::Null),
            event => return value(parser, event, 0),
        }
    }
}

fn value<'t>(parser: &mut Parser<'t, StrInput<'t>>, event: Event<'t>, depth: usize) -> Result<Yaml, String> {
    if depth > MAX_DEPTH {
        return Err("the YAML at the head of its README.md is nested too deep".to_owned());
    }
    match event {
        Event::Scalar(text, style, ..) => {
            let is_null =
                style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
            Ok(if is_null { Yaml::Null } else { Yaml::Text(text.into_owned()) })
        }
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match next(parser)? {
                    Event::SequenceEnd => return Ok(Yaml::List(items)),
                    event => items.push(value(parser, event, depth + 1)?),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut entries = Vec::new();
            loop {
                let key = match next(parser)? {
                    Event::MappingEnd => return Ok(Yaml::Map(entries)),
                    event => value(parser, event, depth + 1)?,
                };
                let event = next(parser)?;
                let value = value(parser, event, depth + 1)?;
                if let Yaml::Text(key) = key {
                    entries.push((key, value));
                }
            }
        }
        _ => Ok(Yaml::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_data_files() {
        let text = "---\nlicense: mit\nconfigs:\n- config_name: a\n  data_files: x.csv\n- config_name: b\n  \
                    default: true\n  data_dir: d\n  data_files:\n  - p/*\n  - q/*\n- config_name: c\n  data_files:\n  - \
                    split: train\n    path: t/*\n  - split: test\n    path:\n    - u/*\n    - \"v/*\"\n- config_name: e\n---\n# Text\n";
        let found = configs(text).unwrap();
        let own = |strs: &[&str]| strs.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(found[0].splits, Some(vec![("train".to_owned(), own(&["x.csv"]))]));
        assert_eq!(found[1].splits, Some(vec![("train".to_owned(), own(&["p/*", "q/*"]))]));
        assert!(found[1].is_default && found[1].folder.as_deref() == Some("d") && !found[0].is_default);
        let c = vec![("train".to_owned(), own(&["t/*"])), ("test".to_owned(), own(&["u/*", "v/*"]))];
        assert_eq!(found[2].splits, Some(c));
        assert_eq!(found[3].splits, None);
    }

    #[test]
    fn texts_without_configurations_and_broken_ones() {
        for none in
            ["", "# Title", "---\nlicense: mit\n---\n", "---\nconfigs:\n---\n", "---\nno end", "---x\n---\n"]
        {
            assert_eq!(configs(none).unwrap(), [], "{none:?}");
        }
        for wrong in [
            "---\nconfigs: 1\n---\n",
            "---\nconfigs:\n- data_files: x\n---\n",
            "---\nconfigs:\n- config_name: a\n  data_files:\n  - split: x\n---\n",
            "---\na: [\n---\n",
            "---\na: &x [1]\n  b\n: *x\n---\n",
        ] {
            assert!(configs(wrong).is_err(), "{wrong:?}");
        }
        let deep = format!("---\na: {}\n---\n", "[".repeat(5000));
        assert!(configs(&deep).is_err());
    }
}
