//! Wrong programs: each ends with a message that says what to do, on every rank that it concerns, and none hangs.
//!
//! `OARLOCK_BLESS=1 cargo test -p oarlock --test suite misuse` writes down what is said now; read the difference.

#[path = "misuse/further.rs"]
mod further;
#[path = "misuse/programs.rs"]
mod programs;

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use oarlock::Result;
use oarlock_comm::{Communicator, shm};

/// A program that is wrong.
pub struct Wrong {
    /// What is wrong with it.
    title: &'static str,
    ranks: usize,
    program: fn(&Communicator) -> Result<()>,
}

/// What a rank of a case may take at most; only a hang takes as long.
const LIMIT: Duration = Duration::from_secs(60);

/// How long ranks wait for one that lives but does not come.
const PATIENCE: Duration = Duration::from_secs(2);

/// What each rank is told.
fn reported(wrong: &Wrong) -> Vec<String> {
    let ranks = shm::threads(wrong.ranks).unwrap().into_iter().map(|comm| {
        let (sender, receiver) = mpsc::channel();
        let program = wrong.program;
        std::thread::spawn(move || {
            comm.set_timeout(PATIENCE);
            let result = program(&comm);
            match &result {
                Ok(()) => comm.finish(),
                Err(error) => comm.abort(&error.to_string()),
            }
            let _ =
                sender.send(result.err().map_or_else(|| "(nothing)".to_owned(), |error| error.to_string()));
        });
        receiver
    });
    let ranks: Vec<_> = ranks.collect();
    let reported = ranks.into_iter().enumerate().map(|(rank, reported)| {
        reported.recv_timeout(LIMIT).unwrap_or_else(|error| panic!("{}: rank {rank}: {error}", wrong.title))
    });
    reported.collect()
}

/// A case of the page.
fn section(wrong: &Wrong) -> String {
    let reported: Vec<String> = reported(wrong).iter().map(|text| without_places(text)).collect();
    let mut text = format!("## {}\n\n", wrong.title);
    match reported.first() {
        Some(first) if reported.iter().all(|other| other == first) => text += &format!("{first}\n"),
        _ => reported
            .iter()
            .enumerate()
            .for_each(|(rank, reported)| text += &format!("- rank {rank}: {reported}\n")),
    }
    text
}

/// Lines of sources, temporary folders and measured times are different each time.
fn without_places(text: &str) -> String {
    let patterns =
        [(r"([\w/-]+\.rs):\d+(:\d+)?", "$1:.."), (r"DIR/\d+", "DIR"), (r"\d+(\.\d+)? (ms|s)\b", ".. $2")];
    let replace = |text: String, (pattern, with): &(&str, &str)| {
        fancy_regex::Regex::new(pattern).unwrap().replace_all(&text, *with).into_owned()
    };
    let text = text.replace(&further::home().display().to_string(), "DIR");
    patterns.iter().fold(text, replace)
}

#[test]
fn every_wrong_program_is_told_what_to_do() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/misuse/messages.md");
    let all: Vec<Wrong> = programs::all().into_iter().chain(further::all()).collect();
    assert!(all.len() >= 25, "{} programs", all.len());
    let mut text = "# Messages about wrong programs\n".to_owned();
    for wrong in &all {
        let section = section(wrong);
        assert!(section.contains(' ') && !section.contains("(nothing)\n\n"), "{section}");
        text += &format!("\n{section}");
    }
    further::clean_up();
    if std::env::var_os("OARLOCK_BLESS").is_some() {
        std::fs::write(&page, &text).unwrap();
    }
    let written = std::fs::read_to_string(&page).unwrap_or_default();
    for (ours, page) in text.split("\n## ").zip(written.split("\n## ")) {
        assert_eq!(ours, page);
    }
    assert_eq!(text, written);
}
