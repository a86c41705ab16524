//! Trains a small model on all ranks and on one, with every placement, and saves and loads it between.

use oarlock::checkpoint::{ClientState, Contents, Saver};
use oarlock::data::{Batch, Sampler};
use oarlock::model::{Decoder, DecoderConfig};
use oarlock::shard::{Placements, ShardingConfig};
use oarlock::train::{NextToken, train_step};
use oarlock::{Accelerator, AcceleratorConfig, Prepared, PreparedOptimizer, Result, optim};
use oarlock_comm::{Communicator, Scalar};
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_tensor::DType;
use oarlock_tensor::cpu::difference::largest_difference;

use super::site::{Finding, Site, sampler};

/// The placements of a model, by their names.
const PLACEMENTS: [(&str, Placements); 4] = [
    ("nothing divided", Placements::WHOLE),
    ("ZeRO-1", Placements::OPTIMIZER),
    ("ZeRO-2", Placements::GRADIENTS),
    ("ZeRO-3", Placements::PARAMETERS),
];

/// Tokens of a row, and of the vocabulary.
const LEN: usize = 16;
const VOCAB: usize = 64;

/// Optimizer steps; enough to go through the last step of an epoch, which is not full.
const STEPS: usize = 6;

/// What losses in f32 may differ by: sums are added in another order.
const TOLERANCE: f64 = 1e-5;

/// The same in 16 bits, where each product is rounded to 8 or 11 bits.
const TOLERANCE_16: f64 = 2e-2;

/// A rank with one thread, for what is as small as this.
pub fn accelerator(comm: &Communicator, dtype: DType, placements: Placements) -> Result<Accelerator> {
    let shard = ShardingConfig { dtype, placements, ..ShardingConfig::default() };
    Accelerator::over(
        comm.clone(),
        &AcceleratorConfig { shard, threads: Some(1), ..AcceleratorConfig::default() },
    )
}

/// A training run: a model, its optimizer and its place in the data.
struct Run {
    accelerator: Accelerator,
    model: Prepared<Decoder>,
    optimizer: PreparedOptimizer,
    sampler: Sampler,
    position: u64,
}

impl Run {
    fn new(comm: &Communicator, dtype: DType, placements: Placements, sampler: Sampler) -> Result<Run> {
        let accelerator = accelerator(comm, dtype, placements)?;
        let model = Decoder::new(DecoderConfig::llama(VOCAB, 64, 2, LEN), LEN)?;
        let adamw = optim::adamw(&model).lr(3e-3).weight_decay(0.1).no_decay_of_vectors(&model);
        let (model, optimizer) = accelerator.prepare((model, adamw))?;
        Ok(Run { accelerator, model, optimizer, sampler, position: 0 })
    }

    /// The losses of the next steps.
    fn steps(&mut self, n: usize) -> Result<Vec<f64>> {
        let mut losses = Vec::with_capacity(n);
        for _ in 0..n {
            let window = self.sampler.step_rows(self.position);
            let batches: Vec<Batch> = window.micro_batches.iter().map(|rows| batch(rows)).collect();
            let report = train_step(
                &self.accelerator,
                &NextToken::PLAIN,
                &self.model,
                &self.optimizer,
                &batches,
                1.0,
                &mut PhaseTimer::new(),
            )?;
            losses.push(report.loss());
            self.position = window.end;
        }
        Ok(losses)
    }
}

/// Rows of made-up text; a row that is missing has no targets.
fn batch(rows: &[Option<u64>]) -> Batch {
    let mut batch = Batch { rows: rows.len(), len: LEN, ..Batch::default() };
    for row in rows {
        let token =
            |j: usize| row.map_or(0, |row| ((row * 31 + (j * j * 7 + j * 3) as u64) % VOCAB as u64) as i32);
        let target = |j: usize| if row.is_some() && j + 1 < LEN { token(j + 1) } else { -100 };
        batch.input_ids.extend((0..LEN).map(token));
        batch.labels.extend((0..LEN).map(target));
        batch.n_targets += if row.is_some() { LEN - 1 } else { 0 };
    }
    batch
}

/// The data of the run: steps of 2 micro batches of 2 rows on each rank, and a shorter last step.
fn data(site: &Site) -> Sampler {
    let world = site.comm.world_size() as u64;
    sampler(site, 10 * world + 3, 2, 2)
}

/// The losses of one rank alone on the data of all; rank 0 computes them for all.
fn alone(site: &Site, dtype: DType) -> Result<Vec<f64>> {
    let mut losses = vec![0.0; STEPS];
    if site.comm.rank() == 0 {
        let many = data(site);
        let one = Sampler { world: 1, micro_batch: many.micro_batch * many.world, ..many };
        losses = Run::new(&Communicator::solo(), dtype, Placements::OPTIMIZER, one)?.steps(STEPS)?;
    }
    site.comm.all_reduce_f64(&mut losses, Scalar::Sum)?;
    Ok(losses)
}

/// The largest difference of two lists of losses; infinite where there is none.
fn difference(one: &[f64], other: &[f64]) -> f64 {
    largest_difference(one, other).unwrap_or(f64::INFINITY)
}

fn compare(site: &Site, dtype: DType, tolerance: f64) -> Result<Finding> {
    let expected = alone(site, dtype)?;
    if expected.last() >= expected.first() {
        return Ok(Err(format!("one rank alone learns nothing: {expected:?}")));
    }
    let mut largest: f64 = 0.0;
    for (name, placements) in PLACEMENTS {
        let losses = Run::new(&site.comm, dtype, placements, data(site))?.steps(STEPS)?;
        let off = difference(&losses, &expected);
        if off > tolerance {
            return Ok(Err(format!("{name}: the losses are {losses:?}, those of one rank {expected:?}")));
        }
        largest = largest.max(off);
    }
    Ok(Ok(format!(" (largest difference {largest:.1e})")))
}

/// All ranks together reach the losses of one rank, with every placement.
pub fn parity(site: &Site) -> Result<Finding> {
    compare(site, DType::F32, TOLERANCE)
}

/// The same in the precision that the configuration names.
pub fn precision(site: &Site) -> Result<Finding> {
    match site.dtype {
        Some(dtype) => compare(site, dtype, TOLERANCE_16),
        None => Ok(Ok(" (it is f32)".to_owned())),
    }
}

/// A training run that is saved and loaded goes on bitwise identically.
pub fn state(site: &Site) -> Result<Finding> {
    for (number, (name, placements)) in PLACEMENTS.into_iter().enumerate() {
        let folder = site.folder.join(format!("checkpoint-{number}"));
        let mut run = Run::new(&site.comm, DType::F32, placements, data(site))?;
        run.steps(STEPS / 2)?;
        let kept = ClientState { consumed_samples: run.position, ..ClientState::default() };
        let mut saver = Saver::default();
        run.accelerator.begin_save(&mut saver, &folder, Contents::state(kept))?;
        saver.finish(&site.comm)?;
        let expected = run.steps(STEPS / 2)?;
        let mut again = Run::new(&site.comm, DType::F32, placements, data(site))?;
        again.position = again.accelerator.load_checkpoint(&folder)?.consumed_samples;
        let losses = again.steps(STEPS / 2)?;
        if losses != expected {
            return Ok(Err(format!("{name}: after loading the losses are {losses:?}, not {expected:?}")));
        }
    }
    Ok(Ok(String::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_are_no_numbers_differ() {
        assert_eq!(difference(&[1.0, f64::NAN, 2.0], &[1.0, 1.0, 2.5]), f64::INFINITY);
        assert_eq!(difference(&[1.0, 2.0], &[1.5, 2.25]), 0.5);
    }

    #[test]
    fn a_rank_that_learns_from_other_data_is_found() {
        let site = Site { comm: Communicator::solo(), folder: std::env::temp_dir(), dtype: None };
        let expected = alone(&site, DType::F32).unwrap();
        let other = Sampler { seed: 7, ..data(&site) };
        let losses =
            Run::new(&site.comm, DType::F32, Placements::WHOLE, other).unwrap().steps(STEPS).unwrap();
        assert!(difference(&losses, &expected) > 100.0 * TOLERANCE);
    }
}
