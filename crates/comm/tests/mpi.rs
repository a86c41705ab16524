//! Ranks over MPI: this binary starts itself under `mpirun`; results are those of shared memory, and every fault is named.
#![cfg(feature = "mpi")]

mod ranks;

use std::process::{Command, Output, Stdio};

use ranks::{FOLDER, ROLE};

/// The children's way in.
#[test]
fn child() {
    ranks::child("OMPI_COMM_WORLD_RANK");
}

/// Whether there is an `mpirun`; without one these tests say so and test nothing.
fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    oarlock_must::have("mpi", found, "mpirun is not found")
}

/// Runs `n` ranks in a role, and gives back how mpirun ended and what each rank wrote.
fn run(n: usize, role: &str) -> (Output, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "60", "mpirun", "--oversubscribe", "--bind-to", "none"]);
    // The ranks that are left have time to say why, also on a machine with other work.
    command.args(["--mca", "odls_base_sigkill_timeout", "2"]);
    if rustix::process::getuid().is_root() {
        command.arg("--allow-run-as-root");
    }
    command.args(["-n", &n.to_string()]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).stdin(Stdio::null());
    command.envs([(ROLE, role), ("OARLOCK_TRANSPORT", "mpi")]).env(FOLDER, folder.path());
    if role == "absent" {
        command.env("OARLOCK_JOIN_TIMEOUT", "1");
    }
    let output = command.output().unwrap();
    let said = |rank: usize| std::fs::read_to_string(folder.path().join(rank.to_string()));
    let said = (0..n).map(|rank| said(rank).unwrap_or_default()).collect();
    assert_ne!(output.status.code(), Some(124), "{role} hangs: {said:?} {output:?}");
    (output, said)
}

/// Invariants 1 to 5.
#[test]
fn results_are_those_of_shared_memory() {
    if !has_mpirun() {
        return;
    }
    for (n, role) in [(2, "results"), (3, "twice"), (5, "results")] {
        let expected = ranks::in_shared_memory(n);
        let (output, said) = run(n, role);
        assert!(output.status.success(), "{n} ranks: {output:?}");
        assert_eq!(said, expected, "{n} ranks");
    }
}

/// Invariants 7 and 8.
#[test]
fn every_fault_is_named_by_all_and_nothing_hangs() {
    if !has_mpirun() {
        return;
    }
    let absent =
        ("absent", "refused cannot join the ranks of this machine: MPI did not start within 1 s", "");
    let faults: Vec<_> = ranks::FAULTS.into_iter().chain([absent]).collect();
    // All at once: mpirun waits seconds for the ranks that are left.
    let runs: Vec<_> = std::thread::scope(|scope| {
        let begun: Vec<_> = faults.iter().map(|(role, ..)| scope.spawn(|| run(3, role))).collect();
        begun.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for ((role, begins, holds), (output, said)) in faults.into_iter().zip(runs) {
        assert!(!output.status.success(), "{role}: {output:?}");
        for rank in [0, 2] {
            assert!(
                said[rank].starts_with(begins) && said[rank].contains(holds),
                "{role}: {said:?} {output:?}"
            );
        }
        assert_eq!(said[0].split("waited").last(), said[2].split("waited").last(), "{role}");
        if role == "different" {
            assert_eq!(said[1], said[0]);
        }
    }
}

/// Takes 2 GB of memory.
#[test]
#[ignore = "heavy"]
fn more_bytes_than_an_int_counts() {
    let (output, said) = run(2, "large");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said, ["[1.5, 2.5, 3.5]", "[1.5, 2.5, 3.5]"]);
}

/// Variables that mpirun left, or the mpirun of another MPI.
#[test]
fn a_library_that_says_another_place_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, "results").env(FOLDER, folder.path());
    for (name, value) in [("RANK", "0"), ("SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "1")] {
        command.env(format!("OMPI_COMM_WORLD_{name}"), value);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = std::fs::read_to_string(folder.path().join("0")).unwrap();
    let message = "Open MPI says rank 0 of 2, but the MPI library of this program says rank 0 of 1";
    assert!(said.contains(message), "{said}");
}
