//! JSON in which a key stands once in an object: most readers take the last of several and say nothing, so that nobody sees
//! which of two settings counts.

use std::borrow::Cow;
use std::ops::Range;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::{Result, Value};

/// Reads a text. Of a key that stands twice with one value nothing is said.
///
/// # Errors
/// What is not JSON, is not a `T`, or has a key twice in an object with two values; with the line of the second.
pub fn from_str<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T> {
    let read = serde_json::from_str(text)?;
    match Twice::first(text) {
        Some(twice) => Err(twice.error(text)),
        None => Ok(read),
    }
}

/// As [`from_str`], of bytes.
///
/// # Errors
/// As [`from_str`].
pub fn from_slice<'t, T: Deserialize<'t>>(bytes: &'t [u8]) -> Result<T> {
    match std::str::from_utf8(bytes) {
        Ok(text) => from_str(text),
        // Its error says where the bytes are not a text.
        Err(_) => serde_json::from_slice(bytes),
    }
}

/// A key that stands twice in an object, with two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twice {
    /// The key.
    pub key: String,
    /// Where both stand in the text.
    first: usize,
    again: usize,
}

impl Twice {
    /// The first such key of a text that is JSON.
    pub fn first(text: &str) -> Option<Twice> {
        Scan { text, at: 0, open: Vec::new(), entries: Vec::new() }.run()
    }

    fn error(&self, text: &str) -> serde_json::Error {
        let place = |at: usize| {
            let before = &text[..at];
            let begin = before.rfind('\n').map_or(0, |newline| newline + 1);
            (before.matches('\n').count() + 1, before[begin..].chars().count() + 1)
        };
        let ((first, _), (again, column)) = (place(self.first), place(self.again));
        let where_first = if first == again { "the same line".to_owned() } else { format!("line {first}") };
        // serde_json takes the place out of the end of a message.
        serde_json::Error::custom(format!(
            "\"{}\" stands twice with two values, first in {where_first}; remove one of them at line {again} column {column}",
            self.key
        ))
    }
}

/// A walk over a text, without recursion, since a text may be nested as deep as it is long.
struct Scan<'t> {
    text: &'t str,
    at: usize,
    /// For each object or list that is open, how many entries there were before it, where it is an object.
    open: Vec<Option<usize>>,
    /// The entries of all open objects.
    entries: Vec<Entry<'t>>,
}

struct Entry<'t> {
    key: Cow<'t, str>,
    begin: usize,
    /// Its end is known with the next comma or bracket.
    value: Range<usize>,
}

impl Scan<'_> {
    fn run(mut self) -> Option<Twice> {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.at) {
            match byte {
                b'{' => self.open.push(Some(self.entries.len())),
                b'[' => self.open.push(None),
                b',' => self.ends_value(),
                b'}' | b']' => {
                    self.ends_value();
                    if let Some(Some(begin)) = self.open.pop() {
                        if let Some(twice) = self.twice(begin) {
                            return Some(twice);
                        }
                        self.entries.truncate(begin);
                    }
                }
                b'"' => {
                    let begin = self.at;
                    self.at = end_of_text(bytes, begin);
                    let after =
                        self.at + bytes[self.at..].iter().take_while(|b| b.is_ascii_whitespace()).count();
                    if bytes.get(after) == Some(&b':') {
                        let key = key_of(&self.text[begin..self.at]);
                        self.entries.push(Entry { key, begin, value: after + 1..after + 1 });
                        self.at = after + 1;
                    }
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
        None
    }

    /// The value that is being read, if it is of an object, ends here.
    fn ends_value(&mut self) {
        if let Some(Some(begin)) = self.open.last()
            && let Some(entry) = self.entries[*begin..].last_mut()
        {
            entry.value.end = self.at;
        }
    }

    /// The first key among the entries from `begin` on that stands among them before, with another value.
    fn twice(&mut self, begin: usize) -> Option<Twice> {
        let entries = &mut self.entries[begin..];
        // Stable, so that of equal keys the first stays the first.
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        let value = |entry: &Entry<'_>| self.text[entry.value.clone()].trim();
        let differ = |a: &Entry<'_>, b: &Entry<'_>| {
            let parsed = |entry| serde_json::from_str::<Value>(value(entry)).ok();
            value(a) != value(b) && parsed(a) != parsed(b)
        };
        let pairs =
            entries.windows(2).filter(|pair| pair[0].key == pair[1].key && differ(&pair[0], &pair[1]));
        let first = pairs.min_by_key(|pair| pair[1].begin)?;
        Some(Twice { key: first[0].key.to_string(), first: first[0].begin, again: first[1].begin })
    }
}

/// Where the text in quotes that begins at `begin` ends, quotes included.
fn end_of_text(bytes: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// A key without its quotes and escapes.
fn key_of(quoted: &str) -> Cow<'_, str> {
    match quoted.contains('\\') {
        true => serde_json::from_str(quoted).map_or(Cow::Borrowed(quoted), Cow::Owned),
        false => Cow::Borrowed(quoted.trim_matches('"')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        from_str::<Value>(text).map_or_else(|error| error.to_string(), |_| "read".to_owned())
    }

    #[test]
    fn a_key_with_two_values_in_an_object_is_an_error_with_its_line() {
        let message =
            "\"a\" stands twice with two values, first in line 1; remove one of them at line 2 column 2";
        assert_eq!(said("{\"a\": 1,\n \"a\": 2}"), message);
        let error = from_slice::<Value>(b"{\"a\": 1,\n \"a\": 2}").unwrap_err();
        assert_eq!((error.line(), error.column()), (2, 2));
        for text in [
            r#"{"a": 1, "b": 3, "a": 2}"#,
            r#"{"a": 1, "\u0061": 2}"#,
            r#"[0, {"x": [{"a": {}}, {"a": [1, "}"], "a" : [1, "]"]}]}]"#,
            r#"{"a": {"b": 1}, "c": ",", "a": {"b": 2}}"#,
            r#"{"a": 1, "a": 1, "a": 2}"#,
            r#"{"a": "", "a": null}"#,
            r#"{"x": {"x": 1}, "y": {"a": 1, "a": 2}}"#,
            r#"{"a":"\\","b":"\"","a":"\\\""}"#,
        ] {
            assert!(
                said(text).starts_with("\"a\" stands twice with two values, first in the same line"),
                "{text}"
            );
        }
        assert!(said("{\"b\": [{\"a\": 1},\n{\"\": 1, \"\": 2}]}").contains("\"\" stands twice"));
    }

    #[test]
    fn other_texts_are_read_as_serde_json_reads_them() {
        for text in [
            r#"{"a": 1, "b": 1}"#,
            r#"{"a": {"a": {"a": 2}}, "b": {"a": 1}}"#,
            r#"{"a": [1, {"b": 2}], "a": [1,{"b":2}]}"#,
            r#"{"a": 1, "a": 1}"#,
            r#"[{"a": 1}, {"a": 2}, "a", ":", {"b": "\"a\": 1, \"a\": 2"}]"#,
            r#""a""#,
            "{}",
            "3",
        ] {
            assert_eq!(
                from_str::<Value>(text).unwrap(),
                serde_json::from_str::<Value>(text).unwrap(),
                "{text}"
            );
        }
        for text in ["", "{", "{\"a\": 1,}", "{\"a\"", "nul", "\"a", "[1]]", "{\"a\": 1, \"a\": 2"] {
            let expected = serde_json::from_str::<Value>(text).unwrap_err().to_string();
            assert_eq!(said(text), expected, "{text}");
        }
        assert!(from_slice::<Value>(b"\"\xff\"").is_err());
        // Whatever is walked over, broken or deep, the walk ends.
        for text in
            ["{\"a\\", "{\"a\\\"", "\"", "}}]]", ":{,\"\":", &"[".repeat(1 << 20), &"{\"a\":".repeat(1 << 16)]
        {
            assert_eq!(Twice::first(text), None);
        }
    }
}
