//! Ranks over MPI: this binary starts itself under `mpirun`; results are those of shared memory, and every fault is named.
#![cfg(feature = "mpi")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use oarlock_comm::{Communicator, Ownership, Ready, Scalar, Sharing, shm};
use oarlock_tensor::{DType, bf16};
use rustix::process::{Signal, kill_process};

/// Tells a child what to do instead of testing, and where to write what came of it.
const ROLE: &str = "OARLOCK_TEST_ROLE";
const FOLDER: &str = "OARLOCK_TEST_FOLDER";

/// The children's way in; as a test of its own it has nothing to do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let rank: usize = std::env::var("OMPI_COMM_WORLD_RANK").unwrap().parse().unwrap();
    let say = |text: &str| {
        let folder = std::env::var(FOLDER).unwrap();
        std::fs::write(Path::new(&folder).join(rank.to_string()), text).unwrap();
    };
    if role == "absent" && rank == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    match oarlock_comm::from_env(&|_| ()) {
        Ok(comm) => say(&act(&role, comm.expect("started by mpirun"), &say)),
        Err(error) => {
            say(&format!("refused {error}"));
            std::process::exit(3);
        }
    }
}

fn act(role: &str, comm: Communicator, say: &dyn Fn(&str)) -> String {
    if role == "results" {
        let said = results(&comm);
        comm.finish();
        return said;
    }
    if role == "large" {
        let said = large(&comm);
        comm.finish();
        return said;
    }
    if role == "twice" {
        comm.barrier().unwrap();
        assert!(oarlock_comm::from_env(&|_| ()).is_err_and(|e| e.to_string().contains("already joined")));
        comm.finish();
        drop(comm);
        let again = oarlock_comm::from_env(&|_| ()).unwrap().unwrap();
        let said = results(&again);
        again.finish();
        return said;
    }
    comm.set_phase("step 12: forward");
    comm.barrier().unwrap();
    let region = comm.allocate("gradients", 4 * 4096, Sharing::PerRank).unwrap();
    let error = match (role, comm.rank()) {
        ("killed", 1) => {
            kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
            unreachable!()
        }
        ("stopped", 1) => {
            kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
            std::thread::sleep(Duration::from_secs(60));
            None
        }
        ("stopped", _) => {
            comm.set_timeout(Duration::from_millis(400));
            comm.barrier().err()
        }
        ("different", 0) => comm.all_reduce(&region, DType::F32, 0..1024, Ready::now()).err(),
        ("different", _) => comm.all_reduce(&region, DType::BF16, 0..77, Ready::now()).err(),
        ("aborts", 1) => {
            comm.abort("the loss is NaN");
            comm.barrier().err()
        }
        ("leaves", 1) => {
            drop(comm);
            std::thread::sleep(Duration::from_secs(1));
            std::process::exit(3)
        }
        ("finishes", 1) => {
            comm.finish();
            return "finished".into();
        }
        _ => comm.barrier().err(),
    };
    let first = error.expect("a failure").to_string();
    // The first failure is that of every later collective.
    assert_eq!(comm.all_gather_bytes(b"later").unwrap_err().to_string(), first);
    say(&first);
    std::process::exit(3)
}

/// The last elements of a broadcast of more bytes than MPI can count.
fn large(comm: &Communicator) -> String {
    let n = (1usize << 29) + 5000;
    let region = comm.allocate("large", 4 * n, Sharing::PerRank).unwrap();
    if comm.rank() == 0 {
        region.write(n - 3, &[1.5f32, 2.5, 3.5]).unwrap();
    }
    comm.broadcast(&region, DType::F32, 0..n, 0, Ready::now()).unwrap().wait().unwrap();
    let mut last = [0f32; 3];
    region.read(n - 3, &mut last).unwrap();
    format!("{last:?}")
}

fn value(rank: usize, i: usize) -> f32 {
    ((i * 7919 + rank * 104_729) % 2003) as f32 * 1.37e-3 - 1.1 / (rank + 1) as f32
}

/// Uneven, interleaved ranges over several messages; the last rank owns nothing and some elements have no owner.
fn owners(n: usize) -> Ownership {
    let of = |rank: usize| match rank + 1 == n {
        true => Vec::new(),
        false => vec![rank * 100..rank * 100 + 90 - rank, 2000 + rank * 250_000..240_000 + rank * 250_000],
    };
    Ownership::new((0..n).map(of).collect()).unwrap()
}

/// What every kind of collective leaves on this rank, in digests of bits.
fn results(comm: &Communicator) -> String {
    const N: usize = 1_100_000;
    let (rank, n) = (comm.rank(), comm.world_size());
    let mut said = Vec::new();
    let mut tell = |what: &str, region: &oarlock_comm::Region| {
        // SAFETY: between collectives nobody writes.
        let words: &[u16] = unsafe { region.as_slice() };
        let sum = words.iter().fold(7u64, |sum, &word| sum.wrapping_mul(31).wrapping_add(u64::from(word)));
        said.push(format!("{what} {sum:016x}"));
    };
    let mine: Vec<f32> = (0..N).map(|i| value(rank, i)).collect();
    let region = comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
    // SAFETY: between collectives this rank alone touches its buffer.
    let fill = || unsafe { region.as_mut_slice::<f32>() }.copy_from_slice(&mine);
    let run = |ready: oarlock_comm::Result<Ready>| ready.unwrap().wait().unwrap();
    fill();
    run(comm.all_reduce(&region, DType::F32, 5..N - 3, Ready::now()));
    tell("all_reduce", &region);
    fill();
    run(comm.reduce_scatter(&region, DType::F32, &owners(n), Ready::now()));
    tell("reduce_scatter", &region);
    run(comm.all_gather(&region, DType::F32, &owners(n), Ready::now()));
    tell("all_gather", &region);
    run(comm.broadcast(&region, DType::F32, 3..N - 1, n - 1, Ready::now()));
    tell("broadcast", &region);
    let received = comm.allocate("received", 4 * N, Sharing::PerRank).unwrap();
    run(comm.all_to_all(&region, &received, DType::F32, 7..7 + (N - 7) / n * n, Ready::now()));
    tell("all_to_all", &received);
    // Nothing to move, and less than one element for each rank.
    run(comm.all_reduce(&region, DType::F32, 9..9, Ready::now()));
    run(comm.all_reduce(&region, DType::F32, 9..10, Ready::now()));
    tell("a little", &region);
    let small = comm.allocate("weights", 2 * 90, Sharing::PerRank).unwrap();
    small.write(0, &(0..90).map(|i| bf16::from_f32(value(rank, i))).collect::<Vec<_>>()).unwrap();
    run(comm.all_reduce(&small, DType::BF16, 1..80, Ready::now()));
    tell("bf16", &small);
    let shared = comm.allocate("shared", 4 * 64, Sharing::Replicated).unwrap();
    let parts = Ownership::even(0..64, n);
    for range in parts.of(rank) {
        shared.write(range.start, &vec![rank as u32 + 1; range.len()]).unwrap();
    }
    run(comm.all_gather(&shared, DType::I32, &parts, Ready::now()));
    tell("replicated", &shared);

    let bytes = comm.all_gather_bytes(&vec![rank as u8; rank * 1_300_000]).unwrap();
    assert!((0..n).all(|r| bytes[r] == vec![r as u8; r * 1_300_000]));
    let mut sum = [0.1 * rank as f64, 1.0 / (rank + 3) as f64];
    comm.all_reduce_f64(&mut sum, Scalar::Sum).unwrap();
    said.push(format!("{:?}", sum.map(f64::to_bits)));
    let disagree = comm.agree("the seed", (rank == 1).into()).unwrap_err();
    said.push(disagree.to_string());

    let (even, odd): (Vec<usize>, Vec<usize>) = (0..n).partition(|r| r % 2 == 0);
    let half = comm.split(&[even, odd.into_iter().rev().collect()]).unwrap();
    let alone = half.split(&(0..half.world_size()).map(|r| vec![r]).collect::<Vec<_>>()).unwrap();
    for group in [&half, &alone, comm] {
        let mut sum = [10f64.powi(rank as i32)];
        group.all_reduce_f64(&mut sum, Scalar::Sum).unwrap();
        said.push(format!("{} of {}: {}", group.rank(), group.world_size(), sum[0]));
        let region = group.allocate("in a group", 400, Sharing::PerRank).unwrap();
        region.write(0, &mine[..100]).unwrap();
        run(group.all_reduce(&region, DType::F32, 0..100, Ready::now()));
        let mut out = [0f32; 100];
        region.read(0, &mut out).unwrap();
        said.push(format!("{:?}", out.map(f32::to_bits)));
    }
    said.join("\n")
}

/// Whether there is an `mpirun`; without one these tests say so and test nothing.
fn has_mpirun() -> bool {
    let found = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("mpirun is not found: nothing is tested");
    }
    found
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
        let ranks = shm::threads(n).unwrap().into_iter().map(|comm| {
            std::thread::spawn(move || {
                let said = results(&comm);
                comm.finish();
                said
            })
        });
        let expected: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|r| r.join().unwrap()).collect();
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
    for (role, begins, holds) in [
        ("killed", "rank 1 failed: its process", "in \"step 12: forward\", last call: allocate"),
        ("stopped", "rank ", "s for rank 1 (stopped by a signal"),
        (
            "different",
            "ranks called different collectives: rank 0 called all_reduce of 1024 f32",
            // Of rank 1 or 2, whichever came first.
            "called all_reduce of 77 bf16 on \"gradients\"",
        ),
        ("aborts", "rank 1 failed: the loss is NaN", ""),
        ("leaves", "rank 1 failed: it left without finishing", ""),
        ("finishes", "rank 1 failed: it finished while others still waited", ""),
        ("absent", "refused cannot join the ranks of this machine: MPI did not start within 1 s", ""),
    ] {
        let (output, said) = run(3, role);
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

#[test]
#[ignore = "takes 2 GB of memory"]
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
    let told = "Open MPI says rank 0 of 2, but the MPI library of this program says rank 0 of 1";
    assert!(said.contains(told), "{said}");
}
