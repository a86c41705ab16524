//! Batches, prepared ahead of time by one thread, from any position on.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use oarlock_engine::report::panics;

use super::batch::{Batch, MISMATCHED, Sample};
use super::deal::share;
use super::error::{Error, Result};
use super::rows::Rows;
use super::sampler::Sampler;

impl Batch {
    /// Fills the batch again, in the memory that it has. Each row is the sample at its position.
    fn fill(&mut self, data: &Rows, rows: &[Option<u64>], positions: impl Iterator<Item = u64>) {
        self.samples.clear();
        let mut begin = 0;
        for (row, position) in rows.iter().zip(positions) {
            let len = row.map_or(0, |row| data.tokens_in(row));
            if row.is_some() {
                self.samples.push(Sample { position, tokens: begin..begin + len });
            }
            begin += if data.is_unpadded() { len } else { data.row_len() };
        }
        if data.is_unpadded() {
            return self.fill_unpadded(data, rows);
        }
        let len = data.row_len();
        (self.rows, self.len, self.n_targets) = (rows.len(), len, 0);
        self.input_ids.resize(rows.len() * len, 0);
        self.labels.resize(rows.len() * len, 0);
        self.doc_start = data.has_documents().then(|| {
            let mut starts = self.doc_start.take().unwrap_or_default();
            starts.resize(rows.len() * len, 0);
            starts
        });
        let mut starts = self.doc_start.as_mut().map(|s| s.chunks_exact_mut(len));
        let slices = self.input_ids.chunks_exact_mut(len).zip(self.labels.chunks_exact_mut(len));
        for ((ids, labels), row) in slices.zip(rows) {
            let starts = starts.as_mut().and_then(Iterator::next);
            match row {
                Some(row) => self.n_targets += data.write(*row, ids, labels, starts),
                None => data.write_filler(ids, labels, starts),
            }
        }
    }
}

impl Batch {
    /// Rows one after another as the documents of one row.
    fn fill_unpadded(&mut self, data: &Rows, rows: &[Option<u64>]) {
        let lens = || rows.iter().map(|row| row.map_or(0, |row| data.tokens_in(row)));
        // A rank without a row takes part with one token and no target.
        let len = lens().sum::<usize>().max(1);
        (self.rows, self.len, self.n_targets) = (1, len, 0);
        self.input_ids.resize(len, 0);
        self.labels.resize(len, 0);
        let mut starts = self.doc_start.take().unwrap_or_default();
        starts.resize(len, 0);
        let mut begin = 0;
        for (row, n) in rows.iter().zip(lens()) {
            let Some(row) = row else { continue };
            let at = begin..begin + n;
            let (ids, labels) = (&mut self.input_ids[at.clone()], &mut self.labels[at.clone()]);
            self.n_targets += data.write(*row, ids, labels, Some(&mut starts[at.clone()]));
            starts[at].iter_mut().for_each(|start| *start += begin as i32);
            begin += n;
        }
        if begin == 0 {
            data.write_filler(&mut self.input_ids, &mut self.labels, Some(&mut starts));
        }
        self.doc_start = Some(starts);
        data.fill_answers(rows, &mut self.fields);
        if data.is_unpaired() {
            self.fields.fill_batch(MISMATCHED, |batch| batch.fill_mismatched(data, rows));
        }
    }
}

/// The micro-batches of one step of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepBatches {
    /// One after the other; equally many on all ranks.
    pub batches: Vec<Batch>,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The position after the step: samples consumed, over all epochs and ranks. Where a run goes on.
    pub position: u64,
    /// Targets in the whole step, over all micro-batches and all ranks.
    pub n_targets: u64,
    /// Tokens in the whole step, likewise.
    pub n_tokens: u64,
}

impl StepBatches {
    fn fill(&mut self, data: &Rows, sampler: &Sampler, position: u64) {
        let step = sampler.step_rows(position);
        self.batches.resize_with(step.micro_batches.len(), Batch::default);
        if data.is_unpadded() {
            self.deal(data, sampler, position);
        } else {
            let first = position.saturating_add(sampler.rank * sampler.micro_batch);
            for (index, (batch, rows)) in self.batches.iter_mut().zip(&step.micro_batches).enumerate() {
                let before = index as u64 * sampler.micro_batch * sampler.world;
                batch.fill(data, rows, first.saturating_add(before)..);
            }
        }
        self.epoch = step.epoch;
        self.position = step.end;
        self.n_targets = sampler.all_rows(position).map(|row| data.n_targets(row) as u64).sum();
        self.n_tokens = sampler.all_rows(position).map(|row| data.tokens_in(row) as u64).sum();
    }

    /// Fills the batches of a rank with its share of the samples of each micro-batch, all ranks with about as many tokens.
    /// The loss of a step is one over all of its targets, so it does not matter which rank computes which sample.
    fn deal(&mut self, data: &Rows, sampler: &Sampler, position: u64) {
        let [world, most, rank] =
            [sampler.world, sampler.micro_batch, sampler.rank].map(|number| number as usize);
        let all: Vec<u64> = sampler.all_rows(position).collect();
        let mut first = position;
        for (batch, rows) in self.batches.iter_mut().zip(all.chunks(world * most)) {
            let lens: Vec<usize> = rows.iter().map(|&row| data.tokens_in(row)).collect();
            let own = share(&lens, world, most, rank);
            let own_rows: Vec<Option<u64>> = own.iter().map(|&index| Some(rows[index])).collect();
            batch.fill(data, &own_rows, own.iter().map(|&index| first.saturating_add(index as u64)));
            first = first.saturating_add(rows.len() as u64);
        }
    }
}

/// Steps without end, one prepared while another is computed.
pub struct Loader {
    ready: Receiver<Result<StepBatches>>,
    used: SyncSender<StepBatches>,
    /// Joined only to learn why it stopped; it ends by itself when the loader is gone.
    thread: Option<JoinHandle<()>>,
}

/// Steps that wait, prepared.
const N_AHEAD: usize = 2;

impl Loader {
    /// Begins at `position`, the number of samples that were consumed before.
    ///
    /// # Errors
    /// When the sampler does not fit the rows, or no thread can be started.
    pub fn new(data: Arc<Rows>, sampler: Sampler, position: u64) -> Result<Loader> {
        sampler.check()?;
        check_len(&data, &sampler)?;
        let (ready_in, ready) = sync_channel(N_AHEAD);
        let (used, used_out) = sync_channel::<StepBatches>(N_AHEAD + 1);
        let work = move || {
            let mut position = position;
            loop {
                let mut step = used_out.try_recv().unwrap_or_default();
                step.fill(&data, &sampler, position);
                position = step.position;
                let step = data.check().map(|()| step);
                let ends = step.is_err();
                if ready_in.send(step).is_err() || ends {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("oarlock-loader".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Loader(format!("it did not start: {e}")))?;
        Ok(Loader { ready, used, thread: Some(thread) })
    }

    /// The next step.
    ///
    /// # Errors
    /// When the file with the tokens has become shorter, or the thread that prepares it has died.
    pub fn next_step(&mut self) -> Result<StepBatches> {
        self.ready.recv().map_err(|_| {
            let panic = self.thread.take().and_then(|thread| thread.join().err());
            let reported = panic.as_ref().map_or("it gave no reason", |panic| panics::message(&**panic));
            Error::Loader(reported.to_owned())
        })?
    }

    /// Gives the memory of a step back, so that the next ones need none of their own.
    pub fn give_back(&self, step: StepBatches) {
        // A step too many is dropped, which is all that giving back can lose.
        let _ = self.used.try_send(step);
    }
}

/// One pass over `data` in its own order, for evaluation: every rank gets equally many batches of `micro_batch` rows,
/// and every row counts once.
///
/// # Errors
/// When the rank is not below the number of ranks, or `micro_batch` is zero.
pub fn eval_batches(
    data: Arc<Rows>,
    world: u64,
    rank: u64,
    micro_batch: u64,
) -> Result<impl Iterator<Item = Batch> + Send> {
    let micro_batch = data.micro_batch(world, micro_batch);
    let sampler = Sampler::in_order(data.n_rows(), world, rank, micro_batch);
    sampler.check()?;
    Ok((0..sampler.steps_per_epoch()).map(move |step| {
        let mut batches = StepBatches::default();
        batches.fill(&data, &sampler, sampler.position_after(step));
        // A step of an evaluation is one micro-batch.
        batches.batches.pop().unwrap_or_default()
    }))
}

fn check_len(data: &Rows, sampler: &Sampler) -> Result<()> {
    if sampler.len == data.n_rows() {
        return Ok(());
    }
    let cause = format!("the sampler counts {} rows, the data has {}", sampler.len, data.n_rows());
    Err(Error::Setting { key: "dataset", cause })
}

#[cfg(test)]
mod tests;
