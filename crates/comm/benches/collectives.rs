//! Times of the collectives between processes: `cargo bench -p oarlock-comm [-- RANKS…]`. Each line is the least of many.
//! Under `mpirun`, with the feature `mpi` and `OARLOCK_TRANSPORT=mpi`, its ranks are those that are measured; so they are over
//! Gloo (`bench/gloo/run`). `RUNS` are the repetitions of the first; with `ONLY_ALL_REDUCE` the others are left out.

use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use oarlock_comm::shm::ShmHost;
use oarlock_comm::{
    Communicator, Grace, Ownership, RankGroup, Ready, Result, Scalar, Sharing, StopSignals, available_cores,
    cores_for_rank, pin_current_thread,
};
use oarlock_tensor::DType;

/// The gradients of a model of 26 million parameters.
const ELEMENTS: usize = 103_000_000 / 4;

fn main() -> Result<()> {
    if let Some(comm) = oarlock_comm::from_env(&|_| ())? {
        return measure(&comm);
    }
    let asked: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
    let cores = available_cores().len();
    let worlds = if asked.is_empty() { vec![2, cores, 4 * cores] } else { asked };
    let signals = StopSignals::catch()?;
    for (i, &ranks) in worlds.iter().enumerate() {
        if worlds[..i].contains(&ranks) {
            continue;
        }
        println!("{ranks} ranks on {cores} cores");
        let this = std::env::current_exe().expect("a program that runs has a path");
        let commands = (0..ranks).map(|_| Command::new(&this)).collect();
        let ending =
            RankGroup::spawn(Arc::new(ShmHost::create(ranks)?), commands, Grace::SHORT, &signals)?.wait()?;
        assert!(ending.is_success(), "{ending:?}");
    }
    Ok(())
}

fn measure(comm: &Communicator) -> Result<()> {
    let (rank, world) = (comm.rank(), comm.world_size());
    // Ranks of other launchers may be on several machines, which have the same cores here.
    if std::env::var_os("RANK").is_none() {
        pin_current_thread(&cores_for_rank(rank, world))?;
    }
    let region = comm.allocate("gradients", 4 * ELEMENTS, Sharing::PerRank)?;
    // SAFETY: no collective runs yet, and nobody else writes this rank's buffer.
    unsafe { region.as_mut_slice::<f32>() }.iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32);
    let owners = Ownership::even(0..ELEMENTS, world);
    let all = || comm.all_reduce(&region, DType::F32, 0..ELEMENTS, Ready::now())?.wait();
    let scatter = || comm.reduce_scatter(&region, DType::F32, &owners, Ready::now())?.wait();
    let gather = || comm.all_gather(&region, DType::F32, &owners, Ready::now())?.wait();
    let few = || comm.all_reduce(&region, DType::F32, 0..1024, Ready::now())?.wait();
    let mut sum = [rank as f64];
    let runs = std::env::var("RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(60);
    report(comm, "all_reduce 103 MB f32", runs, 1, all)?;
    if std::env::var_os("ONLY_ALL_REDUCE").is_some() {
        report(comm, "all_reduce 4 KB f32", 20, 200, few)?;
        comm.finish();
        return Ok(());
    }
    report(comm, "reduce_scatter 103 MB f32", 60, 1, scatter)?;
    report(comm, "all_gather 103 MB", 60, 1, gather)?;
    report(comm, "all_reduce 4 KB f32", 20, 200, few)?;
    report(comm, "barrier", 20, 500, || comm.barrier())?;
    report(comm, "all_reduce_f64 of one", 20, 500, || comm.all_reduce_f64(&mut sum, Scalar::Max))?;
    comm.finish();
    Ok(())
}

fn report(
    comm: &Communicator,
    what: &str,
    runs: usize,
    each: usize,
    mut act: impl FnMut() -> Result<()>,
) -> Result<()> {
    let (mut least, mut total) = (f64::INFINITY, 0.0);
    for _ in 0..runs {
        comm.barrier()?;
        let began = Instant::now();
        (0..each).try_for_each(|_| act())?;
        let micros = began.elapsed().as_secs_f64() * 1e6 / each as f64;
        least = least.min(micros);
        total += micros;
    }
    if comm.rank() == 0 {
        println!("  {what:28} least {least:10.1} us   mean {:10.1} us", total / runs as f64);
    }
    Ok(())
}
