//! The pages in two languages: both have the same code and the same figures, and every page is in the book of its language.
//! Chinese is written as it is printed: a space between Han and Latin, full-width punctuation, one word for the reader.

use std::fs;
use std::path::{Path, PathBuf};

use super::{assert_none, files, links, root};

/// A Chinese sentence, and a paragraph, have at most so many characters. A word in Latin letters counts as one.
const SENTENCE: usize = 70;
const PARAGRAPH: usize = 160;

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages with a twin: the English one and the Chinese one.
fn twins() -> Vec<[PathBuf; 2]> {
    let tutorials = files(&root().join("docs/tutorials"), &["md"]);
    assert!(tutorials.len() >= 3);
    let twin = |page: &PathBuf| root().join("docs/zh/tutorials").join(page.file_name().unwrap());
    let mut twins: Vec<_> = tutorials.iter().map(|page| [page.clone(), twin(page)]).collect();
    twins.push(["README.md", "README_zh.md"].map(|name| root().join(name)));
    twins
}

/// The pages written in Chinese.
fn chinese() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs/zh"), &["md"]);
    pages.push(root().join("README_zh.md"));
    pages
}

/// The blocks of code of a page, with their marks, and the pictures between them.
fn blocks(text: &str) -> Vec<&str> {
    let pieces = text.split("\n```").enumerate();
    pieces.filter(|(index, _)| index % 2 == 1).map(|(_, block)| block).collect()
}

/// The figures in the cells of tables behind the first cell, row by row.
fn figures(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with('|') && line.matches('|').count() > 3);
    let cells = rows.map(|row| row.split('|').skip(2).map(|cell| cell.trim().trim_matches('*')));
    let figures = cells.map(|cells| {
        cells.filter(|cell| cell.starts_with(|c: char| c.is_ascii_digit())).collect::<Vec<&str>>()
    });
    figures.filter(|row| !row.is_empty()).collect()
}

#[test]
fn both_languages_have_the_same_code_and_figures() {
    for [english, chinese] in twins() {
        let [a, b] = [read(&english), read(&chinese)];
        let (code_a, code_b) = (blocks(&a), blocks(&b));
        assert!(!code_a.is_empty());
        for (one, other) in code_a.iter().zip(&code_b) {
            assert!(
                one == other,
                "{}:\n```{one}\n\nis in the other language:\n```{other}",
                chinese.display()
            );
        }
        assert_eq!(code_a.len(), code_b.len(), "{}: blocks of code", chinese.display());
        assert_eq!(figures(&a), figures(&b), "{}: figures of its tables", chinese.display());
    }
    let pages = |folder: &str| files(&root().join(folder), &["md"]).len();
    assert_eq!(pages("docs/tutorials"), pages("docs/zh/tutorials"), "a tutorial is in one language alone");
}

#[test]
fn every_page_is_in_the_book_of_its_language() {
    let mut broken = Vec::new();
    for folder in ["docs", "docs/zh"] {
        let folder = root().join(folder);
        let summary = read(&folder.join("SUMMARY.md"));
        let listed: Vec<PathBuf> = links(&summary).into_iter().map(|link| folder.join(link)).collect();
        let is_other_book = |page: &Path| folder.ends_with("docs") && page.starts_with(folder.join("zh"));
        for page in files(&folder, &["md"]) {
            if !page.ends_with("SUMMARY.md") && !is_other_book(&page) && !listed.contains(&page) {
                broken.push(page.display().to_string());
            }
        }
        // A title in the table of contents is that of the page, in which readers look for it.
        for (title, link) in summary.lines().filter_map(|line| line.split_once("](")) {
            let (title, link) =
                (title.trim_start_matches("- [").trim_start_matches('['), link.trim_end_matches(')'));
            let page = read(&folder.join(link));
            if page.lines().next() != Some(&format!("# {title}")) {
                broken.push(format!("{}: `{title}` has another title on {link}", folder.display()));
            }
        }
    }
    assert_none(broken, "a page that is not in SUMMARY.md, or is there under another title");
}

fn is_han(c: char) -> bool {
    matches!(c, '\u{3400}'..='\u{9fff}')
}

/// The lines of a page that are text, with their numbers: code in a line is a word, and links are their words.
fn lines_of_text(text: &str) -> Vec<(usize, String)> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fence = line.starts_with("```");
        is_code ^= fence;
        if !fence && !is_code && !line.starts_with("<!--") {
            lines.push((index + 1, super::pages::read(line)));
        }
    }
    lines
}

/// What is wrong with the characters of a line.
fn misprints(line: &str) -> Vec<String> {
    let characters: Vec<char> = line.chars().collect();
    let mut found = Vec::new();
    for two in characters.windows(2) {
        let (a, b) = (two[0], two[1]);
        let narrow = |c: char| c.is_ascii_alphanumeric();
        if (is_han(a) && narrow(b)) || (narrow(a) && is_han(b)) {
            found.push(format!("no space in `{a}{b}`"));
        }
        if is_han(a) && matches!(b, ',' | '.' | ';' | ':' | '!' | '?' | '(' | ')') {
            found.push(format!("half-width punctuation in `{a}{b}`"));
        }
    }
    if line.contains('您') {
        found.push("the reader is 你".to_owned());
    }
    found
}

/// The lengths of the sentences of a line.
fn lengths(line: &str) -> Vec<usize> {
    let of = |sentence: &str| {
        let latin: String = sentence.chars().map(|c| if is_han(c) { ' ' } else { c }).collect();
        let words =
            latin.split_whitespace().filter(|word| word.contains(|c: char| c.is_ascii_alphanumeric()));
        sentence.chars().filter(|c| is_han(*c)).count() + words.count()
    };
    line.split(['。', '！', '？']).map(of).filter(|length| *length > 0).collect()
}

#[test]
fn chinese_is_written_as_it_is_printed() {
    let mut broken = Vec::new();
    for page in chinese() {
        for (number, line) in lines_of_text(&read(&page)) {
            let mut wrong = misprints(&line);
            if !line.starts_with('|') {
                let lengths = lengths(&line);
                wrong.extend(
                    lengths
                        .iter()
                        .filter(|n| **n > SENTENCE)
                        .map(|n| format!("a sentence of {n} characters")),
                );
                let paragraph: usize = lengths.iter().sum();
                wrong.extend(
                    (paragraph > PARAGRAPH).then(|| format!("a paragraph of {paragraph} characters")),
                );
            }
            broken.extend(wrong.into_iter().map(|what| format!("{}:{number}: {what}", page.display())));
        }
    }
    assert_none(broken, "Chinese that is not written as it is printed");
}

#[test]
fn misprints_are_found() {
    assert_eq!(misprints("用 GPU 训练，要 2 个核。"), Vec::<String>::new());
    assert_eq!(misprints("用GPU"), ["no space in `用G`"]);
    assert_eq!(
        misprints("两个核(很快)"),
        ["half-width punctuation in `核(`", "half-width punctuation in `快)`"]
    );
    assert_eq!(misprints("您好"), ["the reader is 你"]);
    assert_eq!(lengths("用 GPU 训练。很快！"), [4, 2]);
    assert_eq!(blocks("a\n```sh\nb\n```\nc\n```text\nd\n```\n"), ["sh\nb", "text\nd"]);
    assert_eq!(figures("| a | **1.5** | 2 s |\n|---|---|---|\n| b | c | d |\n"), [["1.5", "2 s"]]);
}
