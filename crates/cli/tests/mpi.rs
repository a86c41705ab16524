//! A training run whose ranks meet through MPI, under `mpirun`: the bits are those of shared memory, and a lost rank is
//! named.

use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Running, Site, start, until};
use rustix::process::{Pid, Signal, getuid, kill_process};

/// Whether there is an `mpirun`; without one these tests say so and test nothing.
fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    oarlock_must::have("mpi", found, "mpirun is not found")
}

/// Starts `n` ranks of `oarlock train train.yaml …` that meet through MPI.
fn begin(site: &Site, n: usize, output: &str, words: &[&str]) -> Running {
    let root = if getuid().is_root() { "--allow-run-as-root" } else { "" };
    let mut command = site.shell(&format!(
        "exec mpirun {root} --oversubscribe --bind-to none --mca odls_base_sigkill_timeout 2 -n {n} \"$0\" train train.yaml \"$@\""
    ));
    command.args([&format!("output_dir={output}"), &format!("num_processes={n}")]).args(words);
    command.env("OARLOCK_TRANSPORT", "mpi");
    start(command)
}

fn over_mpi(site: &Site, n: usize, output: &str, words: &[&str]) -> CommandOutput {
    let said = begin(site, n, output, words).wait();
    assert_eq!(said.code, Some(0), "{n} ranks, {words:?}: {said:?}");
    said
}

#[test]
fn every_stage_gives_the_bits_of_shared_memory() {
    if !has_mpirun() {
        return;
    }
    let site = Site::new();
    for stage in 0..4 {
        let zero = format!(
            r#"{{"zero_optimization": {{"stage": {stage}, "stage3_param_persistence_threshold": 0}}}}"#
        );
        site.write(&format!("stage{stage}.json"), &zero);
    }
    for (n, stage, more) in [
        (2, 0, "max_steps=6"),
        (2, 1, "bf16=true"),
        (2, 2, "max_steps=6"),
        (2, 3, "bf16=true"),
        (3, 3, "max_steps=6"),
        (4, 1, "max_steps=6"),
    ] {
        let zero = format!("deepspeed=stage{stage}.json");
        let (ours, theirs) = (format!("shm-{n}-{stage}"), format!("mpi-{n}-{stage}"));
        site.train(&ours, &[&format!("num_processes={n}"), &zero, more]);
        over_mpi(&site, n, &theirs, &[&zero, more]);
        assert!(site.losses(&ours).len() >= 6);
        assert_eq!(site.losses(&theirs), site.losses(&ours), "{n} ranks, stage {stage}");
        assert!(site.model(&theirs) == site.model(&ours), "{n} ranks, stage {stage}");
    }
}

/// A checkpoint of two ranks over MPI goes on with three, as one in shared memory does.
#[test]
fn a_checkpoint_goes_on_with_another_number_of_ranks() {
    if !has_mpirun() {
        return;
    }
    let site = Site::new();
    site.write("stage3.json", r#"{"zero_optimization": {"stage": 3}}"#);
    let zero = "deepspeed=stage3.json";
    let saving = [zero, "save_strategy=steps", "save_steps=4"];
    over_mpi(&site, 2, "out", &saving);
    let again = |output: &str, from: &str| {
        let from = format!("resume_from_checkpoint={from}/checkpoint-4");
        // More ranks make a step of more rows, which is another computation.
        over_mpi(&site, 3, output, &[zero, &from, "resume_anyway=true"]);
        site.model(output)
    };
    let from_mpi = again("again", "out");
    site.train("ours", &["num_processes=2", saving[0], saving[1], saving[2]]);
    assert!(site.model("ours") == site.model("out"));
    assert!(again("from-shm", "ours") == from_mpi);
    let from = "resume_from_checkpoint=out/checkpoint-4";
    site.train("in-shm", &["num_processes=3", zero, from, "resume_anyway=true"]);
    assert!(site.model("in-shm") == from_mpi);
}

#[test]
fn a_rank_that_is_killed_is_named_and_mpirun_fails() {
    if !has_mpirun() {
        return;
    }
    let site = Site::new();
    let running = begin(&site, 2, "out", &["max_steps=100000"]);
    until("a step", || (!site.log("out").is_empty()).then_some(()));
    let ranks = running.ranks(2);
    kill_process(Pid::from_raw(ranks[1] as i32).unwrap(), Signal::KILL).unwrap();
    let said = running.wait();
    assert!(said.code != Some(0), "{said:?}");
    // What it was doing came with its last message.
    let message =
        format!("rank 0: error: rank 1 failed: its process {} ended without saying why, in \"", ranks[1]);
    assert!(said.stderr.contains(&message), "{said:?}");
}

/// The launcher of DeepSpeed calls `mpirun`, also for the one machine of a hostfile.
#[test]
fn deepspeed_with_openmpi_gives_the_bits_of_shared_memory() {
    if !has_mpirun() {
        return;
    }
    let site = Site::new();
    site.train("ours", &["max_steps=4"]);
    site.write("hosts", "localhost slots=2\n");
    let arguments = "--oversubscribe --bind-to none --mca btl_tcp_if_include lo";
    let flags =
        ["--force_multi", "--launcher", "openmpi", "--hostfile", "hosts", "--launcher_args", arguments];
    let script = ["src/train.py", "train.yaml", "max_steps=4", "output_dir=theirs"];
    let mut command = site.oarlock(&[&["deepspeed"][..], &flags, &script].concat());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let said = start(command).wait();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(site.losses("theirs"), site.losses("ours"));
    assert!(site.model("theirs") == site.model("ours"));
}
