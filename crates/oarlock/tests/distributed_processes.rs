//! Ranks that a program starts as processes of itself, and ranks that meet without a launcher.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use common::{is_alive, until};
use oarlock::distributed::{self, Backend, InitOptions};
use oarlock::{Accelerator, AcceleratorConfig, Error, Result};
use rustix::process::{Pid, Signal, kill_process};

fn one_thread() -> AcceleratorConfig {
    AcceleratorConfig { threads: Some(1), ..AcceleratorConfig::default() }
}

fn message(result: Result<()>) -> String {
    result.unwrap_err().to_string()
}

/// This test again as a program of its own, which `OARLOCK_TEST_PROGRAM` names.
fn program(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child_program", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env("OARLOCK_TEST_PROGRAM", name);
    command
}

/// What a program said behind `> `, sorted.
fn said(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // The harness writes on the same lines.
    let mut lines: Vec<String> =
        text.lines().filter_map(|line| Some(line.split_once("> ")?.1.to_owned())).collect();
    lines.sort();
    lines
}

fn say(text: &str) {
    println!("> {text}");
}

#[test]
#[ignore = "what the tests of processes start"]
fn child_program() {
    let group = || distributed::init_process_group(Backend::Gloo, &InitOptions::default());
    match std::env::var("OARLOCK_TEST_PROGRAM").as_deref() {
        Ok("twice") => {
            for turn in ["first", "second"] {
                let result = distributed::spawn_processes(2, |rank| {
                    let accelerator = Accelerator::new(&one_thread())?;
                    let mut sum = [1.0];
                    accelerator.reduce_sum(&mut sum)?;
                    assert_eq!(group()?.rank(), rank);
                    say(&format!("{turn}: rank {rank} of {}", sum[0]));
                    Ok(())
                });
                result.unwrap();
            }
            distributed::spawn_processes(1, |_| {
                say("third: alone");
                distributed::destroy_process_group().unwrap_err();
                group()?.barrier()?;
                distributed::destroy_process_group()
            })
            .unwrap();
            say(&format!("after all with {}", std::env::args().count()));
        }
        Ok("fails") => {
            let result = distributed::spawn_processes(3, |rank| {
                let group = group()?;
                match (rank, std::env::var("OARLOCK_TEST_FAILURE").as_deref()) {
                    (1, Ok("error")) => Err(Error::Usage("it is broken".to_owned())),
                    (1, Ok("panic")) => panic!("it is on fire"),
                    (1, Ok("exit")) => std::process::exit(7),
                    (1, Ok("kill")) => {
                        kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
                        Ok(())
                    }
                    _ => group.barrier(),
                }
            });
            say(&message(result));
        }
        // A rank does not come to the same call again.
        Ok("elsewhere") if std::env::var_os("RANK").is_none() => {
            say(&message(distributed::spawn_processes(2, |_| Ok(()))));
        }
        Ok("nested") => {
            let result = distributed::spawn_processes(1, |_| distributed::spawn_processes(1, |_| Ok(())));
            say(&message(result));
        }
        Ok("waits") => {
            let result = distributed::spawn_processes(2, |rank| {
                let group = group()?;
                group.barrier()?;
                say(&format!("{rank} {}", std::process::id()));
                loop {
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            say(&message(result));
        }
        Ok("meets") => {
            let number = |name| std::env::var(name).unwrap().parse().ok();
            let options = InitOptions {
                init_method: std::env::var("OARLOCK_TEST_METHOD").ok(),
                rank: number("OARLOCK_TEST_RANK"),
                world_size: Some(2),
                timeout: None,
            };
            let group = distributed::init_process_group(Backend::Gloo, &options).unwrap();
            let all = group.all_gather_object(&group.rank()).unwrap();
            say(&format!("{all:?}"));
            distributed::destroy_process_group().unwrap();
        }
        _ => {}
    }
}

#[test]
fn processes_run_to_their_own_call_and_the_program_goes_on_after_it() {
    let output = program("twice").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = [
        "after all with 6",
        "first: rank 0 of 2",
        "first: rank 1 of 2",
        "second: rank 0 of 2",
        "second: rank 1 of 2",
        "third: alone",
    ];
    assert_eq!(said(&output), expected, "{output:?}");
}

#[test]
fn a_process_that_fails_ends_the_others_and_is_explained() {
    for (failure, expected) in [
        ("error", "rank 1 failed: it is broken"),
        ("panic", "rank 1 failed: panicked: it is on fire"),
        ("exit", "rank 1 failed: it ended with exit code 7"),
        ("kill", "rank 1 failed: it was ended by signal 9 (SIGKILL); signal 9, which nobody here sent"),
    ] {
        let output = program("fails").env("OARLOCK_TEST_FAILURE", failure).output().unwrap();
        let said = said(&output);
        assert!(said.len() == 1 && said[0].starts_with(expected), "{failure}: {output:?}");
    }
}

#[test]
fn a_process_that_comes_to_no_call_or_to_one_inside_another_is_told() {
    let output = program("elsewhere").output().unwrap();
    let lines = said(&output);
    assert!(lines[0].contains("ended without coming to the call of spawn_processes at"), "{output:?}");
    let output = program("nested").output().unwrap();
    let lines = said(&output);
    assert!(lines[0].contains("rank 0 failed: spawn_processes was called by a rank"), "{output:?}");
}

/// A program whose ranks wait, with the processes of the ranks.
fn waiting() -> (std::process::Child, impl Iterator<Item = String>, Vec<u32>) {
    let mut parent = program("waits").stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(std::io::Result::ok);
    let mut lines = lines.filter_map(|line| Some(line.split_once("> ")?.1.to_owned()));
    let pid = |line: String| line.split_once(' ').unwrap().1.parse().unwrap();
    let pids = vec![pid(lines.next().unwrap()), pid(lines.next().unwrap())];
    (parent, lines, pids)
}

#[test]
fn a_signal_ends_the_ranks_and_a_killed_parent_leaves_none() {
    let (mut parent, mut lines, pids) = waiting();
    let pid = Pid::from_raw(parent.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(lines.next().unwrap(), "signal 15 (SIGTERM) to this process ended the ranks");
    assert!(parent.wait().unwrap().success());
    assert!(!pids.iter().any(|&pid| is_alive(pid)));

    let (mut parent, _lines, pids) = waiting();
    parent.kill().unwrap();
    parent.wait().unwrap();
    until("the ranks to end", || (!pids.iter().any(|&pid| is_alive(pid))).then_some(()));
}

#[test]
fn ranks_without_a_launcher_meet_where_the_program_says() {
    let id = std::process::id();
    for method in [format!("tcp://localhost:{}", 20000 + id % 9000), format!("file:///tmp/oarlock-{id}")] {
        let start = |rank: &str| {
            let mut command = program("meets");
            command.env("OARLOCK_TEST_METHOD", &method).env("OARLOCK_TEST_RANK", rank);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        for rank in [start("0"), start("1")] {
            let output = rank.wait_with_output().unwrap();
            assert_eq!(said(&output), ["[0, 1]"], "{output:?}");
        }
    }
}
