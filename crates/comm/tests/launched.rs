//! Ranks that another launcher started: processes with its variables and no inherited file find each other, or say why not.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use oarlock_comm::{Ready, Scalar, Sharing};
use oarlock_tensor::DType;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};

/// Tells a child what to do instead of testing.
const ROLE: &str = "OARLOCK_TEST_ROLE";

/// The children's way in; as a test of its own it has nothing to do.
#[test]
fn child() {
    match std::env::var(ROLE).as_deref() {
        Ok("rank") => rank(),
        Ok("wrapper") => {
            // A script between launcher and rank: one more process with the same variables.
            let status = child_command("rank").status().unwrap();
            std::process::exit(status.code().unwrap_or(9));
        }
        Ok("launcher") => launcher(),
        _ => {}
    }
}

/// Joins, sums, and stays until its input ends.
fn rank() {
    println!("started");
    let comm = match oarlock_comm::from_env(&|_| ()) {
        Ok(Some(comm)) => comm,
        Ok(None) => return println!("alone"),
        Err(error) => return println!("refused {error}"),
    };
    const N: usize = 10_000;
    let region = comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
    region.write(0, &[comm.rank() as f32 + 1.0; N]).unwrap();
    comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap().wait().unwrap();
    let mut out = vec![0f32; N];
    region.read(0, &mut out).unwrap();
    let n = comm.world_size();
    assert!(out.iter().all(|&x| x == (n * (n + 1) / 2) as f32));
    let mut most = [f64::from(std::process::id())];
    comm.all_reduce_f64(&mut most, Scalar::Max).unwrap();
    println!("joined {} of {n}, last process {}", comm.rank(), most[0]);
    let _ = std::io::stdin().read(&mut [0]);
    comm.finish();
}

/// Starts a rank for each line `rank ranks port`, and says what they say.
fn launcher() {
    let mut ranks = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ').map(|word| word.parse().unwrap());
        let mut next = || words.next().unwrap();
        let (rank, ranks_of_it, port) = (next(), next(), next());
        ranks.push(Rank::start(torchrun(rank, ranks_of_it, port as u16)));
        ranks.last_mut().unwrap().until("started");
        println!("launched {rank}");
    }
    for mut rank in ranks {
        print!("{}", rank.end());
    }
}

fn child_command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env(ROLE, role);
    command
}

/// A port of its own for each world of these tests; nobody opens it.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Worlds of another process that runs these tests have other launchers, which would be refused by name.
    1024 + (std::process::id() as u16 % 600) * 100 + NEXT.fetch_add(1, Ordering::Relaxed)
}

fn rank_command(variables: &[(&str, String)]) -> Command {
    let mut command = child_command("rank");
    for (name, _) in std::env::vars() {
        if ["RANK", "WORLD_SIZE", "LOCAL_", "OMPI_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC", "MASTER_"]
            .iter()
            .any(|start| name.starts_with(start))
        {
            command.env_remove(name);
        }
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    command.env("OARLOCK_JOIN_TIMEOUT", "60");
    command
}

fn torchrun(rank: usize, n: usize, port: u16) -> Command {
    rank_command(&[
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", n.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("LOCAL_WORLD_SIZE", n.to_string()),
        ("MASTER_ADDR", "127.0.0.1".into()),
        ("MASTER_PORT", port.to_string()),
        ("TORCHELASTIC_RUN_ID", "none".into()),
        ("TORCHELASTIC_RESTART_COUNT", "0".into()),
    ])
}

/// A child that is gone with this value.
struct Rank {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Rank { child, input, output }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).unwrap()
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// The first line with this word.
    fn until(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no {word:?}");
            if line.contains(word) {
                return line;
            }
        }
    }

    /// Lets it end, and what it said until then.
    fn end(&mut self) -> String {
        drop(self.input.take());
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        self.child.wait().unwrap();
        text
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Where it has ended already there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each test has a minute, also where many share the machine.
fn within(test: impl FnOnce() + Send + 'static) {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        done.send(())
    });
    result.recv_timeout(Duration::from_secs(60)).expect("the test hangs or panicked");
}

/// Starts all and expects each to join.
fn join_all(commands: Vec<Command>) {
    let n = commands.len();
    let mut ranks: Vec<Rank> = commands.into_iter().map(Rank::start).collect();
    let lines: Vec<String> = ranks.iter_mut().map(|rank| rank.until("joined")).collect();
    let world = lines[0].split_once(" of ").unwrap().1;
    for (rank, line) in lines.iter().enumerate() {
        assert_eq!(line.split_once("joined ").unwrap().1, format!("{rank} of {world}"));
        assert!(world.starts_with(&format!("{n},")), "{world}");
    }
    ranks.iter_mut().for_each(|rank| assert!(!rank.end().contains("panicked")));
}

#[test]
fn ranks_of_each_launcher_join() {
    within(|| {
        let text = |pairs: &[(&'static str, usize)]| {
            pairs.iter().map(|(name, value)| (*name, value.to_string())).collect::<Vec<_>>()
        };
        let port = port();
        join_all((0..4).map(|r| torchrun(r, 4, port)).collect());
        let deepspeed = |r| text(&[("RANK", r), ("LOCAL_RANK", r), ("WORLD_SIZE", 2), ("LOCAL_SIZE", 2)]);
        join_all((0..2).map(|r| rank_command(&deepspeed(r))).collect());
        let open_mpi = |r| {
            let size = ("OMPI_COMM_WORLD_LOCAL_SIZE", 2);
            let local = ("OMPI_COMM_WORLD_LOCAL_RANK", r);
            text(&[("OMPI_COMM_WORLD_RANK", r), ("OMPI_COMM_WORLD_SIZE", 2), local, size])
        };
        join_all((0..2).map(|r| rank_command(&open_mpi(r))).collect());
        let pmi = |r| text(&[("PMI_RANK", r), ("PMI_SIZE", 2)]);
        join_all((0..2).map(|r| rank_command(&pmi(r))).collect());
        let job = ("SLURM_JOB_ID", port as usize);
        let slurm = |r| {
            let step = [job, ("SLURM_STEP_ID", 0), ("SLURM_NNODES", 1)];
            text(&[&[("SLURM_PROCID", r), ("SLURM_NTASKS", 2), ("SLURM_LOCALID", r)], &step[..]].concat())
        };
        join_all((0..2).map(|r| rank_command(&slurm(r))).collect());
    });
}

#[test]
fn one_rank_is_a_world_of_its_own() {
    within(|| assert!(Rank::start(torchrun(0, 1, port())).end().contains("alone")));
}

#[test]
fn a_script_between_launcher_and_rank_changes_nothing() {
    within(|| {
        let port = port();
        let mut wrapped = torchrun(1, 2, port);
        wrapped.env(ROLE, "wrapper");
        join_all(vec![torchrun(0, 2, port), wrapped]);
    });
}

/// Invariant 13: with one address and port, ranks of two launchers never meet.
#[test]
fn two_runs_with_one_address_do_not_mix() {
    within(|| {
        let port = port();
        let (mut one, mut two) =
            (Rank::start(child_command("launcher")), Rank::start(child_command("launcher")));
        // The first rank of one run waits when the second of the other comes, before its own.
        one.say(&format!("0 2 {port}"));
        one.until("launched 0");
        two.say(&format!("1 2 {port}"));
        two.until("launched 1");
        two.say(&format!("0 2 {port}"));
        two.until("launched 0");
        let said = two.end();
        let stranger = format!("another run has the same address (MASTER_ADDR=127.0.0.1 MASTER_PORT={port}");
        assert!(
            said.contains(&stranger) && said.contains("give one of the two another --master_port"),
            "{said}"
        );
        assert!(said.contains("another run on this machine has the same address"), "{said}");
        assert!(!said.contains("joined"), "{said}");
        one.say(&format!("1 2 {port}"));
        one.until("launched 1");
        let said = one.end();
        assert!(said.contains("joined 0 of 2") && said.contains("joined 1 of 2"), "{said}");
    });
}

#[test]
fn the_name_is_taken_until_the_run_is_over() {
    within(|| {
        let port = port();
        let mut ranks = [0, 1].map(|r| Rank::start(torchrun(r, 2, port)));
        ranks.iter_mut().for_each(|rank| drop(rank.until("joined")));
        // Both at once, as each waits a while for the name.
        for mut late in [0, 1].map(|late| Rank::start(torchrun(late, 2, port))) {
            let said = late.end();
            let holder = format!("process {}", ranks[0].child.id());
            assert!(said.contains("another run on this machine") && said.contains(&holder), "{said}");
        }
        ranks.iter_mut().for_each(|rank| drop(rank.end()));
        join_all(vec![torchrun(0, 2, port), torchrun(1, 2, port)]);
    });
}

#[test]
fn a_restart_does_not_meet_what_is_left_of_the_first_attempt() {
    within(|| {
        let port = port();
        let _left = Rank::start(torchrun(0, 2, port));
        let again = |rank| {
            let mut command = torchrun(rank, 2, port);
            command.env("TORCHELASTIC_RESTART_COUNT", "1");
            command
        };
        join_all(vec![again(0), again(1)]);
    });
}

#[test]
fn who_does_not_come_is_named() {
    within(|| {
        let port = port();
        let brief = |rank: usize| {
            let mut command = torchrun(rank, 4, port);
            command.env("OARLOCK_JOIN_TIMEOUT", "1");
            Rank::start(command)
        };
        let mut alone = torchrun(1, 4, self::port());
        alone.env("OARLOCK_JOIN_TIMEOUT", "1");
        let (mut zero, mut two, mut alone) = (brief(0), brief(2), Rank::start(alone));
        for said in [zero.end(), two.end()] {
            assert!(said.contains("these ranks have not joined: 1, 3 of 4"), "{said}");
        }
        let said = alone.end();
        assert!(said.contains("local rank 0 has not joined within 1 s"), "{said}");
    });
}

/// The numbers of the sockets that a process holds.
fn sockets(pid: Pid) -> Vec<String> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    links.filter_map(|to| Some(to.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').into())).collect()
}

/// Waits until the host has accepted so many ranks and they have said who they are.
fn accepted(host: &Rank, n: usize) {
    while sockets(host.pid()).len() < n + 1 {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
}

#[test]
fn who_dies_while_all_join_is_named() {
    within(|| {
        for dead in [0, 1] {
            let port = port();
            let mut ranks = [0, 1].map(|r| Rank::start(torchrun(r, 3, port)));
            accepted(&ranks[0], 1);
            kill_process(ranks[dead].pid(), Signal::KILL).unwrap();
            let said = ranks[1 - dead].end();
            let name = format!("process {}", ranks[dead].child.id());
            assert!(said.contains(&name) && said.contains("ended while the ranks were joining"), "{said}");
        }
    });
}

#[test]
fn who_is_stopped_while_all_join_is_named() {
    // The first rank, and another: two worlds at once, as both wait until their time is over.
    within(|| {
        let mut worlds = [0, 1].map(|stopped| {
            let port = port();
            let brief = |rank: usize| {
                let mut command = torchrun(rank, 3, port);
                command.env("OARLOCK_JOIN_TIMEOUT", "3");
                Rank::start(command)
            };
            let mut ranks = vec![brief(0), brief(1)];
            accepted(&ranks[0], 1);
            kill_process(ranks[stopped].pid(), Signal::STOP).unwrap();
            ranks.push(brief(2));
            (stopped, ranks)
        });
        for (stopped, ranks) in &mut worlds {
            let name = format!("process {} (", ranks[*stopped].child.id());
            for rank in (0..3).filter(|rank| rank != stopped) {
                let said = ranks[rank].end();
                assert!(said.contains(&name) && said.contains("stopped by a signal"), "{rank}: {said}");
            }
        }
    });
}

/// Invariant 14: what is not a rank neither joins nor delays those who are.
#[test]
fn garbage_and_silence_do_not_disturb() {
    within(|| {
        let port = port();
        let mut host = Rank::start(torchrun(0, 2, port));
        accepted(&host, 0);
        let inode = &sockets(host.pid())[0];
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let line = table.lines().find(|line| line.split_whitespace().nth(6) == Some(inode)).unwrap();
        let name = line.split_once('@').unwrap().1;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        let connect = || {
            let kind = SocketType::SEQPACKET;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
            rustix::net::connect(&socket, &address).unwrap();
            socket
        };
        let silent: Vec<_> = (0..100).map(|_| connect()).collect();
        for length in [1, 63, 64, 65, 1024, 5000] {
            let socket = connect();
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 + length) as u8).collect();
            rustix::net::send(&socket, &bytes, SendFlags::empty()).unwrap();
            let mut answer = [0; 1024];
            let (n, _) = rustix::net::recv(&socket, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
            let answer = String::from_utf8_lossy(&answer[..n]);
            assert!(answer.contains("this connection is not from a rank"), "{answer}");
        }
        let mut guest = Rank::start(torchrun(1, 2, port));
        assert!(guest.until("joined").contains("joined 1 of 2"));
        assert!(host.until("joined").contains("joined 0 of 2"));
        drop(silent);
    });
}

/// Invariant 14: another user who takes the name of a run, and as many like it as that user wants, stops nobody.
#[test]
fn a_name_that_another_user_has_taken_stops_nobody() {
    let is_root = rustix::process::geteuid().is_root();
    if !oarlock_must::have("root", is_root, "only root can be another user, who takes a name") {
        return;
    }
    within(|| {
        let port = port();
        let host = Rank::start(torchrun(0, 2, port));
        accepted(&host, 0);
        let inode = &sockets(host.pid())[0];
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let line = table.lines().find(|line| line.split_whitespace().nth(6) == Some(inode)).unwrap();
        let name = line.split_once('@').unwrap().1.to_owned();
        drop(host);
        let taken = std::thread::spawn(move || {
            // Of this thread alone.
            let nobody = rustix::process::Uid::from_raw(65_534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let names = std::iter::once(name.clone()).chain((0..50).map(|n| format!("{name}-{n:016x}")));
            let take = |name: String| {
                let kind = SocketType::SEQPACKET;
                let socket =
                    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
                let deadline = Instant::now() + Duration::from_secs(20);
                while rustix::net::bind(&socket, &address).is_err() {
                    assert!(Instant::now() < deadline, "the name is not free");
                }
                rustix::net::listen(&socket, 4).unwrap();
                socket
            };
            names.map(take).collect::<Vec<_>>()
        });
        let _taken = taken.join().unwrap();
        join_all(vec![torchrun(0, 2, port), torchrun(1, 2, port)]);
    });
}

#[test]
fn variables_that_make_no_sense_are_named() {
    within(|| {
        let said = |name: &str, value: &str| {
            Rank::start({
                let mut command = torchrun(0, 2, port());
                command.env(name, value);
                command
            })
            .end()
        };
        assert!(said("RANK", "first").contains("refused RANK=first: expected a whole number"));
        assert!(said("MASTER_PORT", "70000").contains("refused MASTER_PORT=70000: expected a port"));
        assert!(
            said("OARLOCK_JOIN_TIMEOUT", "soon")
                .contains("refused OARLOCK_JOIN_TIMEOUT=soon: expected whole seconds")
        );
        let mut several = Rank::start({
            let mut command = torchrun(0, 2, port());
            command.envs([("WORLD_SIZE", "4"), ("OARLOCK_JOIN_TIMEOUT", "1")]);
            command
        });
        let several = several.end();
        // With Gloo the others can come to any address of this machine.
        let message = match oarlock_comm::gloo_obstacle().is_none() {
            true => "rank 0 waited 1 s in vain for rank 1, 2, 3 at 127.0.0.1:",
            false => "started 4 ranks of which 2 are on this machine",
        };
        assert!(several.contains(message), "{several}");
    });
}

#[test]
fn ranks_that_were_told_different_worlds_do_not_join() {
    within(|| {
        let port = port();
        let brief = |rank: usize, n: usize| {
            let mut command = torchrun(rank, n, port);
            command.env("OARLOCK_JOIN_TIMEOUT", "2");
            Rank::start(command)
        };
        let (mut host, mut other) = (brief(0, 2), brief(1, 3));
        let said = other.end();
        assert!(said.contains("rank 0 was started as one of 2 ranks, rank 1 as one of 3"), "{said}");
        let said = host.end();
        assert!(said.contains("have not joined: 1 of 2") && said.contains("was refused"), "{said}");
    });
}
