//! Reads the JSON that people write: with comments (`//`, `#`, `/* */`) and trailing commas. Every node keeps its
//! location in the file.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::fullwidth;
use super::location::{Location, SourceText};
use super::node::{Data, Entry, Node, add_entry};
use super::problem::Problem;

/// Deeper nesting than any configuration has; it bounds the recursion over a tree.
pub const MAX_DEPTH: usize = 32;

/// A longer text than any configuration has; a tree takes more than a hundred times its memory.
const MAX_BYTES: u64 = 4 << 20;

/// The settings in a file; `what` names it in messages, as in "the DeepSpeed configuration".
///
/// # Errors
/// If the file cannot be read or its text is not a mapping.
pub fn file(path: &str, what: &str) -> Result<Vec<Entry>, Problem> {
    text(path, read_file(path, what)?, what)
}

/// The text of a file.
///
/// # Errors
/// If it cannot be read or is not a text.
pub fn read_file(path: &str, what: &str) -> Result<String, Problem> {
    let bytes = oarlock_comm::read_file(Path::new(path), MAX_BYTES).map_err(|error| {
        Problem::new(format!("cannot read {what} `{path}`: {error}"))
            .help("paths are relative to the working directory")
    })?;
    String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        Problem::new(format!("{what} `{path}` is not UTF-8 text: byte {byte} is wrong"))
    })
}

/// The settings in a text.
///
/// # Errors
/// If the text is not a mapping.
pub fn text(name: &str, text: String, what: &str) -> Result<Vec<Entry>, Problem> {
    let source = SourceText::file(name, text);
    // Blanks in the place of comments keep every other byte where it is.
    let bare = without_comments(&source.text);
    let reader = Reader { text: &bare, at: 0, location: |bytes| Location { source: source.clone(), bytes } };
    let root = reader.document();
    let found = root.map_err(|problem| unbalanced(&bare, &source).unwrap_or(problem));
    found
        .and_then(|root| root.into_entries(what))
        .map_err(|problem| fullwidth::in_json(&source, &bare).unwrap_or(problem))
}

/// Reads a text that stands as a value inside another, such as JSON in quotes: every node has the location of the value.
///
/// # Errors
/// The first location at which the text is not JSON as people write it.
pub fn parse_inside(text: &str, location: &Location) -> Result<Node, Problem> {
    Reader { text, at: 0, location: |_| location.clone() }.document()
}

/// Reads JSON as people write it: also keys and words without quotes, words in single quotes, and a comma behind the
/// last value, which is the part of YAML that stands in brackets.
struct Reader<'t, P: Fn(Range<usize>) -> Location> {
    text: &'t str,
    at: usize,
    location: P,
}

impl<P: Fn(Range<usize>) -> Location> Reader<'_, P> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// The next character behind blanks.
    fn peek(&mut self) -> Option<char> {
        self.at = self.text.len() - self.rest().trim_start().len();
        self.rest().chars().next()
    }

    fn wrong(&self, what: &str) -> Problem {
        Problem::new("this is not valid JSON").at(&(self.location)(self.at..self.at), what).help(
            "an object is {\"key\": value, …}; comments, and a comma behind the last value, may stand in it",
        )
    }

    fn document(mut self) -> Result<Node, Problem> {
        if self.peek().is_none() {
            let problem = Problem::new("this is not valid JSON: nothing is written here");
            return Err(problem.at(&(self.location)(self.at..self.at), "").help("an empty object is {}"));
        }
        let node = self.node(0)?;
        match self.peek() {
            None => Ok(node),
            Some(_) => Err(self.wrong("the text goes on behind its value")),
        }
    }

    fn node(&mut self, depth: usize) -> Result<Node, Problem> {
        let first = self.peek();
        let start = self.at;
        if depth > MAX_DEPTH {
            let location = (self.location)(start..start);
            return Err(Problem::new(format!("nested deeper than {MAX_DEPTH} levels")).at(&location, "here"));
        }
        let data = match first {
            Some('{') => self.map(depth)?,
            Some('[') => self.list(depth)?,
            Some(quote @ ('"' | '\'')) => Data::Scalar { text: self.quoted(quote)?, plain: false },
            _ => Data::Scalar { text: self.plain(), plain: true },
        };
        Ok(Node { data, location: (self.location)(start..self.at) })
    }

    /// Steps over the separator of a collection; `false` at its end.
    fn goes_on(&mut self, close: char) -> Result<bool, Problem> {
        match self.peek() {
            Some(',') => self.at += 1,
            Some(c) if c == close => {}
            _ => return Err(self.wrong(&format!("expected `,` or `{close}`"))),
        }
        let ends = self.peek() == Some(close);
        self.at += usize::from(ends);
        Ok(!ends)
    }

    fn list(&mut self, depth: usize) -> Result<Data, Problem> {
        self.at += 1;
        let mut items = Vec::new();
        if self.peek() == Some(']') {
            self.at += 1;
            return Ok(Data::List(items));
        }
        loop {
            items.push(self.node(depth + 1)?);
            if !self.goes_on(']')? {
                return Ok(Data::List(items));
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Data, Problem> {
        self.at += 1;
        let mut entries = Vec::new();
        if self.peek() == Some('}') {
            self.at += 1;
            return Ok(Data::Map(entries));
        }
        loop {
            let key = self.node(depth + 1)?;
            if self.peek() != Some(':') {
                return Err(self.wrong("expected `:` and a value"));
            }
            self.at += 1;
            let value = self.node(depth + 1)?;
            add_entry(&mut entries, key, value, depth)?;
            if !self.goes_on('}')? {
                return Ok(Data::Map(entries));
            }
        }
    }

    /// A word without quotes, up to what ends it; nothing is YAML's null.
    fn plain(&mut self) -> String {
        let start = self.at;
        let mut chars = self.rest().char_indices().peekable();
        let mut length = self.rest().len();
        while let Some((i, c)) = chars.next() {
            let next = chars.peek().map(|(_, next)| *next);
            let colon = c == ':' && next.is_none_or(|next| next.is_whitespace() || ",[]{}".contains(next));
            if ",[]{}\n".contains(c) || colon {
                length = i;
                break;
            }
        }
        let word = self.rest()[..length].trim_end().to_owned();
        self.at = start + word.len();
        word
    }

    fn quoted(&mut self, quote: char) -> Result<String, Problem> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        while let Some(c) = self.rest().chars().next() {
            self.at += c.len_utf8();
            match c {
                '\\' if quote == '"' => out.push(self.escape()?),
                // Two single quotes are one.
                '\'' if quote == '\'' && self.rest().starts_with('\'') => {
                    self.at += 1;
                    out.push('\'');
                }
                c if c == quote => return Ok(out),
                c => out.push(c),
            }
        }
        self.at = start;
        Err(self.wrong("opened here, and never closed"))
    }

    /// What a backslash and what follows it stand for.
    fn escape(&mut self) -> Result<char, Problem> {
        let Some(c) = self.rest().chars().next() else { return Err(self.wrong("the text ends here")) };
        self.at += c.len_utf8();
        Ok(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '"' | '\\' | '/' | '\'' | ' ' => c,
            'u' => {
                let first = self.hex()?;
                let pair = (0xD800..0xDC00).contains(&first) && self.rest().starts_with("\\u");
                let code = if pair {
                    self.at += 2;
                    0x10000 + ((first - 0xD800) << 10) + (self.hex()? & 0x3FF)
                } else {
                    first
                };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => {
                self.at -= 1 + c.len_utf8();
                return Err(self.wrong("JSON has no such escape"));
            }
        })
    }

    /// Four digits of a code.
    fn hex(&mut self) -> Result<u32, Problem> {
        let digits = self.rest().get(..4).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = digits.ok_or_else(|| self.wrong("expected four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }
}

/// The bracket that has no partner, if there is one.
fn unbalanced(text: &str, source: &Arc<SourceText>) -> Option<Problem> {
    let location = |at: usize| Location { source: source.clone(), bytes: at..at + 1 };
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
                    return Some(
                        problem.at(&location(at), "this one").at(&location(first_at), "opened here"),
                    );
                }
                None => {
                    let problem = Problem::new(format!("`{}` closes nothing", char::from(byte)));
                    return Some(problem.at(&location(at), "").help("remove it, or open the block"));
                }
            },
            _ => {}
        }
    }
    if let Some(at) = quoted {
        return Some(
            Problem::new("a quotation mark is missing").at(&location(at), "opened here, and never closed"),
        );
    }
    let (at, first) = open.pop()?;
    let problem = Problem::new(format!("a `{}` is missing", partner(first)));
    Some(problem.at(&location(at), "opened here, and never closed"))
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

    use super::super::value::Value;
    use super::*;

    fn shown(text: &str) -> String {
        match super::text("t.json", text.to_owned(), "the file") {
            Ok(entries) => Value::Map(entries).to_string(),
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
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
        for nothing in ["", " \n", "/* open", "// a comment\n"] {
            assert!(
                shown(nothing).contains("this is not valid JSON: nothing is written here"),
                "{nothing}: {}",
                shown(nothing)
            );
        }
        assert!(shown("{\"a\": 1").contains("t.json:1:"), "{}", shown("{\"a\": 1"));
        let fields = text("t.json", "{/* 中 */\n  \"a\": 1}".to_owned(), "the file").unwrap();
        assert_eq!(fields[0].location.to_string(), "t.json:2:3");
        assert_eq!(fields[0].value.location.text(), "1");
    }

    #[test]
    fn a_text_without_end_is_refused_at_once() {
        let keys = |n: usize| format!("{{{}}}", (0..n).map(|i| format!("\"a{i}\": 1,")).collect::<String>());
        assert!(text("t.json", keys(2000), "the file").is_ok());
        assert!(shown(&keys(2001)).contains("a mapping of more than 2000 keys is not a configuration"));
        let inner = format!("{{\"a\": {}}}", keys(2001));
        assert!(shown(&inner).contains("a mapping of more than 2000 keys"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.json");
        std::fs::write(&path, " ".repeat((4 << 20) + 1)).unwrap();
        let refused = file(path.to_str().unwrap(), "the file").unwrap_err().line();
        assert!(refused.contains("it has more than 4 MiB"), "{refused}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\PC|[\\n\\t:\\[\\]{}#'\"/*,\\\\]){0,120}") {
            prop_assert!(!shown(&text).is_empty());
            prop_assert_eq!(without_comments(&text).len(), text.len());
        }
    }
}
