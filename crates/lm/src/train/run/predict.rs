//! Predictions on the evaluation data after training: answers, and how near they are to those that were expected, or
//! the scores of the answers of pairs.

use std::time::Instant;

use oarlock_config::config::{Predict, PredictArgs, TrainConfig};
use oarlock_engine::checkpoint::weights::{StateDictSource, Strict};
use oarlock_engine::disk::Outputs;
use oarlock_engine::report::log::PredictRecord;
use oarlock_engine::{Error, Prepared, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::state::Run;
use crate::data::{Rows, Tokenizer, eval_batches};
use crate::generate::{GenerateOptions, Model, Prompt, Sampling};
use crate::model::Decoder;
use crate::text_metrics::{TextMetrics, TextScores};
use crate::train::model::Start;
use crate::train::objective::{Inputs, scores};
use crate::train::obstacles::PREDICTIONS;
use crate::train::step::evaluate;
use crate::train::written::writer;

/// A row of generated_predictions.jsonl, with its place in the data.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Prediction {
    row: u64,
    prompt: String,
    predict: String,
    label: String,
}

impl Run<'_> {
    /// Predicts what is asked for.
    pub(super) fn predict(&mut self) -> Result<()> {
        match self.config.predict {
            Some(Predict::Answers(args)) => self.answer(args),
            Some(Predict::Scores) => self.score(),
            None => Ok(()),
        }
    }

    /// Scores the answers of all pairs.
    fn score(&mut self) -> Result<()> {
        let accelerator = self.accelerator;
        accelerator.communicator().set_phase("scoring answers");
        let (world, rank) = (accelerator.num_processes() as u64, accelerator.process_index() as u64);
        let (begin, batch) = (Instant::now(), self.config.eval.batch_size as u64);
        let is_training = self.model.is_training();
        self.model.eval();
        let (mut own, mut steps) = (Vec::new(), 0);
        for (index, data) in self.data.eval.iter().enumerate() {
            for batch in eval_batches(data.rows.clone(), world, rank, batch)? {
                let scores = scores(&self.model, &Inputs::new(&batch, accelerator.device())?)?;
                let rows = batch.samples.iter().map(|sample| sample.position);
                own.extend(rows.zip(scores).map(|(row, [chosen, rejected])| (index, row, chosen, rejected)));
                steps += 1;
            }
            data.rows.check()?;
        }
        if is_training {
            self.model.train();
        }
        let mut all: Vec<(usize, u64, f32, f32)> = accelerator.gather_object(&own)?;
        all.sort_by_key(|(index, row, ..)| (*index, *row));
        let sums = all.iter().map(|(.., chosen, rejected)| f64::from(*chosen) + f64::from(*rejected));
        let odd: Vec<f64> = sums.filter(|sum| !sum.is_finite()).collect();
        if let Some(first) = odd.first() {
            let name = format!("the score of {} of {} pairs", odd.len(), all.len());
            self.doubt("predictions", "", &[(name, *first)])?;
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        if all.is_empty() {
            return Err(Error::Usage("the evaluation data hold no pair to score".to_owned()));
        }
        let line = |(_, _, chosen, rejected): &(usize, u64, f32, f32)| {
            let [chosen, rejected] = [*chosen, *rejected].map(two_digits);
            json!({"chosen": chosen, "rejected": rejected})
        };
        write(self.config, all.iter().map(line))?;
        let mean = |of: &dyn Fn(f64) -> f64| {
            let margins =
                all.iter().map(|(_, _, chosen, rejected)| f64::from(*chosen) - f64::from(*rejected));
            margins.map(of).sum::<f64>() / all.len() as f64
        };
        let accuracy = mean(&|margin| f64::from(u8::from(margin > 0.0)));
        let warnings = format!("{} pairs scored: accuracy {accuracy:.4}", all.len());
        let record = PredictRecord {
            loss: mean(&|margin| {
                let below = libm::log1p(libm::exp(-margin.abs()));
                if margin > 0.0 { below } else { below - margin }
            }),
            scores: vec![("accuracy", accuracy)],
            runtime: begin.elapsed(),
            samples: all.len() as u64,
            steps,
        };
        journal.prediction(&record, &warnings)
    }

    /// A model in stages once more as a whole, for inference; nothing of one that every rank can run as it is.
    fn whole(&self) -> Result<Option<Prepared<Decoder>>> {
        if self.model.pipeline().is_none() {
            return Ok(None);
        }
        let accelerator = self.accelerator;
        let state = accelerator.get_state_dict(&self.model)?;
        let decoder = Start::new(self.config, &self.hf)?.decoder(self.config, &self.hf)?;
        let (source, _) = StateDictSource::of_module(&state, &decoder, Strict::Yes)?;
        Ok(Some(accelerator.prepare_with_weights(decoder, Box::new(source))?))
    }

    /// Generates answers.
    fn answer(&mut self, args: PredictArgs) -> Result<()> {
        let Some(data) = &self.data.predict else { return Ok(()) };
        let accelerator = self.accelerator;
        accelerator.communicator().set_phase("generating answers");
        let begin = Instant::now();
        let batch = self.config.eval.batch_size;
        let data_ranks = accelerator.data_ranks();
        let (world, rank) = (data_ranks.world_size() as u64, data_ranks.rank() as u64);
        let batches = eval_batches(data.rows.clone(), world, rank, batch as u64)?;
        let loss = evaluate(accelerator, &*self.objective, &self.model, batches)?.loss;
        let tokenizer = Tokenizer::open_with(&self.config.model.tokenizer, &self.config.model.new_tokens)?;
        // Each rank answers on its own, also where it holds a stage of the model otherwise.
        let (world, rank) = (accelerator.num_processes() as u64, accelerator.process_index() as u64);
        let whole = self.whole()?;
        let answering = whole.as_ref().unwrap_or(&self.model);
        let rows: Vec<u64> = (rank..data.rows.n_records()).step_by(world as usize).collect();
        let asked: Vec<PredictedRow> = rows.iter().map(|&row| PredictedRow::of(&data.rows, row)).collect();
        data.rows.check()?;
        let prompts: Vec<Prompt> = asked.iter().map(|asked| asked.prompt.clone()).collect();
        let model = Model {
            decoder: answering.module(),
            dtype: accelerator.dtype(),
            device: accelerator.device(),
            n_positions: self.n_positions,
        };
        let is_training = self.model.is_training();
        answering.eval();
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
        self.doubt("predictions", "", &[("predict_loss".to_owned(), loss)])?;
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let runtime = begin.elapsed();
        let line = |one: &Prediction| {
            let Prediction { prompt, predict, label, .. } = one;
            json!({"prompt": prompt, "predict": predict, "label": label})
        };
        write(self.config, all.iter().map(line))?;
        let metrics = TextMetrics::new();
        let scores: Vec<TextScores> =
            all.iter().map(|row| metrics.scores(&row.predict, &row.label)).collect();
        let n_rows = all.len() as u64;
        let scores = TextScores::mean(&scores).named();
        let named: Vec<String> =
            scores.iter().map(|(name, score)| format!("{} {score:.2}", name.to_uppercase())).collect();
        let warnings = format!("{n_rows} answers generated: {}", named.join(", "));
        let steps = n_rows.div_ceil(world * batch as u64);
        journal.prediction(&PredictRecord { loss, scores, runtime, samples: n_rows, steps }, &warnings)
    }
}

/// A row of the data: what is asked, and the expected answer.
struct PredictedRow {
    prompt: Prompt,
    label: Vec<u32>,
}

impl PredictedRow {
    fn of(rows: &Rows, row: u64) -> PredictedRow {
        let (mut ids, targets) = rows.record(row);
        // Only the last answer is supervised in these rows; an empty run is its end token alone.
        let begin = targets.iter().find(|run| !run.is_empty()).map_or(ids.len(), |run| run.start);
        let label = ids.split_off(begin);
        PredictedRow { prompt: Prompt { number: row, ids }, label }
    }
}

fn options(args: &PredictArgs, stop_ids: Vec<u32>, seed: u64) -> GenerateOptions {
    let &PredictArgs { temperature, top_k, top_p, repetition_penalty, max_new_tokens, .. } = args;
    let sampling = Sampling { temperature, top_k, top_p, repetition_penalty, seed, ..Sampling::GREEDY };
    GenerateOptions { sampling, max_new_tokens, stop_ids, ..GenerateOptions::default() }
}

/// Writes the rows into the folder of the run.
fn write(config: &TrainConfig, rows: impl Iterator<Item = Value>) -> Result<()> {
    let text: String = rows.map(|row| format!("{row}\n")).collect();
    Outputs::write(&config.save.output_dir, writer(config), &[(PREDICTIONS, text.as_bytes())])
}

/// A score with two digits after the point, as the original keeps it.
fn two_digits(score: f32) -> f64 {
    (f64::from(score) * 100.0).round() / 100.0
}
