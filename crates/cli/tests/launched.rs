//! The command as the program of another launcher: with its variables and arguments, it is a rank and starts none.

use std::process::Command;

use crate::common::{CommandOutput, Running, Site, is_alive, start, until};
use rustix::process::{Pid, Signal, kill_process};

/// What the launchers of torch and Accelerate give a rank; `run` is what else they know it by.
fn torchrun(command: &mut Command, rank: usize, port: u16, run: &str) {
    command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("GROUP_RANK", 0)].map(|(k, v)| (k, v.to_string())));
    command.envs(["WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"].map(|name| (name, "2")));
    command.envs([("MASTER_ADDR", "127.0.0.1"), ("GROUP_WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", run)]);
    command.envs([("TORCHELASTIC_RESTART_COUNT", "0"), ("OMP_NUM_THREADS", "1")]);
    command.env("MASTER_PORT", port.to_string());
}

fn deepspeed(command: &mut Command, rank: usize, port: u16) {
    command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("CROSS_RANK", 0)].map(|(k, v)| (k, v.to_string())));
    command.envs([
        ("WORLD_SIZE", "2"),
        ("LOCAL_SIZE", "2"),
        ("CROSS_SIZE", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
    ]);
    command.env("MASTER_PORT", port.to_string());
}

/// Each world of these tests has a port of its own; nobody opens it.
fn port(of_test: u16) -> u16 {
    1024 + (std::process::id() as u16 % 6000) * 10 + of_test
}

/// Two ranks of `train train.yaml output_dir=OUTPUT words…`, each as `dress` makes it.
fn ranks(site: &Site, output: &str, words: &[&str], dress: impl Fn(&mut Command, usize)) -> Vec<Running> {
    let output = format!("output_dir={output}");
    (0..2)
        .map(|rank| {
            // As DeepSpeed does it, before everything else.
            let local_rank = format!("--local_rank={rank}");
            let mut command = site.oarlock(&[&local_rank, "train", "train.yaml", &output]);
            command.args(words);
            dress(&mut command, rank);
            start(command)
        })
        .collect()
}

fn ends(ranks: Vec<Running>) -> Vec<CommandOutput> {
    ranks.into_iter().map(Running::wait).collect()
}

#[test]
fn under_each_launcher_the_losses_are_those_of_our_own() {
    let site = Site::new();
    site.train("ours", &[]);
    let losses = site.losses("ours");
    assert_eq!(losses.len(), 10);
    let check = |output: &str, ranks: Vec<Running>| {
        for said in ends(ranks) {
            assert_eq!(said.code, Some(0), "{output}: {said:?}");
        }
        assert_eq!(site.losses(output), losses, "{output}");
        assert!(site.model(output) == site.model("ours"), "{output}");
    };
    let id = "e5aaf4d9-733f-48ef-918c-bc02ae70ec27";
    check("torchrun", ranks(&site, "torchrun", &[], |command, rank| torchrun(command, rank, port(0), id)));
    check(
        "accelerate",
        ranks(&site, "accelerate", &[], |command, rank| {
            torchrun(command, rank, port(1), "none");
            command.envs([("ACCELERATE_MIXED_PRECISION", "no"), ("ACCELERATE_USE_CPU", "true")]);
        }),
    );
    check("deepspeed", ranks(&site, "deepspeed", &[], |command, rank| deepspeed(command, rank, port(2))));
}

#[test]
fn a_launcher_that_counts_otherwise_is_a_conflict() {
    let site = Site::new();
    let dress = |command: &mut Command, rank: usize| deepspeed(command, rank, port(3));
    for said in ends(ranks(&site, "out", &["num_processes=3"], dress)) {
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains("`num_processes` is 3, but WORLD_SIZE says 2"), "{said:?}");
    }
}

#[test]
fn wrong_variables_and_several_machines_are_refused_at_once() {
    let site = Site::new();
    let several = match oarlock_comm::gloo_obstacle().is_none() {
        true => "`num_processes` is 2, but WORLD_SIZE says 8",
        false => "ranks of several machines meet",
    };
    for (name, value, message) in
        [("LOCAL_RANK", "one", "LOCAL_RANK=one: expected a whole number"), ("WORLD_SIZE", "8", several)]
    {
        let mut command = site.training("out", &[]);
        deepspeed(&mut command, 0, port(4));
        let said = crate::common::run({
            command.env(name, value);
            command
        });
        assert_eq!(said.code, Some(2), "{said:?}");
        let words = said.stderr.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
        assert!(words.contains(message), "{said:?}");
    }
}

/// Two launchers on one machine may have been started in two folders, where a relative path means two places.
#[test]
fn ranks_of_a_machine_that_run_in_two_folders_are_refused() {
    let (site, other) = (Site::new(), Site::new());
    let dress = |command: &mut Command, rank: usize| {
        deepspeed(command, rank, port(6));
        if rank == 1 {
            command.current_dir(other.path(""));
        }
    };
    for said in ends(ranks(&site, "out", &[], dress)) {
        assert_eq!(said.code, Some(2), "{said:?}");
        let message =
            "so that one relative path means two places: start both in one folder, or give absolute paths";
        assert!(
            said.stderr.contains("rank 1 runs in the folder ") && said.stderr.contains(message),
            "{said:?}"
        );
    }
    assert!(!site.path("out/trainer_log.jsonl").exists());
}

/// Another launcher knows exit codes only: the ranks tell it themselves, and none is left.
#[test]
fn a_rank_that_is_killed_is_told_by_the_other() {
    let site = Site::new();
    let mut both =
        ranks(&site, "out", &["max_steps=100000"], |command, rank| deepspeed(command, rank, port(5)));
    until("a step", || (!site.log("out").is_empty()).then_some(()));
    let (second, first) = (both.pop().unwrap(), both.pop().unwrap());
    kill_process(Pid::from_raw(second.pid() as i32).unwrap(), Signal::KILL).unwrap();
    let pid = first.pid();
    let said = first.wait();
    assert_eq!(said.code, Some(1), "{said:?}");
    let message =
        format!("rank 0: error: rank 1 failed: its process {} ended without saying why", second.pid());
    assert!(said.stderr.contains(&message), "{said:?}");
    assert!(!is_alive(pid));
}

/// Variables of a run of yesterday make a rank of a command that nobody launched.
#[test]
fn who_waits_in_vain_says_for_whom_and_why() {
    let site = Site::new();
    for (rank, whom) in [(0, "ranks 1 of 2"), (1, "local rank 0")] {
        let mut command = site.training("out", &[]);
        deepspeed(&mut command, rank, port(8));
        command.env("OARLOCK_JOIN_TIMEOUT", "1");
        let said = crate::common::run(command);
        assert_eq!(said.code, Some(1), "{said:?}");
        let note =
            format!("note: rank {rank} waits for {whom}, at most 1 s; if no launcher started this process");
        assert!(said.stderr.starts_with(&note) && said.stderr.contains("unset WORLD_SIZE"), "{said:?}");
    }
}
