//! Ranks in processes of their own, and ranks that do not come, end or fail: nobody waits forever, and nothing stays.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use oarlock_cuda::nccl::{Nccl, Patience, Reduction, UniqueId};
use oarlock_cuda::{Element, Error, Result};

use super::nccl::{Rank, as_ranks, patient, unique_id};
use super::{Machine, again};

/// Not long enough for what hangs.
fn hasty() -> Patience {
    Patience::new(Duration::from_millis(300))
}

/// Both ranks of a communicator, for one thread.
fn pair(machine: &Machine) -> [Rank; 2] {
    let id = unique_id(machine);
    thread::scope(|scope| {
        let other = scope.spawn(|| Rank::new(machine, id, 1, 2, patient()));
        [Rank::new(machine, id, 0, 2, patient()), other.join().expect("a rank")]
    })
}

/// The variable with the unique id, for the processes that tests start.
const ID: &str = "OARLOCK_TEST_UNIQUE_ID";

/// The rank of a process that was started for a test; none in the test itself.
fn started(machine: &Machine) -> Option<Rank> {
    let id: UniqueId = std::env::var(ID).ok()?.parse().expect("an id");
    Some(Rank::new(machine, id, 1, 2, patient()))
}

/// Exchanges something between two ranks.
fn exchange(rank: &Rank) {
    let Rank { comm, stream, .. } = rank;
    let own = comm.rank();
    let x = rank.upload(&[own as f32 + 1.0; 30_000]);
    let y = rank.fresh::<f32>(30_000);
    comm.all_reduce(x.all(), y.all(), Element::F32, Reduction::Sum, stream).expect("an all-reduce");
    assert_eq!(rank.download::<f32>(&y), [3.0; 30_000]);
    comm.group(stream, |group| {
        group.send(x.all(), Element::F32, 1 - own)?;
        group.recv(y.all(), Element::F32, 1 - own)
    })
    .expect("a group");
    assert_eq!(rank.download::<f32>(&y), [2.0 - own as f32; 30_000]);
}

const TWO: &str = "host::ranks::two_processes_work_together";

#[test]
fn two_processes_work_together() {
    let Some(machine) = Machine::new() else { return };
    if let Some(rank) = started(&machine) {
        exchange(&rank);
        let part = rank.comm.split(Some(3), 0).expect("a split").expect("a communicator");
        part.finalize().expect("its end");
        return rank.comm.finalize().expect("its end");
    }
    let id = unique_id(&machine);
    thread::scope(|scope| {
        let other = scope.spawn(|| again(TWO, ID, id.to_string()));
        let rank = Rank::new(&machine, id, 0, 2, patient());
        exchange(&rank);
        // Its name is gone as soon as all are there.
        assert_eq!(machine.count(3, "fake_nccl_segments"), 1);
        let part = rank.comm.split(Some(3), 0).expect("a split").expect("a communicator");
        assert_eq!((part.rank(), part.world()), (0, 2));
        part.finalize().expect("its end");
        rank.comm.finalize().expect("its end");
        let output = other.join().expect("a process");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    });
    assert_eq!(machine.count(3, "fake_nccl_segments"), 0);
}

const KILLED: &str = "host::ranks::a_killed_process_is_an_error_of_the_others";

#[test]
fn a_killed_process_is_an_error_of_the_others() {
    let Some(machine) = Machine::new() else { return };
    if let Some(rank) = started(&machine) {
        exchange(&rank);
        let own = std::process::id().to_string();
        Command::new("kill").args(["-9", &own]).status().expect("a signal");
        thread::sleep(Duration::from_secs(60));
    }
    let id = unique_id(&machine);
    thread::scope(|scope| {
        let other = scope.spawn(|| again(KILLED, ID, id.to_string()));
        let rank = Rank::new(&machine, id, 0, 2, patient());
        exchange(&rank);
        let memory = rank.upload(&[1f32; 10]);
        let Rank { comm, stream, .. } = &rank;
        // The other one may be gone before it is in the stream, or after.
        let begin = Instant::now();
        let enqueued = comm.all_reduce(memory.all(), memory.all(), Element::F32, Reduction::Sum, stream);
        match enqueued.and_then(|()| comm.synchronize(stream, patient())) {
            Err(Error::Nccl(error)) => {
                assert!(error.is_remote() && error.to_string().contains("Another rank ended"), "{error}");
                assert!(error.detail.contains("rank 1 ended"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
        assert!(!other.join().expect("a process").status.success());
        // It was aborted, so that its memory can be freed.
        assert!(matches!(comm.async_error(), Err(Error::Aborted { rank: 0, world: 2 })));
        assert!(matches!(comm.synchronize(stream, patient()), Err(Error::Aborted { .. })));
        drop(memory);
    });
    assert_eq!(machine.count(3, "fake_nccl_segments"), 0);
}

#[test]
fn a_rank_that_does_not_join_is_an_error() {
    let Some(machine) = Machine::new() else { return };
    let nccl = Nccl::find(&machine.libraries()).expect("a library");
    let id = unique_id(&machine);
    match nccl.join(&machine.context(0), id, 0, 2, hasty()) {
        Err(Error::Late { rank: 0, world: 2, what, seconds }) => {
            assert_eq!((what, seconds), ("all ranks to join", 0.3));
        }
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(machine.count(3, "fake_nccl_alive"), 0);
    assert_eq!(machine.count(3, "fake_nccl_segments"), 0);
    // Whoever comes too late finds nobody.
    let error = nccl.join(&machine.context(1), id, 1, 2, hasty()).err().expect("an error");
    assert!(matches!(error, Error::Nccl(_)), "{error}");
}

#[test]
fn an_operation_that_others_do_not_come_to_is_late_and_given_up() {
    let Some(machine) = Machine::new() else { return };
    let [rank, other] = pair(&machine);
    let memory = rank.upload(&[1f32; 10]);
    let Rank { comm, stream, .. } = &rank;
    comm.all_reduce(memory.all(), memory.all(), Element::F32, Reduction::Sum, stream).expect("an all-reduce");
    let event = stream.mark().expect("an event");
    match comm.wait(&event, hasty()) {
        Err(Error::Late { what, .. }) => assert_eq!(what, "the collectives of a stream"),
        other => panic!("{other:?}"),
    }
    // The GPU goes on, and the other rank hears of it.
    stream.synchronize().expect("the end of the stream");
    assert!(event.is_done().expect("an answer"));
    assert!(matches!(comm.wait(&event, hasty()), Err(Error::Aborted { .. })));
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        match other.comm.async_error() {
            // The end of a communicator reaches its own stream before it reaches the others.
            Ok(()) => assert!(Instant::now() < patience, "the other rank hears nothing"),
            Err(Error::Nccl(error)) => break assert!(error.is_remote(), "{error}"),
            other => panic!("{other:?}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn messages_in_both_directions_need_a_group() {
    let Some(machine) = Machine::new() else { return };
    let ranks = pair(&machine);
    let memory = ranks.each_ref().map(|rank| rank.upload(&[1f32; 10]));
    for (i, rank) in ranks.iter().enumerate() {
        rank.comm.send(memory[i].all(), Element::F32, 1 - i, &rank.stream).expect("a message");
        rank.comm.recv(memory[i].all(), Element::F32, 1 - i, &rank.stream).expect("a message");
    }
    let late = ranks[0].comm.synchronize(&ranks[0].stream, hasty());
    assert!(matches!(late, Err(Error::Late { .. })), "{late:?}");
    let [_, other] = ranks;
    other.comm.abort().expect("the end");
}

#[test]
fn another_thread_aborts_what_hangs() {
    let Some(machine) = Machine::new() else { return };
    let [rank, other] = pair(&machine);
    let memory = rank.upload(&[1f32; 10]);
    rank.comm.broadcast(memory.all(), Element::F32, 1, &rank.stream).expect("a broadcast");
    thread::scope(|scope| {
        let hangs = scope.spawn(|| rank.stream.synchronize());
        thread::sleep(Duration::from_millis(200));
        assert!(!hangs.is_finished(), "nobody has sent anything");
        rank.comm.abort().expect("the end");
        hangs.join().expect("a thread").expect("the end of the stream");
    });
    // Nobody may use what is there now, and a second abort does nothing.
    assert_ne!(super::download::<f32>(&rank.stream, &memory), [1.0; 10]);
    rank.comm.abort().expect("nothing");
    // The other rank cannot go on.
    let error = other.comm.broadcast(memory.all(), Element::F32, 1, &other.stream);
    assert!(matches!(error, Err(Error::OtherContext { .. })), "{error:?}");
    let memory = other.upload(&[1f32; 10]);
    let error = other.comm.broadcast(memory.all(), Element::F32, 1, &other.stream);
    assert!(matches!(error, Err(Error::Nccl(_))), "{error:?}");
    assert_eq!(machine.count(3, "fake_nccl_segments"), 0);
}

#[test]
fn the_end_of_a_communicator_frees_what_hangs() {
    let Some(machine) = Machine::new() else { return };
    let [rank, other] = pair(&machine);
    let memory = rank.upload(&[1f32; 10]);
    rank.comm.broadcast(memory.all(), Element::F32, 1, &rank.stream).expect("a broadcast");
    let Rank { comm, stream, .. } = rank;
    drop(comm);
    stream.synchronize().expect("the end of the stream");
    // The memory of a stream that hangs is freed after that.
    drop((memory, other));
}

#[test]
fn communicators_of_one_stream_are_aborted_together() {
    let Some(machine) = Machine::new() else { return };
    let ranks = pair(&machine);
    let parts = thread::scope(|scope| {
        let split = |rank: &Rank| rank.comm.split(Some(0), 0).expect("a split").expect("a communicator");
        ranks.each_ref().map(|rank| scope.spawn(move || split(rank))).map(|part| part.join().expect("a rank"))
    });
    let ([rank, _other], [part, _]) = (&ranks, &parts);
    let memory = rank.upload(&[1f32; 10]);
    // Nobody sends anything in either of them.
    part.broadcast(memory.all(), Element::F32, 1, &rank.stream).expect("a broadcast");
    rank.comm.broadcast(memory.all(), Element::F32, 1, &rank.stream).expect("a broadcast");
    let soon = |millis| Instant::now() + Duration::from_millis(millis);
    // One by itself waits for its stream, in which the other one hangs.
    rank.comm.begin_abort();
    let alone = rank.comm.wait_for_abort(soon(100));
    assert!(matches!(alone, Err(Error::Late { rank: 0, world: 2, .. })), "{alone:?}");
    assert!(matches!(rank.comm.async_error(), Err(Error::Aborted { .. })), "no call begins any more");
    part.begin_abort();
    for comm in [part, &rank.comm] {
        comm.wait_for_abort(soon(20_000)).expect("the end");
    }
    rank.stream.synchronize().expect("the end of the stream");
}

#[test]
fn a_communicator_that_ends_later_has_ended() {
    let Some(machine) = Machine::new() else { return };
    // ncclInProgress: the library goes on by itself, and nobody may ask it for the progress.
    machine.fail("ncclCommDestroy", 0, 7);
    tour(&machine).expect("a tour");
    machine.fail("ncclCommAbort", 0, 7);
    let rank = Rank::new(&machine, unique_id(&machine), 0, 1, patient());
    rank.comm.abort().expect("an abort");
    let begin = Instant::now();
    while machine.count(3, "fake_nccl_alive") > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it does not end");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ranks_that_do_different_things_are_told_so() {
    let Some(machine) = Machine::new() else { return };
    let id = unique_id(&machine);
    let run = |rank: usize| {
        let rank = Rank::new(&machine, id, rank, 2, patient());
        let memory = rank.upload(&vec![1f32; 10 + rank.comm.rank()]);
        let Rank { comm, stream, .. } = &rank;
        let sum = comm.all_reduce(memory.all(), memory.all(), Element::F32, Reduction::Sum, stream);
        sum.and_then(|()| comm.synchronize(stream, patient())).expect_err("an error").to_string()
    };
    let run = &run;
    let said = thread::scope(|scope| {
        [0, 1].map(|rank| scope.spawn(move || run(rank))).map(|thread| thread.join().expect("a rank"))
    });
    assert!(
        said.iter()
            .any(|said| said.contains("all-reduce of 11 elements")
                || said.contains("all-reduce of 10 elements")),
        "{said:?}"
    );
}

#[test]
fn two_ranks_on_one_gpu_are_refused() {
    let Some(machine) = Machine::new() else { return };
    let (id, context) = (unique_id(&machine), machine.context(0));
    let nccl = Nccl::find(&machine.libraries()).expect("a library");
    let join = |rank| nccl.join(&context, id, rank, 2, patient()).err().expect("an error").to_string();
    let join = &join;
    let said = thread::scope(|scope| {
        [0, 1].map(|rank| scope.spawn(move || join(rank))).map(|thread| thread.join().expect("a rank"))
    });
    assert!(said.iter().any(|said| said.contains("Two ranks on one GPU")), "{said:?}");
}

#[test]
fn an_error_that_comes_by_itself_ends_a_wait() {
    let Some(machine) = Machine::new() else { return };
    let [rank, _other] = pair(&machine);
    let memory = rank.upload(&[1f32; 10]);
    rank.comm.broadcast(memory.all(), Element::F32, 1, &rank.stream).expect("a broadcast");
    machine.fail("the communicator", 1, 3);
    match rank.comm.synchronize(&rank.stream, patient()) {
        Err(Error::Nccl(error)) => {
            assert_eq!((error.call, error.name().as_str()), ("ncclCommGetAsyncError", "ncclInternalError"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_call_that_never_gets_to_its_stream_is_late() {
    let Some(machine) = Machine::new() else { return };
    let rank = Rank::new(&machine, unique_id(&machine), 0, 1, hasty());
    let memory = rank.upload(&[1f32; 10]);
    machine.fail("the communicator", 0, 7);
    match rank.comm.broadcast(memory.all(), Element::F32, 0, &rank.stream) {
        Err(Error::Late { what, .. }) => assert_eq!(what, "all ranks to connect"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(rank.comm.finalize(), Err(Error::Aborted { .. })));
}

/// Uses every function of NCCL, with one rank.
fn tour(machine: &Machine) -> Result<()> {
    let nccl = Nccl::find(&machine.libraries())?;
    nccl.version()?;
    let context = machine.context(0);
    let comm = nccl.join(&context, nccl.unique_id()?, 0, 1, patient())?;
    let stream = context.stream()?;
    let (x, y) = (context.alloc(64)?, context.alloc(64)?);
    let (f32, sum) = (Element::F32, Reduction::Sum);
    stream.fill(x.all(), 0)?;
    comm.all_reduce(x.all(), y.all(), f32, sum, &stream)?;
    comm.reduce_scatter(x.all(), y.all(), f32, sum, &stream)?;
    comm.all_gather(x.all(), y.all(), f32, &stream)?;
    comm.broadcast(x.all(), f32, 0, &stream)?;
    comm.group(&stream, |group| {
        group.send(x.all(), f32, 0)?;
        group.recv(y.all(), f32, 0)
    })?;
    comm.async_error()?;
    comm.synchronize(&stream, patient())?;
    if let Some(part) = comm.split(Some(0), 0)? {
        part.finalize()?;
    }
    comm.finalize()
}

#[test]
fn every_call_of_nccl_may_fail() {
    for call in [
        "ncclGetVersion",
        "ncclGetUniqueId",
        "ncclCommInitRankConfig",
        "ncclAllReduce",
        "ncclReduceScatter",
        "ncclAllGather",
        "ncclBroadcast",
        "ncclSend",
        "ncclRecv",
        "ncclGroupStart",
        "ncclGroupEnd",
        "ncclCommGetAsyncError",
        "ncclCommSplit",
        "ncclCommUserRank",
        "ncclCommCount",
        "ncclCommFinalize",
        "ncclCommDestroy",
    ] {
        let Some(mut machine) = Machine::new() else { return };
        machine.fail(call, 0, 12345);
        match tour(&machine) {
            Err(Error::Nccl(error)) => {
                assert_eq!((error.call, error.code), (call, 12345));
                let said = error.to_string();
                assert!(said.starts_with(&format!("{call} of NCCL failed: ncclResult_t 12345")), "{said}");
            }
            other => panic!("{call}: {other:?}"),
        }
        // What could not be destroyed is there still.
        if call == "ncclCommDestroy" {
            assert_eq!(machine.count(3, "fake_nccl_alive"), 1);
            machine.expect_leaks();
        }
    }
}

#[test]
fn a_failed_abort_is_quiet_and_a_tour_leaves_nothing() {
    let Some(machine) = Machine::new() else { return };
    tour(&machine).expect("a tour");
    assert_eq!((machine.alive(), machine.count(3, "fake_nccl_segments")), (String::new(), 0));
    let Some(mut machine) = Machine::new() else { return };
    machine.fail("ncclCommAbort", 0, 3);
    drop(Rank::new(&machine, unique_id(&machine), 0, 1, patient()));
    assert_eq!(machine.count(3, "fake_nccl_alive"), 1);
    machine.expect_leaks();
}

#[test]
fn a_communicator_may_be_used_by_many_threads() {
    let Some(machine) = Machine::new() else { return };
    as_ranks(&machine, 2, |rank| {
        let memory = [(); 2].map(|()| rank.upload(&[1f32; 100]));
        // Both threads ask for the same, so their order does not matter.
        thread::scope(|scope| {
            for memory in &memory {
                let all = memory.all();
                scope.spawn(move || {
                    for _ in 0..5 {
                        rank.comm
                            .all_reduce(all, all, Element::F32, Reduction::Sum, &rank.stream)
                            .expect("an all-reduce");
                    }
                });
            }
        });
        for memory in &memory {
            assert_eq!(rank.download::<f32>(memory).len(), 100);
        }
    });
}
