//! Planted faults fit the code: a text that is not there once is a fault that nobody can plant any more.

use std::fs;

use super::{assert_none, root};

#[test]
fn each_planted_fault_has_its_place() {
    let (mut n, mut broken) = (0, Vec::new());
    for list in ["engine.txt", "host.txt"] {
        let text = fs::read_to_string(root().join("bench/faults").join(list)).unwrap();
        let (mut fault, mut file) = ("", "");
        for (key, value) in text.lines().filter_map(|line| line.split_once(": ")) {
            match key {
                "fault" => fault = value,
                "file" => file = value,
                "old" => {
                    n += 1;
                    let source = fs::read_to_string(root().join(file)).unwrap_or_default();
                    match source.matches(&value.replace("\\n", "\n")).count() {
                        1 => {}
                        times => broken.push(format!("{list}: {fault}: {times} times in {file}")),
                    }
                }
                _ => {}
            }
        }
    }
    assert!(n >= 80, "{n} faults");
    assert_none(broken, "the text that a fault replaces is not in its file once");
}
