//! Answers with thoughts and calls, whole and in pieces.

use proptest::prelude::*;

use super::{Part, Sections};
use crate::backend::{AnswerFormat, CallMarks, ThoughtMarks};
use crate::conversation::Call;

fn thoughts(is_open: bool) -> Option<ThoughtMarks> {
    Some(ThoughtMarks { open: "<think>".to_owned(), close: "</think>".to_owned(), is_open })
}

fn calls(open: &str, close: Option<&str>, is_only_first: bool) -> Option<CallMarks> {
    Some(CallMarks { open: open.to_owned(), close: close.map(str::to_owned), is_only_first })
}

fn qwen() -> AnswerFormat {
    AnswerFormat { thoughts: thoughts(false), calls: calls("<tool_call>", Some("</tool_call>"), false) }
}

/// A call is what has a name in brackets.
fn find_calls(section: &str) -> Option<Vec<Call>> {
    let (_, rest) = section.split_once('{')?;
    let (name, _) = rest.split_once('}')?;
    Some(vec![Call { id: None, name: name.to_owned(), arguments: "{}".to_owned() }])
}

/// Parts as a text: `t:` text, `r:` thoughts, `c:` names of calls; what belongs together is joined.
fn told(format: &AnswerFormat, pieces: &[&str]) -> Vec<String> {
    let mut sections = Sections::new(format.clone());
    let mut parts = Vec::new();
    for piece in pieces {
        sections.push(piece, &find_calls, &mut parts);
    }
    sections.finish(&find_calls, &mut parts);
    let mut told: Vec<String> = Vec::new();
    for part in parts {
        let (kind, text) = match part {
            Part::Text(text) => ("t:", text),
            Part::Thought(text) => ("r:", text),
            Part::Calls(calls) => {
                told.extend(calls.iter().map(|call| format!("c:{}", call.name)));
                continue;
            }
        };
        match told.last_mut().filter(|last| last.starts_with(kind)) {
            Some(last) => *last += &text,
            None => told.push(format!("{kind}{text}")),
        }
    }
    told
}

/// An answer that comes whole and one that comes character by character have the same parts.
#[track_caller]
fn check(format: &AnswerFormat, answer: &str, expected: &[&str]) {
    assert_eq!(told(format, &[answer]), expected, "{answer:?} as a whole");
    let characters: Vec<String> = answer.chars().map(String::from).collect();
    let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
    assert_eq!(told(format, &characters), expected, "{answer:?} by characters");
}

#[test]
fn without_marks_text_is_passed_through() {
    check(&AnswerFormat::default(), " a <think> \n", &["t: a <think> \n"]);
}

#[test]
fn thoughts_are_told_from_text() {
    let format = qwen();
    check(&format, "<think>\na b\n</think>\n\nc ", &["r:a b", "t:c "]);
    check(&format, "<think>\n\n</think>\n\nc", &["t:c"]);
    check(&format, "a < b <thin", &["t:a < b <thin"]);
    check(&format, "<think>a <b </thin", &["r:a <b </thin"]);
    check(&format, "a <think>b</think> c", &["t:a", "r:b", "t:c"]);
    let open = AnswerFormat { thoughts: thoughts(true), calls: None };
    check(&open, "a b\n</think>\n\nc", &["r:a b", "t:c"]);
    check(&open, "a b", &["r:a b"]);
}

#[test]
fn calls_are_told_from_text() {
    let format = qwen();
    check(&format, "a\n<tool_call>{f}</tool_call>\n<tool_call>{g}</tool_call>\n", &["t:a", "c:f", "c:g"]);
    check(&format, "<think>a</think>\n\n<tool_call>{f}</tool_call>", &["r:a", "c:f"]);
    check(&format, "a <tool_call>{f}", &["t:a", "c:f"]);
}

#[test]
fn malformed_calls_stay_text() {
    let format = qwen();
    check(&format, "a \n<tool_call>f</tool_call> b", &["t:a \n<tool_call>f</tool_call> b"]);
    check(&format, "a <tool_call>f", &["t:a <tool_call>f"]);
}

#[test]
fn formats_without_an_end_are_read_when_the_answer_ends() {
    let action = AnswerFormat { thoughts: None, calls: calls("Action:", None, false) };
    check(&action, "a Action: {f}\nAction Input: x", &["t:a", "c:f"]);
    let whole = AnswerFormat { thoughts: thoughts(false), calls: calls("", None, false) };
    check(&whole, "name\n{f}", &["c:f"]);
    check(&whole, "just text", &["t:just text"]);
    check(&whole, "<think>a</think>\n{f}", &["r:a", "c:f"]);
    check(&whole, "<thi", &["t:<thi"]);
    let first = AnswerFormat { thoughts: None, calls: calls("{", None, true) };
    check(&first, " {f}", &["c:f"]);
    check(&first, "a {f}", &["t:a {f}"]);
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        pieces in prop::collection::vec(
            prop::sample::select(vec![
                "<think>", "</think>", "<tool_call>", "</tool_call>", "{f}", "<", "a", " ", "\n", "é", "</t", "_call>",
            ]),
            0..16,
        ),
        which in 0_usize..4,
    ) {
        let format = match which {
            0 => qwen(),
            1 => AnswerFormat { thoughts: thoughts(true), calls: calls("{", None, true) },
            2 => AnswerFormat { thoughts: thoughts(false), calls: calls("", None, false) },
            _ => AnswerFormat { thoughts: None, calls: calls("<tool_call>", None, false) },
        };
        let answer = pieces.concat();
        let characters: Vec<String> = answer.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        let whole = told(&format, &[&answer]);
        prop_assert_eq!(&told(&format, &pieces), &whole);
        prop_assert_eq!(&told(&format, &characters), &whole);
    }
}
