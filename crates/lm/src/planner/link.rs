//! Measurements of the link between machines, as a training run uses it: by ranks that compute before and beside
//! collectives.

use std::time::Instant;

use oarlock_comm::{Communicator, Ownership, Ready, Region, Scalar, Sharing};
use oarlock_engine::{Error, Result};
use oarlock_tensor::DType;

use super::measure::{ELEMENTS, REPEATS, median};
use super::network::{Call, CallKind, Network, Over, Ranks};

/// Elements of a computation.
const WORK: usize = 4 << 20;
/// Reductions that are begun together.
const BURST: usize = 8;

/// Measures the link between machines, over ranks of which each is on its own machine, or as many on each. All ranks call it.
/// `tell` hears what is measured next: over a slow link each of it takes long.
///
/// # Errors
/// Ranks of one machine, and a failed rank.
pub fn measure_network(comm: &Communicator, report: &dyn Fn(&str)) -> Result<Network> {
    let machines = comm.machines();
    let n = machines.iter().max().map_or(1, |last| last + 1);
    if n < 2 {
        return Err(Error::Usage(
            "plan: to measure the link between machines, start one rank on each of two or more machines by a launcher".to_owned(),
        ));
    }
    let ranks = Ranks { machines: n, per_machine: machines.len() / n, groups: 1, sum_bytes: 4 };
    let [few, many] = ELEMENTS.map(|elems| {
        let bytes = 4 * elems as u64;
        Call { operation: CallKind::AllGather, bytes, over: Over::Shard }
    });
    let mut link = Link::new(comm)?;
    report("1 of 4: small messages after a computation");
    let small = link.after_computation(0, 16 * REPEATS.1)?;
    report("2 of 4: large messages after a computation");
    let large = link.after_computation(1, REPEATS.1)?;
    let passes = link.passes_of(2.0 * large)?;
    // Each of what follows computes as long as two large messages take, and the last one twice.
    let rest = |times: usize| (2 * times * REPEATS.1) as f64 * large;
    report(&format!("3 of 4: small messages beside a computation, about {:.0} s", rest(1)));
    let beside = link.beside_computation(passes)?;
    report(&format!("4 of 4: a computation beside large messages, about {:.0} s", rest(2)));
    let mut own = [small.max(beside), large, link.lost(passes)?];
    // The slowest rank counts.
    comm.all_reduce_f64(&mut own, Scalar::Max)?;
    let [small, large, lost] = own;
    let bandwidth = (ranks.sent(many) - ranks.sent(few)) / (large - small).max(large / 10.0);
    // Headers, and data.
    let latency = (small - ranks.sent(few) / bandwidth).max(small / 10.0) / 2.0;
    Ok(Network { latency, bandwidth, overhead: lost / ranks.sent_by_rank(many) })
}

/// What is sent, and what is computed.
struct Link<'a> {
    comm: &'a Communicator,
    /// Few elements, and many.
    regions: [(Region, Ownership); 2],
    work: Vec<f32>,
}

impl Link<'_> {
    fn new(comm: &Communicator) -> Result<Link<'_>> {
        let [few, many] = ELEMENTS.map(|elems| -> Result<_> {
            let region = comm.allocate("measured link", elems * 4, Sharing::PerRank)?;
            Ok((region, Ownership::even(0..elems, comm.world_size())))
        });
        Ok(Link { comm, regions: [few?, many?], work: vec![1.0; WORK] })
    }

    fn reduce(&self, index: usize) -> Result<Ready> {
        let (region, owners) = &self.regions[index];
        Ok(self.comm.reduce_scatter(region, DType::F32, owners, Ready::now())?)
    }

    fn gather(&self, index: usize) -> Result<Ready> {
        let (region, owners) = &self.regions[index];
        Ok(self.comm.all_gather(region, DType::F32, owners, Ready::now())?)
    }

    /// Computes; returns the seconds.
    fn compute(&mut self, passes: usize) -> f64 {
        let begin = Instant::now();
        for _ in 0..passes {
            self.work.iter_mut().for_each(|value| *value = 0.5 * *value + 1.0);
            std::hint::black_box(&mut self.work);
        }
        begin.elapsed().as_secs_f64()
    }

    /// How many passes of a computation take so many seconds; the same on all ranks.
    fn passes_of(&mut self, seconds: f64) -> Result<usize> {
        let pass = median((0..REPEATS.1).map(|_| self.compute(1)).collect());
        let mut passes = [seconds / pass];
        self.comm.all_reduce_f64(&mut passes, Scalar::Max)?;
        Ok((passes[0].ceil() as usize).clamp(1, 10_000))
    }

    /// Mean seconds of a reduction and of a gather after a computation, from which ranks come at different times.
    fn after_computation(&mut self, index: usize, repeats: usize) -> Result<f64> {
        let mut seconds = 0.0;
        for repeat in 0..=repeats {
            self.compute(1);
            let begin = Instant::now();
            self.reduce(index)?.precede_launches()?;
            self.gather(index)?.precede_launches()?;
            // The first brings up the memory.
            if repeat > 0 {
                seconds += begin.elapsed().as_secs_f64() / (2 * repeats) as f64;
            }
        }
        Ok(seconds)
    }

    /// Mean seconds of a small reduction beside a computation, where it waits until a core looks at it.
    fn beside_computation(&mut self, passes: usize) -> Result<f64> {
        let comm = self.comm;
        let total = || comm.communication_time().unwrap_or_default().total.as_secs_f64();
        let mut seconds = 0.0;
        for _ in 0..REPEATS.1 {
            comm.barrier()?;
            let before = total();
            let begun = (0..BURST).map(|_| self.reduce(0)).collect::<Result<Vec<_>>>()?;
            self.compute(passes);
            begun.into_iter().try_for_each(Ready::precede_launches)?;
            seconds += (total() - before) / (BURST * REPEATS.1) as f64;
        }
        Ok(seconds)
    }

    /// Mean seconds by which a large gather prolongs a computation beside it.
    fn lost(&mut self, passes: usize) -> Result<f64> {
        let mut seconds = 0.0;
        for _ in 0..REPEATS.1 {
            self.comm.barrier()?;
            let alone = self.compute(passes);
            self.comm.barrier()?;
            let gathered = self.gather(1)?;
            seconds += (self.compute(passes) - alone) / REPEATS.1 as f64;
            gathered.precede_launches()?;
        }
        Ok(seconds.max(0.0))
    }
}
