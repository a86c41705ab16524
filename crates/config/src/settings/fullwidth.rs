//! Where a text that is broken has characters that look like those of YAML or JSON and are others.

use std::sync::Arc;

use super::location::{Location, SourceText};
use super::problem::Problem;
use crate::lookalikes::{described, meant};

/// The problem of a YAML text that is broken where such a character stands for one of YAML.
pub fn in_yaml(source: &Arc<SourceText>) -> Option<Problem> {
    let mut begin = 0;
    for line in source.text.split_inclusive('\n') {
        if let Some(at) = in_yaml_line(line.trim_end()) {
            return problem(source, begin + at, "YAML");
        }
        begin += line.len();
    }
    None
}

fn in_yaml_line(line: &str) -> Option<usize> {
    let find = |text: &str, is_wanted: &dyn Fn(char) -> bool| text.find(|c| meant(c).is_some_and(is_wanted));
    let body = line.trim_start_matches([' ', '\t']);
    let indent = line.len() - body.len();
    if body.starts_with('#') {
        return None;
    }
    let at = |offset: usize| indent + offset;
    if body.starts_with(|c| matches!(meant(c), Some(' ' | '-' | '#' | '{' | '['))) {
        return Some(at(0));
    }
    let key = body.find(": ").or_else(|| body.ends_with(':').then(|| body.len() - 1));
    let (key, value) = body.split_at(key.unwrap_or(body.len()));
    let is_flow = |text: &str| text.trim_start_matches([':', ' ']).starts_with(['{', '[']);
    if !is_flow(key)
        && let Some(colon) = find(key, &|c| c == ':')
    {
        return Some(at(colon));
    }
    let (text, begin) = if is_flow(key) { (body, 0) } else { (value, key.len()) };
    if !is_flow(text) {
        return None;
    }
    outside_of_quotes(text).map(|offset| at(begin + offset))
}

/// The problem of a JSON text that is broken where such a character stands outside of quotes.
pub fn in_json(source: &Arc<SourceText>, bare: &str) -> Option<Problem> {
    problem(source, outside_of_quotes(bare)?, "JSON")
}

/// Where the first such character is that no plain quotes surround.
fn outside_of_quotes(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some('"') if c == '\\' => escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None if meant(c).is_some() => return Some(at),
            None => {}
        }
    }
    None
}

fn problem(source: &Arc<SourceText>, at: usize, language: &str) -> Option<Problem> {
    let c = source.text.get(at..)?.chars().next()?;
    let meant = meant(c)?;
    let location = Location { source: source.clone(), bytes: at..at + c.len_utf8() };
    let help = match meant {
        ':' => "write `:` with a blank behind it".to_owned(),
        ' ' => "write an ordinary blank".to_owned(),
        meant => format!("write `{meant}`"),
    };
    let message = format!("`{c}` is {}, which {language} does not know", described(c));
    Some(Problem::new(message).labeled(&location, "here").help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_character_that_breaks_a_text_is_found_where_it_stands() {
        let yaml =
            |text: &str| in_yaml(&SourceText::file("a.yaml", text.to_owned())).map(|found| found.line());
        for (text, error) in [
            ("stage： sft\n", "a.yaml:1:6: `：` is a full-width character, which YAML does not know"),
            ("a: 1\n  b：2 # c\n", "a.yaml:2:4: `：`"),
            ("a: {b: 1，c: 2}\n", "a.yaml:1:9: `，`"),
            ("a: {“b”: 1}\n", "a.yaml:1:5: `“` is a typographic quote"),
            ("－ a\n", "a.yaml:1:1: `－`"),
            ("\u{3000}a: 1\n", "a.yaml:1:1: `\u{3000}` is a wide blank"),
        ] {
            assert!(yaml(text).is_some_and(|line| line.starts_with(error)), "{:?}", yaml(text));
        }
        let plain = [
            "# 注：a\na: b",
            "a: 你好，世界：好",
            "a: \"“b”\"",
            "a: {b: \"，\"}",
            "系统: 你好",
            "",
            ":",
            "a:\n: :",
        ];
        for text in plain {
            assert_eq!(yaml(text), None, "{text}");
        }
        let json = |text: &str| {
            in_json(&SourceText::file("a.json", text.to_owned()), text).map(|found| found.line())
        };
        assert!(json("{\"a\"： 1}").unwrap().starts_with("a.json:1:5: `：`"));
        assert!(json("{“a”: 1}").unwrap().starts_with("a.json:1:2: `“`"));
        assert_eq!(json("{\"a：\\\"，\": 1}"), None);
    }
}
