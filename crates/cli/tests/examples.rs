//! The examples of the library, started by launchers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of an example. `cargo test` builds them all, unless it is told to build a few tests only.
fn built(name: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_oarlock")).with_file_name("examples").join(name);
    if !program.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--package", "oarlock", "--example", name]);
        cargo.arg("--target-dir").arg(program.ancestors().nth(3).unwrap());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "{name} could not be built");
    }
    program
}

#[test]
fn the_examples_run_as_they_stand() {
    for (name, end) in [
        ("distillation", "36 steps, loss 7.1383 at first, 2.9300 in the end"),
        ("text_classifier", "75 % of the reviews are judged right"),
    ] {
        let (site, program) = (crate::common::Site::new(), built(name));
        let program = program.to_str().unwrap();
        for launcher in [
            "torchrun --standalone --nproc-per-node 1 --no-python",
            "torchrun --standalone --nproc-per-node 2 --no-python",
            "accelerate launch --cpu --num_processes 2 --no_python",
            "deepspeed --include localhost:0,1 --no_python",
        ] {
            let words: Vec<&str> = launcher.split(' ').chain([program]).collect();
            let mut command = site.oarlock(&words);
            // The ranks of deepspeed are those of accelerators, unless this is said.
            command.env("DS_ACCELERATOR", "cpu");
            let said = crate::common::run(command);
            assert_eq!(said.code, Some(0), "{name}: {said:?}");
            assert_eq!(said.stdout.lines().last(), Some(end), "{name}: {said:?}");
        }
    }
}

#[test]
fn ranks_start_from_a_program_without_a_launcher() {
    let (site, file) = (crate::common::Site::new(), "accelerate.json");
    let mut command = Command::new(built("notebook"));
    command.arg(site.path(file)).current_dir(site.path(""));
    let said = crate::common::run(command);
    assert_eq!(said.code, Some(0), "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().collect();
    let [written, _launching, notebook, debug] = lines[..] else { panic!("{said:?}") };
    assert!(written.ends_with("accelerate.json is written"), "{said:?}");
    assert!(notebook.starts_with("2 ranks: loss ") && notebook == debug, "{said:?}");
    assert!(String::from_utf8(site.read(file)).unwrap().contains("\"mixed_precision\": \"fp16\""));
}
