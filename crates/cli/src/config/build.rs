//! Turns settings into a [`TrainConfig`] and finds what is wrong between keys: what is missing, what contradicts,
//! what is out of range only because of another key.

use std::path::PathBuf;
use std::time::Duration;

use oarlock::config::{
    ChatArgs, DataArgs, EvalArgs, Length, LogArgs, MOST_RANKS, Packing, RankArgs, Resume, RunDescription,
    SaveArgs, ScheduleArgs, Steps, TrainArgs, TrainConfig, ValSize, When,
};
use oarlock::nn::SparsityConfig;
use oarlock::settings::dialect::{self, Dialects, Ranks};
use oarlock::settings::problem::{Problem, Problems};
use oarlock::settings::resolve::{self, AUTO, Setting, Settings};
use oarlock::settings::value::Value;
use oarlock::settings::{optimizer, schedule};
use oarlock_tensor::{DType, DeviceKind};

use super::accelerator;
use super::best;
use super::checks;
use super::finetuning;
use super::learning;
use super::low_rank;
use super::model;
use super::monitor;
use super::objective;
use super::pipeline;
use super::predicting;
use super::recompute;
use super::resolved::ResolvedConfig;

/// Builds the configuration; `problems` are those found before.
///
/// # Errors
/// All problems, old and new, and then what is not there.
pub fn build(
    mut settings: Settings,
    mut dialects: Dialects,
    mut problems: Problems,
) -> Result<ResolvedConfig, Problems> {
    for (old, new) in [("evaluation_strategy", "eval_strategy"), ("new_special_tokens", "add_special_tokens")]
    {
        rename(old, new, &mut settings, &mut problems);
    }
    derive(&mut settings);
    let found = &mut problems;
    required(&settings, found);
    between(&settings, found);
    checks::between(&mut settings, &dialects, found);
    accelerator::check(&settings, found);
    let read = &settings;
    let learning_rate = read.f64("learning_rate");
    let known = read.known_ranks().and_then(|n| i64::try_from(n).ok());
    let device = device(read, found);
    let ranks = Ranks { n: known, on_gpus: device.is_gpu() };
    let (shard, loss_scale) = dialect::shard(&mut dialects, ranks, found);
    let recompute = recompute::recompute(&settings, &dialects, found);
    let shape = schedule::shape(&settings, learning_rate, found);
    let optimizer = low_rank::low_rank(&settings, optimizer::optimizer(&settings, found));
    optimizer::check_placement(&settings, &optimizer, &shard, found);
    let monitor = monitor::monitors(&settings, &dialects, found);

    let mut model = model::model(&settings, found);
    let finetuning = finetuning::finetuning(&settings, found);
    let val_size = match read.f64("val_size") {
        0.0 => None,
        share if share < 1.0 => Some(ValSize::Fraction(share)),
        records => Some(ValSize::Count(records as u64)),
    };
    let learned = objective::learned(read);
    let chats = learned.is_some();
    let (shuffle, group_by_length) = learning::order(read, found);
    let data = DataArgs {
        datasets: read.list("dataset").to_vec(),
        eval_datasets: read.list("eval_dataset").to_vec(),
        dataset_dir: PathBuf::from(read.word("dataset_dir")),
        cutoff_len: read.usize("cutoff_len"),
        chat: learned.map(|learned| ChatArgs { learned, ..chat(read) }),
        packing: match (read.bool("minimind_rows"), read.bool("neat_packing"), read.bool("packing")) {
            (_, neat, packing) if chats && (neat || packing) => Packing::Knapsack,
            _ if chats => Packing::Examples,
            (true, _, _) => Packing::MiniMind,
            (false, true, _) => Packing::ConcatDocuments,
            (false, false, true) => Packing::Concat,
            (false, false, false) => Packing::Truncate,
        },
        shuffle,
        max_samples: read.count("max_samples"),
        val_size,
        overwrite_cache: read.bool("overwrite_cache"),
        mix: learning::mix(read, found),
        group_by_length,
        eval_each: read.bool("eval_on_each_dataset"),
        workers: read.count("preprocessing_num_workers"),
        tokenized: learning::tokenized(read),
    };
    model.sparse_attention = sparse_attention(&dialects, &data, read.int("seed").unsigned_abs(), found);
    let train = TrainArgs {
        batch_size: read.usize("per_device_train_batch_size"),
        accumulation: read.usize("gradient_accumulation_steps"),
        length: match read.int("max_steps") {
            steps if steps > 0 => Length::Steps(steps.unsigned_abs()),
            _ => Length::Epochs(read.f64("num_train_epochs")),
        },
        max_grad_norm: Some(read.f64("max_grad_norm")).filter(|norm| *norm > 0.0),
        dtype: match (read.bool("bf16"), read.bool("fp16")) {
            (true, _) => DType::BF16,
            (false, true) => DType::F16,
            (false, false) => DType::F32,
        },
        tf32: read.bool("tf32"),
        loss_scale,
        recompute,
        offload_activations: recompute::offloads(&dialects),
        seed: read.int("seed").unsigned_abs(),
        data_seed: read.int("data_seed").unsigned_abs(),
        optimizer,
        schedule: ScheduleArgs { learning_rate, shape, warmup: warmup(&settings) },
        loss: learning::token_loss(read, found),
        finetuning,
        objective: objective::objective(read, found),
        enabled: read.bool("do_train"),
    };
    let has_eval = val_size.is_some() || !data.eval_datasets.is_empty();
    let eval = EvalArgs {
        when: when(&settings, "eval_strategy", "eval_steps"),
        delay: read.f64("eval_delay"),
        at_start: read.bool("eval_on_start"),
        at_end: has_eval && read.bool("do_eval"),
        batch_size: read.usize("per_device_eval_batch_size"),
    };
    let saved = when(&settings, "save_strategy", "save_steps");
    let best = best::best(read, eval.when, saved, found);
    let predict = predicting::predict(read, &shard, found);
    let overwrite = read.bool("overwrite_output_dir");
    let save = SaveArgs {
        output_dir: PathBuf::from(read.word("output_dir")),
        resume: match &settings.get("resume_from_checkpoint").value {
            Value::Bool(true) => Resume::Newest,
            Value::Bool(false) => Resume::Never,
            Value::Text(path) => Resume::From(PathBuf::from(path)),
            // What is only evaluated is the model that is named, as in LLaMA-Factory.
            _ if overwrite || !read.bool("do_train") => Resume::Never,
            _ => Resume::IfPresent,
        },
        resume_anyway: read.bool("resume_anyway"),
        restarted: None,
        overwrite,
        when: saved,
        keep: read.count("save_total_limit").filter(|keep| *keep > 0),
        only_model: read.bool("save_only_model"),
        best,
    };
    let log = LogArgs {
        when: when(&settings, "logging_strategy", "logging_steps"),
        first_step: read.bool("logging_first_step"),
        plot_loss: read.bool("plot_loss"),
        plain: read.bool("disable_tqdm"),
        memory_steps: read.usize("memory_steps"),
        memory_check: read.bool("memory_check"),
        profile: read.bool("profile").then(|| read.int("profile_interval").unsigned_abs()),
    };
    let ranks = RankArgs {
        num_processes: read.usize("num_processes"),
        sequence_parallel: read.usize("sequence_parallel_size"),
        threads: read.count("num_threads_per_process"),
        device,
        cpu_path: Some(read.word("cpu_path").to_owned()).filter(|name| name != AUTO),
        timeout: Duration::from_secs(read.int("ddp_timeout").unsigned_abs()),
        pipeline: pipeline::pipeline(&settings, &shard, &mut problems),
    };
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
    let cpu = ["use_cpu", "no_cuda"].into_iter().find(|name| settings.bool(name));
    match (settings.word("device"), cpu) {
        ("cuda", Some(name)) => {
            let problem = settings
                .problem(format!("`{name}` and `device: cuda` exclude each other"), &[name, "device"]);
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
        template: settings.text("template"),
        tool_format: settings.text("tool_format"),
        default_system: settings.text("default_system"),
        // A written null has a meaning of its own.
        enable_thinking: match settings.get("enable_thinking") {
            setting if setting.location().is_some() => match setting.value {
                Value::Bool(thinks) => Some(thinks),
                _ => None,
            },
            _ => Some(true),
        },
        preserve_thinking: settings.bool("preserve_thinking"),
        train_on_prompt: settings.bool("train_on_prompt"),
        // Of a prompt that is answered anew, the last answer alone is the expected one.
        mask_history: settings.bool("mask_history") || settings.word("stage") == "raft",
        split_special_tokens: settings.bool("split_special_tokens"),
        ..ChatArgs::default()
    }
}

/// A setting that older files call otherwise.
fn rename(old_name: &'static str, new_name: &'static str, settings: &mut Settings, problems: &mut Problems) {
    let (old, new) = (settings.get(old_name), settings.get(new_name));
    if !old.is_written() || old.broken {
        return;
    }
    if new.is_written() && !new.value.agrees(&old.value) {
        let message = format!("`{old_name}` and `{new_name}` differ");
        let help = format!("they are two names of one setting; keep {new_name}");
        settings.report(problems, &message, &[old_name, new_name], &help);
    } else {
        let value = old.value.clone();
        settings.derive(new_name, value, old_name);
    }
}

/// Values that follow from other settings when nobody wrote them.
fn derive(settings: &mut Settings) {
    if !settings.get("data_seed").is_written() {
        settings.derive("data_seed", settings.get("seed").value.clone(), "seed");
    }
    if !settings.get("eval_steps").is_written() {
        settings.derive("eval_steps", settings.get("logging_steps").value.clone(), "logging_steps");
    }
    let evaluates = settings.f64("val_size") > 0.0 || !settings.list("eval_dataset").is_empty();
    if evaluates && !settings.get("do_eval").is_written() {
        settings.derive("do_eval", Value::Bool(true), "there is something to evaluate on");
    }
    if settings.bool("pure_bf16") && !settings.bool("fp16") {
        settings.derive("bf16", Value::Bool(true), "pure_bf16");
    }
    if settings.bool("use_muon")
        && (!settings.get("optim").is_written() || settings.word("optim").starts_with("adamw"))
    {
        settings.derive("optim", Value::Text("muon".to_owned()), "use_muon");
    }
    if settings.bool("use_muon") && !settings.get("optim_args").is_written() {
        settings.derive("optim_args", Value::Text("adjust_lr_fn=match_rms_adamw".to_owned()), "use_muon");
    }
    let has_dataset = ["dataset", "tokenized_path"].iter().any(|name| settings.get(name).is_written());
    if !has_dataset && !settings.list("eval_dataset").is_empty() {
        if !settings.get("do_train").is_written() {
            settings.derive("do_train", Value::Bool(false), "there is no dataset");
        }
        if !settings.bool("do_train") {
            let value = settings.get("eval_dataset").value.clone();
            settings.derive("dataset", value, "eval_dataset, as nothing is trained");
        }
    }
    let stage = match settings.word("stage") {
        "pt" => None,
        "dpo" => Some("stage dpo"),
        "kto" => Some("stage kto"),
        "rm" => Some("stage rm"),
        "raft" => Some("stage raft"),
        _ => Some("stage sft"),
    };
    if let Some(stage) = stage.filter(|_| !settings.get("packing").is_written()) {
        settings.derive("packing", Value::Bool(settings.bool("neat_packing")), stage);
    }
    let warmup = settings.get("warmup_steps");
    if matches!(warmup.value, Value::Float(steps) if steps > 0.0) && settings.get("warmup_ratio").is_written()
    {
        settings.derive("warmup_ratio", Value::Float(0.0), "warmup_steps is given");
    }
}

fn required(settings: &Settings, problems: &mut Problems) {
    for (name, example) in [
        ("model_name_or_path", "the folder of a model"),
        ("dataset", "a file such as corpus.jsonl, or a name in dataset_info.json"),
        ("output_dir", "the folder to write to"),
    ] {
        let elsewhere = match name {
            "model_name_or_path" => settings.get("model_config").is_written(),
            "dataset" => settings.get("tokenized_path").is_written() || !settings.list("dataset").is_empty(),
            _ => false,
        };
        if !elsewhere && !settings.get(name).is_written() {
            problems.push(
                Problem::new(format!("`{name}` is missing")).help(format!("write `{name}: …`, {example}")),
            );
        }
    }
}

/// What contradicts.
fn between(settings: &Settings, problems: &mut Problems) {
    let get = |name: &str| settings.get(name);

    let mut report = |message: &str, names: &[&str], help: &str| {
        settings.report(problems, message, names, help);
    };
    let is_true = |name: &str| matches!(get(name).value, Value::Bool(true));
    let written_true = |name: &str| get(name).location().is_some_and(|_| get(name).broken || is_true(name));
    if written_true("bf16") && written_true("fp16") {
        report("`bf16` and `fp16` exclude each other", &["bf16", "fp16"], "keep one of them");
    }
    if written_true("pure_bf16") && written_true("fp16") {
        report("`pure_bf16` and `fp16` exclude each other", &["pure_bf16", "fp16"], "keep one of them");
    }
    if settings.usize("num_processes") > MOST_RANKS {
        report(
            &format!("`num_processes` is more than {MOST_RANKS}"),
            &["num_processes"],
            "ranks are processes; write a number that the machines can start",
        );
    }
    let stage = settings.word("stage");
    let parts = settings.usize("sequence_parallel_size");
    if parts > 1 {
        let size = "sequence_parallel_size";
        for (name, known) in
            [("num_processes", settings.known_ranks()), ("cutoff_len", Some(settings.usize("cutoff_len")))]
        {
            if let Some(n) = known.filter(|n| !n.is_multiple_of(parts)) {
                let what = format!("`{name}` is {n}, which `{size}` ({parts}) does not divide");
                report(&what, &[name, size], "each group of so many ranks has a part of a sequence on each");
            }
        }
        if !matches!(stage, "pt" | "sft" | "raft") {
            let what = format!("`{size}` divides sequences of the stages pt, sft and raft");
            report(&what, &[size, "stage"], "the losses of other stages compare whole answers; remove it");
        }
        let written =
            |name: &&str| settings.get(name).is_written() && !matches!(get(name).value, Value::Bool(false));
        for name in ["neftune_noise_alpha", "compute_accuracy", "do_predict"].into_iter().filter(written) {
            let what = format!("`{name}` needs whole sequences, and `{size}` divides them");
            report(&what, &[name, size], "remove one of them");
        }
    }
    if stage != "pt" && is_true("minimind_rows") {
        report(
            "`minimind_rows` are rows of texts",
            &["minimind_rows", "stage"],
            &format!("remove it; stage {stage} has rows of conversations"),
        );
    }
    if stage == "pt" && settings.said("split_special_tokens").is_some() {
        let help = "remove it; in texts special tokens are always read as tokens";
        report("`split_special_tokens` belongs to stage sft", &["split_special_tokens", "stage"], help);
    }
    let (val_size, eval_dataset) = (settings.f64("val_size"), !settings.list("eval_dataset").is_empty());
    if val_size > 0.0 && eval_dataset {
        report(
            "`val_size` and `eval_dataset` exclude each other",
            &["val_size", "eval_dataset"],
            "hold out a part of the training data, or evaluate on data of its own",
        );
    }
    if val_size > 1.0 && val_size.fract() != 0.0 {
        report(
            "`val_size` is a whole number of records, or a share below 1",
            &["val_size"],
            &format!("write {} or {}", val_size.floor(), val_size / 100.0),
        );
    }
    let nothing = val_size == 0.0 && !eval_dataset;
    let evaluates = when(settings, "eval_strategy", "eval_steps") != When::Never;
    for (name, on) in [
        ("eval_strategy", evaluates),
        ("do_eval", is_true("do_eval")),
        ("eval_on_start", is_true("eval_on_start")),
    ] {
        if on && nothing {
            let message = format!("`{name}` is on, but there is nothing to evaluate on");
            report(&message, &[name], "write `val_size: 0.01` or `eval_dataset: …`");
        }
    }
    if !settings.bool("do_train") && nothing {
        report("`do_train` is off and there is nothing to evaluate on", &["do_train"], "remove it to train");
    }
    for (strategy, steps) in [
        ("logging_strategy", "logging_steps"),
        ("save_strategy", "save_steps"),
        ("eval_strategy", "eval_steps"),
    ] {
        let is_zero = when(settings, strategy, steps) == When::Every(Steps::Count(0));
        if is_zero && get(steps).location().is_some() {
            let help = format!("write a number of steps, or `{strategy}: \"no\"`");
            report(&format!("`{steps}` is 0"), &[steps], &help);
        }
    }
    let names = ["resume_from_checkpoint", "overwrite_output_dir"];
    if names.iter().all(|name| is_true(name)) {
        report(
            "`resume_from_checkpoint: true` and `overwrite_output_dir: true` exclude each other",
            &names,
            "resume the run in output_dir, or start a new one",
        );
    }
}

fn steps(settings: &Settings, name: &str) -> Steps {
    match settings.f64(name) {
        share if share > 0.0 && share < 1.0 => Steps::Share(share),
        count => Steps::Count(count as u64),
    }
}

fn warmup(settings: &Settings) -> Steps {
    match steps(settings, "warmup_steps") {
        Steps::Count(0) => Steps::Share(settings.f64("warmup_ratio")),
        steps => steps,
    }
}

fn when(settings: &Settings, strategy: &str, interval: &str) -> When {
    match settings.word(strategy) {
        "steps" => When::Every(steps(settings, interval)),
        "epoch" => When::Epoch,
        _ => When::Never,
    }
}
