//! A training run on one rank: set up, step by step, evaluate, save, finish. Written on the [`Accelerator`] alone.

mod best;
mod card;
mod evaluate;
mod finish;
mod gpus;
mod introduce;
mod non_finite;
mod predict;
mod results;
mod save;
mod set_up;
mod state;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oarlock_config::config::{IntervalStrategy, TrainConfig};
use oarlock_engine::optim::Stepped;
use oarlock_engine::report::engine::EngineStep;
use oarlock_engine::report::speed::{Phase, PhaseTimes};
use oarlock_engine::report::state::TrainerState;
use oarlock_engine::{Accelerator, Result};

use state::Run;

use super::step::train_step;
use crate::data::{Batch, StepBatches};
use crate::train::flops;
use crate::train::journal::StepLog;
use crate::train::monitors::momentum;

/// Runs a configuration on this rank. `started` is when the command began, for the start-up figures. Rank 0 gets the
/// state at the end with all that was logged.
///
/// # Errors
/// Whatever is wrong with the model, the data or the disk, and the failure of another rank.
pub fn run(
    config: &TrainConfig,
    accelerator: &Accelerator,
    started: SystemTime,
) -> Result<Option<TrainerState>> {
    let on_cpu;
    let mut set_up = Run::set_up(config, accelerator, started)?;
    if set_up.is_none() {
        on_cpu = accelerator.on_cpu()?;
        set_up = Run::set_up(config, &on_cpu, started)?;
    }
    // There is no other device to turn to.
    let Some(mut run) = set_up else { return Ok(None) };
    let trained = if config.train.enabled { run.train() } else { Ok(()) };
    if let Err(error) = trained.and_then(|()| run.finish()) {
        if let Some(journal) = &mut run.journal {
            // The error of the run is the one to report.
            let _ = journal.failed(&error.to_string());
        }
        return Err(error);
    }
    Ok(run.journal.map(|journal| journal.state().clone()))
}

/// Measurements of the peak that MFU is a share of: after each of the first steps, by when the cores run as they do in training.
/// A GPU is measured once: its matrices take memory, and nobody else has its cores.
const PEAK_MEASUREMENTS: u64 = 3;

impl Run<'_> {
    fn train(&mut self) -> Result<()> {
        let max_grad_norm = self.config.train.max_grad_norm.unwrap_or(0.0);
        let first = self.done;
        self.limit_pool();
        self.stopped = self.had_stopped()?;
        if self.config.eval.at_start {
            let begin = Instant::now();
            self.evaluate(first)?;
            if let Some(journal) = &mut self.journal {
                journal.paused(begin.elapsed());
            }
        }
        if let Some(journal) = &self.journal {
            journal.begin_profile(self.accelerator.device());
        }
        for step in first..self.total_steps {
            if self.stopped {
                break;
            }
            let before = self.timer.so_far();
            self.timer.enter(Phase::Data);
            let window = self.next_window()?;
            if step == first {
                self.note_startup("first forward")?;
            }
            let lr = self.optimizer.lr();
            let report = train_step(
                self.accelerator,
                &*self.objective,
                &self.model,
                &self.optimizer,
                &window.batches,
                max_grad_norm,
                &mut self.timer,
            )?;
            if step == 0 {
                self.check_first_loss(report.loss())?;
            }
            // A skipped step moves neither the weights nor the learning rate.
            self.scheduler.step();
            if step == first {
                self.note_startup("first step")?;
                self.note_products()?;
                // The first step has made the optimizer's state.
                self.limit_pool();
            }
            let n_peaks = if self.accelerator.device().is_cuda() { 1 } else { PEAK_MEASUREMENTS };
            if step - first < n_peaks {
                self.measure_peak()?;
            }
            let n_tokens = window.n_tokens;
            let times = self.timer.so_far().since(&before);
            if let Some(batch) = window.batches.last() {
                self.profile(step, batch, &times)?;
            }
            self.loader.give_back(window);
            let done = step + 1;
            self.done = done;
            let (per_epoch, epoch) = (self.steps_per_epoch(), self.epoch());
            if let Some(journal) = &mut self.journal {
                if let Stepped::Skipped { line } = &report.stepped {
                    journal.message(line)?;
                }
                let is_logged = due(self.config.log.when, done, self.total_steps, per_epoch)
                    || (done == 1 && self.config.log.first_step);
                journal.step(StepLog { step: done, epoch, lr, n_tokens, is_logged }, &report)?;
                journal.profile(n_tokens, &mut self.timer, self.accelerator)?;
                journal.engine_step(&EngineStep {
                    step: done,
                    skipped: done - self.optimizer.n_steps()?,
                    samples: self.loader.position(),
                    loss: report.loss(),
                    lr: self.optimizer.lr(),
                    momentum: momentum(&self.optimizer.rule()?),
                    loss_scale: match self.optimizer.has_loss_scale()? {
                        true => Some(self.optimizer.loss_scale()?),
                        false => None,
                    },
                    times,
                })?;
            }
            self.after_step(done)?;
            if let (Some(forecast), Some(journal)) = (&mut self.forecast, &mut self.journal)
                && let Some(line) =
                    forecast.after_step((first, done, self.total_steps), self.accelerator.device())
            {
                journal.message(&line)?;
            }
        }
        self.timer.enter(Phase::Save);
        self.accelerator.communicator().set_phase("waiting for the last checkpoint");
        let saved = self.saver.finish(self.accelerator.communicator()).map(|_| ());
        self.go_on_without(saved)?;
        self.check_trained()?;
        // The optimizer of an earlier checkpoint has taken fewer steps.
        self.skipped = self.done - self.optimizer.n_steps()?;
        self.load_best()?;
        self.timer.enter(Phase::Other);
        Ok(())
    }

    /// The micro-batches of the next step: rows of the data, or what the objective makes of them.
    fn next_window(&mut self) -> Result<StepBatches> {
        let Some(source) = self.objective.source() else { return self.loader.next_step() };
        let step = self.done + 1;
        self.accelerator.communicator().set_phase(&format!("step {step}: making examples"));
        self.loader.next_step_of(|step| source.make(self.accelerator, &self.model, step))
    }

    fn limit_pool(&self) {
        if let Some(limit) = &self.pool_limit {
            limit.set(self.accelerator.device().arena());
        }
    }

    /// Says where the first loss is not the one of a model that still is what it is compared with.
    fn check_first_loss(&mut self, loss: f64) -> Result<()> {
        let (Some(expected), Some(journal)) = (self.objective.first_loss(), &mut self.journal) else {
            return Ok(());
        };
        match (loss - expected).abs() > 1e-3 * expected.max(1.0) {
            false => Ok(()),
            true => journal.message(&format!(
                "warning: the loss of the first step is {loss:.6}, and a model that still is its reference has {expected:.6}; \
                 what it is compared with is another model"
            )),
        }
    }

    /// The profile of the model, where it is due after `before` steps.
    fn profile(&mut self, before: u64, batch: &Batch, times: &PhaseTimes) -> Result<()> {
        let Some(args) =
            self.config.monitor.engine.flops_profiler.as_ref().filter(|args| args.after_steps == before)
        else {
            return Ok(());
        };
        if self.model.pipeline().is_some() {
            let Some(journal) = &mut self.journal else { return Ok(()) };
            return journal.message("flops_profiler: a model in the stages of a pipeline is not profiled");
        }
        let accumulation = self.config.train.accumulation;
        let begin = Instant::now();
        let report = flops::profile(
            self.accelerator,
            &*self.objective,
            &self.model,
            args,
            batch,
            accumulation,
            times,
        )?;
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.paused(begin.elapsed());
        journal.flops_profile(args.file.as_deref(), &report)
    }

    /// Evaluation and checkpoints, where they are due.
    fn after_step(&mut self, done: u64) -> Result<()> {
        let per_epoch = self.steps_per_epoch();
        let begin = Instant::now();
        let saved = self.saver.poll(self.accelerator.communicator()).map(|_| ());
        self.go_on_without(saved)?;
        let last = done == self.total_steps;
        let eval = &self.config.eval;
        let waited = match eval.when {
            IntervalStrategy::Epoch => self.epoch(),
            _ => done as f64,
        };
        let best = &self.config.save.best;
        // At the end it is the final model that is evaluated, which may be an earlier one.
        let is_later = last && eval.at_end && best.is_none();
        let mut is_new_best = false;
        if due(eval.when, done, self.total_steps, per_epoch) && waited >= eval.delay && !is_later {
            let results = self.evaluate(done)?;
            let verdict = self.judge(&results)?;
            self.stopped = verdict.stops;
            is_new_best = verdict.is_best && best.as_ref().is_some_and(|best| best.saves);
        }
        if is_new_best || save_due(self.config.save.when, done, self.total_steps, per_epoch) {
            self.timer.enter(Phase::Save);
            self.save(done)?;
            self.timer.enter(Phase::Other);
        }
        if let Some(journal) = &mut self.journal {
            journal.paused(begin.elapsed());
        }
        Ok(())
    }
}

/// Whether something that happens `when` is due after `done` steps.
fn due(when: IntervalStrategy, done: u64, total: u64, per_epoch: u64) -> bool {
    match when {
        IntervalStrategy::Never => false,
        IntervalStrategy::Epoch => done.is_multiple_of(per_epoch) || done == total,
        IntervalStrategy::Every(steps) => done.is_multiple_of(steps.of(total).max(1)),
    }
}

/// Whether a checkpoint is due: also after the last step, so that a longer training goes on from there.
fn save_due(when: IntervalStrategy, done: u64, total: u64, per_epoch: u64) -> bool {
    due(when, done, total, per_epoch) || (done == total && when != IntervalStrategy::Never)
}

/// The moment a process began, handed down by the launcher in microseconds since 1970.
pub fn started(stamp: Option<&str>) -> SystemTime {
    match stamp.and_then(|s| s.parse().ok()) {
        Some(micros) => UNIX_EPOCH + Duration::from_micros(micros),
        None => SystemTime::now(),
    }
}
