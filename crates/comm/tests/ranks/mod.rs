//! What ranks of other processes do in tests of transports: results in digests of bits, and faults.

use std::path::Path;
use std::time::Duration;

use oarlock_comm::{Communicator, Error, Ownership, Ready, Scalar, Sharing, shm};
use oarlock_tensor::{DType, bf16};
use rustix::process::{Signal, kill_process};

/// Tells a child what to do instead of testing, and where to write what came of it.
pub const ROLE: &str = "OARLOCK_TEST_ROLE";
pub const FOLDER: &str = "OARLOCK_TEST_FOLDER";

/// The faults of rank 1, with what all others say: how it begins, and what is in it.
pub const FAULTS: [(&str, &str, &str); 6] = [
    ("killed", "rank 1 failed: its process", "in \"step 12: forward\", last call: allocate"),
    ("stopped", "rank ", "s for rank 1 ("),
    (
        "different",
        "ranks called different collectives: rank 0 called all_reduce of 1024 f32",
        // Of rank 1 or 2, whichever came first.
        "called all_reduce of 77 bf16 on \"gradients\"",
    ),
    ("aborts", "rank 1 failed: the loss is NaN", ""),
    ("leaves", "rank 1 failed: it left without finishing", ""),
    ("finishes", "rank 1 failed: it finished while others still waited", ""),
];

/// The children's way in, by the number that their launcher has given them; as a test of its own it has nothing to do.
pub fn child(rank_variable: &str) {
    let Ok(role) = std::env::var(ROLE) else { return };
    let rank: usize = std::env::var(rank_variable).unwrap().parse().unwrap();
    let say = |text: &str| {
        let folder = std::env::var(FOLDER).unwrap();
        std::fs::write(Path::new(&folder).join(rank.to_string()), text).unwrap();
    };
    if role == "absent" && rank == 1 {
        std::thread::sleep(Duration::from_secs(60));
    }
    match oarlock_comm::from_env(&|_| ()) {
        Ok(comm) => say(&act(&role, comm.expect("started by a launcher"), &say)),
        Err(error) => {
            say(&format!("refused {error}"));
            std::process::exit(3);
        }
    }
}

/// What `results` says on each of `n` ranks in shared memory.
pub fn in_shared_memory(n: usize) -> Vec<String> {
    shm::on_threads(n, |comm| results(&comm)).unwrap()
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
    if role == "listens" {
        comm.barrier().unwrap();
        let said = listening();
        comm.finish();
        return said;
    }
    if role == "waits" {
        comm.barrier().unwrap();
        say("waits");
    }
    comm.set_phase("step 12: forward");
    // Rank 1 may be through these, and have failed, before others are; a link may go down in them.
    let allocate = |name| comm.allocate(name, 4 * 4096, Sharing::PerRank);
    let regions = comm.barrier().and_then(|()| Ok([allocate("received")?, allocate("gradients")?]));
    let [received, region] = match regions {
        Ok(regions) => regions,
        Err(error) => end(&comm, &error, say),
    };
    // Where others meet the fault, whatever it is: in a collective of some kind each.
    let send_receive =
        || comm.send_receive(&region, DType::F32, 0..4096, [1, 0], Ready::now()).and_then(Ready::wait);
    let all_to_all_v = || {
        let counts: Vec<usize> = (0..comm.world_size()).map(|to| 100 * (comm.rank() + to)).collect();
        let (ready, _) = comm.all_to_all_v(&region, &received, DType::F32, &counts, Ready::now())?;
        ready.wait()
    };
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
        ("different", 0) => {
            comm.all_reduce(&region, DType::F32, 0..1024, Ready::now()).and_then(Ready::wait).err()
        }
        ("different", _) => {
            comm.all_reduce(&region, DType::BF16, 0..77, Ready::now()).and_then(Ready::wait).err()
        }
        ("aborts", 1) => {
            comm.abort("the loss is NaN");
            comm.barrier().err()
        }
        ("aborts", _) => send_receive().err(),
        ("waits", _) => loop {
            std::thread::sleep(Duration::from_millis(20));
            if let Err(error) = comm.barrier() {
                break Some(error);
            }
        },
        ("leaves", 1) => {
            drop(comm);
            std::thread::sleep(Duration::from_secs(1));
            std::process::exit(3)
        }
        ("finishes", 1) => {
            comm.finish();
            return "finished".into();
        }
        ("killed", _) => all_to_all_v().err(),
        ("finishes", _) => send_receive().err(),
        _ => comm.barrier().err(),
    };
    end(&comm, &error.expect("a failure"), say)
}

/// The first failure is that of every later collective.
fn end(comm: &Communicator, error: &Error, say: &dyn Fn(&str)) -> ! {
    let first = error.to_string();
    assert_eq!(comm.all_gather_bytes(b"later").unwrap_err().to_string(), first);
    say(&first);
    std::process::exit(3)
}

/// How many sockets of this process listen, and whether only this machine reaches them.
fn listening() -> String {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let own: Vec<String> = links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|link| link.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned))
        .collect();
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap()
        + &std::fs::read_to_string("/proc/self/net/tcp6").unwrap_or_default();
    // Local address, remote address, state (0A listens), …, inode.
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let open: Vec<_> =
        fields.filter(|f| f.len() > 9 && f[3] == "0A" && own.iter().any(|i| i == f[9])).collect();
    let is_loopback = !open.is_empty() && open.iter().all(|f| f[1].starts_with("0100007F:"));
    format!("{} listen{}", open.len(), if is_loopback { " at loopback" } else { "" })
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
        false => {
            let step = 1_000_000 / (n - 1).max(1);
            vec![rank * 100..rank * 100 + 90 - rank, 2000 + rank * step..step - 10_000 + rank * step]
        }
    };
    Ownership::new((0..n).map(of).collect()).unwrap()
}

/// What every kind of collective leaves on this rank, in digests of bits.
pub fn results(comm: &Communicator) -> String {
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
    if n > 1 {
        fill();
        run(comm.send_receive(&region, DType::F32, 3..N - 1, [n - 1, 0], Ready::now()));
        run(comm.send_receive(&region, DType::F32, 0..0, [0, 1], Ready::now()));
        tell("send_receive", &region);
    }
    let received = comm.allocate("received", 4 * N, Sharing::PerRank).unwrap();
    run(comm.all_to_all(&region, &received, DType::F32, 7..7 + (N - 7) / n * n, Ready::now()));
    tell("all_to_all", &received);
    // Over several messages; the last rank receives nothing.
    let counts: Vec<usize> = (0..n)
        .map(|peer| if peer + 1 < n { (rank * 5 + peer * 3 + 1) % 7 * 150_000 / n } else { 0 })
        .collect();
    let (ready, came) = comm.all_to_all_v(&region, &received, DType::F32, &counts, Ready::now()).unwrap();
    run(Ok(ready));
    tell(&format!("uneven {came:?}"), &received);
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
