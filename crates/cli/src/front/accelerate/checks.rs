//! What a training run relies on, checked on the ranks themselves. Each check says on every rank what differed there.

use std::time::{SystemTime, UNIX_EPOCH};

use oarlock::Result;
use oarlock::data::Sampler;
use oarlock_comm::{Communicator, Ready, Scalar, Sharing};
use oarlock_tensor::{DType, Init};

use super::checks_training as training;
use super::site::{Finding, Site, sampler};

use oarlock::shard::{ParamSlice, SeededInit, WeightSource};

/// A check.
pub struct Check {
    /// Its name.
    pub name: &'static str,
    /// What it does on each rank.
    pub run: fn(&Site) -> Result<Finding>,
}

/// All checks, in the order in which one relies on the others.
pub const CHECKS: &[Check] = &[
    Check { name: "every rank is there", run: ranks },
    Check { name: "sums", run: sums },
    Check { name: "broadcast", run: broadcast },
    Check { name: "gather", run: gather },
    Check { name: "barrier", run: barrier },
    Check { name: "seeds", run: seeds },
    Check { name: "data: each sample once", run: once },
    Check { name: "data: the same steps on any number of ranks", run: steps },
    Check { name: "training: the losses of one rank", run: training::parity },
    Check {
        name: "training: the losses of one rank, in the precision of the configuration",
        run: training::precision,
    },
    Check { name: "state: saved, loaded, and the same losses", run: training::state },
];

/// What all ranks found: the word of rank 0, or everything that differed.
pub fn together(comm: &Communicator, finding: Finding) -> Result<Finding> {
    let (wrong, well) = match finding {
        Ok(well) => (String::new(), well),
        Err(wrong) => (wrong, String::new()),
    };
    let all = comm.all_gather_bytes(wrong.as_bytes())?;
    let wrong = all.iter().enumerate().filter(|(_, text)| !text.is_empty());
    let wrong: Vec<_> =
        wrong.map(|(rank, text)| format!("rank {rank}: {}", String::from_utf8_lossy(text))).collect();
    Ok(if wrong.is_empty() { Ok(well) } else { Err(wrong.join("; ")) })
}

/// What was expected and what came.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, came: &T, expected: &T) -> Finding {
    if came == expected { Ok(String::new()) } else { Err(format!("{what} is {came:?}, not {expected:?}")) }
}

fn ranks(site: &Site) -> Result<Finding> {
    let mine = (site.comm.rank() as u64).to_le_bytes();
    let all = site.comm.all_gather_bytes(&mine)?;
    let expected: Vec<Vec<u8>> =
        (0..site.comm.world_size() as u64).map(|rank| rank.to_le_bytes().to_vec()).collect();
    Ok(same("the list of ranks", &all, &expected))
}

/// Small whole numbers, whose sums are exact in f32.
fn value(rank: usize, i: usize) -> f32 {
    ((rank + 1) * (i % 13 + 1)) as f32
}

fn sums(site: &Site) -> Result<Finding> {
    /// More than one block of the transport, and no whole number of them.
    const N: usize = 10_007;
    let (comm, world) = (&site.comm, site.comm.world_size());
    let mut scalars = [comm.rank() as f64 + 1.0, 1.0];
    comm.all_reduce_f64(&mut scalars, Scalar::Sum)?;
    let triangle = world * (world + 1) / 2;
    if let Err(wrong) = same("the sum of 1, 2, …", &scalars, &[triangle as f64, world as f64]) {
        return Ok(Err(wrong));
    }
    let region = comm.allocate("accelerate test", 4 * N, Sharing::PerRank)?;
    let mine: Vec<f32> = (0..N).map(|i| value(comm.rank(), i)).collect();
    region.write(0, &mine)?;
    comm.all_reduce(&region, DType::F32, 0..N, Ready::now())?.wait()?;
    let mut came = vec![0.0f32; N];
    region.read(0, &mut came)?;
    let wrong = came.iter().enumerate().find(|(i, sum)| **sum != (triangle * (i % 13 + 1)) as f32);
    Ok(wrong.map_or(Ok(String::new()), |(i, sum)| Err(format!("element {i} of the sums is {sum}"))))
}

fn broadcast(site: &Site) -> Result<Finding> {
    for root in 0..site.comm.world_size() {
        let word = format!("from rank {root}").repeat(root + 1);
        let mine = if site.comm.rank() == root { word.as_bytes() } else { &[] };
        let came = site.comm.broadcast_bytes(root, mine)?;
        if came != word.as_bytes() {
            return Ok(Err(format!("the word of rank {root} came as {:?}", String::from_utf8_lossy(&came))));
        }
    }
    Ok(Ok(String::new()))
}

fn gather(site: &Site) -> Result<Finding> {
    let of = |rank: usize| vec![rank as u8; 3 * rank + 1];
    let came = site.comm.all_gather_bytes(&of(site.comm.rank()))?;
    let expected: Vec<Vec<u8>> = (0..site.comm.world_size()).map(of).collect();
    Ok(same("what was gathered", &came, &expected))
}

fn barrier(site: &Site) -> Result<Finding> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    // Each rank comes at another time; none may go on before the last one came.
    std::thread::sleep(std::time::Duration::from_millis(site.comm.rank() as u64 % 8));
    let came = now();
    site.comm.barrier()?;
    let went = now();
    let all = site.comm.all_gather_bytes(&came.to_le_bytes())?;
    let last =
        all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?))).max();
    Ok(match last {
        Some(last) if last <= went => Ok(String::new()),
        _ => Err("went on before the last rank had come".to_owned()),
    })
}

fn seeds(site: &Site) -> Result<Finding> {
    let accelerator = training::accelerator(&site.comm, DType::F32, oarlock::shard::Placements::OPTIMIZER)?;
    let mut weights = SeededInit::new(42, accelerator.device());
    let mut drawn = vec![0.0f32; 1000];
    let shape = oarlock_tensor::Shape::new(&[1000])?;
    let (name, init) = ("model.weight", Init::Normal { std: 1.0 });
    weights.read(&ParamSlice { name, shape, init, elements: 0..1000 }, &mut drawn)?;
    let order: Vec<u64> = (0..97).map(|i| sampler(site, 97, 1, 1).row_at(3, i)).collect();
    let mut mine = bytemuck::cast_slice::<f32, u8>(&drawn).to_vec();
    mine.extend_from_slice(bytemuck::cast_slice(&order));
    let all = site.comm.all_gather_bytes(&mine)?;
    let other = all.iter().position(|theirs| theirs != &mine);
    Ok(other.map_or(Ok(String::new()), |rank| Err(format!("draws other numbers than rank {rank}"))))
}

/// Stands for the sample that a rank does not have.
const FILLER: u64 = u64::MAX;

/// The numbers of samples to check: multiples of the number of ranks, and others.
fn lengths(world: u64) -> [u64; 4] {
    [12 * world, 12 * world + 1, 7 * world + 3, world.max(2) - 1]
}

/// The samples of an epoch on this rank, step by step and micro batch by micro batch.
fn epoch(sampler: &Sampler) -> Vec<u64> {
    let (mut position, mut rows) = (0, Vec::new());
    while position < sampler.len {
        let window = sampler.step_rows(position);
        rows.extend(window.micro_batches.into_iter().flatten().map(|row| row.unwrap_or(FILLER)));
        position = window.end;
    }
    rows
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytemuck::pod_collect_to_vec(bytes)
}

fn once(site: &Site) -> Result<Finding> {
    for len in lengths(site.comm.world_size() as u64) {
        for shuffle in [false, true] {
            let mine = epoch(&Sampler { shuffle, ..sampler(site, len, 2, 2) });
            let all = site.comm.all_gather_bytes(bytemuck::cast_slice(&mine))?;
            let all: Vec<Vec<u64>> = all.iter().map(|bytes| numbers(bytes)).collect();
            if let Err(wrong) = each_once(len, &all) {
                return Ok(Err(wrong));
            }
        }
    }
    Ok(Ok(String::new()))
}

/// Whether the ranks together see each sample once, in equally many steps.
fn each_once(len: u64, all: &[Vec<u64>]) -> Finding {
    if all.iter().any(|rows| rows.len() != all[0].len()) {
        let counts: Vec<usize> = all.iter().map(Vec::len).collect();
        return Err(format!("of {len} samples the ranks have {counts:?} places"));
    }
    // Ranks without a sample compute a filler, so that all take part in every step.
    let mut seen: Vec<u64> = all.iter().flatten().copied().filter(|row| *row != FILLER).collect();
    seen.sort_unstable();
    if seen == (0..len).collect::<Vec<_>>() {
        return Ok(String::new());
    }
    Err(format!("of {len} samples the ranks see {}: {seen:?}", seen.len()))
}

fn steps(site: &Site) -> Result<Finding> {
    let world = site.comm.world_size() as u64;
    for len in lengths(world) {
        let many = sampler(site, len, 2, 2);
        let one = Sampler { world: 1, rank: 0, micro_batch: 2 * world, ..many.clone() };
        let all = site.comm.all_gather_bytes(bytemuck::cast_slice(&epoch(&many)))?;
        let all: Vec<Vec<u64>> = all.iter().map(|bytes| numbers(bytes)).collect();
        if let Err(wrong) = same_steps(&epoch(&one), &all, 2) {
            return Ok(Err(wrong));
        }
    }
    Ok(Ok(String::new()))
}

/// Whether the micro batches of all ranks, in the order of ranks, are those of one.
fn same_steps(one: &[u64], all: &[Vec<u64>], micro_batch: usize) -> Finding {
    let steps = all.iter().map(Vec::len).max().unwrap_or(0).div_ceil(micro_batch);
    let joined = (0..steps).flat_map(|step| {
        all.iter().flat_map(move |rows| rows.iter().skip(step * micro_batch).take(micro_batch)).copied()
    });
    let joined: Vec<u64> = joined.collect();
    match joined == one {
        true => Ok(String::new()),
        false => Err(format!("samples come as {joined:?}, and on one rank as {one:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_as_threads_pass_every_check() {
        let folder = tempfile::tempdir().unwrap();
        let ranks = oarlock_comm::shm::on_threads(2, |comm| {
            let site = Site { comm, folder: folder.path().to_path_buf(), dtype: Some(DType::BF16) };
            let run = |check: &Check| together(&site.comm, (check.run)(&site).unwrap()).unwrap();
            CHECKS.iter().map(|check| (check.name, run(check))).collect::<Vec<_>>()
        });
        for (name, found) in ranks.unwrap().into_iter().flatten() {
            assert!(found.is_ok(), "{name}: {found:?}");
        }
    }

    #[test]
    fn what_one_rank_finds_all_know() {
        let ranks = oarlock_comm::shm::on_threads(3, |comm| {
            let mine = if comm.rank() == 1 { Err("it is 7".to_owned()) } else { Ok(String::new()) };
            together(&comm, mine).unwrap()
        });
        for found in ranks.unwrap() {
            assert_eq!(found, Err("rank 1: it is 7".to_owned()));
        }
    }

    #[test]
    fn a_wrong_split_of_the_data_is_found() {
        assert!(each_once(5, &[vec![0, 1, 4], vec![2, 3, FILLER]]).is_ok());
        for wrong in [
            [vec![0, 1, 4], vec![2, 4, FILLER]],
            [vec![0, 1, FILLER], vec![2, 3, FILLER]],
            [vec![0, 1, 4], vec![2, 3, 4]],
            [vec![0, 1, 4, FILLER], vec![2, 3, FILLER]],
        ] {
            assert!(each_once(5, &wrong).is_err(), "{wrong:?}");
        }
        assert!(same_steps(&[0, 1, 2, 3, 4, 5, 6, 7], &[vec![0, 1, 4, 5], vec![2, 3, 6, 7]], 2).is_ok());
        assert!(same_steps(&[0, 1, 2, 3, 4, 5, 6, 7], &[vec![2, 3, 4, 5], vec![0, 1, 6, 7]], 2).is_err());
        assert!(same_steps(&[0, 1, 2, 3], &[vec![0, 1], vec![2]], 2).is_err());
    }
}
