//! Collectives and messages against f64, groups, splits, and the order of their streams.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use half::{bf16, f16};
use oarlock_cuda::driver::{Context, DeviceMemory, Stream};
use oarlock_cuda::nccl::{Comm, Nccl, Patience, Reduction, UniqueId};
use oarlock_cuda::{Element, Error};

use super::{Machine, bytes_of, download, elements, fresh, upload};
use crate::numbers::{Float, Plain, assert_close, f64s, values};

/// Long enough for everything that does not hang.
pub fn patient() -> Patience {
    Patience::new(Duration::from_secs(60))
}

/// A rank with its GPU.
pub struct Rank {
    pub comm: Comm,
    pub stream: Stream,
    pub context: Context,
}

impl Rank {
    pub fn new(machine: &Machine, id: UniqueId, rank: usize, world: usize, patience: Patience) -> Rank {
        let context = machine.context(rank);
        let nccl = Nccl::find(&machine.libraries()).expect("a library");
        let comm = nccl.join(&context, id, rank, world, patience).unwrap_or_else(|error| panic!("{error}"));
        let stream = context.stream().expect("a stream");
        Rank { comm, stream, context }
    }

    pub fn upload<T: Plain>(&self, elements: &[T]) -> DeviceMemory {
        upload(&self.stream, elements)
    }

    pub fn fresh<T: Plain>(&self, n: usize) -> DeviceMemory {
        fresh::<T>(&self.stream, n)
    }

    /// What memory holds when the collectives of the stream are done.
    pub fn download<T: Plain>(&self, memory: &DeviceMemory) -> Vec<T> {
        self.comm.synchronize(&self.stream, patient()).unwrap_or_else(|error| panic!("{error}"));
        download(&self.stream, memory)
    }
}

pub fn unique_id(machine: &Machine) -> UniqueId {
    Nccl::find(&machine.libraries()).expect("a library").unique_id().expect("an id")
}

/// Runs `f` as each rank, in a thread of its own, and finishes.
pub fn as_ranks<R: Send>(machine: &Machine, world: usize, f: impl Fn(&Rank) -> R + Sync) -> Vec<R> {
    let id = unique_id(machine);
    let run = |rank| {
        let rank = Rank::new(machine, id, rank, world, patient());
        let result = f(&rank);
        rank.comm.finalize().unwrap_or_else(|error| panic!("{error}"));
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..world).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

/// More than the ranks' rings hold at once.
const MANY: usize = 12_000;

fn data<T: Float>(rank: usize, n: usize) -> Vec<T> {
    values(rank as u64 + 1, n)
}

fn reduced<T: Float>(world: usize, n: usize, by: Reduction) -> Vec<f64> {
    let all: Vec<Vec<f64>> = (0..world).map(|rank| f64s(&data::<T>(rank, n))).collect();
    let column = |i: usize| all.iter().map(move |rank| rank[i]);
    let fold = |i| match by {
        Reduction::Sum => column(i).sum::<f64>(),
        Reduction::Product => column(i).product(),
        Reduction::Max => column(i).fold(f64::NEG_INFINITY, f64::max),
        Reduction::Min => column(i).fold(f64::INFINITY, f64::min),
        Reduction::Average => column(i).sum::<f64>() / world as f64,
    };
    (0..n).map(fold).collect()
}

fn compare<T: Float>(rank: &Rank, n: usize) {
    let Rank { comm, stream, .. } = rank;
    let (own, world, element) = (comm.rank(), comm.world(), T::ELEMENT);
    let tolerance = 4.0 * T::ROUNDING;
    let x = rank.upload(&data::<T>(own, n));
    for by in [Reduction::Sum, Reduction::Product, Reduction::Max, Reduction::Min, Reduction::Average] {
        let y = rank.fresh::<T>(n);
        comm.all_reduce(x.all(), y.all(), element, by, stream).expect("an all-reduce");
        let want = reduced::<T>(world, n, by);
        assert_close("all-reduce", &rank.download::<T>(&y), &want, tolerance);
    }
    let whole = rank.upload(&data::<T>(own, n * world));
    let part = rank.fresh::<T>(n);
    comm.reduce_scatter(whole.all(), part.all(), element, Reduction::Sum, stream).expect("a reduce-scatter");
    let want = reduced::<T>(world, n * world, Reduction::Sum);
    assert_close("reduce-scatter", &rank.download::<T>(&part), &want[own * n..(own + 1) * n], tolerance);
    comm.all_gather(x.all(), whole.all(), element, stream).expect("an all-gather");
    let want: Vec<T> = (0..world).flat_map(|rank| data::<T>(rank, n)).collect();
    assert_eq!(rank.download::<T>(&whole), want);
    for root in 0..world {
        let memory = rank.upload(&data::<T>(own, n));
        comm.broadcast(memory.all(), element, root, stream).expect("a broadcast");
        assert_eq!(rank.download::<T>(&memory), data::<T>(root, n));
    }
}

#[test]
fn collectives_of_floats_match_the_reference() {
    let Some(machine) = Machine::new() else { return };
    for world in [1, 2, 3] {
        as_ranks(&machine, world, |rank| {
            compare::<f32>(rank, 1000);
            compare::<bf16>(rank, 1001);
            compare::<f16>(rank, 7);
            assert_eq!((rank.comm.world(), rank.comm.context().same(&rank.context)), (world, true));
        });
    }
    as_ranks(&machine, 2, |rank| compare::<f32>(rank, MANY));
}

/// Sums and largest elements of whole numbers, which are exact.
fn compare_whole<T: Plain>(rank: &Rank, of: impl Fn(u64) -> T) {
    let Rank { comm, stream, .. } = rank;
    let world = comm.world() as u64;
    let own: Vec<T> = (0..20).map(|i| of(i * (comm.rank() as u64 + 1))).collect();
    for (by, factor) in [(Reduction::Sum, world * (world + 1) / 2), (Reduction::Max, world)] {
        let memory = rank.upload(&own);
        comm.all_reduce(memory.all(), memory.all(), T::ELEMENT, by, stream).expect("an all-reduce");
        let want: Vec<T> = (0..20).map(|i| of(i * factor)).collect();
        assert_eq!(rank.download::<T>(&memory), want, "{:?} by {by:?}", T::ELEMENT);
    }
}

#[test]
fn collectives_of_whole_numbers_and_f64_are_exact() {
    let Some(machine) = Machine::new() else { return };
    for world in [2, 3] {
        as_ranks(&machine, world, |rank| {
            compare_whole(rank, |x| x as u8);
            compare_whole(rank, |x| x as i8);
            compare_whole(rank, |x| x as i32 * 100_003);
            compare_whole(rank, |x| x << 40);
            compare_whole(rank, |x| x as f64 / 3.0 * 3.0);
        });
    }
}

#[test]
fn ranks_may_share_memory_between_both_sides() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 3, |rank| {
        let Rank { comm, stream, .. } = rank;
        let (own, n) = (comm.rank(), 100);
        let memory = rank.upload(&data::<f32>(own, 3 * n));
        let part = memory.slice(4 * own * n..4 * (own + 1) * n).expect("a part");
        comm.reduce_scatter(memory.all(), part, Element::F32, Reduction::Sum, stream)
            .expect("a reduce-scatter");
        comm.all_gather(part, memory.all(), Element::F32, stream).expect("an all-gather");
        let want = reduced::<f32>(3, 3 * n, Reduction::Sum);
        assert_close("in place", &rank.download::<f32>(&memory), &want, 1e-6);
        // Other overlaps are refused.
        let (x, y) = (memory.slice(0..400).expect("a part"), memory.slice(4..404).expect("a part"));
        let shifted = memory.slice(4 + 400 * own..404 + 400 * own);
        let shifted = shifted.unwrap_or(memory.slice(0..400).expect("a part"));
        for refused in [
            comm.all_reduce(x, y, Element::F32, Reduction::Sum, stream),
            comm.all_gather(shifted, memory.all(), Element::F32, stream),
            comm.reduce_scatter(memory.all(), shifted, Element::F32, Reduction::Sum, stream),
        ] {
            match refused {
                Err(Error::Collective { reason, .. }) => assert!(reason.contains("overlaps"), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn messages_go_around_in_a_group() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 3, |rank| {
        let Rank { comm, stream, .. } = rank;
        let (own, world) = (comm.rank(), comm.world());
        let (next, last) = ((own + 1) % world, (own + world - 1) % world);
        let x = rank.upload(&data::<f32>(own, MANY));
        let (y, z, mine) = (rank.fresh::<f32>(MANY), rank.fresh::<f32>(MANY), rank.fresh::<f32>(MANY));
        let sum = rank.fresh::<f32>(MANY);
        comm.group(stream, |group| {
            group.recv(y.all(), Element::F32, last)?;
            group.send(x.all(), Element::F32, last)?;
            group.send(x.all(), Element::F32, next)?;
            group.recv(z.all(), Element::F32, next)?;
            group.recv(mine.all(), Element::F32, own)?;
            group.send(x.all(), Element::F32, own)?;
            group.all_reduce(x.all(), sum.all(), Element::F32, Reduction::Max)
        })
        .expect("a group");
        assert_eq!(rank.download::<f32>(&y), data::<f32>(last, MANY));
        assert_eq!(rank.download::<f32>(&z), data::<f32>(next, MANY));
        assert_eq!(rank.download::<f32>(&mine), data::<f32>(own, MANY));
        let want = reduced::<f32>(world, MANY, Reduction::Max);
        assert_close("in a group", &rank.download::<f32>(&sum), &want, 0.0);
        // A pipeline: alone in both directions, one after the other.
        if own > 0 {
            comm.recv(y.all(), Element::F32, own - 1, stream).expect("a message");
        }
        if own + 1 < world {
            comm.send(x.all(), Element::F32, own + 1, stream).expect("a message");
        }
        comm.synchronize(stream, patient()).expect("the end of all messages");
    });
}

#[test]
fn a_group_does_all_or_nothing() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 2, |rank| {
        let Rank { comm, stream, .. } = rank;
        let (x, y) = (rank.upload(&[1f32; 10]), rank.upload(&[5f32; 10]));
        // The second one is wrong, on one rank. If the first was done nevertheless, the next collective would meet it.
        let wrong = comm.group(stream, |group| {
            group.all_reduce(x.all(), y.all(), Element::F32, Reduction::Sum)?;
            group.send(x.all(), Element::F32, 7)
        });
        assert!(matches!(wrong, Err(Error::Collective { call: "ncclSend", .. })), "{wrong:?}");
        let together = comm.group(stream, |group| {
            group.all_reduce(x.all(), y.all(), Element::F32, Reduction::Sum)?;
            group.broadcast(y.all(), Element::F32, 0)
        });
        assert!(together.expect_err("an error").to_string().contains("another part of the group"));
        assert_eq!(rank.download::<f32>(&y), [5.0; 10]);
        comm.broadcast(x.all(), Element::F32, 0, stream).expect("a broadcast");
        assert_eq!(rank.download::<f32>(&x), [1.0; 10]);
        comm.group(stream, |_| Ok(())).expect("a group of nothing");
        comm.all_reduce(
            x.slice(0..0).expect("nothing"),
            y.slice(0..0).expect("nothing"),
            Element::F32,
            Reduction::Sum,
            stream,
        )
        .expect("a collective of nothing");
    });
}

#[test]
fn ranks_are_split() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 3, |rank| {
        let own = rank.comm.rank();
        // The outer ranks, in the other order; the inner one alone; then all but the first.
        for round in 0..3 {
            let part = rank
                .comm
                .split(Some(own as u32 % 2), -(own as i32))
                .expect("a split")
                .expect("a communicator");
            let want = if own == 1 { (0, 1) } else { (1 - own / 2, 2) };
            assert_eq!((part.rank(), part.world()), want);
            let memory = rank.upload(&[own as f32 + round as f32]);
            part.all_reduce(memory.all(), memory.all(), Element::F32, Reduction::Sum, &rank.stream)
                .expect("an all-reduce");
            part.synchronize(&rank.stream, patient()).expect("its end");
            let sum = if own == 1 { 1 + round } else { 2 + 2 * round };
            assert_eq!(rank.download::<f32>(&memory), [sum as f32]);
            part.finalize().expect("its end");
        }
        let rest = rank.comm.split((own > 0).then_some(5), 0).expect("a split");
        assert_eq!(rest.as_ref().map(|rest| (rest.rank(), rest.world())), (own > 0).then(|| (own - 1, 2)));
        rest.map_or(Ok(()), Comm::finalize).expect("its end");
    });
    assert_eq!(machine.count(3, "fake_nccl_segments"), 0);
}

#[test]
fn ids_are_bytes_and_text() {
    let Some(machine) = Machine::new() else { return };
    let nccl = Nccl::find(&machine.libraries()).expect("a library");
    assert_eq!(nccl.version().expect("a version"), "2.29.7");
    let (id, other) = (nccl.unique_id().expect("an id"), nccl.unique_id().expect("an id"));
    assert_ne!(id, other);
    assert_eq!(UniqueId::from_bytes(id.to_bytes()), id);
    assert_eq!(id.to_string().parse::<UniqueId>().expect("an id"), id);
    for wrong in ["", "00", &"g".repeat(256), &"é".repeat(128), &"0".repeat(257)] {
        let error = wrong.parse::<UniqueId>().expect_err("no id");
        assert!(error.to_string().contains("256 hexadecimal digits"), "{error}");
    }
}

/// Fills memory on one stream, sums it among the ranks on a second one and copies it on the third, with the events of these
/// numbers. Nobody looks at the sum before all have looked at the copy: another rank's need of it would run it, too.
fn pipeline(rank: &Rank, copied: &AtomicUsize, events: [bool; 2]) -> Vec<f32> {
    let streams = [(); 3].map(|()| rank.context.stream().expect("a stream"));
    let (x, y) = (rank.upload(&[0f32; 50]), rank.upload(&[0f32; 50]));
    streams[0].fill_words(x.all(), 2f32.to_bits()).expect("a fill");
    if events[0] {
        streams[1].wait(&streams[0].mark().expect("an event")).expect("a wait");
    }
    rank.comm.all_reduce(x.all(), x.all(), Element::F32, Reduction::Sum, &streams[1]).expect("an all-reduce");
    if events[1] {
        streams[2].wait(&streams[1].mark().expect("an event")).expect("a wait");
    }
    streams[2].copy(x.all(), y.all()).expect("a copy");
    rank.comm.synchronize(&streams[2], patient()).expect("the end");
    let mut bytes = vec![0; 200];
    streams[2].read_now(y.all(), &mut bytes).expect("a copy");
    let (before, begin) = (copied.fetch_add(1, Ordering::SeqCst), Instant::now());
    let all = (before / rank.comm.world() + 1) * rank.comm.world();
    while copied.load(Ordering::SeqCst) < all {
        assert!(begin.elapsed() < patient().timeout, "another rank does not come");
        std::thread::yield_now();
    }
    rank.comm.synchronize(&streams[1], patient()).expect("the end of the all-reduce");
    elements(&bytes)
}

#[test]
fn events_order_collectives_and_a_missing_one_is_seen() {
    let Some(machine) = Machine::new() else { return };
    let copied = AtomicUsize::new(0);
    as_ranks(&machine, 2, |rank| {
        assert_eq!(pipeline(rank, &copied, [true, true]), [4.0; 50]);
        // The planted mistakes: the sum before its operand, and the copy before the sum.
        assert_eq!(pipeline(rank, &copied, [false, true]), [0.0; 50]);
        assert_eq!(pipeline(rank, &copied, [true, false]), [0.0; 50]);
    });
}

#[test]
fn a_communicator_keeps_its_order_on_several_streams() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 2, |rank| {
        let streams = [(); 2].map(|()| rank.context.stream().expect("a stream"));
        let (x, y) = (rank.upload(&[1f32; 5]), rank.upload(&[1f32; 5]));
        rank.comm.all_reduce(x.all(), x.all(), Element::F32, Reduction::Sum, &streams[0]).expect("a sum");
        rank.comm.all_reduce(y.all(), y.all(), Element::F32, Reduction::Max, &streams[1]).expect("a largest");
        rank.comm.synchronize(&streams[1], patient()).expect("the end");
        // The first one was before, though nobody asked for its stream.
        assert_eq!(bytes_of(&download::<f32>(&streams[1], &x)), bytes_of(&[2f32; 5]));
    });
}

#[test]
fn what_has_no_meaning_is_refused_before_nccl_sees_it() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 2, |rank| {
        let Rank { comm, stream, .. } = rank;
        let (own, sum) = (comm.rank(), Reduction::Sum);
        let (x, y) = (rank.fresh::<f32>(8), rank.fresh::<f32>(16));
        let elsewhere = machine.context(2);
        let (other, other_stream) =
            (elsewhere.alloc(32).expect("memory"), elsewhere.stream().expect("a stream"));
        let odd = y.slice(2..34).expect("a part");
        let short = y.slice(0..30).expect("a part");
        for (result, says) in [
            (comm.all_reduce(x.all(), y.all(), Element::F32, sum, stream), "8 elements to 16 among 2 ranks"),
            (
                comm.reduce_scatter(x.all(), y.all(), Element::F32, sum, stream),
                "8 elements to 16 among 2 ranks",
            ),
            (comm.all_gather(x.all(), x.all(), Element::F32, stream), "8 elements to 8 among 2 ranks"),
            (comm.all_reduce(x.all(), odd, Element::F32, sum, stream), "are not elements of type f32"),
            (comm.all_reduce(short, short, Element::F32, sum, stream), "are not elements of type f32"),
            (comm.broadcast(x.all(), Element::Walk, 0, stream), "no elements of type walk"),
            (comm.broadcast(x.all(), Element::F32, 2, stream), "no rank 2 of 2"),
            (comm.send(x.all(), Element::F32, 9, stream), "no rank 9 of 2"),
            (comm.recv(x.all(), Element::F32, 2, stream), "no rank 2 of 2"),
            (comm.send(x.all(), Element::F32, own, stream), "to itself"),
            (comm.recv(x.all(), Element::F32, own, stream), "to itself"),
            (comm.broadcast(other.all(), Element::F32, 0, stream), "another GPU's context"),
            (comm.broadcast(x.all(), Element::F32, 0, &other_stream), "another GPU's context"),
            (comm.synchronize(&other_stream, patient()), "another GPU's context"),
        ] {
            let said = result.expect_err("an error").to_string();
            assert!(said.contains(says), "{said}");
        }
        let error = comm.split(Some(u32::MAX), 0).err().expect("an error");
        assert!(error.to_string().contains("is not a color"), "{error}");
        // Nothing of this has reached the communicator.
        comm.broadcast(x.all(), Element::F32, 0, stream).expect("a broadcast");
        comm.synchronize(stream, patient()).expect("its end");
    });
    let nccl = Nccl::find(&machine.libraries()).expect("a library");
    let error = nccl.join(&machine.context(0), unique_id(&machine), 2, 2, patient()).err().expect("an error");
    assert!(matches!(error, Error::Collective { .. }), "{error}");
}
