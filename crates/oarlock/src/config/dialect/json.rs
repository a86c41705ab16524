//! Reads the JSON that people write: with comments (`//`, `#`, `/* */`) and trailing commas. Every node keeps its
//! place in the file.

use std::path::Path;
use std::sync::Arc;

use super::super::problem::Problem;
use super::super::source::{Place, Source, SourceKind};
use super::super::value::{Field, Value, read};
use super::super::{keys::Kind, yaml};

/// The settings in a file; `what` names it in messages, as in "the DeepSpeed configuration".
///
/// # Errors
/// If the file cannot be read or its text is not a mapping.
pub fn file(path: &str, what: &str) -> Result<Vec<Field>, Problem> {
    let bytes = std::fs::read(Path::new(path)).map_err(|error| {
        Problem::new(format!("cannot read {what} `{path}`: {error}"))
            .help("paths are relative to the working directory")
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        Problem::new(format!("{what} `{path}` is not UTF-8 text: byte {byte} is wrong"))
    })?;
    text_of_file(path, text, what)
}

/// The settings in a text.
///
/// # Errors
/// If the text is not a mapping.
pub fn text_of_file(name: &str, text: String, what: &str) -> Result<Vec<Field>, Problem> {
    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
    // JSON is YAML but for its comments: blanks in their place keep every other byte where it is.
    let is_yaml = [".yaml", ".yml"].iter().any(|end| name.ends_with(end));
    let bare = if is_yaml { text.clone() } else { without_comments(&text) };
    let source = Arc::new(Source { kind: SourceKind::File, name: name.to_owned(), text });
    let root = yaml::parse_from(&bare, &source).map_err(|problem| match unbalanced(&bare, &source) {
        Some(unbalanced) if !is_yaml => unbalanced,
        _ => problem,
    })?;
    match read(Kind::Map, &root) {
        Some(Value::Map(fields)) => Ok(fields),
        _ => {
            let message = format!("{what} is a mapping of keys to values, not {}", root.describe());
            Err(Problem::new(message).at(&root.place, "expected `{\"key\": value}`"))
        }
    }
}

/// The bracket that has no partner, if there is one.
fn unbalanced(text: &str, source: &Arc<Source>) -> Option<Problem> {
    let place = |at: usize| Place { source: source.clone(), bytes: at..at + 1 };
    let partner = |open: u8| if open == b'{' { '}' } else { ']' };
    let (mut open, mut quoted, mut escaped) = (Vec::new(), None, false);
    for (at, byte) in text.bytes().enumerate() {
        match (quoted, byte) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(_), b'"') => quoted = None,
            (None, b'"') => quoted = Some(at),
            (None, b'{' | b'[') => open.push((at, byte)),
            (None, b'}' | b']') => match open.pop() {
                Some((_, first)) if partner(first) == char::from(byte) => {}
                Some((first_at, first)) => {
                    let problem = Problem::new(format!(
                        "`{}` does not close `{}`",
                        char::from(byte),
                        char::from(first)
                    ));
                    return Some(problem.at(&place(at), "this one").at(&place(first_at), "opened here"));
                }
                None => {
                    let problem = Problem::new(format!("`{}` closes nothing", char::from(byte)));
                    return Some(problem.at(&place(at), "").help("remove it, or open the block"));
                }
            },
            _ => {}
        }
    }
    if let Some(at) = quoted {
        return Some(
            Problem::new("a quotation mark is missing").at(&place(at), "opened here, and never closed"),
        );
    }
    let (at, first) = open.pop()?;
    let problem = Problem::new(format!("a `{}` is missing", partner(first)));
    Some(problem.at(&place(at), "opened here, and never closed"))
}

/// The text with a blank for every byte of a comment.
fn without_comments(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let (mut at, mut quoted) = (0, false);
    while at < bytes.len() {
        let rest = &text[at..];
        let comment = match bytes[at] {
            _ if quoted => 0,
            b'/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            b'/' if rest.starts_with("/*") => rest[2..].find("*/").map_or(rest.len(), |end| end + 4),
            b'#' => rest.find('\n').unwrap_or(rest.len()),
            _ => 0,
        };
        if comment > 0 {
            out.extend(rest[..comment].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
            at += comment;
            continue;
        }
        let mut length = rest.chars().next().map_or(1, char::len_utf8);
        match bytes[at] {
            b'"' => quoted = !quoted,
            // The character behind a backslash ends no string.
            b'\\' if quoted => length += rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        out.push_str(&rest[..length]);
        at += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        match text_of_file("t.json", text.to_owned(), "the file") {
            Ok(fields) => Value::Map(fields).to_string(),
            Err(problem) => problem.line(),
        }
    }

    #[test]
    fn json_is_read_as_people_write_it() {
        for (text, expected) in [
            ("{\"a\":1,\"b\":[1,2,],}", "{a: 1, b: …}"),
            ("{ // first\n  \"a\": \"x // y\", /* 中\n文 */ \"b\": 5e8 # last\n}", "{a: x // y, b: 5e8}"),
            ("{\n\t\"a\": \"\\\"# z\",\n\t\"b\": null\n}", "{a: \"# z, b: null}"),
            ("{\"p\": \"http://h/x\"}", "{p: http://h/x}"),
            ("\u{feff}{}", "{}"),
            ("[1]", "t.json:1:1: the file is a mapping of keys to values, not a list"),
            ("/* open", "{}"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        assert!(shown("{\"a\": 1").contains("t.json:1:"), "{}", shown("{\"a\": 1"));
        let fields = text_of_file("t.json", "{/* 中 */\n  \"a\": 1}".to_owned(), "the file").unwrap();
        assert_eq!(fields[0].place.to_string(), "t.json:2:3");
        assert_eq!(fields[0].value.place.text(), "1");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\PC|[\\n\\t:\\[\\]{}#'\"/*,\\\\]){0,120}") {
            prop_assert!(!shown(&text).is_empty());
            prop_assert_eq!(without_comments(&text).len(), text.len());
        }
    }
}
