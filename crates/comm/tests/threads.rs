//! Collectives between ranks that are threads of this process: sums, bytes, groups, and every way to fail.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use oarlock_comm::{
    Communicator, Error, Operation, Ownership, Pending, RankState, Ready, Region, Scalar, Sharing, shm,
};
use oarlock_tensor::{DType, bf16};

#[path = "threads/exchanges.rs"]
mod exchanges;

/// Runs `rank` on `n` threads and gives back what each returned; fails when that takes longer than ten seconds.
fn ranks<T: Send + 'static>(
    n: usize,
    rank: impl Fn(Communicator) -> T + Send + Sync + Clone + 'static,
) -> Vec<T> {
    let (done, result) = mpsc::channel();
    for comm in shm::threads(n).unwrap() {
        let (done, rank, place) = (done.clone(), rank.clone(), comm.rank());
        std::thread::spawn(move || done.send((place, rank(comm))));
    }
    drop(done);
    let mut all: Vec<(usize, T)> = (0..n)
        .map(|_| result.recv_timeout(Duration::from_secs(10)).expect("a rank hangs or panicked"))
        .collect();
    all.sort_by_key(|&(place, _)| place);
    all.into_iter().map(|(_, value)| value).collect()
}

/// Also a world of one, which has a transport of its own.
fn worlds() -> impl Iterator<Item = usize> {
    1..9
}

fn value(rank: usize, i: usize) -> f32 {
    ((i * 7919 + rank * 104_729) % 2003) as f32 * 1.37e-3 - 1.1 / (rank + 1) as f32
}

/// The fixed tree, written as pairs level by level: another description of the same sum.
fn tree(mut values: Vec<f32>) -> f32 {
    while values.len() > 1 {
        values = values.chunks(2).map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap()).collect();
    }
    values[0]
}

const ELEMENTS: usize = 10_007;

/// Invariants 1 and 5.
#[test]
fn all_reduce_leaves_the_same_tree_sum_everywhere() {
    for n in worlds() {
        let all = ranks(n, move |comm| {
            let region = comm.allocate("gradients", 4 * ELEMENTS, Sharing::PerRank).unwrap();
            let mine: Vec<f32> = (0..ELEMENTS).map(|i| value(comm.rank(), i)).collect();
            region.write(0, &mine).unwrap();
            comm.all_reduce(&region, DType::F32, 5..ELEMENTS - 3, Ready::now()).unwrap().wait().unwrap();
            let mut out = vec![0f32; ELEMENTS];
            region.read(0, &mut out).unwrap();
            comm.finish();
            out
        });
        for (rank, out) in all.iter().enumerate() {
            for (i, &x) in out.iter().enumerate() {
                let inside = (5..ELEMENTS - 3).contains(&i);
                let expected =
                    if inside { tree((0..n).map(|r| value(r, i)).collect()) } else { value(rank, i) };
                assert_eq!(x.to_bits(), expected.to_bits(), "{n} ranks, rank {rank}, element {i}");
                let exact: f64 = (0..n).map(|r| value(r, i) as f64).sum();
                assert!(!inside || (x as f64 - exact).abs() < 1e-5);
            }
        }
    }
}

/// Interleaved, uneven ranges; the last rank owns nothing and some elements have no owner.
fn owners(n: usize) -> Ownership {
    let of = |rank: usize| match rank + 1 == n && n > 1 {
        true => Vec::new(),
        false => vec![rank * 100..rank * 100 + 90 - rank, 2000 + rank * 1000..2000 + rank * 1000 + 731],
    };
    Ownership::new((0..n).map(of).collect()).unwrap()
}

/// Invariants 4 and 6.
#[test]
fn reduce_scatter_and_all_gather_make_an_all_reduce() {
    for n in worlds() {
        let all = ranks(n, move |comm| {
            let (rank, owners) = (comm.rank(), owners(n));
            let region = comm.allocate("gradients", 4 * ELEMENTS, Sharing::PerRank).unwrap();
            let mine: Vec<f32> = (0..ELEMENTS).map(|i| value(rank, i)).collect();
            region.write(0, &mine).unwrap();
            let ready = comm.reduce_scatter(&region, DType::F32, &owners, Ready::now()).unwrap();
            ready.wait().unwrap();
            let mut scattered = vec![0f32; ELEMENTS];
            region.read(0, &mut scattered).unwrap();
            for (i, &x) in scattered.iter().enumerate() {
                let own = owners.of(rank).iter().any(|r| r.contains(&i));
                let expected = if own { tree((0..n).map(|r| value(r, i)).collect()) } else { mine[i] };
                assert_eq!(x.to_bits(), expected.to_bits(), "{n} ranks, rank {rank}, element {i}");
            }
            comm.barrier().unwrap();
            comm.all_gather(&region, DType::F32, &owners, Ready::now()).unwrap().wait().unwrap();
            region.read(0, &mut scattered).unwrap();
            comm.finish();
            scattered
        });
        let owners = owners(n);
        for (rank, out) in all.iter().enumerate() {
            for (i, &x) in out.iter().enumerate() {
                let owned = (0..n).any(|r| owners.of(r).iter().any(|r| r.contains(&i)));
                let expected =
                    if owned { tree((0..n).map(|r| value(r, i)).collect()) } else { value(rank, i) };
                assert_eq!(x.to_bits(), expected.to_bits(), "{n} ranks, rank {rank}, element {i}");
            }
        }
    }
}

#[test]
fn sixteen_bit_regions_are_gathered_broadcast_and_summed() {
    let all = ranks(3, |comm| {
        let rank = comm.rank();
        let region = comm.allocate("weights", 2 * 90, Sharing::PerRank).unwrap();
        region.write(0, &[bf16::from_f32(rank as f32 + 1.0); 90]).unwrap();
        comm.all_gather(&region, DType::BF16, &Ownership::even(0..60, 3), Ready::now())
            .unwrap()
            .wait()
            .unwrap();
        comm.broadcast(&region, DType::BF16, 60..70, 2, Ready::now()).unwrap().wait().unwrap();
        comm.all_reduce(&region, DType::BF16, 70..80, Ready::now()).unwrap().wait().unwrap();
        let mut out = [bf16::ZERO; 90];
        region.read(0, &mut out).unwrap();
        comm.finish();
        out.map(|x| x.to_f32())
    });
    for (rank, out) in all.iter().enumerate() {
        let even = Ownership::even(0..60, 3);
        for (i, &x) in out.iter().enumerate() {
            let expected = match i {
                0..60 => (0..3).find(|&r| even.of(r)[0].contains(&i)).unwrap() as f32 + 1.0,
                60..70 => 3.0,
                70..80 => 6.0,
                _ => rank as f32 + 1.0,
            };
            assert_eq!(x, expected, "rank {rank}, element {i}");
        }
    }
}

#[test]
fn a_replicated_region_is_one_memory() {
    let all = ranks(4, |comm| {
        let region = comm.allocate("weights", 4 * 64, Sharing::Replicated).unwrap();
        assert_eq!(region.as_ptr() as usize % 64, 0);
        let owners = Ownership::even(0..64, 4);
        for range in owners.of(comm.rank()) {
            region.write(range.start, &vec![comm.rank() as u32 + 1; range.len()]).unwrap();
        }
        comm.all_gather(&region, DType::I32, &owners, Ready::now()).unwrap().wait().unwrap();
        let mut out = [0u32; 64];
        region.read(0, &mut out).unwrap();
        comm.finish();
        out
    });
    for out in all {
        assert!(out.iter().enumerate().all(|(i, &x)| x as usize == i / 16 + 1), "{out:?}");
    }
}

/// Invariant 3: lengths over several chunks, many meetings in a row.
#[test]
fn small_values_of_any_length() {
    for n in worlds() {
        for (rank, (bytes, one, numbers)) in ranks(n, move |comm| {
            let rank = comm.rank();
            let bytes = comm.all_gather_bytes(&vec![rank as u8; rank * 20_000]).unwrap();
            let one = comm.broadcast_bytes(n - 1, format!("from {rank}").as_bytes()).unwrap();
            let mut sum = [0.1 * rank as f64, 1.0];
            comm.all_reduce_f64(&mut sum, Scalar::Sum).unwrap();
            let mut greatest = [rank as f64, if rank == n / 2 { f64::NAN } else { 0.0 }];
            comm.all_reduce_f64(&mut greatest, Scalar::Max).unwrap();
            let mut least = [-(rank as f64)];
            comm.all_reduce_f64(&mut least, Scalar::Min).unwrap();
            comm.agree("the seed", 7).unwrap();
            comm.finish();
            (bytes, one, (sum, greatest, least))
        })
        .into_iter()
        .enumerate()
        {
            assert!((0..n).all(|r| bytes[r] == vec![r as u8; r * 20_000]), "rank {rank} of {n}");
            assert_eq!(one, format!("from {}", n - 1).as_bytes());
            let (sum, greatest, least) = numbers;
            assert!((sum[0] - 0.05 * (n * (n - 1)) as f64).abs() < 1e-12 && sum[1] == n as f64);
            assert!(greatest[0] == (n - 1) as f64 && greatest[1].is_nan());
            assert_eq!(least[0], -((n - 1) as f64));
        }
    }
}

/// Invariant 10.
#[test]
fn groups_meet_among_themselves_and_groups_of_groups_too() {
    let all = ranks(6, |comm| {
        let rank = comm.rank();
        let rows = comm.split(&[vec![0, 1, 2], vec![3, 4, 5]]).unwrap();
        let columns = comm.split(&[vec![3, 0], vec![1, 4], vec![5, 2]]).unwrap();
        let pair = match rank {
            0..3 => rows.split(&[vec![0], vec![1, 2]]).unwrap(),
            _ => rows.split(&[vec![0, 1], vec![2]]).unwrap(),
        };
        let sums = [&comm, &rows, &columns, &pair].map(|c| {
            let mut sum = [10f64.powi(rank as i32)];
            c.all_reduce_f64(&mut sum, Scalar::Sum).unwrap();
            sum[0] as u64
        });
        let region = columns.allocate("in columns", 4, Sharing::PerRank).unwrap();
        region.write(0, &[rank as f32]).unwrap();
        columns.all_reduce(&region, DType::F32, 0..1, Ready::now()).unwrap().wait().unwrap();
        let mut sum = [0f32];
        region.read(0, &mut sum).unwrap();
        comm.finish();
        (sums, columns.rank(), sum[0])
    });
    let expected = [
        ([111_111, 111, 1001, 1], 1, 3.0),
        ([111_111, 111, 10_010, 110], 0, 5.0),
        ([111_111, 111, 100_100, 110], 1, 7.0),
        ([111_111, 111_000, 1001, 11_000], 0, 3.0),
        ([111_111, 111_000, 10_010, 11_000], 1, 5.0),
        ([111_111, 111_000, 100_100, 100_000], 0, 7.0),
    ];
    assert_eq!(all, expected);
}

#[test]
fn different_collectives_are_named_on_all_ranks_at_the_second_arrival() {
    let began = Instant::now();
    let errors = ranks(4, |comm| {
        let region = comm.allocate("gradients", 4096, Sharing::PerRank).unwrap();
        let error = match comm.rank() {
            0 => comm.all_reduce(&region, DType::F32, 0..1024, Ready::now()).err(),
            1 => comm.all_reduce(&region, DType::BF16, 0..77, Ready::now()).err(),
            // These two come when the others have found out already.
            _ => {
                std::thread::sleep(Duration::from_millis(300));
                comm.barrier().err()
            }
        };
        error.map(|e| (e.to_string(), e))
    });
    assert!(began.elapsed() < Duration::from_millis(1300));
    for error in errors {
        let (text, Error::Mismatch { first, other }) = error.expect("a mismatch") else {
            panic!("another error")
        };
        assert_eq!(
            (first.rank, first.operation, first.elements, first.dtype),
            (0, Operation::AllReduce, 1024, Some(DType::F32))
        );
        assert_eq!(
            (other.rank, other.operation, other.elements, other.dtype),
            (1, Operation::AllReduce, 77, Some(DType::BF16))
        );
        for part in ["all_reduce of 1024 f32 on \"gradients\"", "all_reduce of 77 bf16", "threads.rs:"] {
            assert!(text.contains(part), "{text}");
        }
        assert_ne!(first.site, other.site);
    }
}

#[test]
fn names_sizes_owners_roots_and_groups_must_agree() {
    type Act = fn(&Communicator, usize) -> Option<Error>;
    let acts: [(&str, Act); 5] = [
        ("name", |c, r| c.allocate(["weights", "moments"][r], 64, Sharing::PerRank).err()),
        ("size", |c, r| c.allocate("weights", 64 + r, Sharing::PerRank).err()),
        ("sharing", |c, r| c.allocate("weights", 64, [Sharing::PerRank, Sharing::Replicated][r]).err()),
        ("root", |c, r| c.broadcast_bytes(r, b"x").err()),
        ("groups", |c, r| c.split(&[vec![r, 1 - r]]).err()),
    ];
    for (what, act) in acts {
        for error in ranks(2, move |comm| act(&comm, comm.rank())) {
            assert!(matches!(error, Some(Error::Mismatch { .. })), "{what}: {error:?}");
        }
    }
    for error in ranks(2, |comm| {
        let region = comm.allocate("g", 4 * 64, Sharing::PerRank).unwrap();
        let owners = Ownership::new(vec![vec![0..32 + comm.rank()], vec![40..64]]).unwrap();
        comm.reduce_scatter(&region, DType::F32, &owners, Ready::now()).err()
    }) {
        assert!(matches!(error, Some(Error::Mismatch { .. })), "{error:?}");
    }
}

#[test]
fn values_that_must_agree_are_named() {
    for error in ranks(3, |comm| comm.agree("the seed", [5, 5, 9][comm.rank()]).unwrap_err().to_string()) {
        assert_eq!(error, "ranks disagree on the seed: rank 0 has 5, rank 2 has 9");
    }
}

/// Invariants 7 and 8.
#[test]
fn a_rank_that_aborts_panics_or_leaves_is_what_everybody_reports() {
    type Leave = fn(&Communicator);
    let ways: [(Leave, &str); 3] = [
        (|c| c.abort("the loss is NaN"), "rank 1 failed: the loss is NaN"),
        (|_| {}, "rank 1 failed: it left without finishing"),
        (|c| c.finish(), "rank 1 failed: it finished while others still waited"),
    ];
    type Wait = fn(&Communicator, &[Region; 2]) -> oarlock_comm::Result<()>;
    let waits: [(&str, Wait); 3] = [
        ("barrier", |c, _| c.barrier()),
        ("send_receive", |c, [from, _]| {
            c.send_receive(from, DType::F32, 0..64, [1, 0], Ready::now()).and_then(Ready::wait)
        }),
        ("all_to_all_v", |c, [from, to]| {
            let counts = [1, 2, 3].map(|count| count * (c.rank() + 1));
            c.all_to_all_v(from, to, DType::F32, &counts, Ready::now()).and_then(|(ready, _)| ready.wait())
        }),
    ];
    for ((leave, expected), (name, wait)) in
        ways.iter().flat_map(|way| waits.iter().map(move |wait| (*way, *wait)))
    {
        let began = Instant::now();
        let errors = ranks(3, move |comm| {
            let regions =
                ["sent", "received"].map(|name| comm.allocate(name, 4 * 64, Sharing::PerRank).unwrap());
            comm.barrier().unwrap();
            if comm.rank() == 1 {
                leave(&comm);
                return String::new();
            }
            let first = wait(&comm, &regions).unwrap_err().to_string();
            assert_eq!(comm.all_gather_bytes(b"later").unwrap_err().to_string(), first);
            first
        });
        assert!(errors[0].starts_with(expected) && errors[2] == errors[0], "{name}: {errors:?}");
        assert!(began.elapsed() < Duration::from_secs(1), "{name}");
    }
}

/// The others are inside the collective already when one rank finds that its data will not come.
#[test]
fn data_that_never_get_ready_are_a_failure_of_all() {
    struct Fails;
    impl Pending for Fails {
        fn wait(self: Box<Self>) -> oarlock_comm::Result<()> {
            Err(Error::System { what: "copy".into(), cause: "the stream failed".into() })
        }
    }
    for sharing in [Sharing::PerRank, Sharing::Replicated] {
        let errors = ranks(3, move |comm| {
            let region = comm.allocate("weights", 64, sharing).unwrap();
            let after = if comm.rank() == 2 { Ready::after(Fails) } else { Ready::now() };
            let error = comm.all_gather(&region, DType::F32, &Ownership::even(0..16, 3), after).err();
            // Nobody leaves before all have seen it.
            while comm.barrier().is_ok() {}
            error.expect("a failure").to_string()
        });
        let cause = "cannot copy: the stream failed";
        assert_eq!(
            errors,
            [format!("rank 2 failed: {cause}"), format!("rank 2 failed: {cause}"), cause.into()]
        );
    }
}

/// Invariant 8.
#[test]
fn who_does_not_come_is_named_with_what_it_does() {
    let errors = ranks(3, |comm| {
        comm.barrier().unwrap();
        comm.set_timeout(Duration::from_millis(300));
        if comm.rank() == 2 {
            comm.set_phase("step 12: forward");
            std::thread::sleep(Duration::from_millis(800));
        }
        comm.barrier().unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        let Error::Timeout { seconds, missing, .. } = error else { panic!("{text}") };
        assert_eq!(missing.len(), 1);
        assert_eq!(
            (missing[0].rank, missing[0].state, &*missing[0].phase),
            (2, RankState::Running, "step 12: forward")
        );
        assert!(seconds >= 0.3, "{text}");
        assert!(text.contains("last call: barrier (call 1) at"), "{text}");
    }
}

/// Invariant 8.
#[test]
fn a_long_wait_is_reported_by_the_lowest_rank_that_waits() {
    let reported: Vec<Vec<String>> = ranks(3, |comm| {
        let said = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = said.clone();
        comm.on_long_wait(Duration::from_millis(200), move |wait| to.lock().unwrap().push(wait.to_string()));
        if comm.rank() == 0 {
            comm.set_phase("building the token cache");
            std::thread::sleep(Duration::from_millis(700));
        }
        comm.barrier().unwrap();
        comm.finish();
        said.lock().unwrap().clone()
    });
    assert_eq!([reported[0].len(), reported[2].len()], [0, 0], "{reported:?}");
    let first = &reported[1][0];
    assert!(first.starts_with("rank 1 has waited 0 s for rank 0 (running, pid "), "{first}");
    assert!(first.contains("in \"building the token cache\""), "{first}");
}

/// Invariant 11.
#[test]
fn the_last_holder_gives_the_memory_back() {
    const BYTES: usize = 8 << 20;
    // Only this test's file is counted, so other tests may run beside it.
    let touched = ranks(2, |comm| {
        let region = comm.allocate("scratch", BYTES, Sharing::PerRank).unwrap();
        region.write(0, &vec![1u8; BYTES]).unwrap();
        comm.barrier().unwrap();
        let inode_of = |region: &oarlock_comm::Region| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let address = region.as_ptr() as usize;
            let line = maps.lines().find(|line| {
                let (range, _) = line.split_once(' ').unwrap();
                let (start, end) = range.split_once('-').unwrap();
                let at = |text| usize::from_str_radix(text, 16).unwrap();
                (at(start)..at(end)).contains(&address)
            });
            line.unwrap().split_ascii_whitespace().nth(4).unwrap().parse::<u64>().unwrap()
        };
        let inode = inode_of(&region);
        let used = move || {
            let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let file = fds
                .filter_map(|fd| std::fs::metadata(fd.path()).ok())
                .find(|m| std::os::unix::fs::MetadataExt::ino(m) == inode && m.len() > 1 << 30);
            std::os::unix::fs::MetadataExt::blocks(&file.unwrap()) * 512
        };
        let before = used();
        comm.barrier().unwrap();
        drop(region);
        comm.barrier().unwrap();
        let after = used();
        comm.barrier().unwrap();
        comm.finish();
        (before, after)
    });
    for (before, after) in touched {
        assert!(before >= 2 * BYTES as u64 && after < BYTES as u64, "{before} bytes, then {after}");
    }
}

#[test]
fn wrong_arguments_are_refused_and_harm_nobody() {
    for n in [1, 2] {
        ranks(n, move |comm| {
            let region = comm.allocate("g", 64, Sharing::PerRank).unwrap();
            let shared = comm.allocate("w", 64, Sharing::Replicated).unwrap();
            let other = comm.allocate("o", 32, Sharing::PerRank).unwrap();
            let errors = [
                comm.all_reduce(&region, DType::F32, 0..17, Ready::now()).err(),
                comm.all_reduce(&region, DType::I32, 0..4, Ready::now()).err(),
                comm.all_reduce(&shared, DType::F32, 0..4, Ready::now()).err(),
                comm.broadcast(&region, DType::F32, 0..4, n, Ready::now()).err(),
                comm.all_gather(&region, DType::F32, &Ownership::even(0..4, n + 1), Ready::now()).err(),
                comm.all_to_all(&region, &shared, DType::F32, 0..4, Ready::now()).err(),
                comm.all_to_all(&region, &region, DType::F32, 0..4, Ready::now()).err(),
                comm.all_to_all(&region, &other, DType::F32, 0..9, Ready::now()).err(),
                comm.all_to_all(&other, &region, DType::F32, 14..18, Ready::now()).err(),
                comm.send_receive(&region, DType::F32, 0..4, [0, n], Ready::now()).err(),
                comm.send_receive(&region, DType::F32, 0..4, [0, 0], Ready::now()).err(),
                comm.send_receive(&shared, DType::F32, 0..4, [0, n - 1], Ready::now()).err(),
                comm.send_receive(&region, DType::F32, 0..usize::MAX, [0, n - 1], Ready::now()).err(),
                comm.broadcast_bytes(n, b"").err(),
                comm.split(&[vec![0, n]]).err(),
                region.read(15, &mut [0f32; 2]).err(),
                region.write(usize::MAX, &[0f32]).err(),
            ];
            for error in errors {
                assert!(matches!(error, Some(Error::Argument { .. })), "{error:?}");
            }
            comm.barrier().unwrap();
            let traffic = comm.traffic();
            assert_eq!(
                traffic.iter().map(|t| (t.operation, t.calls)).collect::<Vec<_>>(),
                [(Operation::Barrier, 1), (Operation::Allocate, 3)]
            );
            comm.finish();
        });
    }
}

/// Invariant 2.
#[test]
fn many_more_ranks_than_cores_keep_going() {
    let sums = ranks(16, |comm| {
        let mut sum = [0.0];
        for step in 0..200 {
            sum[0] += step as f64 * (comm.rank() + 1) as f64;
            comm.all_reduce_f64(&mut sum, Scalar::Max).unwrap();
            comm.barrier().unwrap();
        }
        comm.finish();
        sum[0]
    });
    assert!(sums.iter().all(|&s| s == sums[0]), "{sums:?}");
}
