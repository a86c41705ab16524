//! Answers to the evaluation data after the training, and how near they are to those that were expected.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Run;
use crate::config::PredictArgs;
use crate::data::{Rows, Tokenizer, eval_batches};
use crate::error::{Error, Result};
use crate::generate::{GenerateOptions, Model, Prompt, Sampling};
use crate::model::Decoder;
use crate::report::log::PredictRecord;
use crate::text_metrics::{TextMetrics, TextScores};
use crate::train::evaluate;
use crate::train::objective::Objective;

/// A row of generated_predictions.jsonl, with its place in the data.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Prediction {
    row: u64,
    prompt: String,
    predict: String,
    label: String,
}

impl<O: Objective<Model = Decoder>> Run<'_, O> {
    /// Generates answers, where that is asked for.
    pub(super) fn predict(&mut self) -> Result<()> {
        let (Some(args), Some(data)) = (self.config.predict, &self.data.predict) else { return Ok(()) };
        let accelerator = self.accelerator;
        accelerator.communicator().set_phase("generating answers");
        let (world, rank) = (accelerator.num_processes() as u64, accelerator.process_index() as u64);
        let begin = Instant::now();
        let batch = self.config.eval.batch_size;
        let batches = eval_batches(data.rows.clone(), world, rank, batch as u64)?;
        let loss = evaluate(accelerator, &self.objective, &self.model, batches)?.loss();
        let tokenizer = Tokenizer::open(&self.config.model.tokenizer)?;
        let rows: Vec<u64> = (rank..data.rows.n_records()).step_by(world as usize).collect();
        let asked: Vec<Asked> = rows.iter().map(|&row| Asked::of(&data.rows, row)).collect();
        let prompts: Vec<Prompt> = asked.iter().map(|asked| asked.prompt.clone()).collect();
        let model = Model {
            decoder: self.model.module(),
            dtype: accelerator.dtype(),
            device: accelerator.device(),
            n_positions: self.n_positions,
        };
        let is_training = self.model.is_training();
        self.model.eval();
        let options = options(&args, data.stop_ids.clone(), self.config.train.seed);
        let answers = model.generate_batch(&prompts, &options, batch, &mut |_| ());
        if is_training {
            self.model.train();
        }
        let mut own = Vec::with_capacity(asked.len());
        for (asked, answer) in asked.iter().zip(answers?) {
            let text = |ids: &[u32]| tokenizer.decode(ids, args.skip_special_tokens);
            own.push(Prediction {
                row: asked.prompt.number,
                prompt: tokenizer.decode(&asked.prompt.ids, false)?,
                predict: text(&answer.output)?,
                label: text(&asked.label)?,
            });
        }
        let mut all = accelerator.gather_object(&own)?;
        all.sort_by_key(|prediction| prediction.row);
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let runtime = begin.elapsed();
        let path = self.config.save.output_dir.join("generated_predictions.jsonl");
        write(&path, &all)?;
        let metrics = TextMetrics::new();
        let scores: Vec<TextScores> =
            all.iter().map(|row| metrics.scores(&row.predict, &row.label)).collect();
        let n_rows = all.len() as u64;
        journal.prediction(&PredictRecord {
            loss,
            scores: TextScores::mean(&scores).named(),
            runtime,
            samples: n_rows,
            steps: n_rows.div_ceil(world * batch as u64),
        })
    }
}

/// A row of the data: what is asked, and the expected answer.
struct Asked {
    prompt: Prompt,
    label: Vec<u32>,
}

impl Asked {
    fn of(rows: &Rows, row: u64) -> Asked {
        let (mut ids, targets) = rows.record(row);
        // Only the last answer is learned in these rows; an empty run is its end token alone.
        let begin = targets.iter().find(|run| !run.is_empty()).map_or(ids.len(), |run| run.start);
        let label = ids.split_off(begin);
        Asked { prompt: Prompt { number: row, ids }, label }
    }
}

fn options(args: &PredictArgs, stop_ids: Vec<u32>, seed: u64) -> GenerateOptions {
    let &PredictArgs { temperature, top_k, top_p, repetition_penalty, max_new_tokens, .. } = args;
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed };
    GenerateOptions { sampling, max_new_tokens, stop_ids }
}

fn write(path: &Path, predictions: &[Prediction]) -> Result<()> {
    let line = |Prediction { prompt, predict, label, .. }: &Prediction| {
        format!("{}\n", json!({"prompt": prompt, "predict": predict, "label": label}))
    };
    let text: String = predictions.iter().map(line).collect();
    std::fs::write(path, text).map_err(Error::io("write", path))
}
