//! Writes a configuration as YAML, in the form in which PyYAML's `safe_dump` writes it.

use serde_json::{Map, Value};

use super::scalar;

/// Text is broken at blanks beyond this column.
const WIDTH: usize = 80;

/// The mapping as a text, its keys in order.
pub fn yaml(map: &Map<String, Value>) -> String {
    let mut out = String::new();
    if map.is_empty() {
        out.push_str("{}\n");
    }
    mapping(&mut out, map, 0);
    out
}

/// The mapping as JSON in the form of Python's, its keys in order.
pub fn json(map: &Map<String, Value>) -> String {
    let mut out = String::new();
    json_value(&mut out, &Value::Object(map.clone()), 0);
    out + "\n"
}

fn json_value(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Number(number) => out.push_str(&scalar::number_text(number)),
        Value::Array(items) if !items.is_empty() => {
            let items = items.iter().map(|item| (None, item));
            json_block(out, ["[", "]"], items, indent);
        }
        Value::Object(map) if !map.is_empty() => {
            let mut pairs: Vec<_> = map.iter().collect();
            pairs.sort_by_key(|(key, _)| *key);
            let pairs = pairs.into_iter().map(|(key, value)| (Some(key), value));
            json_block(out, ["{", "}"], pairs, indent);
        }
        Value::String(text) => json_text(out, text),
        value => out.push_str(&value.to_string()),
    }
}

fn json_block<'a>(
    out: &mut String,
    [open, close]: [&str; 2],
    items: impl Iterator<Item = (Option<&'a String>, &'a Value)>,
    indent: usize,
) {
    for (i, (key, value)) in items.enumerate() {
        out.push_str(if i == 0 { open } else { "," });
        break_line(out, indent + 2);
        if let Some(key) = key {
            json_text(out, key);
            out.push_str(": ");
        }
        json_value(out, value, indent + 2);
    }
    break_line(out, indent);
    out.push_str(close);
}

/// A text in quotes. Characters beyond 16 bits stand as they are, which every reader understands; the others that are
/// not in ASCII by their numbers, as in Python.
fn json_text(out: &mut String, text: &str) {
    for c in Value::from(text).to_string().chars() {
        match u32::from(c) {
            code @ 0x80..=0xFFFF => out.push_str(&format!("\\u{code:04x}")),
            _ => out.push(c),
        }
    }
}

fn mapping(out: &mut String, map: &Map<String, Value>, indent: usize) {
    let mut keys: Vec<&String> = map.keys().collect();
    keys.sort();
    for (i, key) in keys.into_iter().enumerate() {
        // The first key of a mapping in a list stands behind its hyphen.
        if i > 0 || out.is_empty() || out.ends_with('\n') {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        let mut name = String::new();
        text(&mut name, key, 0, false);
        out.push_str(name.trim_start());
        out.push(':');
        match &map[key] {
            Value::Object(inner) if !inner.is_empty() => {
                out.push('\n');
                mapping(out, inner, indent + 2);
            }
            Value::Array(items) if !items.is_empty() => {
                out.push('\n');
                list(out, items, indent);
            }
            value => scalar(out, value, indent),
        }
    }
}

fn list(out: &mut String, items: &[Value], indent: usize) {
    for item in items {
        out.extend(std::iter::repeat_n(' ', indent));
        out.push('-');
        match item {
            Value::Object(inner) if !inner.is_empty() => {
                out.push(' ');
                mapping(out, inner, indent + 2);
            }
            Value::Array(inner) if !inner.is_empty() => {
                // A list in a list is rare enough to stand in one line, which means the same.
                out.push_str(&format!(" {}\n", Value::from(inner.clone())));
            }
            value => scalar(out, value, indent),
        }
    }
}

fn scalar(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str(" null"),
        Value::Bool(truth) => out.push_str(&format!(" {truth}")),
        Value::Number(number) => {
            let shown = scalar::number_text(number);
            // Without a point it would be read as a word.
            let shown = if shown.contains('.') { shown } else { shown.replace('e', ".0e") };
            out.push_str(&format!(" {shown}"));
        }
        Value::String(words) => text(out, words, indent + 2, true),
        Value::Array(_) => out.push_str(" []"),
        Value::Object(_) => out.push_str(" {}"),
    }
    out.push('\n');
}

/// Words, plain where they are taken for nothing else, else in quotes; further lines are indented so.
fn text(out: &mut String, words: &str, indent: usize, fold: bool) {
    out.push(' ');
    if words.chars().any(|c| !(' '..='~').contains(&c)) {
        double_quoted(out, words, indent, fold);
    } else if is_plain(words) {
        folded(out, words, indent, fold);
    } else {
        out.push('\'');
        folded(out, &words.replace('\'', "''"), indent, fold);
        out.push('\'');
    }
}

/// Whether words need no quotes: they are text for a reader, and nothing in them is a sign of YAML's.
fn is_plain(words: &str) -> bool {
    let Some(first) = words.chars().next() else { return false };
    let alone = words[first.len_utf8()..].chars().next().is_none_or(|next| next == ' ');
    let sign = "#,[]{}&*!|>'\"%@`".contains(first) || ("?:-".contains(first) && alone);
    let document = words.starts_with("---") || words.starts_with("...");
    let inside = words.contains(": ") || words.ends_with(':') || words.contains(" #");
    let blanks = words.starts_with(' ') || words.ends_with(' ');
    scalar::is_text(words) && !sign && !document && !inside && !blanks
}

fn column(out: &str) -> usize {
    out.len() - out.rfind('\n').map_or(0, |at| at + 1)
}

fn break_line(out: &mut String, indent: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
}

/// Where a line is long, the next single blank between words becomes a line break.
fn folded(out: &mut String, words: &str, indent: usize, fold: bool) {
    let mut rest = words;
    while !rest.is_empty() {
        let word = rest.find(' ').unwrap_or(rest.len());
        out.push_str(&rest[..word]);
        rest = &rest[word..];
        let blanks = rest.len() - rest.trim_start_matches(' ').len();
        let inside = rest.len() < words.len() && blanks < rest.len();
        if fold && blanks == 1 && inside && column(out) > WIDTH {
            break_line(out, indent);
        } else {
            out.push_str(&rest[..blanks]);
        }
        rest = &rest[blanks..];
    }
}

fn double_quoted(out: &mut String, words: &str, indent: usize, fold: bool) {
    out.push('"');
    let chars: Vec<char> = words.chars().collect();
    let mut after_escape = false;
    for (i, c) in chars.iter().enumerate() {
        let may_break = fold && 0 < i && i + 1 < chars.len();
        let escaped = escape(*c);
        if escaped.is_none() && may_break && (*c == ' ' || after_escape) && column(out) > WIDTH {
            out.push('\\');
            break_line(out, indent);
            if *c == ' ' {
                out.push('\\');
            }
        }
        after_escape = escaped.is_some();
        match escaped {
            None => out.push(*c),
            Some(escaped) => {
                out.push_str(&escaped);
                if may_break && column(out) > WIDTH {
                    out.push('\\');
                    break_line(out, indent);
                    if chars.get(i + 1) == Some(&' ') {
                        out.push('\\');
                    }
                }
            }
        }
    }
    out.push('"');
}

/// A character that stands in quotes under another name.
fn escape(c: char) -> Option<String> {
    const NAMED: [(char, char); 15] = [
        ('\0', '0'),
        ('\x07', 'a'),
        ('\x08', 'b'),
        ('\t', 't'),
        ('\n', 'n'),
        ('\x0B', 'v'),
        ('\x0C', 'f'),
        ('\r', 'r'),
        ('\x1B', 'e'),
        ('"', '"'),
        ('\\', '\\'),
        ('\u{85}', 'N'),
        ('\u{A0}', '_'),
        ('\u{2028}', 'L'),
        ('\u{2029}', 'P'),
    ];
    if let Some((_, name)) = NAMED.iter().find(|(named, _)| *named == c) {
        return Some(format!("\\{name}"));
    }
    match u32::from(c) {
        _ if (' '..='~').contains(&c) => None,
        code @ 0..=0xFF => Some(format!("\\x{code:02X}")),
        code @ 0..=0xFFFF => Some(format!("\\u{code:04X}")),
        code => Some(format!("\\U{code:08X}")),
    }
}
