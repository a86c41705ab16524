//! Evaluation during a run.

use std::time::Instant;

use oarlock_engine::report::log::{EvalRecord, PER_TOKEN};
use oarlock_engine::{Error, Result};

use super::best::named;
use super::state::Run;
use crate::data::{Batch, eval_batches};
use crate::train::data::EvalData;
use crate::train::step::evaluate;

impl Run<'_> {
    /// Evaluates on the data of the evaluation, on each data set by itself where that is asked for; gives the results by
    /// the names that the log has for them.
    pub(super) fn evaluate(&mut self, done: u64) -> Result<Vec<(String, f64)>> {
        let mut results = Vec::new();
        for data in &self.data.eval.clone() {
            results.extend(self.evaluate_on(data, done)?);
        }
        Ok(results)
    }

    fn evaluate_on(&mut self, data: &EvalData, done: u64) -> Result<Vec<(String, f64)>> {
        let (of, rows) = (data.name.as_ref().map_or(String::new(), |name| format!(" of {name}")), &data.rows);
        self.accelerator.communicator().set_phase(&format!("step {done}: evaluation{of}"));
        let begin = Instant::now();
        let (world, rank) = self.accelerator.data_parallel();
        let (world, rank) = (world as u64, rank as u64);
        let micro_batch = self.config.eval.batch_size as u64;
        let sequence = self.accelerator.sequence_parallel();
        let part = |mut batch: Batch| {
            sequence.iter().for_each(|sequence| batch.keep_part(sequence.rank(), sequence.size()));
            batch
        };
        let batches = eval_batches(rows.clone(), world, rank, micro_batch)?.map(part);
        let evaluation = evaluate(self.accelerator, &*self.objective, &self.model, batches)?;
        rows.check()?;
        if evaluation.totals.weight == 0.0 {
            return Err(Error::Usage(format!("the evaluation data{of} hold no target")));
        }
        let (epoch, loss) = (self.epoch(), evaluation.loss);
        let mut metrics = evaluation.totals.means();
        if self.objective.is_token_loss() {
            metrics.push((PER_TOKEN, evaluation.totals.loss()));
        }
        let results = named(data, loss, &metrics);
        if let Some(journal) = &mut self.journal {
            journal.evaluation(&EvalRecord {
                name: data.name.clone(),
                step: done,
                epoch,
                loss,
                metrics,
                has_perplexity: self.objective.is_token_loss(),
                runtime: begin.elapsed(),
                samples: rows.n_rows(),
                steps: rows.n_rows().div_ceil(world * micro_batch),
            })?;
        }
        self.doubt(&format!("evaluation{of}"), &format!(" at step {done}"), &results)?;
        Ok(results)
    }
}
