//! The files of a run in `output_dir`, with the names and keys of LLaMA-Factory: trainer_log.jsonl,
//! trainer_state.json, running_log.txt, training_args.yaml and the results.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::file_error::{Result, io_error};
use super::files::{self, LineFile, Rest};
use super::speed::Clock;
use super::state::TrainerState;

/// Means of metrics, each with its name.
pub type Metrics = Vec<(&'static str, f64)>;

/// The mean loss of a target of an evaluation, beside `loss`, which is a mean of the means of batches.
pub const PER_TOKEN: &str = "loss_per_token";

/// What is logged about a training step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRecord {
    /// Optimizer steps done.
    pub step: u64,
    /// Passes over the data, with the part of the current one.
    pub epoch: f64,
    /// Mean loss of the steps since the last record.
    pub loss: f64,
    /// The objective's metrics since then.
    pub metrics: Metrics,
    /// The learning rate that the step was taken with.
    pub learning_rate: f64,
    /// Norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Tokens per second of all ranks since the last record.
    pub throughput: f64,
    /// Tokens trained on so far, by all ranks.
    pub total_tokens: u64,
    /// Peak memory of a rank; left out where it is unknown.
    pub memory_bytes: Option<u64>,
}

/// What is logged about an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalRecord {
    /// The data set, where each is evaluated by itself.
    pub name: Option<String>,
    /// Optimizer steps done.
    pub step: u64,
    /// Passes over the data.
    pub epoch: f64,
    /// The mean of the mean losses of batches.
    pub loss: f64,
    /// The objective's metrics.
    pub metrics: Metrics,
    /// Whether the loss is that of the next token, of which there is a perplexity.
    pub has_perplexity: bool,
    /// How long it took.
    pub runtime: Duration,
    /// Sequences.
    pub samples: u64,
    /// Forward passes of a rank.
    pub steps: u64,
}

/// What is logged about generated answers.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictRecord {
    /// The mean of the mean losses of batches, or over pairs.
    pub loss: f64,
    /// How near the answers are to those that were expected, from 0 to 100; of pairs, how many are in the right order.
    pub scores: Metrics,
    /// How long it took.
    pub runtime: Duration,
    /// Answers or pairs.
    pub samples: u64,
    /// Batches of a rank.
    pub steps: u64,
}

/// The results of a training run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Mean loss of the steps of this run.
    pub loss: f64,
    /// Sequences trained on in this run.
    pub samples: u64,
    /// Steps of this run.
    pub steps: u64,
}

/// The log files of a run. Only rank 0 has one.
#[derive(Debug)]
pub struct RunLog {
    folder: PathBuf,
    trainer_log: LineFile,
    running_log: LineFile,
    state: TrainerState,
    /// The newest evaluation of each data set.
    eval_results: Map<String, Value>,
    clock: Clock,
}

const TRAINER_LOG: &str = "trainer_log.jsonl";
const RUNNING_LOG: &str = "running_log.txt";

impl RunLog {
    /// Begins anew: earlier logs in the folder are replaced. `state` says how long the run will be.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn create(folder: &Path, state: TrainerState) -> Result<Self> {
        Self::open(folder, state, LineFile::create, LineFile::create)
    }

    /// Continues after `state.global_step`, the step of the checkpoint. Later records are removed, because the run logs
    /// them again.
    ///
    /// # Errors
    /// If the logs cannot be read or written.
    pub fn resume(folder: &Path, mut state: TrainerState) -> Result<Self> {
        let step = state.global_step;
        state.cut_back(step);
        // The evaluation at the end of a run stands behind the checkpoint of its step.
        let at_checkpoint = |log: &&Map<String, Value>| log.get("step").and_then(Value::as_u64) == Some(step);
        let left = Cell::new(state.log_history.iter().filter(at_checkpoint).count());
        let is_kept = |line: &str| {
            let record: Option<Value> = serde_json::from_str(line).ok();
            match record.and_then(|record| record.get("current_steps")?.as_u64()) {
                Some(at) if at == step => left.replace(left.get().saturating_sub(1)) > 0,
                at => at.is_some_and(|at| at < step),
            }
        };
        Self::open(folder, state, |path| LineFile::keep(path, is_kept, Rest::Dropped), LineFile::open)
    }

    /// Goes on behind earlier logs in the folder, which stay: those of a training run whose model is evaluated.
    ///
    /// # Errors
    /// If the folder cannot be written to.
    pub fn behind(folder: &Path, state: TrainerState) -> Result<Self> {
        Self::open(folder, state, LineFile::open, LineFile::open)
    }

    fn open(
        folder: &Path,
        state: TrainerState,
        trainer_log: impl FnOnce(&Path) -> Result<LineFile>,
        running_log: impl FnOnce(&Path) -> Result<LineFile>,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        Ok(RunLog {
            folder: folder.to_owned(),
            trainer_log: trainer_log(&folder.join(TRAINER_LOG))?,
            running_log: running_log(&folder.join(RUNNING_LOG))?,
            clock: Clock::start(state.global_step),
            eval_results: Map::new(),
            state,
        })
    }

    /// The clock of the run.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// How far the run is and everything it logged; for checkpoints.
    pub fn state(&self) -> &TrainerState {
        &self.state
    }

    /// The same, to note what is not logged.
    pub fn state_mut(&mut self) -> &mut TrainerState {
        &mut self.state
    }

    /// Notes progress that is not logged.
    pub fn advance(&mut self, step: u64, epoch: f64, total_tokens: u64, total_flos: f64) {
        self.state.global_step = step;
        self.state.epoch = epoch;
        self.state.num_input_tokens_seen = total_tokens;
        self.state.total_flos = total_flos;
    }

    /// Logs a training step.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        let times = self.times(record.step);
        self.trainer_log.push(&step_line(record, self.state.max_steps, times).to_string())?;
        self.state.global_step = record.step;
        self.state.epoch = record.epoch;
        self.state.num_input_tokens_seen = record.total_tokens;
        let log = json!({
            "epoch": record.epoch,
            "grad_norm": record.grad_norm,
            "learning_rate": record.learning_rate,
            "loss": record.loss,
            "step": record.step,
        });
        self.history(with_metrics("", &record.metrics, log));
        Ok(())
    }

    /// Logs an evaluation, and writes eval_results.json.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn evaluation(&mut self, record: &EvalRecord) -> Result<()> {
        let times = self.times(record.step);
        self.trainer_log.push(&eval_line(record, self.state.max_steps, times).to_string())?;
        let metrics = eval_metrics(record);
        let mut log = metrics.clone();
        log["step"] = json!(record.step);
        self.history(log);
        let mut results = metrics;
        if record.has_perplexity {
            results[record.perplexity()] = json!(libm::exp(record.loss));
        }
        if let Value::Object(results) = results {
            self.eval_results.extend(results);
        }
        self.results("eval_results.json", &Value::Object(self.eval_results.clone()))
    }

    /// Writes predict_results.json.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn prediction(&mut self, record: &PredictRecord) -> Result<()> {
        let seconds = record.runtime.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { round(count as f64 / seconds, 3) } else { 0.0 };
        let results = json!({
            "predict_loss": record.loss,
            "predict_runtime": round(seconds, 4),
            "predict_samples_per_second": rate(record.samples),
            "predict_steps_per_second": rate(record.steps),
        });
        let mut results = with_metrics("predict_", &record.scores, results);
        if let Value::Object(results) = &mut results {
            results.sort_keys();
        }
        self.results("predict_results.json", &results)
    }

    /// Ends a training run: the last record, train_results.json and trainer_state.json.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn finish(&mut self, summary: &Summary) -> Result<()> {
        let seconds = self.clock.elapsed().as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { round(count as f64 / seconds, 3) } else { 0.0 };
        let results = json!({
            "epoch": self.state.epoch,
            "num_input_tokens_seen": self.state.num_input_tokens_seen,
            "total_flos": self.state.total_flos,
            "train_loss": summary.loss,
            "train_runtime": round(seconds, 4),
            "train_samples_per_second": rate(summary.samples),
            "train_steps_per_second": rate(summary.steps),
        });
        self.results("train_results.json", &results)?;
        let mut log = results;
        log["step"] = json!(self.state.global_step);
        self.history(log);
        self.state.save(&self.folder)
    }

    /// Adds a line to running_log.txt.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn message(&mut self, text: &str) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let stamp = timestamp(now);
        text.lines().try_for_each(|line| self.running_log.push(&format!("{stamp} {line}")))
    }

    /// Whether the folder holds the configuration of a run.
    pub fn has_training_args(&self) -> bool {
        self.folder.join("training_args.yaml").exists()
    }

    /// Writes training_args.yaml, the configuration of the run.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn training_args(&self, yaml: &str) -> Result<()> {
        files::replace(&self.folder.join("training_args.yaml"), yaml.as_bytes())
    }

    fn times(&self, step: u64) -> (Duration, Duration) {
        (self.clock.elapsed(), self.clock.remaining(step, self.state.max_steps))
    }

    fn history(&mut self, log: Value) {
        if let Value::Object(log) = log {
            self.state.log_history.push(log);
        }
    }

    /// Writes results to a file of their own and adds them to all_results.json.
    fn results(&self, name: &str, results: &Value) -> Result<()> {
        // It may have been removed since the last record.
        std::fs::create_dir_all(&self.folder).map_err(io_error("create", &self.folder))?;
        files::replace_json(&self.folder.join(name), results)?;
        let path = self.folder.join("all_results.json");
        // Whatever else stands there came from another run, and is not worth an error.
        let mut all: Map<String, Value> = oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES)
            .ok()
            .and_then(|text| serde_json::from_str(&text).ok())
            .unwrap_or_default();
        if let Value::Object(results) = results {
            all.extend(results.clone());
        }
        all.sort_keys();
        files::replace_json(&path, &Value::Object(all))
    }
}

fn step_line(record: &StepRecord, total: u64, (elapsed, remaining): (Duration, Duration)) -> Value {
    let line = json!({
        "current_steps": record.step,
        "total_steps": total,
        "loss": record.loss,
        "lr": record.learning_rate,
        "grad_norm": record.grad_norm,
        "epoch": record.epoch,
        "percentage": percentage(record.step, total),
        "elapsed_time": clock_time(elapsed),
        "remaining_time": clock_time(remaining),
        "throughput": round(record.throughput, 2),
        "total_tokens": record.total_tokens,
    });
    let mut line = with_metrics("", &record.metrics, line);
    if let Some((_, accuracy)) = record.metrics.iter().find(|(name, _)| *name == "rewards/accuracies") {
        line["accuracy"] = json!(accuracy);
    }
    if let Some(bytes) = record.memory_bytes {
        line["memory_gb"] = json!(round(bytes as f64 / f64::from(1 << 30), 3));
    }
    line
}

fn eval_line(record: &EvalRecord, total: u64, (elapsed, remaining): (Duration, Duration)) -> Value {
    let prefix = record.prefix();
    let line = json!({
        "current_steps": record.step,
        "total_steps": total,
        format!("{prefix}loss"): record.loss,
        "epoch": record.epoch,
        "percentage": percentage(record.step, total),
        "elapsed_time": clock_time(elapsed),
        "remaining_time": clock_time(remaining),
    });
    with_metrics(&prefix, &record.metrics, line)
}

impl EvalRecord {
    /// What the names of its results begin with.
    fn prefix(&self) -> String {
        self.name.as_ref().map_or("eval_".to_owned(), |name| format!("eval_{name}_"))
    }

    fn perplexity(&self) -> String {
        match self.name {
            Some(_) => format!("{}perplexity", self.prefix()),
            None => "perplexity".to_owned(),
        }
    }
}

/// A record with its metrics, whose names begin with `prefix`.
fn with_metrics(prefix: &str, metrics: &Metrics, mut record: Value) -> Value {
    for (name, mean) in metrics {
        record[format!("{prefix}{name}")] = json!(mean);
    }
    record
}

fn eval_metrics(record: &EvalRecord) -> Value {
    let seconds = record.runtime.as_secs_f64();
    let rate = |count: u64| if seconds > 0.0 { round(count as f64 / seconds, 3) } else { 0.0 };
    let prefix = record.prefix();
    let metrics = json!({
        "epoch": record.epoch,
        format!("{prefix}loss"): record.loss,
        format!("{prefix}runtime"): round(seconds, 4),
        format!("{prefix}samples_per_second"): rate(record.samples),
        format!("{prefix}steps_per_second"): rate(record.steps),
    });
    with_metrics(&prefix, &record.metrics, metrics)
}

fn percentage(step: u64, total: u64) -> f64 {
    if total == 0 { 100.0 } else { round(step as f64 / total as f64 * 100.0, 2) }
}

fn round(x: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (x * scale).round() / scale
}

/// `0:01:05`, or `2 days, 0:01:05`, as Python writes a time span.
pub fn clock_time(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    let prefix = match days {
        0 => String::new(),
        1 => "1 day, ".to_owned(),
        _ => format!("{days} days, "),
    };
    format!("{prefix}{hours}:{minutes:02}:{:02}", seconds % 60)
}

/// `2026-11-20 18:34:02` in UTC, from seconds since 1970.
pub fn timestamp(seconds: u64) -> String {
    // Years begin in March here, so that the leap day is their last; an era has 400 of them and 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day = day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year:04}-{month:02}-{day:02} {hours:02}:{minutes:02}:{:02}", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            epoch: step as f64 / 10.0,
            loss: 4.25,
            metrics: Vec::new(),
            learning_rate: 3e-4,
            grad_norm: 0.5,
            throughput: 1804.126,
            total_tokens: step * 4096,
            memory_bytes: Some(3 << 29),
        }
    }

    fn state(step: u64) -> TrainerState {
        TrainerState { max_steps: 30, global_step: step, ..TrainerState::default() }
    }

    fn steps_of(folder: &Path) -> Vec<u64> {
        let text = std::fs::read_to_string(folder.join(TRAINER_LOG)).unwrap();
        let step =
            |line: &str| serde_json::from_str::<Value>(line).unwrap()["current_steps"].as_u64().unwrap();
        text.lines().map(step).collect()
    }

    #[test]
    fn records_have_the_keys_of_the_original() {
        let times = (Duration::from_secs(65), Duration::from_secs(90_061));
        assert_eq!(
            step_line(&record(3), 30, times).to_string(),
            r#"{"current_steps":3,"total_steps":30,"loss":4.25,"lr":0.0003,"grad_norm":0.5,"epoch":0.3,"percentage":10.0,"elapsed_time":"0:01:05","remaining_time":"1 day, 1:01:01","throughput":1804.13,"total_tokens":12288,"memory_gb":1.5}"#
        );
        let eval = EvalRecord {
            name: None,
            step: 30,
            epoch: 3.0,
            loss: 2.0,
            metrics: Vec::new(),
            has_perplexity: true,
            runtime: Duration::from_millis(500),
            samples: 10,
            steps: 2,
        };
        assert_eq!(
            eval_line(&eval, 30, times).to_string(),
            r#"{"current_steps":30,"total_steps":30,"eval_loss":2.0,"epoch":3.0,"percentage":100.0,"elapsed_time":"0:01:05","remaining_time":"1 day, 1:01:01"}"#
        );
    }

    #[test]
    fn a_loss_that_is_no_number_is_null() {
        let line = step_line(&StepRecord { loss: f64::NAN, ..record(1) }, 0, Default::default());
        assert!(line.to_string().contains(r#""loss":null"#) && line["percentage"] == 100.0);
    }

    #[test]
    fn a_run_leaves_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("new/run");
        let mut log = RunLog::create(&folder, state(0)).unwrap();
        log.training_args("stage: pt\n").unwrap();
        log.message("one\ntwo").unwrap();
        log.step(&record(1)).unwrap();
        log.advance(2, 0.2, 8192, 1e12);
        let eval = EvalRecord {
            name: None,
            step: 2,
            epoch: 0.2,
            loss: 0.0,
            metrics: Vec::new(),
            has_perplexity: true,
            runtime: Duration::from_secs(2),
            samples: 10,
            steps: 4,
        };
        log.evaluation(&eval).unwrap();
        log.finish(&Summary { loss: 4.5, samples: 16, steps: 2 }).unwrap();

        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let parsed = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
        assert_eq!(steps_of(&folder), [1, 2]);
        assert_eq!(read("training_args.yaml"), "stage: pt\n");
        let lines: Vec<String> = read(RUNNING_LOG).lines().map(|line| line[20..].to_owned()).collect();
        assert_eq!(lines, ["one", "two"]);
        let eval = r#"{"epoch":0.2,"eval_loss":0.0,"eval_runtime":2.0,"eval_samples_per_second":5.0,"eval_steps_per_second":2.0,"perplexity":1.0}"#;
        assert_eq!(parsed("eval_results.json").to_string(), eval);
        let all = parsed("all_results.json");
        assert_eq!((&all["perplexity"], &all["train_loss"]), (&json!(1.0), &json!(4.5)));
        let state = TrainerState::load(&folder).unwrap();
        assert_eq!((state.global_step, state.num_input_tokens_seen), (2, 8192));
        assert_eq!(state.series("loss"), [(1, 4.25)]);
        assert_eq!(state.series("eval_loss"), [(2, 0.0)]);
        assert_eq!(state.series("train_loss"), [(2, 4.5)]);
    }

    #[test]
    fn a_resumed_run_logs_every_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let mut log = RunLog::create(folder, state(0)).unwrap();
        let mut checkpoint = state(0);
        for step in 1..=5 {
            log.step(&record(step)).unwrap();
            if step == 3 {
                checkpoint = log.state().clone();
            }
        }
        // The run was killed in the middle of a record.
        let path = folder.join(TRAINER_LOG);
        let torn = std::fs::read_to_string(&path).unwrap() + "{\"current_steps\": 6, \"to";
        std::fs::write(&path, torn).unwrap();

        let mut log = RunLog::resume(folder, checkpoint).unwrap();
        assert_eq!(steps_of(folder), [1, 2, 3]);
        for step in 4..=6 {
            log.step(&record(step)).unwrap();
        }
        assert_eq!(steps_of(folder), [1, 2, 3, 4, 5, 6]);
        assert_eq!(log.state().series("loss").len(), 6);

        let mut fresh = RunLog::resume(&folder.join("other"), state(2)).unwrap();
        fresh.step(&record(3)).unwrap();
        assert_eq!(steps_of(&folder.join("other")), [3]);
        RunLog::create(folder, state(0)).unwrap();
        assert_eq!(steps_of(folder), [0; 0], "a new run replaces the log");
    }

    #[test]
    fn what_cannot_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = RunLog::create(&file, state(0)).unwrap_err().to_string();
        assert!(error.starts_with("cannot create `"), "{error}");
        let error = RunLog::resume(&file, state(0)).unwrap_err().to_string();
        assert!(error.starts_with("cannot create `"), "{error}");
    }

    #[test]
    fn times_are_written_as_people_read_them() {
        assert_eq!(clock_time(Duration::from_millis(3_599_999)), "0:59:59");
        assert_eq!(clock_time(Duration::from_secs(2 * 86_400 + 1)), "2 days, 0:00:01");
        assert_eq!(timestamp(0), "1970-01-01 00:00:00");
        assert_eq!(timestamp(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(timestamp(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(timestamp(1_795_199_642), "2026-11-20 18:34:02");
        assert_eq!(timestamp(4_107_542_400), "2100-03-01 00:00:00");
    }
}
