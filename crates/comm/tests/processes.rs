//! Ranks that are processes: this binary starts itself again in a role, and kills, stops and misleads its children.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use oarlock_comm::shm::ShmHost;
use oarlock_comm::{
    Communicator, Ending, Error, Exit, Grace, Ownership, ProcessMemory, RankGroup, RankState, Ready, Scalar,
    Sharing, StopSignals,
};
use oarlock_tensor::DType;
use rustix::process::{Pid, Signal, kill_process};

/// Tells a child what to do instead of testing.
const ROLE: &str = "OARLOCK_TEST_ROLE";

/// The elements that busy ranks sum: enough that a signal finds them anywhere inside a collective.
const BUSY: usize = 1 << 18;

/// The children's way in; as a test of its own it has nothing to do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "launcher" => launcher("sleeper"),
        "joiner" => match oarlock_comm::from_env(&|_| ()) {
            Ok(comm) => {
                println!("joined {}", comm.is_some());
                std::thread::sleep(Duration::from_millis(300));
            }
            Err(error) => println!("refused {error}"),
        },
        role => rank(role, oarlock_comm::from_env(&|_| ()).unwrap().expect("started by a launcher")),
    }
}

fn rank(role: &str, comm: Communicator) {
    // Nobody is still joining when things go wrong.
    comm.barrier().unwrap();
    let exit_with = |result: Result<(), Error>| {
        let error = result.expect_err("the other rank failed");
        println!("error {error}");
        std::process::exit(3);
    };
    match (role, comm.rank()) {
        ("sums", _) => sums(&comm),
        ("replicated", _) => replicated(&comm),
        ("sleeper", _) => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        ("busy", _) => {
            let allocate = |name| comm.allocate(name, 4 * BUSY, Sharing::PerRank).unwrap();
            let (region, received) = (allocate("gradients"), allocate("received"));
            let all = |round: usize| {
                comm.all_reduce(&region, DType::F32, 0..BUSY, Ready::now())?.wait()?;
                comm.send_receive(&region, DType::F32, 0..BUSY, [1, 0], Ready::now())?.wait()?;
                let counts = [BUSY / 3, BUSY / (4 + round % 2)];
                comm.all_to_all_v(&region, &received, DType::F32, &counts, Ready::now())?.0.wait()
            };
            let mut round = 0;
            exit_with(loop {
                let done = all(round);
                if done.is_err() {
                    break done;
                }
                round += 1;
                if round == 3 && comm.rank() == 1 {
                    println!("ready");
                }
            });
        }
        ("killed", 1) => {
            println!("ready");
            std::thread::sleep(Duration::from_secs(60));
        }
        ("stubborn", 0) => {
            let _mute = StopSignals::catch().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        ("stubborn", 1) => std::process::exit(7),
        ("abort", 1) => {
            comm.abort("the loss is NaN at step 12");
            std::process::exit(7);
        }
        ("stopped", 1) => {
            comm.set_phase("step 12: forward");
            kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
            // The signal may take another thread of this process first.
            std::thread::sleep(Duration::from_secs(60));
        }
        ("stopped", _) => {
            comm.set_timeout(Duration::from_millis(400));
            exit_with(comm.barrier());
        }
        _ => exit_with(comm.barrier()),
    }
}

fn sums(comm: &Communicator) {
    const N: usize = 300_001;
    let (rank, world) = (comm.rank(), comm.world_size());
    let value = |rank: usize, i: usize| ((i * 31 + rank * 17) % 1009) as f32 * 0.37;
    let region = comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
    region.write(0, &(0..N).map(|i| value(rank, i)).collect::<Vec<f32>>()).unwrap();
    comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap().wait().unwrap();
    let mut out = vec![0f32; N];
    region.read(0, &mut out).unwrap();
    for (i, &x) in out.iter().enumerate() {
        let expected = match world {
            2 => value(0, i) + value(1, i),
            4 => (value(0, i) + value(1, i)) + (value(2, i) + value(3, i)),
            _ => unreachable!(),
        };
        assert_eq!(x.to_bits(), expected.to_bits(), "rank {rank}, element {i}");
    }
    let weights = comm.allocate("weights", 64 * world, Sharing::Replicated).unwrap();
    weights.write(64 * rank, &[rank as u8 + 1; 64]).unwrap();
    let line = |r: usize| 16 * r..16 * r + 16;
    let owners = Ownership::new((0..world).map(|r| vec![line(r)]).collect()).unwrap();
    comm.all_gather(&weights, DType::F32, &owners, Ready::now()).unwrap().wait().unwrap();
    let mut bytes = vec![0u8; 64 * world];
    weights.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().enumerate().all(|(i, &b)| b as usize == i / 64 + 1));
    let mut sum = [rank as f64];
    comm.all_reduce_f64(&mut sum, Scalar::Sum).unwrap();
    assert_eq!(sum[0] as usize, world * (world - 1) / 2);
    comm.finish();
}

/// Each rank writes its half of a buffer that all have, and looks at every page of it.
fn replicated(comm: &Communicator) {
    const BYTES: usize = 32 << 20;
    let weights = comm.allocate("weights", BYTES, Sharing::Replicated).unwrap();
    let owners = Ownership::even(0..BYTES / 4, comm.world_size());
    let before = ProcessMemory::current().unwrap();
    let mine = owners.of(comm.rank())[0].clone();
    for page in mine.clone().step_by(1024) {
        weights.write(page, &[page as u32]).unwrap();
    }
    comm.all_gather(&weights, DType::I32, &owners, Ready::now()).unwrap().wait().unwrap();
    for page in (0..BYTES / 4).step_by(1024) {
        let mut word = [0u32];
        weights.read(page, &mut word).unwrap();
        assert_eq!(word[0] as usize, page);
    }
    comm.barrier().unwrap();
    let after = ProcessMemory::current().unwrap();
    comm.barrier().unwrap();
    let (pss, rss) = (after.pss - before.pss, after.rss - before.rss);
    assert!(rss as usize > BYTES / 8 * 7 && (pss as usize) < BYTES / 8 * 5, "{pss} of {rss} bytes");
    comm.finish();
}

/// Starts three ranks in a role, prints their pids, and waits for them.
fn launcher(role: &str) {
    let signals = StopSignals::catch().unwrap();
    let host = Arc::new(ShmHost::create(3).unwrap());
    let group = RankGroup::spawn(host, commands(3, role), Grace::SHORT, &signals).unwrap();
    println!("pids {:?}", group.pids());
    let ending = group.wait().unwrap();
    println!("signal {:?}", ending.signal);
}

fn this_binary(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command
}

fn commands(n: usize, role: &str) -> Vec<Command> {
    (0..n).map(|_| this_binary(role)).collect()
}

/// Each test has fifteen seconds. The children of one that fails end with this process.
fn within<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(test()));
    result.recv_timeout(Duration::from_secs(15)).expect("the test hangs or panicked")
}

/// Runs `n` ranks in a role; `meanwhile` sees their pids, and the first line of rank 1 has arrived if it is to wait for one.
fn run(
    n: usize,
    role: &'static str,
    meanwhile: impl FnOnce(&[u32]) + Send + 'static,
) -> (Ending, Vec<String>, Duration) {
    within(move || {
        // Not caught here: the flags stay down.
        let signals = StopSignals::catch().unwrap();
        let host = Arc::new(ShmHost::create(n).unwrap());
        let mut group = RankGroup::spawn(host, commands(n, role), Grace::SHORT, &signals).unwrap();
        let mut outputs: Vec<_> =
            (0..n).map(|r| BufReader::new(group.take_output(r).0.expect("a pipe"))).collect();
        if matches!(role, "killed" | "busy") {
            let mut line = String::new();
            while !line.contains("ready") {
                outputs[1].read_line(&mut line).unwrap();
            }
        }
        meanwhile(group.pids());
        let began = Instant::now();
        let ending = group.wait().unwrap();
        let took = began.elapsed();
        let texts = outputs.into_iter().map(|mut out| {
            let mut text = String::new();
            out.read_to_string(&mut text).unwrap();
            text
        });
        (ending, texts.collect(), took)
    })
}

#[test]
fn processes_sum_as_threads_do() {
    for n in [2, 4] {
        let (ending, outputs, _) = run(n, "sums", |_| {});
        assert!(ending.is_success(), "{ending:?} {outputs:?}");
    }
}

#[test]
fn a_replicated_region_takes_memory_once() {
    let (ending, outputs, _) = run(2, "replicated", |_| {});
    assert!(ending.is_success(), "{ending:?} {outputs:?}");
}

#[test]
fn a_killed_rank_is_named_within_a_second() {
    let (ending, outputs, took) =
        run(3, "killed", |pids| kill_process(Pid::from_raw(pids[1] as i32).unwrap(), Signal::KILL).unwrap());
    let failed = ending.failed.expect("a failed rank");
    assert_eq!((failed.rank, failed.end.exit), (1, Exit::Signal(9)));
    for rank in [0, 2] {
        assert!(outputs[rank].contains("error rank 1 failed: it"), "{outputs:?}");
        assert_eq!(ending.ranks[rank].exit, Exit::Code(3), "it had time to say so");
    }
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// Invariant 8, wherever in a collective the rank may be: no hang, no fault.
#[test]
fn a_rank_killed_inside_a_collective_is_named_too() {
    for _ in 0..4 {
        let (ending, outputs, took) = run(2, "busy", |pids| {
            kill_process(Pid::from_raw(pids[1] as i32).unwrap(), Signal::KILL).unwrap()
        });
        assert_eq!(ending.failed.expect("a failed rank").rank, 1);
        assert!(
            ending.ranks[0].exit == Exit::Code(3) && outputs[0].contains("error rank 1 failed: it"),
            "{outputs:?}"
        );
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

#[test]
fn an_abort_reaches_all_and_the_launcher() {
    let (ending, outputs, _) = run(2, "abort", |_| {});
    let failed = ending.failed.expect("a failed rank");
    assert_eq!((failed.rank, failed.end.exit), (1, Exit::Code(7)));
    assert_eq!(failed.cause.to_string(), "rank 1 failed: the loss is NaN at step 12");
    assert!(outputs[0].contains("error rank 1 failed: the loss is NaN at step 12"), "{outputs:?}");
}

#[test]
fn who_will_not_end_is_ended_within_two_seconds() {
    let (ending, _, took) = run(2, "stubborn", |_| {});
    let failed = ending.failed.expect("a failed rank");
    assert_eq!((failed.rank, failed.end.exit), (1, Exit::Code(7)));
    assert_eq!(ending.ranks[0].exit, Exit::Signal(9));
    assert!(failed.cause.to_string().contains("exit code 7"), "{}", failed.cause);
    // From the start of the processes on, so with some time to spare.
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[test]
fn a_stopped_rank_is_reported_with_what_it_was_doing() {
    let (ending, outputs, _) = run(2, "stopped", |_| {});
    assert!(
        outputs[0].contains("error rank 0 called barrier") && outputs[0].contains("and waited"),
        "{outputs:?}"
    );
    let Error::Timeout { missing, .. } = ending.failed.expect("a failed rank").cause else {
        panic!("{outputs:?}")
    };
    assert_eq!((missing[0].rank, &*missing[0].phase), (1, "step 12: forward"));
    assert!(outputs[0].contains("stopped by a signal") && outputs[0].contains("in \"step 12: forward\""));
    assert_eq!(ending.ranks[1].exit, Exit::Signal(9), "a stopped process does not see SIGTERM");
    assert_ne!(missing[0].state, RankState::Absent);
}

fn process_exists(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
}

/// A launcher in a process of its own, and the pids of its ranks.
fn started_launcher() -> (std::process::Child, BufReader<std::process::ChildStdout>, Vec<i32>) {
    let mut child = this_binary("launcher").spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(']') {
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "{line}");
    }
    let pids = line.split_once("pids [").unwrap().1.split_once(']').unwrap().0;
    let pids: Vec<i32> = pids.split(", ").map(|p| p.parse().unwrap()).collect();
    assert!(pids.len() == 3 && pids.iter().all(|&p| process_exists(p)));
    (child, output, pids)
}

fn all_gone(pids: &[i32]) -> bool {
    let deadline = Instant::now() + Duration::from_secs(2);
    while pids.iter().any(|&p| process_exists(p)) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn a_killed_launcher_leaves_no_process_and_no_file() {
    within(|| {
        let files = || {
            std::fs::read_dir("/dev/shm")
                .unwrap()
                .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("oarlock"))
                .count()
        };
        let (mut child, _, pids) = started_launcher();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(all_gone(&pids), "{pids:?} survive");
        assert_eq!(files(), 0);
    });
}

#[test]
fn a_signal_to_the_launcher_ends_all() {
    within(|| {
        let (mut child, mut output, pids) = started_launcher();
        kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success() && text.contains("signal Some(15)"), "{text}");
        assert!(all_gone(&pids));
    });
}

/// The output of a child that tries to join with a changed variable.
fn joiner(host: &ShmHost, rank: usize, change: impl FnOnce(String) -> String) -> String {
    let mut command = this_binary("joiner");
    host.attach(rank, &mut command);
    let handed = command.get_envs().find(|(key, _)| key.to_string_lossy().contains("SHARED_MEMORY"));
    let (key, value) =
        handed.map(|(k, v)| (k.to_owned(), v.unwrap().to_string_lossy().into_owned())).unwrap();
    command.env(key, change(value));
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Invariant 9.
#[test]
fn only_the_segment_of_this_run_is_joined_and_each_rank_once() {
    within(|| {
        let (host, other) = (ShmHost::create(2).unwrap(), ShmHost::create(2).unwrap());
        assert!(joiner(&host, 0, |v| v).contains("joined true"));
        assert!(joiner(&host, 0, |v| v).contains("rank 0 has already joined"));
        let wrong_token = |v: String| format!("{}{:032x}", &v[..v.len() - 32], 12345);
        let said = joiner(&host, 1, wrong_token);
        assert!(said.contains("refused") && said.contains("wrong token"), "{said}");
        let wrong_count = |v: String| v.replacen(",2,", ",3,", 1);
        assert!(joiner(&host, 1, wrong_count).contains("refused"));
        let standard_input = |v: String| format!("0{}", &v[v.find(',').unwrap()..]);
        assert!(joiner(&host, 1, standard_input).contains("not anonymous memory"));
        let closed = |v: String| format!("999{}", &v[v.find(',').unwrap()..]);
        assert!(joiner(&host, 1, closed).contains("not open here"));
        for malformed in ["", "1,2", "a,b,c,d", "-3,0,2,0"] {
            assert!(joiner(&host, 1, |_| malformed.into()).contains("should be file,rank,ranks,token"));
        }
        let beyond = |v: String| v.replacen(",1,", ",2,", 1);
        assert!(joiner(&other, 1, beyond).contains("rank 2 of 2"));
        assert!(joiner(&other, 1, |v| v).contains("joined true"));
        // It left without finishing.
        assert_eq!(other.statuses()[1].state, RankState::Left);
        assert_eq!(other.statuses()[0].state, RankState::Absent);
    });
}

#[test]
fn a_command_that_cannot_start_leaves_nothing() {
    within(|| {
        let signals = StopSignals::catch().unwrap();
        let host = Arc::new(ShmHost::create(2).unwrap());
        let missing = vec![this_binary("sleeper"), Command::new("/no/such/program")];
        let error =
            RankGroup::spawn(host.clone(), missing, Grace::SHORT, &signals).err().unwrap().to_string();
        assert!(error.contains("cannot start rank 1 (/no/such/program)"), "{error}");
        assert!(matches!(
            RankGroup::spawn(host, vec![], Grace::SHORT, &signals),
            Err(Error::Argument { .. })
        ));
    });
}
