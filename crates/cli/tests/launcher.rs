//! The launcher with programs that are shell scripts: what ranks are told, what happens when they fail, where their
//! output goes, and that nothing is left of them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{CommandOutput, Running, Site, is_alive, run, start, until};
use rustix::process::{Pid, Signal, kill_process};

/// `torchrun` with flags, and a script of the shell.
fn torchrun(site: &Site, flags: &str, script: &str) -> Command {
    site.write("script.sh", script);
    let words: Vec<&str> = std::iter::once("torchrun")
        .chain(flags.split_whitespace())
        .chain(["--no-python", "sh", "script.sh"])
        .collect();
    let mut command = site.oarlock(&words);
    command.env_remove("OMP_NUM_THREADS").env_remove("TORCHELASTIC_RUN_ID");
    command
}

fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// The number in a file, once a script has written it.
fn number_in(site: &Site, name: &str) -> u32 {
    until(name, || fs::read_to_string(site.path(name)).ok()?.strip_suffix('\n')?.parse().ok())
}

#[test]
fn every_rank_is_told_its_place() {
    let site = Site::new();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK \
                  $ROLE_WORLD_SIZE $ROLE_NAME $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS \
                  $TORCHELASTIC_RUN_ID $TORCHELASTIC_USE_AGENT_STORE $TORCH_NCCL_ASYNC_ERROR_HANDLING $OMP_NUM_THREADS";
    let said = run(torchrun(&site, "--nproc-per-node 3 --max-restarts 2 --rdzv-id r7 --role x", script));
    assert_eq!(said.code, Some(0), "{said:?}");
    let expected: Vec<String> =
        (0..3).map(|r| format!("{r} {r} 3 3 0 1 {r} 3 x 127.0.0.1 0 2 r7 False 1 1")).collect();
    assert_eq!(lines(&said.stdout), expected);
    assert!(said.stderr.contains("OMP_NUM_THREADS is 1"), "{said:?}");
}

#[test]
fn numbered_machines_may_have_other_numbers_of_ranks() {
    let sites = [Site::new(), Site::new()];
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR";
    let machine = |node: usize, ranks: usize| {
        let flags = format!(
            "--nproc-per-node {ranks} --nnodes 2 --node-rank {node} --master-addr 127.0.0.1 --master-port {port}"
        );
        start(torchrun(&sites[node], &flags, script))
    };
    let said = [machine(0, 1), machine(1, 3)].map(Running::wait);
    assert!(said.iter().all(|said| said.code == Some(0)), "{said:?}");
    assert_eq!(lines(&said[0].stdout), ["0 0 4 1 0 127.0.0.1"], "{said:?}");
    let of_second: Vec<String> = (0..3).map(|rank| format!("{} {rank} 4 3 1 127.0.0.1", rank + 1)).collect();
    assert_eq!(lines(&said[1].stdout), of_second, "{said:?}");
    // Strangers can keep them apart or take a place, as with a training run.
    assert!(said.iter().all(|said| said.stderr.contains("warning: no token")), "{said:?}");
}

#[test]
fn the_first_failure_is_the_root_cause_and_its_code_that_of_the_launcher() {
    let site = Site::new();
    let script = "test $RANK = 1 || exec sleep 60
                  echo '{\"message\": {\"message\": \"no such batch\"}}' > $TORCHELASTIC_ERROR_FILE; exit 9";
    let said = run(torchrun(&site, "--nproc-per-node 2", script));
    assert_eq!(said.code, Some(9), "{said:?}");
    let (others, root) = said.stderr.split_once("Root Cause (first observed failure):").unwrap();
    for part in
        ["rank      : 1 (local_rank: 1)", "exitcode  : 9 (pid: ", "error_file: <N/A>", "no such batch"]
    {
        assert!(root.contains(part), "{part}: {root}");
    }
    assert!(others.contains("rank      : 0") && others.contains("(SIGTERM)"), "{others}");
    // A signal, as a shell passes it on.
    let said = run(torchrun(&site, "", "kill -9 $$"));
    assert_eq!(said.code, Some(137), "{said:?}");
    assert!(
        said.stderr.contains("exitcode  : -9 (pid: ")
            && said.stderr.contains("signal 9, which nobody here sent: "),
        "{said:?}"
    );
    let said = run(torchrun(&site, "", "no-such-command"));
    assert_eq!(said.code, Some(127), "{said:?}");
    assert!(said.stderr.contains("did not find a program"), "{said:?}");
}

#[test]
fn failed_ranks_start_again_as_often_as_allowed() {
    let site = Site::new();
    let script = "echo $RANK at $TORCHELASTIC_RESTART_COUNT
                  test $RANK$TORCHELASTIC_RESTART_COUNT != 10 || exit 5";
    let said = run(torchrun(&site, "--nproc-per-node 2 --max-restarts 1", script));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(lines(&said.stdout).ends_with(&["0 at 1", "1 at 0", "1 at 1"]), "{said:?}");
    assert!(said.stderr.contains("restart 1 of 1"), "{said:?}");
    let said = run(torchrun(&site, "--max-restarts 2", "echo $TORCHELASTIC_RESTART_COUNT; exit 6"));
    assert_eq!((said.code, lines(&said.stdout)), (Some(6), vec!["0", "1", "2"]), "{said:?}");
}

/// The only folder in a folder whose name begins so.
fn only(folder: &Path, prefix: &str) -> std::path::PathBuf {
    let mut found: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let path = found.remove(0);
    assert!(path.file_name().unwrap().to_str().unwrap().starts_with(prefix), "{path:?}");
    path
}

#[test]
fn output_goes_where_it_is_sent() {
    let site = Site::new();
    let script = "echo out $RANK; echo err $RANK >&2; exit $((RANK == 1 && TORCHELASTIC_RESTART_COUNT == 0))";
    let flags = "--nproc-per-node 2 --max-restarts 1 --log-dir logs --rdzv-id id --redirects 0:1,1:3 --tee 1:1 \
                 --duplicate-stdout-filters t,x";
    let said = run(torchrun(&site, flags, script));
    assert_eq!(said.code, Some(0), "{said:?}");
    let of_run = only(&site.path("logs"), "id_");
    let read = |path: &str| fs::read_to_string(of_run.join(path)).unwrap();
    assert_eq!(read("attempt_1/0/stdout.log"), "out 0\n");
    assert_eq!(read("attempt_1/1/stdout.log"), "out 1\n");
    assert_eq!(read("attempt_1/1/stderr.log"), "err 1\n");
    assert!(!of_run.join("attempt_1/0/stderr.log").exists());
    assert_eq!(read("attempt_0/1/stdout.log"), "out 1\n");
    assert_eq!(lines(&read("attempt_1/filtered_stdout.log")), ["out 0", "out 1"]);
    // Shown: what is teed, with its rank; and what is in no file.
    assert_eq!(lines(&said.stdout), ["[default1]:out 1", "[default1]:out 1"], "{said:?}");
    assert!(said.stderr.lines().any(|line| line == "err 0"), "{said:?}");
    assert!(!said.stderr.lines().any(|line| line == "err 1"), "{said:?}");
    let said = run(torchrun(&site, "--nproc-per-node 3 --local-ranks-filter 0,2", "echo $RANK"));
    assert_eq!(lines(&said.stdout), ["0", "2"]);
}

#[test]
fn lines_of_ranks_stay_whole_and_none_is_lost() {
    let site = Site::new();
    // Each line is written in three pieces; the last one has no end.
    let script =
        "i=0; while [ $i -lt 300 ]; do printf a$RANK; printf b; echo c$i; i=$((i+1)); done; printf end$RANK";
    let said = run(torchrun(&site, "--nproc-per-node 3", script));
    assert_eq!(said.code, Some(0), "{said:?}");
    for rank in 0..3 {
        let mine: Vec<&str> =
            said.stdout.lines().filter(|line| line.contains(&format!("a{rank}b"))).collect();
        let expected: Vec<String> = (0..300).map(|i| format!("a{rank}bc{i}")).collect();
        assert_eq!(mine, expected);
        assert!(said.stdout.lines().any(|line| line == format!("end{rank}")), "{}", said.stdout);
    }
}

#[test]
fn a_reader_that_goes_away_ends_what_writes_for_ever() {
    for ranks in [1, 2] {
        let site = Site::new();
        let script = format!("\"$0\" torchrun --nproc-per-node {ranks} --no-python -- yes | head -n 2");
        let said = run(site.shell(&script));
        assert_eq!((said.code, said.stdout.as_str()), (Some(0), "y\ny\n"), "{said:?}");
        assert!(said.stderr.contains("(SIGPIPE)"), "{said:?}");
    }
}

#[test]
fn what_left_its_group_and_keeps_a_pipe_is_not_waited_for() {
    let site = Site::new();
    let script = "test $RANK = 1 || { setsid sh -c 'echo $$ > escaped; exec sleep 600' & }
                  while [ ! -s escaped ]; do sleep 0.01; done; echo done";
    let said = run(torchrun(&site, "--nproc-per-node 2 --tee 3", script));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(lines(&said.stdout), ["[default0]:done", "[default1]:done"]);
    // It is none of ours; it is the test's to end it.
    let escaped = number_in(&site, "escaped");
    assert!(is_alive(escaped));
    signal(escaped, Signal::KILL);
}

/// A run of two ranks, each with a child in the background that ignores SIGTERM: the launcher, and the four processes.
fn with_children(site: &Site) -> (Running, Vec<u32>) {
    let script = "trap '' TERM; echo $$ > rank$RANK; sh -c 'echo $$ > child$RANK; exec sleep 600' & wait; exec sleep 600";
    let running = start(torchrun(site, "--nproc-per-node 2 --shutdown-timeout 0.2", script));
    let all = ["rank0", "rank1", "child0", "child1"].map(|name| number_in(site, name));
    (running, all.to_vec())
}

fn all_gone(pids: &[u32]) {
    until("the end of all processes", || pids.iter().all(|&pid| !is_alive(pid)).then_some(()));
}

#[test]
fn a_killed_launcher_leaves_no_rank_and_no_grandchild() {
    let site = Site::new();
    let (running, all) = with_children(&site);
    signal(running.pid(), Signal::KILL);
    assert_eq!(running.wait().signal, Some(9));
    all_gone(&all);
}

#[test]
fn a_killed_rank_takes_its_children_along() {
    let site = Site::new();
    let (running, all) = with_children(&site);
    signal(all[1], Signal::KILL);
    let said = running.wait();
    assert_eq!(said.code, Some(137), "{said:?}");
    assert!(said.stderr.contains("it did not end in time"), "{said:?}");
    all_gone(&all);
}

#[test]
fn a_signal_to_the_launcher_reaches_the_ranks_as_it_is() {
    for (number, name) in [(Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::INT, "INT")] {
        let site = Site::new();
        let script = format!(
            "trap 'echo got {name}; exit 0' {name}; echo $$ > rank$RANK; while :; do sleep 0.01; done"
        );
        let flags = "--nproc-per-node 2 --signals-to-handle SIGTERM,SIGINT,SIGUSR1";
        let running = start(torchrun(&site, flags, &script));
        let ranks = ["rank0", "rank1"].map(|name| number_in(&site, name));
        signal(running.pid(), number);
        let said = running.wait();
        assert_eq!(said.code, Some(128 + number.as_raw()), "{said:?}");
        assert_eq!(said.stdout, format!("got {name}\ngot {name}\n"), "{said:?}");
        all_gone(&ranks);
    }
}

#[test]
fn a_taken_port_is_told() {
    let site = Site::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let said = run(torchrun(&site, &format!("--master-port {port}"), "echo $MASTER_PORT"));
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_ne!(said.stdout.trim(), port.to_string());
    assert!(said.stderr.contains(&format!("port {port} is taken")), "{said:?}");
    let said = run(torchrun(&site, &format!("--nnodes 2 --master-port {port}"), "echo started"));
    assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""), "{said:?}");
    assert!(said.stderr.contains(&format!("port {port}")), "{said:?}");
}

#[test]
fn a_program_that_cannot_start_leaves_nothing() {
    let site = Site::new();
    let said: CommandOutput =
        run(site.oarlock(&["torchrun", "--nproc-per-node", "2", "--no-python", "./no such program"]));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("./no such program") && said.stderr.contains("rank 0"), "{said:?}");
}

#[test]
fn a_training_that_starts_again_goes_on_to_the_bit() {
    let words = ["src/train.py", "train.yaml", "max_steps=40", "save_strategy=steps", "save_steps=2"];
    // Without --max-restarts the run is over; also one that was to begin anew goes on from its own checkpoints.
    for begin in ["overwrite_output_dir=false", "overwrite_output_dir=true"] {
        let site = Site::new();
        site.train("whole", &words[2..]);
        let mut command = site.oarlock(&["torchrun", "--nproc-per-node", "2", "--max-restarts", "1"]);
        let running = start({
            command.args(words).args(["output_dir=out", begin]);
            command
        });
        let ranks = running.ranks(2);
        until("a checkpoint", || site.path("out/checkpoint-4").exists().then_some(()));
        signal(ranks[1], Signal::KILL);
        let said = running.wait();
        assert_eq!(said.code, Some(0), "{said:?}");
        assert!(
            said.stderr.contains("restart 1 of 1") && said.stdout.contains("Resuming training from"),
            "{said:?}"
        );
        assert!(site.model("out") == site.model("whole"), "other bits");
    }
}

/// Ranks that start again are the program that the launcher is, and train what the files held when the run began.
#[test]
fn a_restart_trains_what_the_run_began_with() {
    let site = Site::with_own_program();
    let words = ["max_steps=40", "save_strategy=steps", "save_steps=2", "deepspeed=zero.json"];
    site.write("zero.json", r#"{"zero_optimization": {"stage": 1}, "gradient_clipping": 1.0}"#);
    site.train("whole", &words);
    let mut command =
        site.oarlock(&["torchrun", "--nproc-per-node", "2", "--max-restarts", "1", "train.py", "train.yaml"]);
    let running = start({
        command.args(words).arg("output_dir=out");
        command
    });
    let ranks = running.ranks(2);
    until("a checkpoint", || site.path("out/checkpoint-4").exists().then_some(()));
    let config = String::from_utf8(site.read("train.yaml")).unwrap();
    site.write("train.yaml", &config.replace("learning_rate: 3e-3", "learning_rate: 1e-9"));
    site.write("zero.json", r#"{"zero_optimization": {"stage": 1}, "gradient_clipping": 0.001}"#);
    std::fs::copy("/bin/true", site.path("another program")).unwrap();
    std::fs::rename(site.path("another program"), site.path("program")).unwrap();
    signal(ranks[1], Signal::KILL);
    let said = running.wait();
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stdout.contains("Resuming training from out/checkpoint-"), "{said:?}");
    assert!(site.model("out") == site.model("whole"), "other bits");
}

/// What would end in every round as it did in the first uses no restart.
#[test]
fn a_training_that_is_refused_is_not_started_again() {
    let site = Site::new();
    site.train("out", &["max_steps=2", "save_strategy=steps", "save_steps=2"]);
    let mut command =
        site.oarlock(&["torchrun", "--nproc-per-node", "2", "--max-restarts", "3", "train.py", "train.yaml"]);
    command.args(["max_steps=4", "output_dir=out", "learning_rate=1e-4"]);
    let said = run(command);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("learning_rate was 0.003, is 0.0001"), "{said:?}");
    assert!(!said.stderr.contains("start again"), "{said:?}");
}

#[test]
fn ranks_are_bound_to_cores_of_their_own() {
    let site = Site::new();
    let script = "sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status";
    let lists = |flags: &str| {
        let said = run(torchrun(&site, flags, script));
        assert_eq!(said.code, Some(0), "{said:?}");
        said.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let all = lists("");
    let bound = lists("--nproc-per-node 2 --numa-binding exclusive");
    // Where there is one core both have it.
    let one_core = all[0].parse::<usize>().is_ok();
    assert_eq!(bound[0] == bound[1], one_core, "{all:?} {bound:?}");
    assert_eq!(lists("--numa-binding exclusive"), all);
}

#[test]
fn machines_that_meet_start_again_together() {
    let sites = [Site::new(), Site::new()];
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let flags = format!(
        "--nnodes 2 --nproc-per-node 2 --max-restarts 1 --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id r"
    );
    // The last rank, whichever machine it is on, fails once; the others would wait for ever.
    let script = "echo $RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK, attempt $TORCHELASTIC_RESTART_COUNT
                  test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0
                  test $RANK = 3 && exit 4; exec sleep 600";
    let running = sites.each_ref().map(|site| start(torchrun(site, &flags, script)));
    let said = running.map(Running::wait);
    assert!(said.iter().all(|said| said.code == Some(0)), "{said:?}");
    let all: Vec<&str> = said.iter().flat_map(|said| said.stdout.lines()).collect();
    for rank in 0..4 {
        let line = format!("{rank} of 4, {} on {}, attempt 1", rank % 2, rank / 2);
        assert!(all.contains(&line.as_str()), "{line}: {said:?}");
    }
    // Only the machine of the failed rank has a table to show.
    assert_eq!(said.iter().filter(|said| said.stderr.contains("Root Cause")).count(), 1, "{said:?}");
}

#[test]
fn standard_input_reaches_a_program() {
    let site = Site::new();
    let script = "echo hello | \"$0\" torchrun --no-python cat";
    let mut command = site.shell(script);
    command.stdin(Stdio::null());
    assert_eq!(run(command).stdout, "hello\n");
}

#[test]
fn trainings_in_a_row_in_one_script_all_meet() {
    let site = Site::new();
    let oarlock = env!("CARGO_BIN_EXE_oarlock");
    let train = |output: &str| format!("{oarlock} train train.yaml max_steps=2 output_dir={output}");
    let script = format!("{} && {} && {}", train("a"), train("b"), train("c"));
    let said = run(torchrun(&site, "--nproc-per-node 2", &script));
    assert_eq!(said.code, Some(0), "{said:?}");
    for output in ["a", "b", "c"] {
        assert_eq!(site.losses(output).len(), 2, "{output}: {said:?}");
    }
}

#[test]
fn a_rank_that_ends_well_and_never_joins_is_named() {
    let site = Site::new();
    let oarlock = env!("CARGO_BIN_EXE_oarlock");
    let script = format!("test $RANK = 1 && exit 0; exec {oarlock} train train.yaml output_dir=out");
    let said = run(torchrun(&site, "--nproc-per-node 2", &script));
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.stderr.contains("never joined the others"), "{said:?}");
    assert!(said.stderr.split("Root Cause").nth(1).unwrap().contains("rank      : 1 "), "{said:?}");
}

#[test]
fn after_nohup_the_end_of_the_terminal_ends_nothing() {
    let site = Site::new();
    site.write("script.sh", "echo $$ > rank0; until test -e go; do sleep 0.01; done; echo done");
    let script = "trap '' HUP; exec \"$0\" torchrun --no-python sh script.sh";
    let running = start(site.shell(script));
    number_in(&site, "rank0");
    signal(running.pid(), Signal::HUP);
    site.write("go", "");
    let said = running.wait();
    assert_eq!((said.code, said.stdout.as_str()), (Some(0), "done\n"), "{said:?}");
}

#[test]
fn a_reader_of_standard_error_that_stopped_reading_does_not_delay_the_end() {
    let site = Site::new();
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while rustix::io::write(&writer, &[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    let mut command = torchrun(&site, "", "echo $$ > rank0; exec sleep 60");
    let mut child = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    let rank = number_in(&site, "rank0");
    signal(child.id(), Signal::TERM);
    let status = until("the end of the launcher", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(143));
    until("the end of the rank", || (!is_alive(rank)).then_some(()));
}

#[test]
fn what_cannot_be_started_as_it_is_written_is_refused() {
    let site = Site::new();
    site.write("script.sh", "#!/bin/sh\n");
    let oarlock = env!("CARGO_BIN_EXE_oarlock");
    for (words, message) in [
        (vec!["--no-python", "./script.sh"], "chmod +x"),
        (vec![oarlock, "train"], "write --no_python before it"),
        (vec!["model"], "`model` is a folder, not a script"),
    ] {
        let said = run(site.oarlock(&[vec!["torchrun"], words].concat()));
        assert!(said.code != Some(0) && said.stderr.contains(message), "{said:?}");
    }
    let mut command = site.oarlock(&["torchrun", "--no-python", "echo"]);
    command.arg(std::ffi::OsStr::from_bytes(b"a\xff"));
    let said = run(command);
    assert_eq!((said.code, said.stdout.as_str()), (Some(2), ""), "{said:?}");
    assert!(said.stderr.contains("not valid UTF-8"), "{said:?}");
}
