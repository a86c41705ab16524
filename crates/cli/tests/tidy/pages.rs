//! Pages are written for people: sentences and paragraphs are short, and a link to a heading finds it.

use std::fs;
use std::path::PathBuf;

use super::{assert_none, files, root};

/// A sentence has at most so many words. Code counts as one.
const SENTENCE: usize = 30;

/// A paragraph, or an item of a list, has at most so many words.
const PARAGRAPH: usize = 90;

/// Pages with sentences that are still too long, and how many. A number here may only become smaller.
const LONG_SENTENCES: &[(&str, usize)] = &[
    // The names of all templates.
    ("docs/templates.md", 1),
];

/// The most lines of README.md.
const README: usize = 150;

/// README.md, the pages beside it and those of docs/. `books.rs` counts characters of those in Chinese.
fn pages() -> Vec<PathBuf> {
    let names = ["README.md", "README_zh.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "RELEASING.md"];
    let mut pages: Vec<PathBuf> = names.iter().map(|name| root().join(name)).collect();
    pages.extend(files(&root().join("docs"), &["md"]));
    pages
}

/// The paragraphs and items of lists of a page, each with the line on which it begins. Blocks of code, tables, headings
/// and HTML are left out.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let (mut all, mut current, mut is_code) = (Vec::<(usize, String)>::new(), None::<(usize, String)>, false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let fence = line.starts_with("```");
        is_code ^= fence;
        if fence || is_code || line.is_empty() || line.starts_with(['|', '#', '<']) {
            all.extend(current.take());
            continue;
        }
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let item = line.strip_prefix("- ").or_else(|| number.strip_prefix(". ").filter(|_| number != line));
        if let Some(item) = item {
            all.extend(current.replace((index + 1, item.to_owned())));
        } else if let Some((_, text)) = &mut current {
            *text += " ";
            *text += line;
        } else {
            current = Some((index + 1, line.to_owned()));
        }
    }
    all.extend(current);
    all
}

/// A text as it is read: of a link its words, and code as a word.
pub(super) fn read(text: &str) -> String {
    let pieces = text.split('`').enumerate();
    let text: String = pieces.map(|(index, piece)| if index % 2 == 1 { "Code" } else { piece }).collect();
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out += part.split_once(')').map_or("", |(_, rest)| rest);
    }
    out.replace(['[', '*'], "")
}

/// The numbers of words of the sentences. One ends where a word with a mark is followed by one that begins anew.
fn sentences(text: &str) -> Vec<usize> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (mut all, mut n) = (Vec::new(), 0);
    for (index, word) in words.iter().enumerate() {
        n += 1;
        let ends = word.trim_end_matches(['"', ')', '”']).ends_with(['.', '!', '?']);
        let next =
            words.get(index + 1).and_then(|next| next.trim_start_matches(['"', '(', '“']).chars().next());
        if ends && next.is_none_or(|next| !next.is_lowercase()) {
            all.push(n);
            n = 0;
        }
    }
    all.extend((n > 0).then_some(n));
    all
}

#[test]
fn sentences_and_paragraphs_are_short() {
    let (mut broken, mut wrong) = (Vec::new(), Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        let mut long = Vec::new();
        for (line, paragraph) in paragraphs(&text) {
            let paragraph = read(&paragraph);
            let n_words = paragraph.split_whitespace().count();
            if n_words > PARAGRAPH {
                broken.push(format!("{name}:{line}: a paragraph of {n_words} words"));
            }
            let too_long = sentences(&paragraph).into_iter().filter(|n| *n > SENTENCE);
            long.extend(too_long.map(|n| format!("{name}:{line}: a sentence of {n} words")));
        }
        let known = LONG_SENTENCES.iter().find(|(page, _)| *page == name).map_or(0, |(_, n)| *n);
        match long.len() {
            n if n < known => wrong.push(format!("LONG_SENTENCES: {name} has {n}")),
            n if n > known => broken.extend(long),
            _ => {}
        }
    }
    assert_none(broken, "a text that is too long: divide it");
    assert_none(wrong, "a page has fewer long sentences than the list says");
}

#[test]
fn the_first_page_is_short() {
    for name in ["README.md", "README_zh.md"] {
        let n_lines = fs::read_to_string(root().join(name)).unwrap().lines().count();
        assert!(n_lines <= README, "{name} has {n_lines} lines; at most {README} are read");
    }
}

/// The name by which a link finds a heading, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

#[test]
fn every_anchor_is_a_heading() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let Some((file, wanted)) = target.split_once('#') else { continue };
            let place = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let text = fs::read_to_string(&place).unwrap_or_default();
            let mut headings = text.lines().filter_map(|line| line.strip_prefix('#'));
            if !headings.any(|line| anchor(line.trim_start_matches('#')) == wanted) {
                broken.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert_none(broken, "a link to a heading that is not there");
}

#[test]
fn words_are_counted_as_they_are_read() {
    let text = "# A title\n\nOne [two](three.md) `four five`. Six.\n\n| a | table |\n\n```text\ncode\n```\n- an item\n  goes on\n1. two\n";
    let found = paragraphs(text);
    assert_eq!(
        found,
        [
            (3, "One [two](three.md) `four five`. Six.".to_owned()),
            (10, "an item goes on".to_owned()),
            (12, "two".to_owned())
        ]
    );
    assert_eq!(sentences(&read(&found[0].1)), [3, 1]);
    assert_eq!(sentences("It has 2.5 of them, e.g. these. (Others.) `x` counts"), [7, 1, 2]);
    assert_eq!(anchor(" What is `saved`, and why?"), "what-is-saved-and-why");
}
