//! What rank 0 tells while a run goes on: the progress line, the logs, the loss curve.

use std::io::Stdout;
use std::path::Path;
use std::time::{Duration, Instant};

use oarlock_comm::{Communicator, ProcessMemory};
use oarlock_config::config::TrainConfig;
use oarlock_engine::report::engine::EngineStep;
use oarlock_engine::report::flops;
use oarlock_engine::report::log::{EvalRecord, PER_TOKEN, PredictRecord, RunLog, StepRecord, Summary};
use oarlock_engine::report::profile::{MemoryNow, Profiler};
use oarlock_engine::report::progress::{Progress, Status};
use oarlock_engine::report::speed::{Peak, PhaseTimer};
use oarlock_engine::report::state::TrainerState;
use oarlock_engine::{Accelerator, Result};
use oarlock_tensor::Device;

use super::step::StepReport;
use crate::train::monitors::{Monitors, Resumed};
use crate::train::objective::Totals;

/// Rank 0's voice. The other ranks have none.
pub struct Journal {
    log: RunLog,
    monitors: Monitors,
    progress: Progress<Stdout>,
    flops_per_token: f64,
    peak: Peak,
    interval: Interval,
    first_step: u64,
    /// Losses of the steps of the whole run.
    run: StepLosses,
    profiler: Option<Profiler>,
}

/// What has happened since the last record.
struct Interval {
    begin: Instant,
    losses: StepLosses,
    /// For the metrics.
    totals: Totals,
    n_tokens: u64,
    /// Time that was not training: evaluation, checkpoints.
    paused: Duration,
}

/// The losses of steps. Each step counts alike, as in the Trainer of transformers, however many targets it has.
#[derive(Default)]
struct StepLosses {
    sum: f64,
    n: u64,
}

impl StepLosses {
    fn add(&mut self, loss: f64) {
        self.sum += loss;
        self.n += 1;
    }

    fn mean(&self) -> f64 {
        self.sum / self.n as f64
    }
}

impl Interval {
    fn new() -> Interval {
        Interval {
            begin: Instant::now(),
            losses: StepLosses::default(),
            totals: Totals::default(),
            n_tokens: 0,
            paused: Duration::ZERO,
        }
    }

    fn throughput(&self) -> f64 {
        let seconds = self.begin.elapsed().saturating_sub(self.paused).as_secs_f64();
        if seconds > 0.0 { self.n_tokens as f64 / seconds } else { 0.0 }
    }
}

/// A step as it is logged.
#[derive(Clone, Copy, Debug)]
pub struct StepLog {
    /// Optimizer steps done.
    pub step: u64,
    /// Passes over the data.
    pub epoch: f64,
    /// The learning rate of the step.
    pub lr: f64,
    /// Tokens of the step, over all ranks.
    pub n_tokens: u64,
    /// Whether there is a record of the step.
    pub is_logged: bool,
}

impl Journal {
    /// Begins, or goes on after `state.global_step` and so many samples.
    pub fn new(
        config: &TrainConfig,
        communicator: &Communicator,
        state: TrainerState,
        samples: u64,
        flops_per_token: f64,
    ) -> Result<Journal> {
        let dir = &config.save.output_dir;
        let first_step = state.global_step;
        let resumed = (first_step > 0).then_some(Resumed { step: first_step, samples });
        let trains = config.train.enabled;
        let log = match state.global_step {
            _ if !trains => RunLog::behind(dir, state)?,
            0 => RunLog::create(dir, state)?,
            _ => RunLog::resume(dir, state)?,
        };
        // An evaluation leaves what a training run has written.
        if trains || !log.has_training_args() {
            log.training_args(&config.description.yaml)?;
        }
        if trains && first_step == 0 {
            Profiler::forget(dir)?;
        }
        let profiler = config.log.profile.map(|every| Profiler::new(dir, every, first_step)).transpose()?;
        Ok(Journal {
            log,
            monitors: Monitors::open(config, communicator, resumed)?,
            progress: Progress::stdout(config.log.plain),
            flops_per_token,
            peak: Peak::default(),
            interval: Interval::new(),
            first_step,
            run: StepLosses::default(),
            profiler,
        })
    }

    /// A measurement of the peak of all ranks together, in operations per second.
    pub fn raise_peak_flops(&mut self, measured: f64) {
        self.peak.raise(measured);
    }

    fn utilization(&mut self, throughput: f64) -> Result<Option<f64>> {
        let measured = self.peak.flops();
        let share = self.peak.utilization(throughput, self.flops_per_token);
        if share.is_some() && self.peak.flops() > measured {
            let (measured, reached) = (measured / 1e9, self.peak.flops() / 1e9);
            self.note(&format!(
                "MFU: {reached:.0} GFLOP/s were reached, and {measured:.0} were measured, while the machine did other work; \
                 MFU is the share of the former from here on"
            ))?;
        }
        Ok(share)
    }

    /// The steps that were done before this run.
    pub fn first_step(&self) -> u64 {
        self.first_step
    }

    /// A line for running_log.txt alone.
    pub fn note(&mut self, text: &str) -> Result<()> {
        Ok(self.log.message(text)?)
    }

    /// A line for the terminal and running_log.txt.
    pub fn message(&mut self, text: &str) -> Result<()> {
        self.progress.message(text);
        Ok(self.log.message(text)?)
    }

    /// A line for a person at a terminal alone.
    pub fn hint(&mut self, text: &str) {
        if self.progress.is_terminal() {
            self.progress.message(text);
        }
    }

    /// The first example as the model sees it; `colored` is for a terminal.
    pub fn example(&mut self, plain: &str, colored: &str) -> Result<()> {
        let title = "The first row as the model sees it";
        let shown = match self.progress.is_terminal() {
            true => format!("{title} (bright: supervised):\n{colored}"),
            false => format!("{title} («supervised»):\n{plain}"),
        };
        self.progress.message(&shown);
        Ok(self.log.message(&format!("{title} («supervised»):\n{plain}"))?)
    }

    /// After every step.
    pub fn step(&mut self, done: StepLog, report: &StepReport) -> Result<()> {
        // A step that was skipped may have a loss that is none, which would be all that is left of a mean.
        if report.totals.is_finite() {
            self.interval.totals += &report.totals;
            self.interval.losses.add(report.loss());
            self.run.add(report.loss());
        }
        self.interval.n_tokens += done.n_tokens;
        let seen = self.log.state().num_input_tokens_seen + done.n_tokens;
        let flos = self.log.state().total_flos + done.n_tokens as f64 * self.flops_per_token;
        self.log.advance(done.step, done.epoch, seen, flos);
        let throughput = self.interval.throughput();
        let clock = self.log.clock();
        let utilization = self.utilization(throughput)?;
        let memory_bytes = if done.is_logged { ProcessMemory::current().ok().map(|m| m.pss) } else { None };
        let status = Status {
            step: done.step,
            total: self.log.state().max_steps,
            loss: report.loss(),
            metrics: report.totals.means(),
            learning_rate: done.lr,
            grad_norm: report.grad_norm,
            throughput,
            utilization,
            memory_bytes,
            elapsed: clock.elapsed(),
            remaining: clock.remaining(done.step, self.log.state().max_steps),
        };
        if !done.is_logged {
            self.progress.step(&status);
            return Ok(());
        }
        self.progress.record(&status);
        self.log.step(&StepRecord {
            step: done.step,
            epoch: done.epoch,
            loss: self.interval.losses.mean(),
            metrics: self.interval.totals.means(),
            learning_rate: done.lr,
            grad_norm: report.grad_norm,
            throughput,
            total_tokens: seen,
            memory_bytes,
        })?;
        self.interval = Interval::new();
        self.monitor_last()
    }

    /// After every step, as DeepSpeed's engine tells it.
    pub fn engine_step(&mut self, step: &EngineStep) -> Result<()> {
        let lines = self.monitors.stepped(step)?;
        lines.iter().try_for_each(|line| self.message(line))
    }

    /// The profile of the model, to its file or as a message.
    pub fn flops_profile(&mut self, file: Option<&Path>, report: &str) -> Result<()> {
        let Some(file) = file else { return self.message(report) };
        flops::save(file, report)?;
        self.message(&format!("flops_profiler: the profile is in {}", file.display()))
    }

    /// Hands the newest record of the log to the monitors.
    fn monitor_last(&mut self) -> Result<()> {
        self.log.state().log_history.last().map_or(Ok(()), |record| self.monitors.logged(record))
    }

    /// Before the first step: from here on the ops of this rank are timed, where a profile is asked for.
    pub fn begin_profile(&self, device: &Device) {
        if self.profiler.is_some() {
            device.profile().enable();
        }
    }

    /// After every step of `n_tokens`, when all else is told: the profile, where one is asked for and due.
    pub fn profile(
        &mut self,
        n_tokens: u64,
        timer: &mut PhaseTimer,
        accelerator: &Accelerator,
    ) -> Result<()> {
        let Some(profiler) = &mut self.profiler else { return Ok(()) };
        if !profiler.count(n_tokens) {
            return Ok(());
        }
        let (device, own) = (accelerator.device(), ProcessMemory::current()?);
        let arena = device.arena();
        let ops = device.profile().take();
        device.profile().enable();
        let peak = self.peak.flops() / accelerator.num_processes() as f64;
        let in_use: usize = arena.usage().iter().map(|(_, usage)| usage.bytes).sum();
        let memory = MemoryNow {
            pss: own.pss,
            peak_rss: own.peak_rss,
            in_use: in_use as u64,
            taken: arena.bytes() as u64,
        };
        let profiled = profiler.end(self.log.state().global_step, timer.so_far(), memory, ops, peak)?;
        let line = profiled.line();
        let shown = if self.progress.is_terminal() { profiled.table() } else { line.clone() };
        self.progress.message(&shown);
        Ok(self.log.message(&line)?)
    }

    /// After an evaluation.
    pub fn evaluation(&mut self, record: &EvalRecord) -> Result<()> {
        self.log.evaluation(record)?;
        self.monitor_last()?;
        let of = record.name.as_ref().map_or(String::new(), |name| format!(" of {name}"));
        let mut line = format!("evaluation{of} at step {}: loss {:.4}", record.step, record.loss);
        if record.has_perplexity {
            line.push_str(&format!(", perplexity {:.3}", libm::exp(record.loss)));
        }
        let shown = format!("{:.4}", record.loss);
        for (name, mean) in &record.metrics {
            let mean = format!("{mean:.4}");
            if *name != PER_TOKEN || mean != shown {
                line.push_str(&format!(", {name} {mean}"));
            }
        }
        self.message(&line)
    }

    /// After predictions were made; `warnings` says what came of them.
    pub fn prediction(&mut self, record: &PredictRecord, warnings: &str) -> Result<()> {
        self.log.prediction(record)?;
        self.message(&format!("{warnings}; they are in generated_predictions.jsonl"))
    }

    /// Takes time off the interval that was not training.
    pub fn paused(&mut self, time: Duration) {
        self.interval.paused += time;
    }

    /// How far the run is; for checkpoints.
    pub fn state(&self) -> &TrainerState {
        self.log.state()
    }

    /// The same, for what evaluations come to.
    pub fn state_mut(&mut self) -> &mut TrainerState {
        self.log.state_mut()
    }

    /// The end by an error.
    pub fn failed(&mut self, error: &str) -> Result<()> {
        self.monitors.failed(error)
    }

    /// The end: results.
    pub fn finish(&mut self, samples: u64, steps: u64) -> Result<()> {
        self.progress.finish();
        if steps > 0 {
            self.log.finish(&Summary { loss: self.run.mean(), samples, steps })?;
            self.monitor_last()?;
        }
        let lines = self.monitors.finish()?;
        lines.iter().try_for_each(|line| self.message(line))
    }
}
