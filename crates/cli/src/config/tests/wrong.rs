//! Wrong arguments, environments and texts: each is refused with a reason, and none panics.

use std::path::Path;

use super::*;

#[test]
fn wrong_arguments_and_environment_are_named() {
    for (text, words, environment, expected) in [
        (
            "",
            &["-x"][..],
            &[][..],
            "the command line: unknown argument `-x` (settings are written key=value or --key value)",
        ),
        (
            "",
            &["a.yaml", "b.yaml"],
            &[],
            "the command line: two configuration files, `a.yaml` and `b.yaml` (name one file; settings are written \
             key=value)",
        ),
        ("", &["--sed", "1"], &[], "the command line: unknown key `sed` (did you mean `seed`?)"),
        (
            "",
            &["seed=1", "--seed", "2"],
            &[],
            "the command line: `seed` is written twice (remove one of them)",
        ),
        (
            "",
            &["seed.x=1"],
            &[],
            "the command line: `seed` has no setting `x` inside it (`seed` takes a whole number, at least 0)",
        ),
        (
            "num_processes: 2",
            &[],
            &[("WORLD_SIZE", "4")],
            "t.yaml:4:16: `num_processes` is 2, but WORLD_SIZE says 4 (remove one of them, or write the same number \
             for `num_processes` in both)",
        ),
        (
            "",
            &[],
            &[("WORLD_SIZE", "gpu")],
            "WORLD_SIZE: `num_processes` takes a whole number, at least 1, not `gpu` (the default is 1)",
        ),
    ] {
        assert_eq!(bad(text, words, environment), expected, "{text} {words:?}");
    }
}

#[test]
fn texts_that_are_no_configuration_are_refused() {
    for (text, expected) in [
        (
            "",
            "`model_name_or_path` is missing (write `model_name_or_path: …`, the folder of a model)\n\
             `dataset` is missing (write `dataset: …`, a file such as corpus.jsonl, or a name in dataset_info.json)\n\
             `output_dir` is missing (write `output_dir: …`, the folder to write to)",
        ),
        ("- a\n- b\n", "t.yaml:1:1: a configuration is a mapping of keys to values, not a list"),
        ("just words", "t.yaml:1:1: a configuration is a mapping of keys to values, not `just words`"),
    ] {
        assert_eq!(train(text, &[], &[]).unwrap_err().to_string(), expected, "{text}");
    }
    let deep = format!("a: {}1{}", "[".repeat(60), "]".repeat(60));
    let problem = train(&deep, &[], &[]).unwrap_err().to_string();
    assert_eq!(problem, "t.yaml:1:36: nested deeper than 32 levels");
    let open = train("a: [1, 2", &[], &[]).unwrap_err().to_string();
    assert!(open.contains("this is not valid YAML"), "{open}");
    let missing = written::file(Path::new("no/such.yaml")).unwrap_err().line();
    assert!(missing.starts_with("cannot read the configuration `no/such.yaml`: "), "{missing}");
    let folder = tempfile::tempdir().unwrap();
    let latin = folder.path().join("latin.yaml");
    std::fs::write(&latin, b"output_dir: caf\xe9").unwrap();
    let problem = written::file(&latin).unwrap_err().line();
    assert!(problem.ends_with("is not UTF-8 text: byte 15 is wrong"), "{problem}");
}

/// What a terminal shows of the problems of a text.
fn shown(text: &str) -> String {
    crate::config::render::render(&train(text, &[], &[]).unwrap_err(), false, 80)
}

#[test]
fn long_lines_are_named_by_their_place_and_not_shown() {
    // A label that begins beyond some ten thousand columns, and one that is as long.
    for text in [
        format!("deepspeed: {}1{}", "{a: ".repeat(10_000), "}".repeat(10_000)),
        format!("{}: 1\nseed: 1\n", "k".repeat(200_000)),
        format!("seed: 1 # {}\nseed: 2\n", "long ".repeat(50_000)),
    ] {
        let said = shown(&text);
        assert!(said.len() < 5000 && said.contains("it is at t.yaml:"), "{} bytes: {said:.2000}", said.len());
    }
}

#[test]
fn many_problems_are_counted() {
    let text: String = (0..300).map(|i| format!("key_{i}: 1\n")).collect();
    let said = shown(&text);
    assert!(said.len() < 20_000 && said.ends_with(" more problems\n"), "{} bytes", said.len());
}

#[test]
fn a_terminal_obeys_no_character_of_a_text() {
    let said = shown("seed: \"\\0\\e[31m\"\n# \u{1b}[2J\u{9b}\u{7}\n");
    assert!(
        said.contains("`seed` takes") && !said.contains(|c: char| c.is_control() && c != '\n'),
        "{said:?}"
    );
}
