//! A training run whose ranks meet over Gloo: the bits are those of shared memory, on one machine and on several, and a
//! lost rank is named.

use std::process::Command;

#[path = "../../comm/tests/machines/mod.rs"]
mod machines;

use crate::common::{CommandOutput, Running, Site, start, until};
use machines::Machines;
use rustix::process::{Pid, Signal, kill_process};

/// Starts `n` ranks of `oarlock train train.yaml …`, as a launcher does it that knows nothing of Oarlock; `on` gives the
/// command that a rank's words are added to, and `per` are those of one machine.
fn begin(
    site: &Site,
    (n, per): (usize, usize),
    output: &str,
    words: &[&str],
    at: (&str, u16),
    on: impl Fn(usize) -> Command,
) -> Vec<Running> {
    let output = format!("output_dir={output}");
    (0..n)
        .map(|rank| {
            let own = site.oarlock(&["train", "train.yaml", &output]);
            let mut command = on(rank);
            command.arg(own.get_program()).args(own.get_args()).args(words).arg(format!("num_processes={n}"));
            if let Some(folder) = own.get_current_dir() {
                command.current_dir(folder);
            }
            own.get_envs().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| {
                command.env(name, value);
            });
            let port = usize::from(at.1);
            let numbers =
                [("RANK", rank), ("LOCAL_RANK", rank % per), ("WORLD_SIZE", n), ("MASTER_PORT", port)];
            command.envs(numbers.map(|(name, value)| (name, value.to_string())));
            command
                .env("LOCAL_WORLD_SIZE", per.to_string())
                .env("MASTER_ADDR", at.0)
                .env("OMP_NUM_THREADS", "1");
            start(command)
        })
        .collect()
}

fn here(_: usize) -> Command {
    let mut command = Command::new("env");
    command.arg("OARLOCK_TRANSPORT=gloo");
    command
}

fn port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn all_end_well(ranks: Vec<Running>) {
    let said: Vec<CommandOutput> = ranks.into_iter().map(Running::wait).collect();
    assert!(said.iter().all(|said| said.code == Some(0)), "{said:?}");
}

#[test]
fn every_stage_gives_the_bits_of_shared_memory() {
    if !oarlock_must::have_gloo(oarlock_comm::gloo_obstacle()) {
        return;
    }
    let site = Site::new();
    for (n, stage, more) in
        [(2, 0, "bf16=true"), (2, 1, "max_steps=6"), (3, 2, "max_steps=6"), (2, 3, "bf16=true")]
    {
        let zero = format!(
            r#"{{"zero_optimization": {{"stage": {stage}, "stage3_param_persistence_threshold": 0}}}}"#
        );
        let file = format!("stage{stage}.json");
        site.write(&file, &zero);
        let zero = format!("deepspeed={file}");
        let (ours, theirs) = (format!("shm-{stage}"), format!("gloo-{stage}"));
        site.train(&ours, &[&format!("num_processes={n}"), &zero, more]);
        all_end_well(begin(&site, (n, n), &theirs, &[&zero, more], ("127.0.0.1", port()), here));
        assert!(site.losses(&ours).len() >= 6);
        assert_eq!(site.losses(&theirs), site.losses(&ours), "stage {stage}");
        assert!(site.model(&theirs) == site.model(&ours), "stage {stage}");
    }
}

#[test]
fn two_machines_train_what_one_does() {
    if !oarlock_must::have_gloo(oarlock_comm::gloo_obstacle()) {
        return;
    }
    let Some(machines) = Machines::new(2) else { return };
    let site = Site::new();
    site.write("stage3.json", r#"{"zero_optimization": {"stage": 3}}"#);
    let words = ["deepspeed=stage3.json", "max_steps=6"];
    site.train("one", &[words[0], words[1], "num_processes=4"]);
    let at = (machines.address(0), 29_500);
    all_end_well(begin(&site, (4, 2), "two", &words, at, |rank| machines.command(rank / 2)));
    assert_eq!(site.losses("two"), site.losses("one"));
    assert!(site.model("two") == site.model("one"));
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    if !oarlock_must::have_gloo(oarlock_comm::gloo_obstacle()) {
        return;
    }
    let site = Site::new();
    let words = ["max_steps=100000"];
    let mut ranks = begin(&site, (3, 3), "out", &words, ("127.0.0.1", port()), here);
    let log = site.path("out/trainer_log.jsonl");
    until("the first steps", || log.exists().then_some(()));
    let killed = ranks.remove(1);
    kill_process(Pid::from_raw(killed.pid() as i32).unwrap(), Signal::KILL).unwrap();
    for said in ranks.into_iter().map(Running::wait) {
        assert!(said.code.is_some_and(|code| code != 0), "{said:?}");
        assert!(said.stderr.contains("rank 1 failed: its process"), "{said:?}");
    }
    killed.wait();
}
