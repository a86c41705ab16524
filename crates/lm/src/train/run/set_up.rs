//! What a run does before its first step: it looks at model, data and memory, and goes on from a checkpoint.

use std::time::SystemTime;

use oarlock_comm::ProcessMemory;
use oarlock_config::config::{IntervalStrategy, Length, TrainConfig};
use oarlock_config::settings::most;
use oarlock_engine::checkpoint::{Saver, clear_leftovers};
use oarlock_engine::nn::{NamedParam, parameters};
use oarlock_engine::optim::Schedule;
use oarlock_engine::optim::lr_scheduler::Scheduler;
use oarlock_engine::report::speed::PhaseTimer;
use oarlock_engine::report::state::TrainerState;
use oarlock_engine::{Accelerator, Error, Result};
use oarlock_tensor::DeviceKind;

use super::gpus;
use super::introduce::{introduce, stages_line};
use super::results::NonFiniteResults;
use super::state::Run;
use crate::data::Sampler;
use crate::estimate::{Forecast, Known, Longest, LongestOf};
use crate::model::Decoder;
use crate::train::data;
use crate::train::inputs::Reading;
use crate::train::journal::Journal;
use crate::train::lock::OutputLock;
use crate::train::model::{self, ReferenceModel, Start};
use crate::train::objective::{self, ObjectiveContext, Reference, dry_pass};
use crate::train::obstacles::note_logs;
use crate::train::options::optimizer;
use crate::train::output_folder::look_at_stores;
use crate::train::pool_limit::PoolLimit;
use crate::train::record::RunRecord;
use crate::train::resume::{Resumed, checkpoint_to_resume, load_undamaged};
use crate::train::token_loader::TokenLoader;

/// Tokens that a micro-batch has at the least.
const SHORTEST: usize = 8;

impl<'a> Run<'a> {
    /// Sets a run up on this rank. None where GPUs that nobody asked for have too little memory for it and the CPU has enough:
    /// rank 0 has said so, and all ranks are to set it up there.
    pub(super) fn set_up(
        config: &'a TrainConfig,
        accelerator: &'a Accelerator,
        started: SystemTime,
    ) -> Result<Option<Run<'a>>> {
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
        let gpus = gpus::memory_of_ranks(accelerator)?;
        let predict = |config: &TrainConfig, longest: Option<&LongestOf<'_>>| -> Result<Option<Forecast>> {
            // What the stages of a pipeline take is not predicted.
            if !accelerator.is_main_process() || config.ranks.pipeline.is_on() {
                return Ok(None);
            }
            let (device, apart) = (accelerator.device(), ranks_apart(accelerator));
            let dry = objective::of(&config.train, ObjectiveContext::default());
            let second = second.as_ref().map(|(second, _)| second);
            let models = (&model, &decoder as &dyn Fn() -> Result<Decoder>, second);
            let measured = ProcessMemory::current().map_or(0, |own| own.pss);
            let known = Known { device, apart, measured, longest, gpus: &gpus };
            Ok(Some(Forecast::new(config, models, known, &dry_pass(&*dry))?))
        };
        let is_unpadded = config.data.packing.is_unpadded();
        // What would not fit with the shortest rows is refused before the data are read.
        let shortest: &LongestOf<'_> = &|_, _| Longest { train: SHORTEST, eval: 0 };
        let first = predict(config, is_unpadded.then_some(shortest));
        if turns_to_cpu(config, accelerator, &first)? {
            return Ok(None);
        }
        let mut forecast = first?.filter(|_| !is_unpadded);
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
            Length::Epochs(epochs) => steps_of(epochs, loader.sampler().steps_per_epoch())?,
        };
        let mut pool_limit = None;
        if is_unpadded {
            let longest: &LongestOf<'_> =
                &|batch, eval_batch| data.longest(loader.sampler(), total_steps, batch, eval_batch);
            // How long the answers of the model will be nobody knows.
            let known = predict(config, (!config.train.objective.makes_answers()).then_some(longest));
            if turns_to_cpu(config, accelerator, &known)? {
                return Ok(None);
            }
            forecast = known?;
            if !config.ranks.pipeline.is_on() {
                pool_limit = Some(PoolLimit::agreed(accelerator, forecast.as_ref())?);
            }
        } else if let Some(filled) = data.filled(config, loader.sampler().world) {
            // Less than what has been found to fit.
            forecast = predict(&filled, None)?;
        }
        let schedule = Schedule::new(&config.train.schedule, total_steps, config.train.accumulation as u64);
        let unfinished = schedule.unfinished();
        let mut checkpoint = checkpoint_to_resume(config, accelerator)?;

        accelerator.communicator().set_phase("loading weights");
        let (adaptation, mut messages) = (start.adaptation.clone(), start.messages.clone());
        let compared = start.reference;
        let weights = start.weights(config, &hf, checkpoint.is_some(), accelerator.device())?;
        messages.extend(weights.notes());
        messages.extend(second.iter().flat_map(|(_, weights)| weights.notes()));
        if config.model.print_param_status {
            messages.extend(param_status(&model, accelerator));
        }
        let counts = model::sizes(&model);
        // The log of rank 0 counts them; the mean length takes a look at all rows.
        let flops = match accelerator.is_main_process() {
            true => model::flops(&model, hf.decoder().attention_width(data.train.mean_sequence_len())),
            false => 0.0,
        };
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
        let objective =
            objective::of(&config.train, ObjectiveContext { reference, answering: data.answering.take() });
        objective.register(accelerator);
        let inputs = reading.finish(accelerator.communicator(), std::mem::take(&mut data.read))?;
        let rows = accelerator.data_parallel().0 * config.train.batch_size * config.train.accumulation;
        let record = RunRecord::new(config, total_steps, rows as u64, inputs);
        let (mut done, mut other) = (0, Vec::new());
        let mut state = first_state(config, loader.sampler(), total_steps);
        if let Some(found) = &mut checkpoint {
            let Resumed { client, messages } = load_undamaged(config, accelerator, &record, found)?;
            other = messages;
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
            messages.iter().chain(&apart).chain(&data.messages).try_for_each(|line| journal.message(line))?;
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
            non_finite: NonFiniteResults::default(),
            forecast,
            started,
            timer: PhaseTimer::new(),
            saver: Saver::default(),
            lock,
        };
        run.check_metric()?;
        run.check_output()?;
        Ok(Some(run))
    }
}

/// Whether all ranks turn to the CPU, since the memory that rank 0 predicts is there and not on GPUs that nobody asked for. Rank 0
/// says why.
fn turns_to_cpu(
    config: &TrainConfig,
    accelerator: &Accelerator,
    predicted: &Result<Option<Forecast>>,
) -> Result<bool> {
    if config.ranks.device != DeviceKind::Auto || !accelerator.device().is_cuda() {
        return Ok(false);
    }
    let why = match predicted {
        Err(Error::Memory(refused)) => refused.instead_on_cpu(),
        _ => None,
    };
    accelerator.turns_to_cpu(why)
}

/// A line for each parameter, in the words of LLaMA-Factory.
fn param_status(model: &Decoder, accelerator: &Accelerator) -> Vec<String> {
    let device = if accelerator.device().is_cuda() { "cuda" } else { "cpu" };
    let line = |NamedParam { name, param }: NamedParam| {
        let dtype = param.working_dtype(accelerator.dtype());
        format!("name: {name}, dtype: {dtype}, device: {device}, trainable: {}", !param.is_frozen())
    };
    parameters(model).into_iter().map(line).collect()
}

/// The steps of so many epochs; as many as `max_steps` may be.
fn steps_of(epochs: f64, steps_per_epoch: u64) -> Result<u64> {
    let steps = (epochs * steps_per_epoch as f64).ceil();
    if steps > most::COUNT as f64 {
        let cause = format!(
            "{epochs:?} epochs of {steps_per_epoch} steps are {steps:e} steps, and a run has at most {}",
            most::COUNT
        );
        return Err(Error::Setting { key: "num_train_epochs", cause });
    }
    Ok(steps as u64)
}

fn first_state(config: &TrainConfig, sampler: &Sampler, total_steps: u64) -> TrainerState {
    let steps_of = |when: IntervalStrategy| match when {
        IntervalStrategy::Every(steps) => steps.of(total_steps),
        IntervalStrategy::Epoch => sampler.steps_per_epoch(),
        IntervalStrategy::Never => 0,
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

/// How many ranks are on this machine, where they share no memory.
fn ranks_apart(accelerator: &Accelerator) -> Option<usize> {
    let comm = accelerator.communicator();
    let machines = comm.machines();
    let here = |machine: &&usize| **machine == machines[comm.rank()];
    (!comm.shares_memory()).then(|| machines.iter().filter(here).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_make_no_more_steps_than_max_steps_may_be() {
        assert_eq!((steps_of(3.0, 7).unwrap(), steps_of(0.1, 7).unwrap()), (21, 1));
        assert_eq!(steps_of(1e15, 9).unwrap(), 9_000_000_000_000_000);
        for epochs in [1e300, 1e20, 1e15] {
            let error = steps_of(epochs, 10).unwrap_err().to_string();
            assert!(
                error.contains("num_train_epochs") && error.contains("at most 9007199254740992"),
                "{error}"
            );
        }
    }
}
