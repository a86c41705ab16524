//! A training run on one rank: set up, step by step, evaluate, save, finish. Written on the [`Accelerator`] alone.

mod best;
mod card;
mod doubts;
mod evaluate;
mod finish;
mod introduce;
mod predict;
mod save;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use oarlock_comm::ProcessMemory;
use oarlock_tensor::Device;

use crate::accelerator::{
    Accelerator, Prepared, PreparedOptimizer, PreparedScheduler, PreparedTokenLoader, TokenLoader,
};
use crate::adapters::Adaptation;
use crate::checkpoint::{Saver, clear_leftovers};
use crate::config::{Length, ObjectiveArgs, TrainConfig, When};
use crate::data::{Batch, Sampler};
use crate::error::Result;
use crate::estimate::{Forecast, GpuMemory, Known, Longest, LongestOf};
use crate::lr_scheduler::Scheduler;
use crate::model::Decoder;
use crate::model::hf::HfConfig;
use crate::optim::{Schedule, Stepped};
use crate::report::engine::EngineStep;
use crate::report::speed::{Phase, PhaseTimer, PhaseTimes};
use crate::report::state::TrainerState;
use crate::train::data::{self, RunData};
use crate::train::flops;
use crate::train::inputs::Reading;
use crate::train::journal::{Journal, StepLog};
use crate::train::lock::OutputLock;
use crate::train::model::{self, ReferenceModel, Start};
use crate::train::monitors::momentum;
use crate::train::objective::{Judgement, NextToken, Objective, Preference, Reference, Reward, dry_pass};
use crate::train::obstacles::note_logs;
use crate::train::options::optimizer;
use crate::train::output_folder::look_at_stores;
use crate::train::pool_limit::PoolLimit;
use crate::train::record::RunRecord;
use crate::train::resume::{Resumed, checkpoint_to_resume, load_undamaged};
use crate::train::train_step;
use doubts::Doubts;
use introduce::{introduce, stages_line};

/// Tokens that a micro-batch has at the least.
const SHORTEST: usize = 8;

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
    match &config.train.objective {
        ObjectiveArgs::NextToken => {
            let objective = NextToken { args: config.train.loss, seed: config.train.seed };
            carry_out(config, accelerator, |_| objective, started)
        }
        ObjectiveArgs::Preferences(args) => {
            carry_out(config, accelerator, |reference| Preference::new(args.clone(), reference), started)
        }
        ObjectiveArgs::Judgements(args) => {
            carry_out(config, accelerator, |reference| Judgement::new(args.clone(), reference), started)
        }
        ObjectiveArgs::Rewards => carry_out(config, accelerator, |_| Reward, started),
    }
}

fn carry_out<O: Objective<Model = Decoder>>(
    config: &TrainConfig,
    accelerator: &Accelerator,
    objective: impl Fn(Reference) -> O,
    started: SystemTime,
) -> Result<Option<TrainerState>> {
    let mut run = Run::set_up(config, accelerator, objective, started)?;
    if config.train.enabled {
        run.train()?;
    }
    run.finish()?;
    Ok(run.journal.map(|journal| journal.state().clone()))
}

/// Measurements of the peak that MFU is a share of: after each of the first steps, by when the cores run as they do in training.
/// A GPU is measured once: its matrices take memory, and nobody else has its cores.
const PEAK_MEASUREMENTS: u64 = 3;

struct Run<'a, O> {
    config: &'a TrainConfig,
    accelerator: &'a Accelerator,
    objective: O,
    hf: HfConfig,
    /// The longest sequence that the model can take.
    n_positions: usize,
    /// The adapter that is trained beside the model.
    adaptation: Option<Adaptation>,
    /// What the loss compares the model with.
    compared: ReferenceModel,
    model: Prepared<Decoder>,
    optimizer: PreparedOptimizer,
    scheduler: PreparedScheduler,
    loader: PreparedTokenLoader,
    data: RunData,
    /// What checkpoints tell of this run.
    record: RunRecord,
    /// The checkpoint from which it went on.
    resumed: Option<PathBuf>,
    /// Where this run began or went on: the number of ranks may have changed since.
    first_position: u64,
    /// Steps so far, skipped ones included.
    done: u64,
    total_steps: u64,
    /// Steps that changed no weight, as their gradients were not finite.
    skipped: u64,
    /// Whether the training ends before that.
    stopped: bool,
    journal: Option<Journal>,
    doubts: Doubts,
    /// What memory was predicted to be, on rank 0.
    forecast: Option<Forecast>,
    started: SystemTime,
    timer: PhaseTimer,
    /// Where rows have lengths of their own.
    pool_limit: Option<PoolLimit>,
    saver: Saver,
    /// Held by rank 0 until everything else has ended.
    lock: Option<OutputLock>,
}

impl<'a, O: Objective<Model = Decoder>> Run<'a, O> {
    fn set_up(
        config: &'a TrainConfig,
        accelerator: &'a Accelerator,
        objective: impl Fn(Reference) -> O,
        started: SystemTime,
    ) -> Result<Run<'a, O>> {
        accelerator.communicator().set_timeout(config.ranks.timeout);
        accelerator.communicator().set_phase("setting up");
        if let Some(comms) = &config.monitor.engine.comms_logger {
            accelerator.communicator().record(comms.recorded.clone());
        }
        let reading = Reading::begin(accelerator.communicator(), config)?;
        let hf = model::settings(&config.model)?;
        let start = Start::new(config, &hf)?;
        let decoder = || {
            let mut model = start.decoder(config, &hf)?;
            if let Some(sequence) = accelerator.sequence_parallel() {
                model.set_sequence_parallel(sequence)?;
            }
            Ok(model)
        };
        let mut model = decoder()?;
        model.set_recompute(config.train.recompute);
        model.set_activation_offload(config.train.offload_activations);
        let second = start.second(config, &hf, accelerator.device())?;
        let predict = |longest: Option<&LongestOf<'_>>| -> Result<Option<Forecast>> {
            // What the stages of a pipeline take is not predicted.
            if !accelerator.is_main_process() || config.ranks.pipeline.is_on() {
                return Ok(None);
            }
            let (device, apart) = (accelerator.device(), ranks_apart(accelerator));
            let dry = objective(Reference::Absent);
            let second = second.as_ref().map(|(second, _)| second);
            let models = (&model, &decoder as &dyn Fn() -> Result<Decoder>, second);
            let measured = ProcessMemory::current().map_or(0, |own| own.pss);
            let gpu = GpuMemory::now(device, ranks_of_gpu(accelerator)?);
            let known = Known { device, apart, measured, longest, gpu };
            Ok(Some(Forecast::new(config, models, known, &dry_pass(&dry))?))
        };
        let is_unpadded = config.data.packing.is_unpadded();
        let mut forecast = match is_unpadded {
            true => {
                // What would not fit with the shortest rows is refused before the data are read.
                predict(Some(&|_, _| Longest { train: SHORTEST, eval: 0 }))?;
                None
            }
            false => predict(None)?,
        };
        let lock = match accelerator.is_main_process() {
            true => {
                let lock = OutputLock::take(&config.save.output_dir)?;
                // A run that makes no step saves nothing, and so would leave it there.
                clear_leftovers(&config.save.output_dir)?;
                Some(lock)
            }
            false => None,
        };
        let apart = look_at_stores(accelerator, &config.save.output_dir)?;
        let mut data = data::open(accelerator, config, &hf)?;
        let loader = TokenLoader {
            rows: data.train.clone(),
            shuffle: config.data.shuffle,
            seed: config.train.data_seed,
            micro_batch: config.train.batch_size as u64,
            accumulation: config.train.accumulation as u64,
        };
        let loader = accelerator.prepare(loader)?;
        let total_steps = match config.train.length {
            Length::Steps(steps) => steps,
            Length::Epochs(epochs) => (epochs * loader.sampler().steps_per_epoch() as f64).ceil() as u64,
        };
        let mut pool_limit = None;
        if is_unpadded {
            let longest = |batch, eval_batch: Option<usize>| {
                data.longest(loader.sampler(), total_steps, batch, eval_batch)
            };
            forecast = predict(Some(&longest))?;
            if !config.ranks.pipeline.is_on() {
                pool_limit = Some(PoolLimit::agreed(accelerator, forecast.as_ref())?);
            }
        }
        let schedule = Schedule::new(&config.train.schedule, total_steps, config.train.accumulation as u64);
        let unfinished = schedule.unfinished();
        let mut checkpoint = checkpoint_to_resume(config, accelerator)?;

        accelerator.communicator().set_phase("loading weights");
        let (adaptation, told) = (start.adaptation.clone(), start.told.clone());
        let compared = start.reference;
        let weights = start.weights(config, &hf, checkpoint.is_some(), accelerator.device())?;
        let counts = model::sizes(&model);
        let flops = model::flops(&model, hf.decoder().attention_width(data.train.mean_sequence_len()));
        let optimizer = optimizer(config, &model);
        let scheduler = Scheduler::scheduled(&optimizer, schedule);
        let (model, optimizer, scheduler) =
            accelerator.prepare_with_weights((model, optimizer, scheduler), weights)?;
        let reference = match (compared, second) {
            (ReferenceModel::SameWeights, _) => Reference::SameWeights,
            (_, Some((second, weights))) => {
                Reference::Second(accelerator.prepare_with_weights(second, weights)?)
            }
            (_, None) => Reference::Absent,
        };
        let objective = objective(reference);
        objective.register(accelerator);
        let inputs = reading.finish(accelerator.communicator(), std::mem::take(&mut data.read))?;
        let rows = accelerator.data_parallel().0 * config.train.batch_size * config.train.accumulation;
        let record = RunRecord::new(config, total_steps, rows as u64, inputs);
        let (mut done, mut other) = (0, Vec::new());
        let mut state = first_state(config, loader.sampler(), total_steps);
        if let Some(found) = &mut checkpoint {
            let Resumed { client, told } = load_undamaged(config, accelerator, &record, found)?;
            other = told;
            done = client.step;
            loader.set_position(client.consumed_samples);
            // The learning rate is that of this configuration, whatever the checkpoint was saved with.
            scheduler.set_steps(optimizer.n_steps()?);
            if accelerator.is_main_process() {
                let resumed = TrainerState::load(&found.dir)?;
                state = TrainerState { max_steps: state.max_steps, ..resumed };
            }
        }

        let resumed = checkpoint.map(|found| found.dir);
        if accelerator.is_main_process() {
            note_logs(config)?;
        }
        let mut journal = match accelerator.is_main_process() {
            true => Some(Journal::new(config, accelerator.communicator(), state, loader.position(), flops)?),
            false => None,
        };
        if let Some(journal) = &mut journal {
            let sizes = (counts, data.train.n_rows(), data.train.row_len());
            if let Some(pipeline) = model.pipeline() {
                journal.message(&stages_line(pipeline))?;
            }
            introduce(journal, config, accelerator, sizes, total_steps, resumed.as_deref())?;
            told.iter().chain(&apart).chain(&data.told).try_for_each(|line| journal.message(line))?;
            if let Some([plain, colored]) = &data.first {
                journal.example(plain, colored)?;
            }
            other.iter().try_for_each(|line| journal.message(line))?;
            unfinished.iter().try_for_each(|line| journal.message(line))?;
            forecast.iter().try_for_each(|forecast| journal.message(&forecast.line()))?;
        }
        let run = Run {
            config,
            accelerator,
            objective,
            n_positions: model::positions(config, &hf),
            hf,
            adaptation,
            compared,
            model,
            optimizer,
            scheduler,
            first_position: loader.position(),
            loader,
            pool_limit,
            data,
            record,
            resumed,
            done,
            total_steps,
            skipped: 0,
            stopped: false,
            journal,
            doubts: Doubts::default(),
            forecast,
            started,
            timer: PhaseTimer::new(),
            saver: Saver::default(),
            lock,
        };
        run.check_metric()?;
        run.check_output()?;
        Ok(run)
    }

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
            let window = self.loader.next_step()?;
            if step == first {
                self.note_startup("first forward")?;
            }
            let lr = self.optimizer.lr();
            let report = train_step(
                self.accelerator,
                &self.objective,
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
        let report =
            flops::profile(self.accelerator, &self.objective, &self.model, args, batch, accumulation, times)?;
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
            When::Epoch => self.epoch(),
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

    fn steps_per_epoch(&self) -> u64 {
        self.loader.sampler().steps_per_epoch()
    }

    /// Passes over the data so far.
    fn epoch(&self) -> f64 {
        self.loader.sampler().epochs(self.loader.position())
    }
}

/// Whether something that happens `when` is due after `done` steps.
fn due(when: When, done: u64, total: u64, per_epoch: u64) -> bool {
    match when {
        When::Never => false,
        When::Epoch => done.is_multiple_of(per_epoch) || done == total,
        When::Every(steps) => done.is_multiple_of(steps.of(total).max(1)),
    }
}

/// Whether a checkpoint is due: also after the last step, so that a longer training goes on from there.
fn save_due(when: When, done: u64, total: u64, per_epoch: u64) -> bool {
    due(when, done, total, per_epoch) || (done == total && when != When::Never)
}

fn first_state(config: &TrainConfig, sampler: &Sampler, total_steps: u64) -> TrainerState {
    let steps_of = |when: When| match when {
        When::Every(steps) => steps.of(total_steps),
        When::Epoch => sampler.steps_per_epoch(),
        When::Never => 0,
    };
    TrainerState {
        max_steps: total_steps,
        num_train_epochs: total_steps.div_ceil(sampler.steps_per_epoch()),
        logging_steps: steps_of(config.log.when),
        eval_steps: steps_of(config.eval.when),
        save_steps: steps_of(config.save.when),
        train_batch_size: Some(config.train.batch_size as u64),
        ..TrainerState::default()
    }
}

/// The moment a process began, handed down by the launcher in microseconds since 1970.
pub fn started(stamp: Option<&str>) -> SystemTime {
    match stamp.and_then(|s| s.parse().ok()) {
        Some(micros) => UNIX_EPOCH + Duration::from_micros(micros),
        None => SystemTime::now(),
    }
}

/// How many ranks of this machine share a GPU at most.
fn ranks_of_gpu(accelerator: &Accelerator) -> Result<usize> {
    if !accelerator.device().is_cuda() {
        return Ok(1);
    }
    let (comm, gpus) = (accelerator.communicator(), Device::cuda_indices()?.len());
    let machines = comm.machines();
    let here = |machine: &&usize| machines.get(comm.rank()) == Some(*machine);
    Ok(machines.iter().filter(here).count().div_ceil(gpus.max(1)))
}

/// How many ranks are on this machine, where they share no memory.
fn ranks_apart(accelerator: &Accelerator) -> Option<usize> {
    let comm = accelerator.communicator();
    let machines = comm.machines();
    let here = |machine: &&usize| **machine == machines[comm.rank()];
    (!comm.shares_memory()).then(|| machines.iter().filter(here).count())
}
