//! Whatever is killed, stopped or full: all ranks end within two seconds, the first failure is reported with its rank,
//! and nothing is left behind.

use std::fs;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use crate::common::{CommandOutput, Running, Site, is_alive, run, start, until};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, kill_process_group, prlimit};

/// A run that lasts until something ends it; it has done two steps and more.
fn endless(site: &Site) -> (Running, Vec<u32>) {
    endless_with(site, &[])
}

/// The same, with further settings.
fn endless_with(site: &Site, settings: &[&str]) -> (Running, Vec<u32>) {
    let mut command = site.training("out", &[settings, &["max_steps=1000000"]].concat());
    command.process_group(0);
    let running = start(command);
    let ranks = running.ranks(2);
    until("two steps", || (site.log("out").len() >= 2).then_some(()));
    (running, ranks)
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id as i32).unwrap()
}

/// Waits for the end of all, which must come within two seconds of `begin`.
fn ended(running: Running, ranks: &[u32], begin: Instant) -> CommandOutput {
    let said = running.wait();
    until("the end of the ranks", || ranks.iter().all(|&pid| !is_alive(pid)).then_some(()));
    assert!(begin.elapsed() < Duration::from_secs(2), "it took {:?}: {said:?}", begin.elapsed());
    said
}

#[test]
fn a_killed_rank_ends_all_and_is_named() {
    for victim in [0, 1] {
        let site = Site::new();
        let (running, ranks) = endless(&site);
        kill_process(pid(ranks[victim]), Signal::KILL).unwrap();
        let said = ended(running, &ranks, Instant::now());
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(
            said.stderr.contains(&format!("rank {victim}")) && said.stderr.contains("signal 9"),
            "{said:?}"
        );
        assert_eq!(said.stderr.matches("error:").count(), 1, "{said:?}");
    }
}

#[test]
fn a_second_run_in_the_same_folder_is_refused_and_the_first_goes_on() {
    let site = Site::new();
    let (running, ranks) = endless(&site);
    let second = run(site.training("out", &["max_steps=1"]));
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains("is written by another run (process "), "{second:?}");
    assert!(ranks.iter().any(|rank| second.stderr.contains(&format!("(process {rank} on "))), "{second:?}");
    let before = site.log("out").len();
    until("another step", || (site.log("out").len() > before).then_some(()));
    // The lock ends with its holder, however that ends.
    kill_process(pid(ranks[0]), Signal::KILL).unwrap();
    ended(running, &ranks, Instant::now());
    let third = run(site.training("out", &["max_steps=1"]));
    assert_eq!(third.code, Some(0), "{third:?}");
}

#[test]
fn a_rank_that_does_not_answer_ends_with_the_others() {
    let site = Site::new();
    let (running, ranks) = endless(&site);
    kill_process(pid(ranks[1]), Signal::STOP).unwrap();
    kill_process(pid(ranks[0]), Signal::TERM).unwrap();
    let said = ended(running, &ranks, Instant::now());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.starts_with("error: rank 0") && said.stderr.contains("signal 15"), "{said:?}");
}

#[test]
fn a_rank_that_does_not_come_is_named_while_the_others_wait() {
    let site = Site::new();
    let (running, ranks) = endless(&site);
    kill_process(pid(ranks[1]), Signal::STOP).unwrap();
    let begin = Instant::now();
    until("the note", || running.stderr().contains("note: rank 0 has waited 5 s for rank 1").then_some(()));
    assert!(begin.elapsed() < Duration::from_secs(8), "it took {:?}", begin.elapsed());
    // Nobody has given up.
    assert!(ranks.iter().all(|&rank| is_alive(rank)));
    kill_process(pid(running.pid()), Signal::TERM).unwrap();
    running.wait();
}

#[test]
fn a_rank_that_does_not_come_in_time_ends_the_run_and_is_named() {
    let site = Site::new();
    let (running, ranks) = endless_with(&site, &["ddp_timeout=2"]);
    kill_process(pid(ranks[1]), Signal::STOP).unwrap();
    let begin = Instant::now();
    let said = running.wait();
    assert!(begin.elapsed() < Duration::from_secs(8), "it took {:?}: {said:?}", begin.elapsed());
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.starts_with("error: rank 0"), "{said:?}");
    assert!(said.stderr.contains("and waited 2.0 s for rank 1"), "{said:?}");
    until("the end of the ranks", || ranks.iter().all(|&pid| !is_alive(pid)).then_some(()));
}

/// Nobody among the ranks can say so, and whoever has stopped them may have meant it.
#[test]
fn ranks_that_are_all_stopped_are_told_and_go_on() {
    let site = Site::new();
    let (running, ranks) = endless_with(&site, &["ddp_timeout=6"]);
    ranks.iter().for_each(|&rank| kill_process(pid(rank), Signal::STOP).unwrap());
    let message = format!(
        "note: all ranks have been stopped for 6 s (SIGSTOP); `kill -CONT {} {}` lets them go on",
        ranks[0], ranks[1]
    );
    until("the note", || running.stderr().contains(&message).then_some(()));
    let steps = site.log("out").len();
    ranks.iter().for_each(|&rank| kill_process(pid(rank), Signal::CONT).unwrap());
    until("a step after it", || (site.log("out").len() > steps).then_some(()));
    assert_eq!(running.stderr().matches("have been stopped").count(), 1, "{}", running.stderr());
    kill_process(pid(running.pid()), Signal::TERM).unwrap();
    assert_eq!(running.wait().code, Some(143));
}

#[test]
fn a_killed_launcher_leaves_no_process_and_no_shared_memory() {
    let site = Site::new();
    let (running, ranks) = endless(&site);
    // Shared memory without a name goes with its last holder, so nothing can be left of it.
    for &rank in &ranks {
        let maps = fs::read_to_string(format!("/proc/{rank}/maps")).unwrap();
        assert!(maps.contains("/memfd:"), "{maps}");
        assert!(!maps.contains("/dev/shm/"), "{maps}");
    }
    kill_process(pid(running.pid()), Signal::KILL).unwrap();
    let said = ended(running, &ranks, Instant::now());
    assert_eq!(said.signal, Some(9));
}

/// Whether these tests run under nohup, and so all that they start.
fn under_nohup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    u64::from_str_radix(ignored, 16).unwrap() & 1 == 1
}

#[test]
fn a_signal_to_the_launcher_ends_all() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        if signal == Signal::HUP && under_nohup() {
            continue;
        }
        let site = Site::new();
        let (running, ranks) = endless(&site);
        // As a terminal does it: Ctrl-C reaches the ranks as well.
        match signal {
            Signal::INT => kill_process_group(pid(running.pid()), signal).unwrap(),
            _ => kill_process(pid(running.pid()), signal).unwrap(),
        }
        let said = ended(running, &ranks, Instant::now());
        assert_eq!(said.code, Some(code), "{said:?}");
        let message = format!("stopped by signal {}; all ranks have ended\n", signal.as_raw());
        assert_eq!(said.stderr, message, "{said:?}");
    }
}

/// Without a launcher a run ends as its ranks do, and leaves no lock.
#[test]
fn a_signal_to_a_run_of_one_process_ends_it_in_the_same_way() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let site = Site::new();
        let words = ["num_processes=1", "max_steps=100000", "logging_steps=1"];
        let running = start(site.training("out", &words));
        until("a step", || (!site.log("out").is_empty()).then_some(()));
        assert!(site.path("out/run.lock").exists());
        kill_process(pid(running.pid()), signal).unwrap();
        let said = running.wait();
        assert_eq!(said.code, Some(code), "{said:?}");
        let message = format!("stopped by signal {}; all ranks have ended\n", signal.as_raw());
        assert!(said.stderr.ends_with(&message), "{said:?}");
        assert!(!site.path("out/run.lock").exists());
    }
}

#[test]
fn an_error_of_one_rank_is_told_once_with_the_rank() {
    let site = Site::new();
    site.write("text.jsonl", "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
    let said = run(site.training("out", &[]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.starts_with("error: rank 0"), "{said:?}");
    assert_eq!(said.stderr.matches("text.jsonl:2").count(), 1, "{said:?}");
}

#[test]
fn numbers_that_are_not_finite_are_told_with_the_step() {
    let site = Site::new();
    let said = run(site.training("out", &["learning_rate=1e30", "warmup_steps=0"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("the gradient is not finite"), "{said:?}");
    assert_eq!(said.stderr.matches("error:").count(), 1, "{said:?}");
}

/// The checkpoints of a run, and whatever else a save may have left.
fn checkpoints(site: &Site) -> Vec<u64> {
    let names = fs::read_dir(site.path("out")).into_iter().flatten();
    let mut steps: Vec<u64> = names
        .filter_map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            name.strip_prefix("checkpoint-").map(|step| step.parse().unwrap_or(u64::MAX))
        })
        .collect();
    steps.sort_unstable();
    steps
}

#[test]
fn a_disk_that_is_full_stops_nothing_but_the_saves() {
    // Who finds the disk full: one rank, or all.
    for (full, name) in [(&[1][..], "rank 1"), (&[0, 1], "rank ")] {
        let site = Site::new();
        // A file that would grow over the limit is an error, as on a full disk, and not the end of the process.
        let script = "trap '' XFSZ; exec \"$0\" train train.yaml output_dir=out max_steps=20000 save_strategy=steps save_steps=5";
        let running = start(site.shell(script));
        let ranks = running.ranks(2);
        let whole = || checkpoints(&site).into_iter().filter(|&step| step < u64::MAX).max();
        until("a checkpoint", whole);
        let limit = |current| {
            for &rank in full {
                prlimit(Some(pid(ranks[rank])), Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
            }
        };
        limit(Some(40_000));
        until("the warning", || running.stderr().contains("training goes on").then_some(()));
        let last = whole().unwrap();
        // There is room again, and the next save succeeds.
        limit(None);
        until("another checkpoint", || whole().filter(|&step| step > last));
        kill_process(pid(running.pid()), Signal::TERM).unwrap();
        let said = running.wait();
        let warning = said.stderr.lines().find(|line| line.starts_with("warning:")).unwrap();
        assert!(warning.starts_with("warning: checkpoint out/checkpoint-"), "{said:?}");
        assert!(warning.contains(&format!(" was not saved: {name}")), "{said:?}");
        assert!(warning.contains(": cannot write "), "{said:?}");
        assert!(warning.ends_with("earlier checkpoints are as they were; training goes on"), "{said:?}");
        assert!(!said.stderr.contains("error:"), "{said:?}");

        let last = whole().unwrap();
        // So short a training run has other learning rates.
        let again = site.train("out", &[&format!("max_steps={}", last + 2), "resume_anyway=true"]);
        assert!(
            again.stdout.contains(&format!("Resuming training from out/checkpoint-{last}.")),
            "{again:?}"
        );
        let steps: Vec<u64> = site.losses("out").iter().map(|record| record.0).collect();
        assert_eq!(steps, (1..=last + 2).collect::<Vec<_>>());
    }
}

#[test]
fn a_reader_that_goes_away_does_not_end_the_training() {
    let site = Site::new();
    for (index, pipe) in ["|", "2>&1 |"].iter().enumerate() {
        let output = format!("out{index}");
        let said = run(site.shell(&format!("\"$0\" train train.yaml output_dir={output} {pipe} head -n 1")));
        assert_eq!((said.code, said.stdout.lines().count()), (Some(0), 1), "{said:?}");
        assert_eq!(said.stderr, "");
        assert_eq!(site.losses(&output).len(), 10);
        assert!(!site.model(&output).is_empty());
    }
    for (command, code) in [
        ("train --help", "0"),
        ("env", "0"),
        ("train train.yaml output_dir=o --print-config", "0"),
        ("train train.yaml output_dir=o learning_rat=1", "2"),
        ("generate --model model --prompt the", "0"),
        ("generate --model nowhere --prompt the", "1"),
    ] {
        // The reader has gone before the first word.
        run(site.shell(&format!("{{ sleep 0.2; \"$0\" {command} 2>&1; echo $? > code; }} | true")));
        assert_eq!(String::from_utf8(site.read("code")).unwrap().trim(), code, "{command}");
    }
}

#[test]
fn a_configuration_in_a_pipe_is_refused_before_a_rank_misses_it() {
    let site = Site::new();
    let said = run(site.shell("cat train.yaml | \"$0\" train /dev/stdin output_dir=out"));
    assert_eq!(said.code, Some(2), "{said:?}");
    let message = "cannot read the configuration `/dev/stdin`: it is a folder, a pipe, a socket or a device";
    assert!(said.stderr.contains(message), "{said:?}");
    assert!(!site.path("out").exists());
}
