//! Ranks over Gloo: this binary starts itself as plain processes, on this machine and in network namespaces that stand for
//! machines. Results are those of shared memory, every fault is named, and strangers disturb nothing.

mod machines;
mod ranks;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use machines::Machines;
use ranks::{FOLDER, ROLE};

/// The children's way in.
#[test]
fn child() {
    ranks::child("RANK");
}

/// Whether this machine has Gloo.
fn has_gloo() -> bool {
    oarlock_must::have_gloo(oarlock_comm::gloo_obstacle())
}

/// Tokens.
const ONE: &str = "9b0f2cc1d66e4af0a6e1b1f7f5d2c3e8";
const TWO: &str = "q83vEjRWeJASNFZ4kKvN7w==";

/// Processes that end with the value.
struct Ranks {
    children: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Most have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The command of one rank; `local` is its place among those of its machine.
fn rank_command(
    mut command: Command,
    role: &str,
    folder: &Path,
    rank: usize,
    n: usize,
    local: (usize, usize),
    at: (&str, u16),
) -> Command {
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "child", "--nocapture"]);
    command.envs([(ROLE, role), ("OARLOCK_TRANSPORT", "gloo"), ("MASTER_ADDR", at.0)]).env(FOLDER, folder);
    let port = usize::from(at.1);
    for (name, value) in [
        ("RANK", rank),
        ("WORLD_SIZE", n),
        ("LOCAL_RANK", local.0),
        ("LOCAL_WORLD_SIZE", local.1),
        ("MASTER_PORT", port),
    ] {
        command.env(name, value.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

impl Ranks {
    fn new() -> Ranks {
        Ranks { children: Vec::new(), folder: tempfile::tempdir().unwrap() }
    }

    /// Starts a rank of this machine.
    fn start(&mut self, role: &str, rank: usize, n: usize, port: u16, with: &[(&str, &str)]) {
        let command = Command::new("env");
        let at = ("127.0.0.1", port);
        let mut command = rank_command(command, role, self.folder.path(), rank, n, (rank, n), at);
        self.children.push(command.envs(with.iter().copied()).spawn().unwrap());
    }

    /// Waits until all have ended, and gives back how, and what each has written.
    fn end(mut self, role: &str) -> (Vec<ExitStatus>, Vec<String>) {
        let deadline = Instant::now() + Duration::from_secs(90);
        // Who is stopped stays so.
        let waits_for = |rank: usize| !(role == "stopped" && rank == 1);
        loop {
            let mut ends = Vec::new();
            for (rank, child) in self.children.iter_mut().enumerate() {
                ends.push(if waits_for(rank) {
                    child.try_wait().unwrap()
                } else {
                    Some(ExitStatus::default())
                });
            }
            let said = |rank: usize| std::fs::read_to_string(self.folder.path().join(rank.to_string()));
            let said: Vec<String> = (0..ends.len()).map(|rank| said(rank).unwrap_or_default()).collect();
            if ends.iter().all(Option::is_some) {
                return (ends.into_iter().flatten().collect(), said);
            }
            assert!(Instant::now() < deadline, "{role} hangs: {ends:?} {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Runs `n` ranks of this machine in a role.
fn run(n: usize, role: &str, with: &[(&str, &str)]) -> (Vec<ExitStatus>, Vec<String>) {
    let (mut ranks, port) = (Ranks::new(), free_port());
    (0..n).for_each(|rank| ranks.start(role, rank, n, port, with));
    ranks.end(role)
}

/// Invariants 1 to 5 of the protocol of messages, and invariant 7 of Gloo.
#[test]
fn results_are_those_of_shared_memory() {
    if !has_gloo() {
        return;
    }
    for (n, role) in [(2, "results"), (3, "twice"), (5, "results")] {
        let expected = ranks::in_shared_memory(n);
        // Plain, encrypted, and with a token alone.
        let token = ("OARLOCK_RDZV_TOKEN", ONE);
        let ways: [&[(&str, &str)]; 3] = [&[], &[token], &[token, ("OARLOCK_LINK_ENCRYPTION", "0")]];
        for with in &ways[..if n == 3 { 3 } else { 2 }] {
            let (ends, said) = run(n, role, with);
            assert!(ends.iter().all(ExitStatus::success), "{n} ranks, {with:?}: {ends:?} {said:?}");
            assert_eq!(said, expected, "{n} ranks, {with:?}");
        }
    }
}

/// Invariants 7 and 8 of the protocol of messages, and invariant 5 of Gloo.
#[test]
fn every_fault_is_named_by_all_and_nothing_hangs() {
    if !has_gloo() {
        return;
    }
    for (role, begins, holds) in ranks::FAULTS {
        let (ends, said) = run(3, role, &[]);
        for rank in [0, 2] {
            assert_eq!(ends[rank].code(), Some(3), "{role}: {said:?}");
            assert!(said[rank].starts_with(begins) && said[rank].contains(holds), "{role}: {said:?}");
        }
        assert_eq!(said[0].split("waited").last(), said[2].split("waited").last(), "{role}");
        if role == "different" {
            assert_eq!(said[1], said[0]);
        }
    }
}

/// Invariants 1 and 4: nobody of this start, or with another token: who waits names who is missing.
#[test]
fn those_who_do_not_come_are_named() {
    if !has_gloo() {
        return;
    }
    let of_four = [("OARLOCK_JOIN_TIMEOUT", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4")];
    let (_, said) = run(2, "results", &of_four);
    assert!(said[0].contains("rank 0 waited 1 s in vain for rank 2, 3 at 127.0.0.1:"), "{said:?}");
    assert!(said[1].starts_with("refused"), "{said:?}");

    let (mut ranks, port) = (Ranks::new(), free_port());
    let limit = ("OARLOCK_JOIN_TIMEOUT", "3");
    ranks.start("results", 0, 2, port, &[limit, ("OARLOCK_RDZV_TOKEN", ONE)]);
    ranks.start("results", 1, 2, port, &[limit, ("OARLOCK_RDZV_TOKEN", TWO)]);
    let (_, said) = ranks.end("results");
    assert!(said[1].contains("has another run id or token"), "{said:?}");
    assert!(
        said[0].contains("in vain for rank 1") && said[0].contains("another run id or token"),
        "{said:?}"
    );

    // Two processes that are the same rank, and one that was told of another world.
    let (mut ranks, port) = (Ranks::new(), free_port());
    ranks.start("results", 0, 3, port, &[limit]);
    ranks.start("results", 1, 3, port, &[limit]);
    std::thread::sleep(Duration::from_millis(500));
    ranks.start("results", 1, 3, port, &[limit]);
    let (ends, _) = ranks.end("results");
    assert!(ends.iter().all(|end| !end.success()), "{ends:?}");
}

/// What can be refused before ranks meet is: weak tokens, public addresses without one, encryption without keys.
#[test]
fn who_could_join_is_checked_first() {
    if !has_gloo() {
        return;
    }
    let at = |address: &str, with: &[(&str, &str)]| {
        let mut ranks = Ranks::new();
        let mut command = rank_command(
            Command::new("env"),
            "results",
            ranks.folder.path(),
            0,
            2,
            (0, 2),
            (address, 29_500),
        );
        ranks
            .children
            .push(command.env("OARLOCK_JOIN_TIMEOUT", "1").envs(with.iter().copied()).spawn().unwrap());
        ranks.end("results").1.remove(0)
    };
    let token = ("OARLOCK_RDZV_TOKEN", ONE);
    for (address, with, holds) in [
        ("192.0.2.1", vec![], "is a public address (192.0.2.1), and the run has no token"),
        ("192.0.2.1", vec![("OARLOCK_RDZV_INSECURE", "1")], "rank 0 cannot listen at MASTER_ADDR=192.0.2.1"),
        ("192.0.2.1", vec![token], "rank 0 cannot listen at MASTER_ADDR=192.0.2.1"),
        ("127.0.0.1", vec![("OARLOCK_RDZV_TOKEN", "hunter2")], "the token is weak"),
        ("127.0.0.1", vec![("OARLOCK_RDZV_TOKEN_FILE", "/no/such/file")], "cannot be read"),
        ("127.0.0.1", vec![("OARLOCK_LINK_ENCRYPTION", "1")], "the run has no token"),
        ("127.0.0.1", vec![token, ("OARLOCK_LINK_ENCRYPTION", "yes")], "expected 1 or 0"),
    ] {
        let said = at(address, &with);
        assert!(said.contains(holds) && !said.contains("hunter2"), "{with:?}: {said}");
    }
}

/// Another store keeps MASTER_PORT, as that of torchrun does.
#[test]
fn a_port_that_is_taken_is_left_to_others() {
    if !has_gloo() {
        return;
    }
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut ranks, port) = (Ranks::new(), taken.local_addr().unwrap().port());
    let with = [("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RUN_ID", "x")];
    (0..2).for_each(|rank| ranks.start("results", rank, 2, port, &with));
    let (ends, said) = ranks.end("results");
    assert!(ends.iter().all(ExitStatus::success), "{said:?}");
}

/// Invariants 1 and 2. Strangers while the ranks meet: garbage, and more connections than are served at once. When the ranks have met, nothing of
/// them listens.
#[test]
fn strangers_disturb_nothing() {
    if !has_gloo() {
        return;
    }
    let (mut ranks, port) = (Ranks::new(), free_port());
    ranks.start("listens", 0, 3, port, &[]);
    ranks.start("listens", 1, 3, port, &[]);
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut strangers = Vec::new();
    for i in 0..1000u32 {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        // Some say nothing, and some more than anybody asked for; they may be cut off.
        if i % 3 == 0 {
            let _ = stream.write_all(&i.to_le_bytes().repeat(1000));
        }
        strangers.push(stream);
    }
    assert!(strangers.len() > 500, "{}", strangers.len());
    ranks.start("listens", 2, 3, port, &[]);
    let (ends, said) = ranks.end("listens");
    assert!(ends.iter().all(ExitStatus::success), "{ends:?} {said:?}");
    // A build from the sources of a newer Gloo keeps one socket that only this machine reaches.
    assert!(said.iter().all(|said| said == "0 listen" || said == "1 listen at loopback"), "{said:?}");
}

/// Runs `per` ranks on each machine in a role.
fn run_on(machines: &Machines, per: usize, role: &str, with: &[(&str, &str)]) -> Ranks {
    run_at(machines, per, role, with, |_| machines.address(0).to_owned())
}

/// The same, where each machine has its own address for that of rank 0.
fn run_at(
    machines: &Machines,
    per: usize,
    role: &str,
    with: &[(&str, &str)],
    address: impl Fn(usize) -> String,
) -> Ranks {
    let mut ranks = Ranks::new();
    let n = machines.names.len() * per;
    for rank in 0..n {
        let command = machines.command(rank / per);
        let address = address(rank / per);
        let at = (address.as_str(), 29_500);
        let mut command = rank_command(command, role, ranks.folder.path(), rank, n, (rank % per, per), at);
        // Several machines need no variable that asks for it.
        command.env_remove("OARLOCK_TRANSPORT").envs(with.iter().copied());
        ranks.children.push(command.spawn().unwrap());
    }
    ranks
}

#[test]
fn machines_have_the_results_of_one() {
    if !has_gloo() {
        return;
    }
    for count in [2, 3] {
        let Some(machines) = Machines::new(count) else { return };
        let expected = ranks::in_shared_memory(2 * count);
        let (ends, said) = run_on(&machines, 2, "results", &[]).end("results");
        assert!(ends.iter().all(ExitStatus::success), "{ends:?} {said:?}");
        assert_eq!(said, expected, "{count} machines");
    }
}

/// Machine 0 knows itself by a name of its own, or by none of its addresses.
#[test]
fn rank_0_is_found_by_another_name_than_it_has_itself() {
    if !has_gloo() {
        return;
    }
    let Some(machines) = Machines::new(2) else { return };
    // The other ranks of machine 0 find it by a loopback address, but not by one that nothing leads to here.
    for (own, per) in [("localhost", 2), ("[::]", 2), ("10.255.255.254", 1)] {
        let address = |machine| if machine == 0 { own.to_owned() } else { machines.address(0).to_owned() };
        let (ends, said) = run_at(&machines, per, "results", &[], address).end("results");
        assert!(ends.iter().all(ExitStatus::success), "{own}: {ends:?} {said:?}");
        assert_eq!(said, ranks::in_shared_memory(2 * per), "{own}");
    }
}

/// Whoever cannot be reached is named at once, and where an address leads astray.
#[test]
fn wrong_addresses_are_told_at_once() {
    if !has_gloo() {
        return;
    }
    let Some(machines) = Machines::new(2) else { return };
    let began = Instant::now();
    let (_, said) = run_on(&machines, 1, "results", &[("GLOO_SOCKET_IFNAME", "lo")]).end("results");
    // Where all name it, all wait where only their own machine comes; one that others reach is enough to tell.
    assert!(said.iter().all(|said| said.starts_with("refused")), "{said:?}");
    let limit = [("OARLOCK_JOIN_TIMEOUT", "2")];
    let own = |machine| if machine == 0 { machines.address(0).to_owned() } else { "localhost".into() };
    let (_, said) = run_at(&machines, 1, "results", &limit, own).end("results");
    assert!(said[1].contains("MASTER_ADDR=localhost is the machine of rank 1 itself"), "{said:?}");
    assert!(said[0].contains("in vain for rank 1"), "{said:?}");
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[test]
fn faults_of_other_machines_are_named() {
    if !has_gloo() {
        return;
    }
    for (role, begins, holds) in ranks::FAULTS {
        let Some(machines) = Machines::new(3) else { return };
        let (_, said) = run_on(&machines, 1, role, &[]).end(role);
        for rank in [0, 2] {
            assert!(said[rank].starts_with(begins) && said[rank].contains(holds), "{role}: {said:?}");
        }
    }
}

/// Invariant 6.
#[test]
fn a_machine_that_is_cut_off_is_named() {
    if !has_gloo() {
        return;
    }
    let Some(machines) = Machines::new(3) else { return };
    let ranks = run_on(&machines, 1, "waits", &[("OARLOCK_LINK_TIMEOUT", "2")]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !(0..3).all(|rank| ranks.folder.path().join(rank.to_string()).exists()) {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(20));
    }
    machines.cut_off(1);
    let (_, said) = ranks.end("waits");
    for rank in [0, 2] {
        assert!(said[rank].starts_with("rank 1 failed: its machine does not answer any more"), "{said:?}");
    }
    assert!(said[1].contains("its machine does not answer any more"), "{said:?}");
}
