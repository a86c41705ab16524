//! A loader of rows of tokens: each rank gets the micro-batches of its steps, and checkpoints keep the position.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use oarlock_engine::parallel::sequence_parallel::SequenceParallel;
use oarlock_engine::{Error, Plan, Prepare, Result, Stateful};
use serde_json::{Value, json};

use crate::data::{Loader, Rows, Sampler, StepBatches};

/// Rows of tokens in the order of their training; prepared, it is a [`PreparedTokenLoader`].
#[derive(Clone)]
pub struct TokenLoader {
    /// The rows.
    pub rows: Arc<Rows>,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
    /// The seed of these orders.
    pub seed: u64,
    /// Rows of a rank in a micro-batch.
    pub micro_batch: u64,
    /// Micro-batches of a rank in a step.
    pub accumulation: u64,
}

/// The steps of a rank over rows of tokens, without end and prepared ahead of time. Where ranks divide sequences, they are of
/// this rank's parts.
pub struct PreparedTokenLoader {
    rows: Arc<Rows>,
    sampler: Sampler,
    sequence: Option<SequenceParallel>,
    position: Position,
    /// With the position at which it goes on.
    running: Option<(Loader, u64)>,
}

/// The samples that were consumed, over all epochs and ranks.
#[derive(Clone, Default)]
struct Position(Arc<AtomicU64>);

impl PreparedTokenLoader {
    /// The micro-batches of this rank for the next step.
    ///
    /// # Errors
    /// When the thread that prepares them cannot be started, or has died.
    pub fn next_step(&mut self) -> Result<StepBatches> {
        self.next_step_of(|_| Ok(()))
    }

    /// As [`PreparedTokenLoader::next_step`], with what `make` makes of the whole rows of the step.
    ///
    /// # Errors
    /// As there, and what `make` reports.
    pub fn next_step_of(&mut self, make: impl FnOnce(&mut StepBatches) -> Result<()>) -> Result<StepBatches> {
        let position = self.position();
        let (loader, next) = match self.running.take_if(|(_, next)| *next == position) {
            Some(running) => self.running.insert(running),
            None => {
                let loader = Loader::new(self.rows.clone(), self.sampler.clone(), position)?;
                self.running.insert((loader, position))
            }
        };
        let mut step = loader.next_step()?;
        *next = step.position;
        make(&mut step)?;
        if let Some(sequence) = &self.sequence {
            step.batches.iter_mut().for_each(|batch| batch.keep_part(sequence.rank(), sequence.size()));
        }
        self.set_position(step.position);
        Ok(step)
    }

    /// Gives the memory of a step back, so that the next ones need none of their own.
    pub fn give_back(&self, step: StepBatches) {
        if let Some((loader, _)) = &self.running {
            loader.give_back(step);
        }
    }

    /// The samples that were consumed, over all epochs and ranks.
    pub fn position(&self) -> u64 {
        self.position.0.load(Relaxed)
    }

    /// Goes on behind so many samples.
    pub fn set_position(&self, samples: u64) {
        self.position.0.store(samples, Relaxed);
    }

    /// Which rows a step has.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }
}

impl Stateful for Position {
    fn state_dict(&self) -> Result<Value> {
        Ok(json!({ "position": self.0.load(Relaxed) }))
    }

    fn load_state_dict(&self, state: &Value) -> Result<()> {
        let position = state.get("position").and_then(Value::as_u64);
        let position =
            position.ok_or_else(|| Error::Usage(format!("a loader of tokens cannot go on from {state}")))?;
        self.0.store(position, Relaxed);
        Ok(())
    }
}

impl Prepare for TokenLoader {
    type Prepared = PreparedTokenLoader;

    fn announce(&self, plan: &mut Plan) -> Result<()> {
        plan.add_batch_size(usize::try_from(self.micro_batch).unwrap_or(usize::MAX));
        Ok(())
    }

    fn finish(self, plan: &Plan) -> Result<PreparedTokenLoader> {
        let accelerator = &plan.accelerator;
        let (world, rank) = accelerator.data_parallel();
        let sequence = accelerator.sequence_parallel().cloned();
        let sampler = Sampler {
            len: self.rows.n_rows(),
            seed: self.seed,
            shuffle: self.shuffle,
            world: world as u64,
            rank: rank as u64,
            micro_batch: self.rows.micro_batch(world as u64, self.micro_batch),
            accumulation: self.accumulation,
            lengths: self.rows.lengths().cloned(),
        };
        sampler.check()?;
        let position = Position::default();
        plan.add_stateful("dataloader", Arc::new(position.clone()));
        Ok(PreparedTokenLoader { rows: self.rows, sampler, sequence, position, running: None })
    }
}
