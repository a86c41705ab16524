//! What a region lends: safe callers that nest, forget, panic, drop out of order, or use it beside a collective get an error,
//! and never elements that somebody else is writing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use oarlock_comm::{
    Communicator, Error, Link, Memory, Ownership, Pending, Ready, Region, Result, Sharing, shm,
};
use oarlock_tensor::cpu::{Isa, Par};
use oarlock_tensor::ops::optimizer::Part;
use oarlock_tensor::ops::transfer;
use oarlock_tensor::{DType, Device, FlatBuffer};

const N: usize = 64;

/// Memory of this process, as Miri knows it: a box.
struct Boxed(*mut Lines);

#[repr(align(64))]
struct Lines(#[allow(dead_code)] [u8; 4 * N]);

// SAFETY: it owns what it points to, which is reached through the region made of it alone.
unsafe impl Send for Boxed {}
// SAFETY: as above.
unsafe impl Sync for Boxed {}

// SAFETY: an aligned box of its own, which lives until drop.
unsafe impl Memory for Boxed {
    fn as_ptr(&self) -> *mut u8 {
        self.0.cast()
    }
}

impl Drop for Boxed {
    fn drop(&mut self) {
        // SAFETY: it was a box.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A region of one rank.
fn solo() -> Region {
    let memory = Boxed(Box::into_raw(Box::new(Lines([0; 4 * N]))));
    // SAFETY: one buffer of this size, all of it zero, which nobody else has.
    unsafe { Region::new("values", 4 * N, Sharing::PerRank, 0, vec![Box::new(memory)]) }
}

fn write(region: &Region) -> bool {
    transfer::write_with::<f32, _>(&region.flat(), 0..N, |to| to.fill(1.0)).is_ok()
}

fn read(region: &Region) -> bool {
    transfer::read_with::<f32, _>(&region.flat(), 0..N, |from| from[0]).is_ok()
}

/// Which of these succeed: a slice to write, a slice to read, a copy in, a copy out.
fn uses(region: &Region) -> [bool; 4] {
    [write(region), read(region), region.write(0, &[1f32]).is_ok(), region.read(0, &mut [0f32]).is_ok()]
}

const FREE: [bool; 4] = [true; 4];
const WRITTEN: [bool; 4] = [false; 4];
const READ: [bool; 4] = [false, true, false, true];

/// Runs `rank` on two threads whose collectives proceed in the background; fails when that takes longer than twenty seconds.
fn ranks(rank: impl Fn(Communicator) + Send + Sync + Clone + 'static) {
    let (done, result) = mpsc::channel();
    for comm in shm::threads(2).unwrap() {
        let (done, rank) = (done.clone(), rank.clone());
        let link = Link { latency: Duration::ZERO, bandwidth: 1e12 };
        std::thread::spawn(move || {
            rank(comm.slowed(link).in_background());
            done.send(())
        });
    }
    (0..2).for_each(|_| result.recv_timeout(Duration::from_secs(20)).expect("a rank hangs or panicked"));
}

/// Something that a collective comes after, which the test lets go.
struct Gate(mpsc::Receiver<()>);

impl Pending for Gate {
    fn wait(self: Box<Self>) -> Result<()> {
        let _ = self.0.recv();
        Ok(())
    }
}

fn gate() -> (mpsc::Sender<()>, Ready) {
    let (open, gate) = mpsc::channel();
    (open, Ready::after(Gate(gate)))
}

fn values(region: &Region) -> Vec<f32> {
    transfer::read_with::<f32, _>(&region.flat(), 0..N, <[f32]>::to_vec).unwrap()
}

#[test]
fn closures_that_use_the_region_again_get_errors() {
    let comm = Communicator::solo();
    let region = solo();
    let again = region.clone();
    let inside = transfer::write_with::<f32, _>(&region.flat(), 0..N, |_| [uses(&region), uses(&again)]);
    assert_eq!(inside.unwrap(), [WRITTEN; 2]);
    let inside = transfer::read_with::<f32, _>(&region.flat(), 0..1, |_| [uses(&region), uses(&again)]);
    assert_eq!(inside.unwrap(), [READ; 2]);
    let collective = |region: &Region| comm.all_reduce(region, DType::F32, 0..N, Ready::now()).map(drop);
    let inside = transfer::write_with::<f32, _>(&region.flat(), 0..N, |_| collective(&region).is_ok());
    assert!(!inside.unwrap() && collective(&region).is_ok());
    let error = transfer::write_with::<f32, _>(&region.flat(), 0..N, |_| region.write(0, &[1f32]).err());
    let error = error.unwrap().unwrap().to_string();
    assert!(error.starts_with("write: expected the region \"values\" while nobody else uses it"), "{error}");
    assert_eq!(uses(&region), FREE);
}

#[test]
fn guards_are_forgotten_dropped_out_of_order_and_outlive_the_region() {
    let region = solo();
    let (first, second) = (region.flat().read().unwrap(), region.clone().flat().read().unwrap());
    drop(first);
    assert_eq!(uses(&region), READ);
    drop(second);
    assert_eq!(uses(&region), FREE);
    std::mem::forget(region.flat().read().unwrap());
    assert_eq!(uses(&region), READ, "it is read for good");
    let region = solo();
    std::mem::forget(region.flat().write().unwrap());
    assert_eq!(uses(&region), WRITTEN, "it is written for good");
    let region = solo();
    let (flat, guard) = (region.flat(), region.flat().write().unwrap());
    drop(region);
    assert!(flat.read().is_err());
    drop(guard);
    // The memory lives as long as anybody has it.
    transfer::write_with::<f32, _>(&flat, 0..N, |to| to.fill(3.0)).unwrap();
}

#[test]
fn panics_give_back_what_was_lent() {
    let region = solo();
    let flat = region.flat();
    let panics = |work: &dyn Fn()| assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    panics(&|| transfer::write_with::<f32, ()>(&flat, 0..N, |_| panic!("in a closure")).unwrap());
    panics(&|| transfer::read_with::<f32, ()>(&flat, 0..N, |_| panic!("in a closure")).unwrap());
    panics(&|| {
        let _guards = (flat.read().unwrap(), flat.read().unwrap());
        panic!("with guards");
    });
    assert_eq!(uses(&region), FREE);
}

#[test]
fn ranges_outside_of_the_region_are_refused() {
    let region = solo();
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..N + 1, N..N + 1, 3..2, usize::MAX - 1..usize::MAX, 1 << 62..(1 << 62) + 1, 0..1 << 62] {
        assert!(transfer::write_with::<f32, _>(&region.flat(), range.clone(), |_| ()).is_err(), "{range:?}");
        assert!(transfer::read_with::<f32, _>(&region.flat(), range.clone(), |_| ()).is_err(), "{range:?}");
        assert!(region.read::<f32>(range.start, &mut vec![0.0; N + 1]).is_err());
    }
    assert_eq!(uses(&region), FREE);
}

/// In whatever order threads come, one that writes is alone.
#[test]
fn threads_never_meet_inside() {
    let (region, writers, readers) = (solo(), AtomicUsize::new(0), AtomicUsize::new(0));
    let (wrote, looked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let region = region.clone();
            let (writers, readers, wrote, looked) = (&writers, &readers, &wrote, &looked);
            scope.spawn(move || {
                for turn in 0..if cfg!(miri) { 30 } else { 3000 } {
                    let value = (thread * 3000 + turn) as f32;
                    let write = transfer::write_with::<f32, _>(&region.flat(), 0..N, |to| {
                        assert_eq!((writers.fetch_add(1, SeqCst), readers.load(SeqCst)), (0, 0));
                        to.fill(value);
                        writers.fetch_sub(1, SeqCst);
                    });
                    wrote.fetch_add(write.is_ok().into(), SeqCst);
                    let read = transfer::read_with::<f32, _>(&region.flat(), 0..N, |from| {
                        readers.fetch_add(1, SeqCst);
                        assert_eq!(writers.load(SeqCst), 0);
                        let is_whole = from.iter().all(|x| *x == from[0]);
                        readers.fetch_sub(1, SeqCst);
                        is_whole
                    });
                    looked.fetch_add(read.is_ok().into(), SeqCst);
                    assert!(read.unwrap_or(true));
                }
            });
        }
    });
    assert!(wrote.into_inner() > 0 && looked.into_inner() > 0 && uses(&region) == FREE);
}

/// Every collective holds what it works on until it is over, whatever becomes of its `Ready`.
#[test]
fn a_collective_in_the_background_has_the_region_alone() {
    ranks(|comm| {
        let owners = Ownership::even(0..N, 2);
        let [region, other] = ["a", "b"].map(|name| comm.allocate(name, 4 * N, Sharing::PerRank).unwrap());
        type Start<'a> = &'a dyn Fn(Ready) -> Result<Ready>;
        let starts: [(&str, Start<'_>); 7] = [
            ("all_reduce", &|after| comm.all_reduce(&region, DType::F32, 0..N, after)),
            ("reduce_scatter", &|after| comm.reduce_scatter(&region, DType::F32, &owners, after)),
            ("all_gather", &|after| comm.all_gather(&region, DType::F32, &owners, after)),
            ("broadcast", &|after| comm.broadcast(&region, DType::F32, 0..N, 1, after)),
            ("send_receive", &|after| comm.send_receive(&region, DType::F32, 0..N, [1, 0], after)),
            ("all_to_all", &|after| comm.all_to_all(&region, &other, DType::F32, 0..N, after)),
            ("all_to_all_v", &|after| {
                comm.all_to_all_v(&region, &other, DType::F32, &[N / 4; 2], after).map(|(ready, _)| ready)
            }),
        ];
        for (name, start) in starts {
            for fate in ["waited for", "dropped", "forgotten"] {
                let (open, after) = gate();
                let ready = start(after).unwrap();
                // Another handle, on another thread.
                let far = region.clone();
                let far = std::thread::spawn(move || uses(&far)).join().unwrap();
                assert_eq!([uses(&region), far], [WRITTEN; 2], "{name}, {fate}");
                if name == "all_to_all" {
                    assert_eq!(uses(&other), WRITTEN, "{name}, {fate}");
                }
                match fate {
                    "waited for" => {
                        open.send(()).unwrap();
                        ready.wait().unwrap();
                    }
                    "dropped" => {
                        drop(ready);
                        assert_eq!(uses(&region), WRITTEN, "{name}, {fate}: it is not over");
                        open.send(()).unwrap();
                    }
                    _ => {
                        std::mem::forget(ready);
                        assert_eq!(uses(&region), WRITTEN, "{name}, {fate}: it is not over");
                        open.send(()).unwrap();
                    }
                }
                // What returns a value comes after all of them.
                comm.barrier().unwrap();
                assert_eq!([uses(&region), uses(&other)], [FREE; 2], "{name}, {fate}");
            }
        }
        comm.finish();
    });
}

/// Collectives of one communicator may follow each other on a region; the last that ends gives it back.
#[test]
fn collectives_on_one_region_are_waited_for_out_of_order() {
    ranks(|comm| {
        let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
        region.write(0, &[comm.rank() as f32 + 1.0; N]).unwrap();
        let (open, after) = gate();
        let first = comm.all_reduce(&region, DType::F32, 0..N / 2, after).unwrap();
        let second = comm.all_reduce(&region, DType::F32, N / 2..N, Ready::now()).unwrap();
        let third = comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap();
        drop(second);
        assert_eq!(uses(&region), WRITTEN);
        open.send(()).unwrap();
        third.wait().unwrap();
        assert_eq!(values(&region), [6.0; N]);
        first.wait().unwrap();
        assert_eq!(uses(&region), FREE);
        comm.finish();
    });
}

/// While somebody has the elements, no collective begins; nothing is sent, so that the same call may be made again.
#[test]
fn collectives_on_lent_elements_are_refused_and_can_be_repeated() {
    ranks(|comm| {
        let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
        let other = comm.allocate("b", 4 * N, Sharing::PerRank).unwrap();
        region.write(0, &[1f32; N]).unwrap();
        let reduce = || comm.all_reduce(&region, DType::F32, 0..N, Ready::now());
        let calls = comm.traffic().iter().map(|traffic| traffic.calls).sum::<u64>();
        if comm.rank() == 0 {
            let (reader, second) = (region.flat().read().unwrap(), region.flat().read().unwrap());
            let error = reduce().err().unwrap();
            assert!(matches!(error, Error::Argument { operation: "all_reduce", .. }), "{error}");
            assert!(error.to_string().contains("2 reader(s)"), "{error}");
            drop((reader, second));
            let writer = other.flat().write().unwrap();
            assert!(comm.all_to_all(&region, &other, DType::F32, 0..N, Ready::now()).is_err());
            assert!(comm.all_to_all(&other, &region, DType::F32, 0..N, Ready::now()).is_err());
            drop(writer);
            let inside = transfer::write_with::<f32, _>(&region.flat(), 0..N, |_| reduce().is_err());
            assert!(inside.unwrap() && uses(&region) == FREE, "what was refused holds nothing");
            assert_eq!(comm.traffic().iter().map(|traffic| traffic.calls).sum::<u64>(), calls);
        }
        reduce().unwrap().wait().unwrap();
        assert_eq!(values(&region), [2.0; N]);
        comm.finish();
    });
}

/// Two groups have two threads, which could meet in one region.
#[test]
fn collectives_of_two_groups_do_not_share_a_region() {
    ranks(|comm| {
        let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
        let group = comm.split(&[vec![0, 1]]).unwrap();
        let (open, after) = gate();
        let first = comm.all_reduce(&region, DType::F32, 0..N, after).unwrap();
        let error = group.all_reduce(&region, DType::F32, 0..N, Ready::now()).err().unwrap().to_string();
        assert!(error.contains("another communicator"), "{error}");
        open.send(()).unwrap();
        first.wait().unwrap();
        group.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap().wait().unwrap();
        comm.finish();
    });
}

/// A collective keeps the memory that it works on, and the thread that does it.
#[test]
fn regions_and_communicators_are_dropped_before_their_collectives() {
    ranks(|comm| {
        let group = comm.split(&[vec![0, 1]]).unwrap();
        let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
        region.write(0, &[1f32; N]).unwrap();
        let flat = region.flat();
        let (open, after) = gate();
        let ready = group.all_reduce(&region, DType::F32, 0..N, after).unwrap();
        drop(region);
        let opener = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            open.send(()).unwrap();
        });
        // Waits for what it was given.
        drop(group);
        opener.join().unwrap();
        assert_eq!(transfer::read_with::<f32, _>(&flat, 0..N, |x| x[0]).unwrap(), 2.0);
        ready.wait().unwrap();
        comm.finish();
    });
}

/// Something that a collective comes after and that uses the region, although the collective has it.
struct Meddler(Region, mpsc::Sender<[bool; 4]>);

impl Pending for Meddler {
    fn wait(self: Box<Self>) -> Result<()> {
        self.1.send(uses(&self.0)).unwrap();
        Ok(())
    }
}

/// Something that panics.
struct Panics;

impl Pending for Panics {
    fn wait(self: Box<Self>) -> Result<()> {
        panic!("in a wait");
    }
}

#[test]
fn what_a_collective_comes_after_cannot_use_the_region_either() {
    ranks(|comm| {
        let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
        let (message, heard) = mpsc::channel();
        let after = Ready::after(Meddler(region.clone(), message));
        comm.all_reduce(&region, DType::F32, 0..N, after).unwrap().wait().unwrap();
        assert_eq!((heard.recv().unwrap(), uses(&region)), (WRITTEN, FREE));
        comm.finish();
    });
}

/// Another rank may still read what a collective worked on when it failed here.
#[test]
fn what_a_failed_collective_worked_on_stays_lent() {
    ranks(|comm| {
        let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
        let spare = comm.allocate("b", 4 * N, Sharing::PerRank).unwrap();
        let after = if comm.rank() == 0 { Ready::after(Panics) } else { Ready::now() };
        let failed = comm.all_reduce(&region, DType::F32, 0..N, after).unwrap().wait();
        assert!(failed.is_err());
        assert_eq!([uses(&region), uses(&spare)], [WRITTEN, FREE]);
        let kept = region.flat();
        drop((comm, region));
        assert!(kept.read().is_err() && kept.write().is_err(), "also without the region");
    });
}

/// A caller says that all is ready, but launches are still to write the region: the collective comes after them, as copies do.
#[test]
fn launches_come_first_whatever_the_caller_says() {
    for in_background in [false, true] {
        let threads = shm::threads(2).unwrap().into_iter().map(|comm| {
            std::thread::spawn(move || {
                let comm = if in_background { comm.in_background() } else { comm };
                let device = Device::strict(Isa::detect(), Par::solo());
                let region = comm.allocate("a", 4 * N, Sharing::PerRank).unwrap();
                let ones = FlatBuffer::pooled(&device, 4 * N, "ones").unwrap();
                transfer::store(&device, &[1.0; N], &ones, 0, DType::F32).unwrap();
                let launch = |flat: &FlatBuffer| {
                    let (from, to) = (Part { flat: &ones, range: 0..N }, Part { flat, range: 0..N });
                    transfer::copy(&device, DType::F32, &from, &to).unwrap();
                };
                launch(&region.flat());
                assert!(region.flat().pending().is_some(), "every handle sees it");
                comm.all_reduce(&region, DType::F32, 0..N, Ready::now()).unwrap().wait().unwrap();
                let sums = values(&region);
                launch(&region.flat());
                let mut first = [0f32];
                region.read(0, &mut first).unwrap();
                launch(&region.flat());
                region.write(0, &[5f32]).unwrap();
                let last = values(&region);
                comm.finish();
                (sums, first, last[..2].to_vec())
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            assert_eq!(thread.join().unwrap(), (vec![2.0; N], [1.0], vec![5.0, 1.0]));
        }
    }
}

/// Ranks that do not take part cannot know that others add up their buffers.
#[test]
fn a_region_is_for_the_ranks_that_allocated_it() {
    let ranks = shm::threads(3).unwrap().into_iter().map(|comm| {
        std::thread::spawn(move || {
            let pair = comm.split(&[vec![0, 2], vec![1]]).unwrap();
            let turned = comm.split(&[vec![2, 1, 0]]).unwrap();
            let again = comm.split(&[vec![0, 1, 2]]).unwrap();
            let of_all = comm.allocate("all", 4 * N, Sharing::PerRank).unwrap();
            let of_pair = pair.allocate("pair", 4 * N, Sharing::PerRank).unwrap();
            let foreign = Communicator::solo().allocate("foreign", 4 * N, Sharing::PerRank).unwrap();
            let reduce = |comm: &Communicator, region: &Region| {
                comm.all_reduce(region, DType::F32, 0..N, Ready::now()).and_then(Ready::wait)
            };
            let wrong = [(&pair, &of_all), (&comm, &of_pair), (&turned, &of_all), (&comm, &foreign)];
            for (comm, region) in wrong {
                let error = reduce(comm, region).unwrap_err().to_string();
                assert!(error.contains("which other ranks have allocated"), "{error}");
                let owners = Ownership::even(0..N, comm.world_size());
                assert!(comm.all_gather(region, DType::F32, &owners, Ready::now()).is_err());
                assert!(comm.reduce_scatter(region, DType::F32, &owners, Ready::now()).is_err());
                assert!(comm.broadcast(region, DType::F32, 0..N, 0, Ready::now()).is_err());
                let own = comm.allocate("own", 4 * N, Sharing::PerRank).unwrap();
                let n = N / 6 * 6;
                assert!(comm.all_to_all(region, &own, DType::F32, 0..n, Ready::now()).is_err());
                assert!(comm.all_to_all(&own, region, DType::F32, 0..n, Ready::now()).is_err());
            }
            for (comm, region) in [(&comm, &of_all), (&again, &of_all), (&pair, &of_pair)] {
                reduce(comm, region).unwrap();
            }
            comm.finish();
        })
    });
    ranks.collect::<Vec<_>>().into_iter().for_each(|rank| rank.join().unwrap());
}

/// What launches write is still under way.
struct Launches;

impl Pending for Launches {
    fn wait(self: Box<Self>) -> Result<()> {
        panic!("a rank waits for its own launches, though nobody else looks at what they write")
    }
}

#[test]
fn a_rank_alone_waits_for_no_launch_and_moves_nothing() {
    let of_threads = shm::threads(1).unwrap().remove(0);
    let behind = shm::threads(1).unwrap().remove(0).in_background();
    for comm in [Communicator::solo(), of_threads, behind] {
        let region = comm.allocate("values", 4 * N, Sharing::PerRank).unwrap();
        assert!(write(&region));
        let owners = Ownership::even(0..N, 1);
        let pending = || Ready::after(Launches);
        let after = [
            comm.all_reduce(&region, DType::F32, 0..N, pending()).unwrap(),
            comm.reduce_scatter(&region, DType::F32, &owners, pending()).unwrap(),
            comm.all_gather(&region, DType::F32, &owners, pending()).unwrap(),
            comm.broadcast(&region, DType::F32, 0..N, 0, pending()).unwrap(),
        ];
        // The order is passed on to who uses the region next.
        assert!(after.into_iter().all(|ready| ready.into_pending::<Launches>().is_ok()), "{comm:?}");
        assert_eq!(transfer::read_with::<f32, _>(&region.flat(), 0..N, <[f32]>::to_vec).unwrap(), [1.0; N]);
        comm.finish();
    }
}
