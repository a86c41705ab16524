//! Collectives on the progress thread: order, values, failures and the end. Invariants are those of `src/progress/README.md`.

use std::sync::mpsc;
use std::time::Duration;

use oarlock_comm::{
    Communicator, Error, Link, Operation, Ownership, Pending, Ready, Recorded, Result, Scalar, Sharing, shm,
};
use oarlock_tensor::DType;

/// A link on which every collective takes so many milliseconds.
fn link(ms: u64) -> Link {
    Link { latency: Duration::from_millis(ms), bandwidth: 1e12 }
}

/// Runs `rank` on `n` threads over a link with a progress thread; fails when that takes longer than twenty seconds.
fn ranks<T: Send + 'static>(
    n: usize,
    ms: u64,
    rank: impl Fn(Communicator) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let (done, result) = mpsc::channel();
    for comm in shm::threads(n).unwrap() {
        let (done, rank, place) = (done.clone(), rank.clone(), comm.rank());
        std::thread::spawn(move || done.send((place, rank(comm.slowed(link(ms)).in_background()))));
    }
    drop(done);
    let mut all: Vec<(usize, T)> = (0..n)
        .map(|_| result.recv_timeout(Duration::from_secs(20)).expect("a rank hangs or panicked"))
        .collect();
    all.sort_by_key(|&(place, _)| place);
    all.into_iter().map(|(_, value)| value).collect()
}

/// Something that a collective comes after, which the test lets go.
struct Gate(mpsc::Receiver<Result<()>>);

impl Pending for Gate {
    fn wait(self: Box<Self>) -> Result<()> {
        self.0.recv().unwrap_or(Ok(()))
    }
}

fn gate() -> (mpsc::SyncSender<Result<()>>, Ready) {
    let (open, gate) = mpsc::sync_channel(1);
    (open, Ready::after(Gate(gate)))
}

/// Invariants 1 and 2: all collectives of a group, those that return values too, run in the order of their calls, and the
/// values are those of the transport below.
#[test]
fn collectives_run_in_the_order_of_their_calls() {
    let all = ranks(3, 1, |comm| {
        assert!(comm.works_in_background() && !comm.shares_memory());
        let mine = comm.rank() as f32 + 1.0;
        let region = comm.allocate("values", 4 * 6, Sharing::Replicated).unwrap();
        region.write(0, &[mine; 6]).unwrap();
        comm.start_trace();
        let owners = Ownership::even(0..6, 3);
        // Each works on what the one before it leaves.
        let (open, after) = gate();
        let first = comm.all_reduce(&region, DType::F32, 0..6, after).unwrap();
        let second = comm.reduce_scatter(&region, DType::F32, &owners, Ready::now()).unwrap();
        let third = comm.all_gather(&region, DType::F32, &owners, Ready::now()).unwrap();
        let fourth = comm.broadcast(&region, DType::F32, 0..2, 1, Ready::now()).unwrap();
        // Nothing runs yet, and the caller is free.
        assert!(comm.communication_time().unwrap().in_background == 0);
        open.send(Ok(())).unwrap();
        // This one waits for its turn.
        let mut sum = [mine as f64];
        comm.all_reduce_f64(&mut sum, Scalar::Sum).unwrap();
        let mut values = [0f32; 6];
        region.read(0, &mut values).unwrap();
        for ready in [fourth, second, first, third] {
            ready.wait().unwrap();
        }
        comm.finish();
        let order: Vec<Operation> = comm.take_trace().iter().map(|event| event.operation).collect();
        (sum, values, order)
    });
    for (sum, values, order) in all {
        assert_eq!((sum, values), ([6.0], [18.0; 6]));
        use Operation::{AllGather, AllReduce, AllReduceScalars, Broadcast, ReduceScatter};
        assert_eq!(order, [AllReduce, ReduceScatter, AllGather, Broadcast, AllReduceScalars]);
    }
}

#[test]
fn sums_have_the_bits_of_a_transport_without_a_thread() {
    let value = |rank: usize, i: usize| ((i * 7919 + rank * 104_729) % 2003) as f32 * 1.37e-3;
    let sums = move |comm: Communicator| {
        let region = comm.allocate("gradients", 4 * 5000, Sharing::PerRank).unwrap();
        let mine: Vec<f32> = (0..5000).map(|i| value(comm.rank(), i)).collect();
        region.write(0, &mine).unwrap();
        comm.all_reduce(&region, DType::F32, 3..4999, Ready::now()).unwrap().wait().unwrap();
        let mut out = vec![0f32; 5000];
        region.read(0, &mut out).unwrap();
        comm.finish();
        out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let plain = shm::on_threads(5, sums).unwrap();
    assert_eq!(ranks(5, 0, sums), plain);
}

/// Groups have threads of their own: what one waits for holds up no other.
#[test]
fn a_group_that_waits_holds_up_no_other() {
    let all = ranks(2, 0, |comm| {
        let pair = comm.split(&[vec![0, 1]]).unwrap();
        let (of_world, of_pair) = (
            comm.allocate("a", 8, Sharing::PerRank).unwrap(),
            pair.allocate("b", 8, Sharing::PerRank).unwrap(),
        );
        of_pair.write(0, &[1f32, 2.0]).unwrap();
        let (open, after) = gate();
        let held = comm.all_reduce(&of_world, DType::F32, 0..2, after).unwrap();
        pair.all_reduce(&of_pair, DType::F32, 0..2, Ready::now()).unwrap().wait().unwrap();
        pair.barrier().unwrap();
        let mut sums = [0f32; 2];
        of_pair.read(0, &mut sums).unwrap();
        open.send(Ok(())).unwrap();
        held.wait().unwrap();
        comm.finish();
        sums
    });
    assert_eq!(all, [[2.0, 4.0]; 2]);
}

/// Invariant 3: the region of a collective whose `Ready` was dropped, and the region too, lives until it is over.
#[test]
fn nobody_has_to_hear_the_end() {
    let all = ranks(2, 5, |comm| {
        let region = comm.allocate("values", 4 << 20, Sharing::PerRank).unwrap();
        for _ in 0..3 {
            drop(comm.all_reduce(&region, DType::F32, 0..1 << 20, Ready::now()).unwrap());
        }
        drop(region);
        comm.barrier().unwrap();
        comm.finish();
        comm.traffic().iter().map(|traffic| traffic.calls).sum::<u64>()
    });
    assert_eq!(all, [5, 5]);
}

/// Invariants 2 and 4: a different collective is named with the lines of both callers, at the wait; later ones fail the same.
#[test]
fn the_callers_of_different_collectives_are_named_at_the_wait() {
    let all = ranks(2, 0, |comm| {
        let region = comm.allocate("values", 64, Sharing::PerRank).unwrap();
        let one = match comm.rank() {
            0 => comm.all_reduce(&region, DType::F32, 0..16, Ready::now()).unwrap(),
            _ => comm.all_reduce(&region, DType::F32, 0..8, Ready::now()).unwrap(),
        };
        let queued = comm.all_reduce(&region, DType::F32, 0..16, Ready::now()).unwrap();
        let message = one.wait().unwrap_err();
        let later = [queued.wait().unwrap_err(), comm.barrier().unwrap_err()];
        for later in later {
            assert_eq!(later.to_string(), message.to_string());
        }
        let Error::Mismatch { first, other } = message else { panic!("{message}") };
        [first.site, other.site]
    });
    assert_eq!(all[0], all[1]);
    for (site, line) in all[0].iter().zip(["0..16, Ready::now()", "0..8, Ready::now()"]) {
        let (file, number) = site.rsplit_once(':').unwrap();
        assert!(file.ends_with("tests/progress.rs"), "{site}");
        let source = include_str!("progress.rs").lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
        assert!(source.contains(line), "{site}: {source}");
    }
}

/// Invariant 4: what a collective comes after fails on one rank; all ranks hear of it.
#[test]
fn a_failure_before_a_collective_reaches_all_ranks() {
    let all = ranks(2, 0, |comm| {
        let region = comm.allocate("values", 64, Sharing::PerRank).unwrap();
        let (open, after) = gate();
        let ready = comm.all_reduce(&region, DType::F32, 0..16, after).unwrap();
        let cause =
            Error::Argument { operation: "copy", expected: "a sound disk".into(), got: "none".into() };
        open.send(if comm.rank() == 0 { Err(cause) } else { Ok(()) }).unwrap();
        ready.wait().unwrap_err().to_string()
    });
    assert_eq!(all[0], "copy: expected a sound disk, got none");
    assert_eq!(all[1], "rank 0 failed: copy: expected a sound disk, got none");
}

/// Invariant 4: a panic in the thread is a failure of this rank, for all.
#[test]
fn a_panic_in_the_thread_is_a_failure() {
    struct Panics;
    impl Pending for Panics {
        fn wait(self: Box<Self>) -> Result<()> {
            panic!("planted");
        }
    }
    let all = ranks(2, 0, |comm| {
        let region = comm.allocate("values", 64, Sharing::PerRank).unwrap();
        let after = if comm.rank() == 1 { Ready::after(Panics) } else { Ready::now() };
        let message = comm.all_reduce(&region, DType::F32, 0..16, after).unwrap().wait().unwrap_err();
        (message.to_string(), comm.barrier().unwrap_err().to_string())
    });
    let expected = "rank 1 failed: a collective panicked: planted".to_string();
    assert_eq!(all, [(expected.clone(), expected.clone()), (expected.clone(), expected)]);
}

/// Invariant 5: a rank that panics with collectives in its queue does not wait for others, nor they for it.
#[test]
fn a_rank_that_panics_leaves_nobody_waiting() {
    let all = ranks(2, 0, |comm| {
        let region = comm.allocate("values", 64, Sharing::PerRank).unwrap();
        let pair = comm.split(&[vec![0, 1]]).unwrap();
        if comm.rank() == 1 {
            // Rank 0 never calls these; it waits in another group.
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _pair = pair;
                let _all: Vec<Ready> = (0..2)
                    .map(|_| comm.all_gather(&region, DType::F32, &Ownership::even(0..16, 2), Ready::now()))
                    .collect::<Result<_>>()
                    .unwrap();
                std::thread::sleep(Duration::from_millis(50));
                panic!("planted");
            }));
            return caught.is_err().to_string();
        }
        pair.barrier().unwrap_err().to_string()
    });
    assert_eq!(all, ["rank 1 failed: it left without finishing (a panic, an early return)", "true"]);
}

/// The counters: with the caller busy meanwhile the time is hidden, and it is not where the caller waits at once.
#[test]
fn the_time_that_nobody_waits_for_is_hidden() {
    const MS: u64 = 40;
    let shares = |busy: bool| {
        ranks(2, MS, move |comm| {
            comm.record(Recorded::default());
            let region = comm.allocate("values", 64, Sharing::PerRank).unwrap();
            let before = comm.communication_time().unwrap();
            for _ in 0..3 {
                let ready = comm.all_reduce(&region, DType::F32, 0..16, Ready::now()).unwrap();
                if busy {
                    std::thread::sleep(Duration::from_millis(4 * MS));
                }
                ready.wait().unwrap();
            }
            let time = comm.communication_time().unwrap().since(&before);
            // The record has the times of the collectives, not those of their calls.
            let recorded = comm.recorded();
            let reduced = recorded.iter().find(|stats| stats.operation == Operation::AllReduce).unwrap();
            assert!(reduced.calls == 3 && reduced.total >= 3 * Duration::from_millis(MS), "{reduced:?}");
            comm.finish();
            time
        })
    };
    for time in shares(false) {
        assert_eq!((time.in_background, time.waited_for), (3, 3));
        assert!(time.total >= 3 * Duration::from_millis(MS) && time.hidden_share() < 0.5, "{time:?}");
    }
    for time in shares(true) {
        assert_eq!(time.in_background, 3);
        assert!(time.total >= 3 * Duration::from_millis(MS) && time.hidden_share() > 0.5, "{time:?}");
    }
}
