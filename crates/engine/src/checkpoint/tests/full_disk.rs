//! A disk that is really full: a small file system, mounted in a namespace of its own where that is permitted.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::checkpoint::{load, newest};

const FOLDER: &str = "OARLOCK_TEST_SMALL_DISK";

/// Runs in a child process of the test below.
#[test]
#[ignore = "needs the file system that a_full_disk_stops_nothing_but_the_save mounts"]
fn child_on_a_small_disk() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    save_pattern(&folder.join("checkpoint-1"), 2, 1);
    let errors = on_ranks(2, |comm| {
        let model = Model::new(90, true);
        let mut engine = engine_of(&model, comm, Placements::OPTIMIZER, DType::F32);
        fill(&mut engine, 8, 2);
        let mut saver = Saver::default();
        saver.begin(&folder.join("checkpoint-2"), comm, &engine, Contents::state(client(2))).unwrap();
        // It comes to light while the ranks do other things.
        let error = loop {
            comm.barrier().unwrap();
            match saver.poll(comm) {
                Ok(saved) => assert_eq!(saved, None),
                Err(error) => break error,
            }
        };
        // Training goes on: the ranks still work together, the state is as it was, the last checkpoint loads.
        comm.barrier().unwrap();
        assert!(is_pattern(&engine, 2));
        load(&newest(folder).unwrap().path.unwrap(), comm, &mut engine).unwrap();
        assert!(is_pattern(&engine, 1));
        error.to_string()
    });
    assert_eq!(errors[0], errors[1]);
    assert!(
        errors[0].contains("No space left on device") && errors[0].contains("earlier checkpoints"),
        "{}",
        errors[0]
    );
    assert_eq!(names(folder), ["checkpoint-1"]);
    println!("passed on a small disk");
}

#[test]
fn a_full_disk_stops_nothing_but_the_save() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = |then: &str| {
        let script = format!("mount -t tmpfs -o size=400k none \"$0\" && {then}");
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &script]).arg(folder.path());
        command
    };
    let mounts = mounted("true").output().is_ok_and(|output| output.status.success());
    if !oarlock_must::have("mount", mounts, "this system does not let a test mount a small file system") {
        return;
    }
    let test = "checkpoint::tests::full_disk::child_on_a_small_disk";
    let output = mounted("exec \"$1\" --exact \"$2\" --ignored --nocapture")
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(FOLDER, folder.path())
        .output()
        .unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("passed on a small disk"), "{said}");
}
