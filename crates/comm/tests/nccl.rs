//! Collectives between GPUs over the fake libraries of CUDA: ranks are processes with a GPU each, and some of them fail.

use std::ffi::{CString, c_char, c_int};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use oarlock_comm::{Communicator, Error, Ownership, Ready, Region, Sharing, nccl};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{CudaLibraries, DType, Device, FlatBuffer, Par};
use rustix::process::{Pid, Signal, kill_process};

/// Tells a child what to do instead of testing.
const ROLE: &str = "OARLOCK_TEST_ROLE";
const LIBRARIES: &str = "OARLOCK_CUDA_LIBRARIES";
/// The time of ranks, also where many share the machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Elements of a region: no multiple of the ranks.
const N: usize = 1003;

/// The folder of the fake libraries; none, said aloud, where there is no C++ compiler.
fn fakes() -> Option<PathBuf> {
    // The heads of other tests, which may have made them already.
    oarlock_fakes::shared_fakes(env!("CARGO_TARGET_TMPDIR").as_ref(), &["32", "64"]).unwrap()
}

/// The children's way in; as a test of its own it has nothing to do.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let comm = oarlock_comm::from_env(&|_| ()).unwrap().expect("started as a rank");
    let gpu = if role == "shared" { 0 } else { comm.rank() };
    let device =
        Device::cuda_of(&CudaLibraries::from_environment(), gpu, Isa::detect(), Par::solo()).unwrap();
    if role == "unconnected" {
        fail_next("ncclCommInitRankConfig", 1);
    }
    let chosen = nccl::over(&comm, &device).unwrap();
    let over = match chosen {
        nccl::Choice::Nccl(over) => over,
        nccl::Choice::Host(why) => {
            println!("host {why:?}");
            return comm.finish();
        }
    };
    let rank = Rank { comm: over, device };
    match role.as_str() {
        "collectives" => rank.collectives(),
        "killed early" | "killed in all_reduce" | "killed in send_receive" | "killed in all_to_all_v" => {
            rank.killed(role.strip_prefix("killed in "))
        }
        "absent" => rank.absent(),
        "error" => rank.error(),
        "noticed by NCCL" => rank.noticed(),
        "stopped" => rank.stopped(false),
        "given up" => rank.stopped(true),
        "hangs" => {
            fail_next("an abort", 1);
            rank.stopped(false);
        }
        "panics" => match rank.comm.rank() {
            0 => rank.expect(|error| matches!(error, Error::PeerFailed { rank: 1, .. })),
            _ => panic!("a rank that panics"),
        },
        _ => panic!("no such role: {role}"),
    }
    rank.comm.finish();
    println!("finished");
}

/// A rank with its GPU.
struct Rank {
    comm: Communicator,
    device: Device,
}

impl Rank {
    /// What a rank has: small whole numbers, so that all sums are exact.
    fn value(rank: usize, i: usize) -> f32 {
        ((i * 7 + rank * 13) % 64) as f32 - 20.0
    }

    fn flat(&self, values: &[f32]) -> FlatBuffer {
        let flat = FlatBuffer::pooled(&self.device, 4 * values.len(), "test").unwrap();
        transfer::store(&self.device, values, &flat, 0, DType::F32).unwrap();
        flat
    }

    fn copy(&self, from: &FlatBuffer, to: &FlatBuffer) {
        let (from, to) = (Part { flat: from, range: 0..N }, Part { flat: to, range: 0..N });
        transfer::copy(&self.device, DType::F32, &from, &to).unwrap();
    }

    /// What a region has after a collective between two launches: one that fills it and one that reads it. Nobody waits for
    /// any of them before the end.
    fn between_launches(&self, region: &Region, run: impl Fn(Ready) -> Ready) -> Vec<f32> {
        let values: Vec<f32> = (0..N).map(|i| Rank::value(self.comm.rank(), i)).collect();
        let (from, to, flat) = (self.flat(&values), self.flat(&[0.0; N]), region.flat());
        self.copy(&from, &flat);
        let ready = run(flat.launched().unwrap().map_or_else(Ready::now, Ready::after));
        ready.precede_launches().unwrap();
        self.copy(&flat, &to);
        let mut out = vec![0.0; N];
        transfer::load(&to, 0, DType::F32, &mut out).unwrap();
        out
    }

    fn collectives(&self) {
        let (comm, n) = (&self.comm, self.comm.world_size());
        assert!(comm.describe().starts_with("NCCL 2.") && !comm.shares_memory());
        let region = comm.allocate("odd", 4 * N, Sharing::PerRank).unwrap();
        let sum = |i: usize| (0..n).map(|rank| Rank::value(rank, i)).sum::<f32>();
        let own = |i: usize| Rank::value(comm.rank(), i);
        let check = |what: &str, got: Vec<f32>, want: &dyn Fn(usize) -> f32| {
            let wrong = (0..N).find(|&i| got[i] != want(i));
            assert_eq!(
                wrong,
                None,
                "{what} at {wrong:?} of rank {}: {:?}",
                comm.rank(),
                wrong.map(|i| got[i])
            );
        };
        let is_in = |ranges: &[Range<usize>], i: usize| ranges.iter().any(|range| range.contains(&i));
        for range in [0..N, 3..1000, 5..5, 1002..1003] {
            let got = self.between_launches(&region, |after| {
                comm.all_reduce(&region, DType::F32, range.clone(), after).unwrap()
            });
            check("all_reduce", got, &|i| if range.contains(&i) { sum(i) } else { own(i) });
            for root in 0..n {
                let got = self.between_launches(&region, |after| {
                    comm.broadcast(&region, DType::F32, range.clone(), root, after).unwrap()
                });
                let want = |i| if range.contains(&i) { Rank::value(root, i) } else { own(i) };
                check("broadcast", got, &want);
            }
        }
        for range in [0..N, 3..1000, 5..5] {
            let got = self.between_launches(&region, |after| {
                comm.send_receive(&region, DType::F32, range.clone(), [n - 1, 0], after).unwrap()
            });
            let is_sent = |i: usize| comm.rank() == 0 && range.contains(&i);
            check("send_receive", got, &|i| if is_sent(i) { Rank::value(n - 1, i) } else { own(i) });
        }
        let one_each = |first, second| vec![Vec::from([first]), Vec::from([second])];
        let equal = one_each(7..107, 107..207);
        let uneven = vec![vec![1..2, 700..1003], vec![2..699]];
        for owned in [
            equal,
            uneven,
            one_each(0..401, 401..N),
            one_each(500..600, 400..500),
            vec![vec![], vec![0..N]],
            vec![vec![500..501], vec![]],
        ] {
            let owners = Ownership::new(owned.clone()).unwrap();
            let got = self.between_launches(&region, |after| {
                comm.reduce_scatter(&region, DType::F32, &owners, after).unwrap()
            });
            let own_ranges = &owned[comm.rank()];
            check("reduce_scatter", got, &|i| if is_in(own_ranges, i) { sum(i) } else { own(i) });
            let got = self.between_launches(&region, |after| {
                comm.all_gather(&region, DType::F32, &owners, after).unwrap()
            });
            let owner = |i| (0..n).find(|&rank| is_in(&owned[rank], i)).unwrap_or(comm.rank());
            check("all_gather", got, &|i| Rank::value(owner(i), i));
        }
        let received = comm.allocate("received", 4 * N, Sharing::PerRank).unwrap();
        for range in [0..N - N % n, 4..4 + 2 * n, 7..7] {
            self.between_launches(&received, |_| Ready::now());
            let got = self.between_launches(&region, |after| {
                comm.all_to_all(&region, &received, DType::F32, range.clone(), after).unwrap()
            });
            check("what was sent", got, &own);
            let mut got = vec![0.0; N];
            transfer::load(&received.flat(), 0, DType::F32, &mut got).unwrap();
            let block = range.len() / n;
            check("all_to_all", got, &|i| match range.contains(&i) {
                true => {
                    let (peer, at) = ((i - range.start) / block, (i - range.start) % block);
                    Rank::value(peer, range.start + comm.rank() * block + at)
                }
                false => own(i),
            });
        }
        // Rank i sends 100 i + 3 elements to rank 0, and from the second on nothing to the others.
        let count =
            |from: usize, to: usize| if to == 0 { 100 * from + 3 } else { 5 * usize::from(from == 0) };
        self.between_launches(&received, |_| Ready::now());
        let counts: Vec<usize> = (0..n).map(|to| count(comm.rank(), to)).collect();
        self.between_launches(&region, |after| {
            let (ready, came) = comm.all_to_all_v(&region, &received, DType::F32, &counts, after).unwrap();
            assert_eq!(came, (0..n).map(|from| count(from, comm.rank())).collect::<Vec<_>>());
            ready
        });
        let mut got = vec![0.0; N];
        transfer::load(&received.flat(), 0, DType::F32, &mut got).unwrap();
        let came: Vec<f32> = (0..n)
            .flat_map(|from| {
                let begin: usize = (0..comm.rank()).map(|to| count(from, to)).sum();
                (begin..begin + count(from, comm.rank())).map(move |i| Rank::value(from, i))
            })
            .collect();
        check("all_to_all_v", got, &|i| came.get(i).copied().unwrap_or_else(|| own(i)));
        // A result that nobody waits for still comes before later launches.
        let got = self.between_launches(&region, |after| {
            drop(comm.all_reduce(&region, DType::F32, 0..N, after).unwrap());
            Ready::now()
        });
        check("a dropped promise", got, &sum);
        // Groups of one, in which everything is in place already.
        let alone = comm.split(&(0..n).map(|rank| vec![rank]).collect::<Vec<_>>()).unwrap();
        let region = alone.allocate("alone", 4 * N, Sharing::Replicated).unwrap();
        let got = self.between_launches(&region, |after| {
            alone.all_gather(&region, DType::F32, &Ownership::even(0..N, 1), after).unwrap()
        });
        check("a group of one", got, &own);
        // And of all, the other way round.
        let turned = comm.split(&[(0..n).rev().collect()]).unwrap();
        let region = turned.allocate("turned", 4 * N, Sharing::PerRank).unwrap();
        let got = self.between_launches(&region, |after| {
            turned.broadcast(&region, DType::F32, 0..N, 0, after).unwrap()
        });
        check("a group of all", got, &|i| Rank::value(n - 1, i));
        let mut written = [0f32; 2];
        region.write(3, &[5f32, 6.0]).unwrap();
        region.read(3, &mut written).unwrap();
        assert_eq!(written, [5.0, 6.0]);
        assert!(region.as_ptr().is_null() && region.write(N - 1, &[0f32; 2]).is_err());
    }

    /// Rank 1 is killed while its collective is in its stream, or before.
    fn killed(&self, collective: Option<&str>) {
        let allocate = |name| self.comm.allocate(name, 4 * N, Sharing::PerRank).unwrap();
        let (region, received) = (allocate("gradients"), allocate("received"));
        if self.comm.rank() == 1 && collective.is_none() {
            end_by_kill();
        }
        let counts = [N / 3, N / 5];
        let begun = match collective {
            Some("send_receive") => self.comm.send_receive(&region, DType::F32, 0..N, [1, 0], Ready::now()),
            Some("all_to_all_v") => {
                let begun = self.comm.all_to_all_v(&region, &received, DType::F32, &counts, Ready::now());
                begun.map(|(ready, _)| ready)
            }
            _ => self.comm.all_reduce(&region, DType::F32, 0..N, Ready::now()),
        };
        if self.comm.rank() == 1 {
            end_by_kill();
        }
        // The host waits for the launches behind the collective, without knowing of any other rank.
        if let Ok(ready) = begun {
            drop(ready);
            let mut out = [0f32; 1];
            drop(transfer::load(&region.flat(), 0, DType::F32, &mut out));
        }
        self.expect(|error| matches!(error, Error::PeerFailed { rank: 1, .. }));
    }

    /// Rank 1 is stopped while its collectives are in its stream, those of two communicators. Rank 0 waits for its GPU until
    /// the time is over, or until another thread gives the run up.
    fn stopped(&self, gives_up: bool) {
        let region = self.comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
        let group = self.comm.split(&[vec![0, 1]]).unwrap();
        let of_group = group.allocate("of a group", 4 * N, Sharing::PerRank).unwrap();
        let other = self.comm.statuses()[1].pid.unwrap();
        if !gives_up {
            self.comm.set_timeout(Duration::from_secs(2));
        }
        let begun = self.comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap();
        let begun = [begun, group.all_reduce(&of_group, DType::F32, 0..N, Ready::now()).unwrap()];
        if self.comm.rank() == 1 {
            send(std::process::id(), Signal::STOP);
            // The signal may take another thread first.
            std::thread::sleep(LIMIT);
            return;
        }
        let comm = self.comm.clone();
        let giver = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(900));
            gives_up.then(|| comm.abort("it gives up"));
        });
        drop(begun);
        // Nobody needs the part of rank 1 before that is stopped.
        std::thread::sleep(Duration::from_millis(300));
        drop(transfer::load(&region.flat(), 0, DType::F32, &mut [0f32; 1]));
        let want = if gives_up { "it gives up" } else { "its GPU has not done all_reduce on \"gradients\"" };
        self.expect(|error| matches!(error, Error::PeerFailed { rank: 0, cause } if cause.contains(want)));
        giver.join().unwrap();
        send(other, Signal::KILL);
    }

    /// Rank 1 does not come.
    fn absent(&self) {
        let region = self.comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
        if self.comm.rank() == 1 {
            std::thread::sleep(Duration::from_secs(4));
            return;
        }
        self.comm.set_timeout(Duration::from_secs(1));
        let error = self.comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).err().unwrap();
        println!("error {error}");
        self.expect(|error| matches!(error, Error::Timeout { missing, .. } if missing[0].rank == 1));
    }

    /// NCCL notices that rank 1 ends before its process is gone.
    fn noticed(&self) {
        let region = self.comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
        let begun = self.comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap();
        if self.comm.rank() == 1 {
            std::thread::sleep(Duration::from_millis(400));
            end_by_kill();
        }
        fail_next("the communicator", 6);
        drop(begun);
        self.expect(|error| matches!(error, Error::PeerFailed { rank: 1, .. }));
    }

    /// NCCL fails by itself on rank 1.
    fn error(&self) {
        let region = self.comm.allocate("gradients", 4 * N, Sharing::PerRank).unwrap();
        let begun = self.comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap();
        if self.comm.rank() == 1 {
            fail_next("the communicator", 3);
        }
        let error = match begun.wait() {
            Err(error) => error,
            // It was faster than the failure.
            Ok(()) => self.next_error(),
        };
        println!("error {error}");
    }

    fn next_error(&self) -> Error {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(50), "nothing fails");
            let region = self.comm.allocate("more", 4, Sharing::PerRank);
            let ran = region.and_then(|region| self.comm.all_reduce(&region, DType::F32, 0..1, Ready::now()));
            if let Err(error) = ran.and_then(Ready::wait) {
                return error;
            }
        }
    }

    fn expect(&self, is_right: impl Fn(&Error) -> bool) {
        let error = self.next_error();
        println!("error {error}");
        assert!(is_right(&error), "{error}");
    }
}

fn send(process: u32, signal: Signal) {
    kill_process(Pid::from_raw(process as i32).unwrap(), signal).unwrap();
}

fn end_by_kill() {
    send(std::process::id(), Signal::KILL);
    std::thread::sleep(Duration::from_secs(60));
}

/// Has the next call of this name fail in the fake libraries of this process.
fn fail_next(call: &str, code: c_int) {
    let file = Path::new(&std::env::var_os(LIBRARIES).unwrap()).join("libcuda.so.1");
    // SAFETY: the library is loaded already; the function has this type.
    unsafe {
        let library = libloading::Library::new(file).unwrap();
        let fail = library.get::<unsafe extern "C" fn(*const c_char, c_int, c_int)>(b"fake_fail\0").unwrap();
        fail(CString::new(call).unwrap().as_ptr(), 0, code);
    }
}

/// Starts two ranks in a role; what they say, in their order.
fn run(role: &str, folder: &Path) -> Vec<Output> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Nobody opens it. Other processes that run these tests have others.
    let port = 1024 + (std::process::id() as u16 % 600) * 100 + NEXT.fetch_add(1, Ordering::Relaxed);
    let start = |rank: usize| -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture"]).env(ROLE, role).env(LIBRARIES, folder);
        command.env_remove("OARLOCK_TRANSPORT").env("OARLOCK_JOIN_TIMEOUT", "60");
        let variables = [("RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", 2)];
        command.envs(variables.map(|(name, value)| (name, value.to_string())));
        if role == "slices" {
            command.env("OARLOCK_FAKE_GPUS", "A100 MIG 1g.10gb,A100 MIG 1g.10gb");
        }
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut ranks: Vec<Child> = (0..2).map(start).collect();
    // What they say fits into a pipe. Whoever hangs is ended, and has not said what the test wants.
    let begin = Instant::now();
    // Nobody wakes the rank that has stopped beside one that ends early.
    let n_awaited = if role == "hangs" { 1 } else { 2 };
    let is_there = |rank: &mut Child| rank.try_wait().unwrap().is_none();
    while ranks[..n_awaited].iter_mut().any(is_there) && begin.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    // It fails for those that have ended.
    ranks.iter_mut().for_each(|rank| drop(rank.kill()));
    ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn collectives_are_those_of_a_reference_whoever_comes_late() {
    let Some(folder) = fakes() else { return };
    for output in run("collectives", &folder) {
        assert!(output.status.success() && text(&output).contains("finished"), "{}", text(&output));
    }
}

#[test]
fn a_rank_that_ends_is_named() {
    let Some(folder) = fakes() else { return };
    let killed = ["killed early", "killed in all_reduce", "killed in send_receive", "killed in all_to_all_v"];
    for role in killed.into_iter().chain(["noticed by NCCL"]) {
        let said = run(role, &folder);
        let first = text(&said[0]);
        assert!(!said[1].status.success(), "{}", text(&said[1]));
        assert!(said[0].status.success() && first.contains("error rank 1 failed: its process"), "{first}");
    }
    let said = text(&run("panics", &folder)[0]);
    assert!(said.contains("error rank 1 failed: it left without finishing"), "{said}");
    for output in run("error", &folder) {
        let said = text(&output);
        assert!(said.contains("error rank 1 failed") && said.contains("NCCL"), "{said}");
    }
}

#[test]
fn a_gpu_that_waits_for_a_stopped_rank_is_given_up() {
    let Some(folder) = fakes() else { return };
    for role in ["stopped", "given up"] {
        let said = text(&run(role, &folder)[0]);
        assert!(said.contains("error rank 0 failed: it") && said.contains("finished\n"), "{said}");
    }
}

#[test]
fn nobody_hangs_with_a_gpu_or_for_a_rank_that_does_not_come() {
    let Some(folder) = fakes() else { return };
    // A GPU that gives nothing up cannot be freed, so that its process ends, with the failure.
    let stuck = &run("hangs", &folder)[0];
    let said = text(stuck);
    assert!(
        said.contains("error: rank 0 failed: its GPU has not done") && said.contains("has not aborted"),
        "{said}"
    );
    assert_eq!(stuck.status.code(), Some(1), "{said}");
    let said = text(&run("absent", &folder)[0]);
    assert!(said.contains("rank 0 called all_reduce") && said.contains("for rank 1"), "{said}");
}

#[test]
fn ranks_that_nccl_cannot_connect_stay_with_the_host() {
    let Some(folder) = fakes() else { return };
    for output in run("shared", &folder) {
        assert!(text(&output).contains("ranks 0 and 1 share a GPU"), "{}", text(&output));
    }
    for (role, why) in [
        ("slices", "rank 0 has a slice of a GPU (MIG)"),
        ("unconnected", "NCCL does not connect the GPUs: ncclCommInitRankConfig"),
    ] {
        for output in run(role, &folder) {
            assert!(output.status.success() && text(&output).contains(why), "{}", text(&output));
        }
    }
    let without = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let file = entry.unwrap();
        if !file.file_name().to_string_lossy().contains("nccl") {
            std::os::unix::fs::symlink(file.path(), without.path().join(file.file_name())).unwrap();
        }
    }
    for output in run("no nccl", without.path()) {
        let said = text(&output);
        assert!(
            said.contains("rank 0 cannot use NCCL") && said.contains("pip install nvidia-nccl-cu13`"),
            "{said}"
        );
    }
}
