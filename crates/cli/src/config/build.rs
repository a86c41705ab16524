//! Turns settings into a [`TrainConfig`] and finds what is wrong between keys: what is missing, what contradicts,
//! what is out of range only because of another key.

use super::table as keys;

use oarlock::config::{
    ChatArgs, DataArgs, DataParts, EvalArgs, IntervalStrategy, LogArgs, MOST_RANKS, Packing, RankArgs,
    RankParts, RunDescription, SaveArgs, SaveParts, ScheduleArgs, Steps, TrainArgs, TrainConfig, TrainParts,
};
use oarlock::nn::SparsityConfig;
use oarlock_config::config::{optimizer_keys as optimizer, schedule_keys as schedule};
use oarlock_config::dialect::{self, Dialects, Ranks};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::{Problem, Problems};
use oarlock_config::settings::resolve::{self, Setting, Settings};
use oarlock_config::settings::value::Value;
use oarlock_tensor::DeviceKind;

use super::resolved::ResolvedConfig;
use super::{
    accelerator, best, checks, finetuning, hub_data, learning, low_rank, model, monitor, objective, pipeline,
    predicting, recompute,
};

/// Builds the configuration; `problems` are those found before.
///
/// # Errors
/// All problems, old and new, and then what is not there.
pub fn build(
    mut settings: Settings,
    mut dialects: Dialects,
    mut problems: Problems,
) -> Result<ResolvedConfig, Problems> {
    rename(keys::EVALUATION_STRATEGY.row, keys::EVAL_STRATEGY.row, &mut settings, &mut problems);
    rename(keys::NEW_SPECIAL_TOKENS.row, keys::ADD_SPECIAL_TOKENS.row, &mut settings, &mut problems);
    derive(&mut settings);
    let found = &mut problems;
    required(&settings, found);
    between(&settings, found);
    checks::between(&mut settings, &dialects, found);
    accelerator::check(&settings, found);
    let read = &settings;
    let learning_rate = read.get(keys::LEARNING_RATE);
    let known = read.known(keys::NUM_PROCESSES).and_then(|n| i64::try_from(n).ok());
    let device = device(read, found);
    let ranks = Ranks { n: known, on_gpus: device.is_gpu() };
    let sharding = dialect::shard(&mut dialects, ranks, found);
    let shard = sharding.config;
    let recompute = recompute::recompute(&settings, &dialects, found);
    let shape = schedule::shape(&settings, learning_rate, found);
    let optimizer = low_rank::low_rank(&settings, optimizer::optimizer(&settings, found));
    optimizer::check_placement(&settings, &optimizer, &shard, found);
    let monitor = monitor::monitors(&settings, &dialects, found);

    let mut model = model::model(&settings, found);
    let finetuning = finetuning::finetuning(&settings, found);
    let stage = objective::of(read);
    let chats = stage.examples.is_some();
    let (shuffle, group_by_length) = learning::order(read, found);
    let parts = DataParts {
        packing: match (read.get(keys::MINIMIND_ROWS), read.get(keys::NEAT_PACKING), read.get(keys::PACKING))
        {
            (_, neat, packing) if chats && (neat || packing) => Packing::Knapsack,
            _ if chats => Packing::Examples,
            (true, _, _) => Packing::MiniMind,
            (false, true, _) => Packing::ConcatDocuments,
            (false, false, true) => Packing::Concat,
            (false, false, false) => Packing::Truncate,
        },
        chat: stage.examples.map(|examples| ChatArgs { examples, ..chat(read) }),
        shuffle,
        mix: learning::mix(read, found),
        group_by_length,
        eval_each: read.get(keys::EVAL_ON_EACH_DATASET),
        remote: hub_data::local(read),
    };
    let data = DataArgs { dataset_dir: hub_data::dataset_dir(read), ..DataArgs::read(read, parts) };
    model.sparse_attention = sparse_attention(&dialects, &data, read.get(keys::SEED), found);
    let parts = TrainParts {
        loss_scale: sharding.loss_scale,
        recompute,
        offload_activations: recompute::offloads(&dialects),
        optimizer,
        schedule: ScheduleArgs { learning_rate, shape, warmup: warmup(&settings) },
        loss: learning::token_loss(read, found),
        finetuning,
        objective: (stage.read)(read, found),
        enabled: read.get(keys::DO_TRAIN),
    };
    let train = TrainArgs::read(read, parts);
    let eval = EvalArgs::read(read);
    let saved = IntervalStrategy::of(read.get(keys::SAVE_STRATEGY), read.get(keys::SAVE_STEPS));
    let best = best::best(read, eval.when, saved, found);
    let predict = predicting::predict(read, &stage, &shard, found);
    let parts = SaveParts {
        restarted: None,
        state_dict: sharding.state_dict,
        whole_weights: sharding.whole_weights_on_save,
        best,
    };
    let save = SaveArgs::read(read, parts);
    let log = LogArgs::read(read);
    let pipeline = pipeline::pipeline(read, &shard, found);
    let ranks = RankArgs::read(read, RankParts { device, pipeline });
    if !problems.is_empty() {
        problems.append(resolve::missing(&settings));
        problems.append(dialects.missing());
    }
    let description = RunDescription::default();
    let values =
        TrainConfig { model, data, train, eval, predict, save, log, monitor, shard, ranks, description };
    problems.into_result(|| ResolvedConfig { values, settings, dialects, flags: &[] })
}

/// What DeepSpeed's block says of sparse attention, for rows of one text or of texts that follow each other.
fn sparse_attention(
    dialects: &Dialects,
    data: &DataArgs,
    seed: u64,
    problems: &mut Problems,
) -> Option<SparsityConfig> {
    let block = dialects.deepspeed.as_ref()?;
    let sparsity = dialect::sparse_attention(block, (data.cutoff_len, seed), problems)?;
    if data.packing.is_unpadded() {
        let written = block.settings.iter().filter(|setting| setting.location().is_some());
        let named = |setting: &&Setting| setting.key.name.starts_with("sparse_attention.");
        let written: Vec<&Setting> = written.filter(named).collect();
        let message = "`sparse_attention` needs rows that begin with a text, but conversations follow each other in a row";
        problems.push(resolve::at(Problem::new(message), &written).help(
            "its blocks are counted from the start of a row; remove it, or train on texts (stage: pt)",
        ));
    }
    Some(sparsity)
}

/// Where ranks compute. `use_cpu` and its older name choose the CPU as well.
fn device(settings: &Settings, problems: &mut Problems) -> DeviceKind {
    let cpu = [keys::USE_CPU, keys::NO_CUDA].into_iter().find(|key| settings.get(*key));
    match (settings.get(keys::DEVICE), cpu) {
        ("cuda", Some(key)) => {
            let problem = settings.problem(
                format!("`{key}` and `device: cuda` are mutually exclusive"),
                &[key.row, keys::DEVICE.row],
            );
            problems.push(problem.help("keep one of them"));
            DeviceKind::Cpu
        }
        (_, Some(_)) | ("cpu", None) => DeviceKind::Cpu,
        ("cuda", None) => DeviceKind::Cuda(0),
        _ => DeviceKind::Auto,
    }
}

/// How conversations become tokens.
pub(super) fn chat(settings: &Settings) -> ChatArgs {
    ChatArgs {
        template: settings.get(keys::TEMPLATE).map(str::to_owned),
        tool_format: settings.get(keys::TOOL_FORMAT).map(str::to_owned),
        default_system: settings.get(keys::DEFAULT_SYSTEM).map(str::to_owned),
        // A written null has a meaning of its own.
        enable_thinking: match settings.setting(keys::ENABLE_THINKING) {
            setting if setting.location().is_some() => match setting.value {
                Value::Bool(thinks) => Some(thinks),
                _ => None,
            },
            _ => Some(true),
        },
        preserve_thinking: settings.get(keys::PRESERVE_THINKING),
        train_on_prompt: settings.get(keys::TRAIN_ON_PROMPT),
        // Of a prompt that is answered anew, the last answer alone is the expected one.
        mask_history: settings.get(keys::MASK_HISTORY) || objective::of(settings).makes_answers,
        split_special_tokens: settings.get(keys::SPLIT_SPECIAL_TOKENS),
        ..ChatArgs::default()
    }
}

/// A setting that older files call otherwise.
fn rename(old_key: &'static Row, new_key: &'static Row, settings: &mut Settings, problems: &mut Problems) {
    let (old, new) = (settings.setting(old_key), settings.setting(new_key));
    if !old.is_written() || old.broken {
        return;
    }
    if new.is_written() && !new.value.agrees(&old.value) {
        let message = format!("`{old_key}` and `{new_key}` differ");
        let help = format!("they are two names of one setting; keep {new_key}");
        settings.report(problems, &message, &[old_key, new_key], &help);
    } else {
        let value = old.value.clone();
        settings.derive(new_key, value, old_key.name);
    }
}

/// Values that follow from other settings when nobody wrote them.
fn derive(settings: &mut Settings) {
    if !settings.setting(keys::DATA_SEED).is_written() {
        settings.derive(keys::DATA_SEED, settings.setting(keys::SEED).value.clone(), "seed");
    }
    if !settings.setting(keys::EVAL_STEPS).is_written() {
        settings.derive(
            keys::EVAL_STEPS,
            settings.setting(keys::LOGGING_STEPS).value.clone(),
            "logging_steps",
        );
    }
    let evaluates = settings.get(keys::VAL_SIZE) > 0.0 || !settings.get(keys::EVAL_DATASET).is_empty();
    if evaluates && !settings.setting(keys::DO_EVAL).is_written() {
        settings.derive(keys::DO_EVAL, Value::Bool(true), "there is something to evaluate on");
    }
    if settings.get(keys::PURE_BF16) && !settings.get(keys::FP16) {
        settings.derive(keys::BF16, Value::Bool(true), "pure_bf16");
    }
    if settings.get(keys::USE_MUON)
        && (!settings.setting(keys::OPTIM).is_written() || settings.get(keys::OPTIM).starts_with("adamw"))
    {
        settings.derive(keys::OPTIM, Value::Text("muon".to_owned()), "use_muon");
    }
    if settings.get(keys::USE_MUON) && !settings.setting(keys::OPTIM_ARGS).is_written() {
        settings.derive(keys::OPTIM_ARGS, Value::Text("adjust_lr_fn=match_rms_adamw".to_owned()), "use_muon");
    }
    let has_dataset =
        [keys::DATASET.row, keys::TOKENIZED_PATH.row].iter().any(|key| settings.setting(*key).is_written());
    if !has_dataset && !settings.get(keys::EVAL_DATASET).is_empty() {
        if !settings.setting(keys::DO_TRAIN).is_written() {
            settings.derive(keys::DO_TRAIN, Value::Bool(false), "there is no dataset");
        }
        if !settings.get(keys::DO_TRAIN) {
            let value = settings.setting(keys::EVAL_DATASET).value.clone();
            settings.derive(keys::DATASET, value, "eval_dataset, as nothing is trained");
        }
    }
    let stage = objective::of(settings);
    if stage.examples.is_some() && !settings.setting(keys::PACKING).is_written() {
        settings.derive(keys::PACKING, Value::Bool(settings.get(keys::NEAT_PACKING)), stage.words);
    }
    let warmup = settings.setting(keys::WARMUP_STEPS);
    if matches!(warmup.value, Value::Float(steps) if steps > 0.0)
        && settings.setting(keys::WARMUP_RATIO).is_written()
    {
        settings.derive(keys::WARMUP_RATIO, Value::Float(0.0), "warmup_steps is given");
    }
}

fn required(settings: &Settings, problems: &mut Problems) {
    let has_config = settings.setting(keys::MODEL_CONFIG).is_written();
    let has_data =
        settings.setting(keys::TOKENIZED_PATH).is_written() || !settings.get(keys::DATASET).is_empty();
    for (key, example, elsewhere) in [
        (keys::MODEL_NAME_OR_PATH.row, "the folder of a model", has_config),
        (keys::DATASET.row, "a file such as corpus.jsonl, or a name in dataset_info.json", has_data),
        (keys::OUTPUT_DIR.row, "the folder to write to", false),
    ] {
        if !elsewhere && !settings.setting(key).is_written() {
            problems.push(
                Problem::new(format!("`{key}` is missing")).help(format!("write `{key}: …`, {example}")),
            );
        }
    }
}

/// What contradicts.
fn between(settings: &Settings, problems: &mut Problems) {
    let get = |key: &'static Row| settings.setting(key);

    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    let is_true = |key: &'static Row| matches!(get(key).value, Value::Bool(true));
    let written_true =
        |key: &'static Row| get(key).location().is_some_and(|_| get(key).broken || is_true(key));
    if written_true(keys::BF16.row) && written_true(keys::FP16.row) {
        report(
            "`bf16` and `fp16` are mutually exclusive",
            &[keys::BF16.row, keys::FP16.row],
            "keep one of them",
        );
    }
    if written_true(keys::PURE_BF16.row) && written_true(keys::FP16.row) {
        report(
            "`pure_bf16` and `fp16` are mutually exclusive",
            &[keys::PURE_BF16.row, keys::FP16.row],
            "keep one of them",
        );
    }
    if settings.get(keys::NUM_PROCESSES) > MOST_RANKS {
        report(
            &format!("`num_processes` is more than {MOST_RANKS}"),
            &[keys::NUM_PROCESSES.row],
            "ranks are processes; write a number that the machines can start",
        );
    }
    let stage = objective::of(settings);
    let parts = settings.get(keys::SEQUENCE_PARALLEL_SIZE);
    if parts > 1 {
        let size = keys::SEQUENCE_PARALLEL_SIZE.row;
        for (key, known) in [
            (keys::NUM_PROCESSES.row, settings.known(keys::NUM_PROCESSES)),
            (keys::CUTOFF_LEN.row, Some(settings.get(keys::CUTOFF_LEN))),
        ] {
            if let Some(n) = known.filter(|n| !n.is_multiple_of(parts)) {
                let what = format!("`{key}` is {n}, which `{size}` ({parts}) does not divide");
                report(&what, &[key, size], "each group of that many ranks shares a sequence");
            }
        }
        let (divided, words) = objective::those(|stage| !stage.compares());
        if !divided.contains(&stage.name()) {
            let what = format!("`{size}` divides sequences of the stages {words}");
            report(
                &what,
                &[size, keys::STAGE.row],
                "the losses of other stages compare whole answers; remove it",
            );
        }
        let written =
            |key: &&'static Row| get(key).is_written() && !matches!(get(key).value, Value::Bool(false));
        let whole = [keys::NEFTUNE_NOISE_ALPHA.row, keys::COMPUTE_ACCURACY.row, keys::DO_PREDICT.row];
        for key in whole.into_iter().filter(written) {
            let what = format!("`{key}` needs whole sequences, and `{size}` divides them");
            report(&what, &[key, size], "remove one of them");
        }
    }
    if stage.examples.is_some() && is_true(keys::MINIMIND_ROWS.row) {
        report(
            "`minimind_rows` are rows of texts",
            &[keys::MINIMIND_ROWS.row, keys::STAGE.row],
            &format!("remove it; {} has rows of conversations", stage.words),
        );
    }
    if stage.examples.is_none() && settings.said(keys::SPLIT_SPECIAL_TOKENS).is_some() {
        let help = "remove it; in texts special tokens are always read as tokens";
        report(
            "`split_special_tokens` belongs to stage sft",
            &[keys::SPLIT_SPECIAL_TOKENS.row, keys::STAGE.row],
            help,
        );
    }
    let (val_size, eval_dataset) =
        (settings.get(keys::VAL_SIZE), !settings.get(keys::EVAL_DATASET).is_empty());
    if val_size > 0.0 && eval_dataset {
        report(
            "`val_size` and `eval_dataset` are mutually exclusive",
            &[keys::VAL_SIZE.row, keys::EVAL_DATASET.row],
            "hold out a part of the training data, or evaluate on data of its own",
        );
    }
    if val_size > 1.0 && val_size.fract() != 0.0 {
        report(
            "`val_size` is a whole number of records, or a share below 1",
            &[keys::VAL_SIZE.row],
            &format!("write {} or {}", val_size.floor(), val_size / 100.0),
        );
    }
    let nothing = val_size == 0.0 && !eval_dataset;
    let every = settings.get(keys::EVAL_STEPS).unwrap_or_default();
    let evaluates = IntervalStrategy::of(settings.get(keys::EVAL_STRATEGY), every) != IntervalStrategy::Never;
    for (key, on) in [
        (keys::EVAL_STRATEGY.row, evaluates),
        (keys::DO_EVAL.row, is_true(keys::DO_EVAL.row)),
        (keys::EVAL_ON_START.row, is_true(keys::EVAL_ON_START.row)),
    ] {
        if on && nothing {
            let message = format!("`{key}` is on, but there is nothing to evaluate on");
            report(&message, &[key], "write `val_size: 0.01` or `eval_dataset: …`");
        }
    }
    if !settings.get(keys::DO_TRAIN) && nothing {
        report(
            "`do_train` is off and there is nothing to evaluate on",
            &[keys::DO_TRAIN.row],
            "remove it to train",
        );
    }
    for (strategy, steps, interval) in [
        (keys::LOGGING_STRATEGY, keys::LOGGING_STEPS.row, settings.get(keys::LOGGING_STEPS)),
        (keys::SAVE_STRATEGY, keys::SAVE_STEPS.row, settings.get(keys::SAVE_STEPS)),
        (keys::EVAL_STRATEGY, keys::EVAL_STEPS.row, every),
    ] {
        let is_zero = IntervalStrategy::of(settings.get(strategy), interval)
            == IntervalStrategy::Every(Steps::Count(0));
        if is_zero && get(steps).location().is_some() {
            let help = format!("write a number of steps, or `{strategy}: \"no\"`");
            report(&format!("`{steps}` is 0"), &[steps], &help);
        }
    }
    for anew in [keys::OVERWRITE_OUTPUT_DIR, keys::BEGIN_ANEW] {
        let both = [keys::RESUME_FROM_CHECKPOINT.row, anew.row];
        if both.iter().all(|key| is_true(key)) {
            let message = format!("`resume_from_checkpoint: true` and `{anew}: true` are mutually exclusive");
            report(&message, &both, "resume the run in output_dir, or start a new one");
        }
    }
}

fn warmup(settings: &Settings) -> Steps {
    match Steps::written(settings.get(keys::WARMUP_STEPS)) {
        Steps::Count(0) => Steps::Share(settings.get(keys::WARMUP_RATIO)),
        steps => steps,
    }
}
