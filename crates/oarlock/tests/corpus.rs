//! The shipped example corpus is what its generator writes, and it is what its README promises.

#[path = "../examples/make_corpus/corpus.rs"]
mod generator;
#[path = "../examples/make_corpus/rng.rs"]
mod rng;
#[path = "../examples/make_corpus/template.rs"]
mod template;

use std::collections::BTreeSet;
use template::{Book, Language};

const PRETRAIN: &str = include_str!("../../../recipes/corpus/pretrain.jsonl");
const HELDOUT: &str = include_str!("../../../recipes/corpus/heldout.jsonl");

#[test]
fn shipped_files_are_the_generators_output() {
    let corpus = generator::generate().unwrap_or_else(|e| panic!("{e}"));
    for (shipped, records) in [(PRETRAIN, &corpus.pretrain), (HELDOUT, &corpus.heldout)] {
        // assert! instead of assert_eq!: a difference would print both files.
        assert!(shipped == generator::jsonl(records), "run `cargo run --example make_corpus`");
    }
}

#[test]
fn every_line_is_a_distinct_record() {
    let mut seen = BTreeSet::new();
    for line in PRETRAIN.lines().chain(HELDOUT.lines()) {
        let record: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).unwrap();
        let text = record["text"].as_str().unwrap().to_owned();
        assert_eq!(record.len(), 1);
        assert!(!text.contains(['$', '{', '}', '|', '\n']), "{text}");
        assert!(seen.insert(text.clone()), "twice: {text}");
    }
}

#[test]
fn broken_templates_are_refused() {
    let tell = |source: &str| {
        let book = Book::parse(Language::English, source)?;
        book.tell(0, &mut rng::Rng::new(1)).map(|story| story.text)
    };
    let list = "list crew: name; he\nMara; she\n";
    assert_eq!(
        tell(&format!("{list}plot p\na = crew\n\n- {{$a.he|$a.he}} has a oar.")).unwrap(),
        "She has an oar."
    );
    for (source, problem) in [
        ("- text", "before the first"),
        ("list crew", "expected `list"),
        ("list crew: name; he\nMara", "2 fields"),
        ("plot p\nno dash", "expected `VARIABLE"),
        ("plot p\na = crew\n\n- $a", "no list"),
        ("list crew: name\nMara\nplot p\na, b = crew\n\n- $a", "too few rows"),
        ("list crew: name\nMara\nplot p\na = crew\n\n- $b", "no variable"),
        ("list crew: name\nMara\nplot p\na = crew\n\n- $a.he", "no field"),
        ("plot p\n\n- {a|b", "never closed"),
        ("plot p\n\n- a}", "unmatched"),
    ] {
        let message = tell(source).unwrap_err().to_string();
        assert!(message.contains(problem), "{source:?}: {message}");
    }
}
