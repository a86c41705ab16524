//! Turns settings into a [`TrainConfig`] and finds what is wrong between keys: what is missing, what contradicts,
//! what is out of range only because of another key.

use std::path::PathBuf;

use oarlock::config::{
    DataArgs, EvalArgs, Length, LogArgs, MOST_RANKS, Packing, RankArgs, Resume, RunDescription, SaveArgs,
    ScheduleArgs, Steps, TrainArgs, TrainConfig, ValSize, When,
};
use oarlock::settings::{optimizer, schedule};
use oarlock_tensor::DType;

use super::dialect::{self, Dialects};
use super::problem::{Problem, Problems};
use super::resolve::{self, Settings, at};
use super::value::Value;
use super::{ResolvedConfig, checks, model, monitor, recompute};

/// Builds the configuration; `problems` are those found before.
///
/// # Errors
/// All problems, old and new, and then what is not there.
pub fn build(
    mut settings: Settings,
    mut dialects: Dialects,
    mut problems: Problems,
) -> Result<ResolvedConfig, Problems> {
    rename_evaluation_strategy(&mut settings, &mut problems);
    derive(&mut settings);
    let found = &mut problems;
    required(&settings, found);
    between(&settings, found);
    checks::between(&mut settings, &dialects, found);
    let read = Reader { settings: &settings };
    let learning_rate = read.f64("learning_rate");
    let (shard, loss_scale) = dialect::shard(&mut dialects, read.int("num_processes"), found);
    let recompute = recompute::recompute(&settings, &dialects, found);
    let shape = schedule::shape(&settings, learning_rate, found);
    let optimizer = optimizer::optimizer(&settings, found);
    let monitor = monitor::monitors(&settings, &dialects, found);

    let model = model::model(&settings, found);
    let held_out = match read.f64("val_size") {
        0.0 => None,
        share if share < 1.0 => Some(ValSize::Fraction(share)),
        records => Some(ValSize::Count(records as u64)),
    };
    let data = DataArgs {
        datasets: read.list("dataset"),
        eval_datasets: read.list("eval_dataset"),
        dataset_dir: read.path("dataset_dir"),
        cutoff_len: read.usize("cutoff_len"),
        packing: match (read.bool("minimind_rows"), read.bool("neat_packing"), read.bool("packing")) {
            (true, _, _) => Packing::MiniMind,
            (false, true, _) => Packing::ConcatDocuments,
            (false, false, true) => Packing::Concat,
            (false, false, false) => Packing::Truncate,
        },
        shuffle: !read.bool("disable_shuffling"),
        max_samples: read.count("max_samples"),
        held_out,
        overwrite_cache: read.bool("overwrite_cache"),
    };
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
        loss_scale,
        recompute,
        seed: read.int("seed").unsigned_abs(),
        data_seed: read.int("data_seed").unsigned_abs(),
        optimizer,
        schedule: ScheduleArgs { learning_rate, shape, warmup: read.warmup() },
        enabled: read.bool("do_train"),
    };
    let has_eval = held_out.is_some() || !data.eval_datasets.is_empty();
    let eval = EvalArgs {
        when: read.when("eval_strategy", "eval_steps"),
        delay: read.f64("eval_delay"),
        at_start: read.bool("eval_on_start"),
        at_end: has_eval && read.bool("do_eval"),
        batch_size: read.usize("per_device_eval_batch_size"),
    };
    let overwrite = read.bool("overwrite_output_dir");
    let save = SaveArgs {
        output_dir: read.path("output_dir"),
        resume: match &settings.get("resume_from_checkpoint").value {
            Value::Bool(true) => Resume::Newest,
            Value::Bool(false) => Resume::Never,
            Value::Text(path) => Resume::From(PathBuf::from(path)),
            _ if overwrite => Resume::Never,
            _ => Resume::IfPresent,
        },
        overwrite,
        when: read.when("save_strategy", "save_steps"),
        keep: read.count("save_total_limit").filter(|keep| *keep > 0),
        only_model: read.bool("save_only_model"),
    };
    let log = LogArgs {
        when: read.when("logging_strategy", "logging_steps"),
        first_step: read.bool("logging_first_step"),
        plot_loss: read.bool("plot_loss"),
        plain: read.bool("disable_tqdm"),
        memory_steps: read.usize("memory_steps"),
        memory_check: read.bool("memory_check"),
        profile: read.bool("profile").then(|| read.int("profile_interval").unsigned_abs()),
    };
    let ranks = RankArgs {
        num_processes: read.usize("num_processes"),
        threads: read.count("num_threads_per_process"),
        cpu_path: Some(read.text("cpu_path").to_owned()).filter(|name| name != "auto"),
    };
    if !problems.is_empty() {
        problems.append(resolve::missing(&settings));
        problems.append(dialects.missing());
    }
    let description = RunDescription::default();
    let values = TrainConfig { model, data, train, eval, save, log, monitor, shard, ranks, description };
    problems.into_result(|| ResolvedConfig { values, settings, dialects })
}

/// `evaluation_strategy` is what older files call `eval_strategy`.
fn rename_evaluation_strategy(settings: &mut Settings, problems: &mut Problems) {
    let (old, new) = (settings.get("evaluation_strategy"), settings.get("eval_strategy"));
    if !old.is_written() || old.broken {
        return;
    }
    if new.is_written() && !new.value.agrees(&old.value) {
        problems.push(
            at(Problem::new("`evaluation_strategy` and `eval_strategy` differ"), &[old, new])
                .help("they are two names of one setting; keep eval_strategy"),
        );
    } else {
        let value = old.value.clone();
        settings.derive("eval_strategy", value, "evaluation_strategy");
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
    let read = Reader { settings };
    let evaluates = read.f64("val_size") > 0.0 || !read.list("eval_dataset").is_empty();
    if evaluates && !settings.get("do_eval").is_written() {
        settings.derive("do_eval", Value::Bool(true), "there is something to evaluate on");
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
        let elsewhere = name == "model_name_or_path" && settings.get("model_config").is_written();
        if !elsewhere && !settings.get(name).is_written() {
            problems.push(
                Problem::new(format!("`{name}` is missing")).help(format!("write `{name}: …`, {example}")),
            );
        }
    }
}

/// What contradicts.
fn between(settings: &Settings, problems: &mut Problems) {
    let read = Reader { settings };
    let get = |name: &str| settings.get(name);

    let written_true = |name: &str| {
        let setting = get(name);
        setting.place().is_some_and(|_| setting.broken || matches!(setting.value, Value::Bool(true)))
    };
    if written_true("bf16") && written_true("fp16") {
        problems.push(
            at(Problem::new("`bf16` and `fp16` exclude each other"), &[get("bf16"), get("fp16")])
                .help("keep one of them"),
        );
    }
    if read.usize("num_processes") > MOST_RANKS {
        problems.push(
            at(Problem::new(format!("`num_processes` is more than {MOST_RANKS}")), &[get("num_processes")])
                .help("ranks are processes; write a number that the machines can start"),
        );
    }
    let (held_out, eval_dataset) = (read.f64("val_size"), !read.list("eval_dataset").is_empty());
    if held_out > 0.0 && eval_dataset {
        problems.push(
            at(
                Problem::new("`val_size` and `eval_dataset` exclude each other"),
                &[get("val_size"), get("eval_dataset")],
            )
            .help("hold out a part of the training data, or evaluate on data of its own"),
        );
    }
    if held_out > 1.0 && held_out.fract() != 0.0 {
        problems.push(
            at(
                Problem::new("`val_size` is a whole number of records, or a share below 1"),
                &[get("val_size")],
            )
            .help(format!("write {} or {}", held_out.floor(), held_out / 100.0)),
        );
    }
    let evaluates = read.when("eval_strategy", "eval_steps") != When::Never;
    let nothing = held_out == 0.0 && !eval_dataset;
    if evaluates && nothing {
        problems.push(
            at(
                Problem::new("`eval_strategy` is on, but there is nothing to evaluate on"),
                &[get("eval_strategy")],
            )
            .help("write `val_size: 0.01` or `eval_dataset: …`"),
        );
    }
    for name in ["do_eval", "eval_on_start"] {
        if matches!(get(name).value, Value::Bool(true)) && nothing {
            let problem = Problem::new(format!("`{name}` is on, but there is nothing to evaluate on"));
            problems.push(at(problem, &[get(name)]).help("write `val_size: 0.01` or `eval_dataset: …`"));
        }
    }
    if !read.bool("do_train") && nothing {
        problems.push(
            at(Problem::new("`do_train` is off and there is nothing to evaluate on"), &[get("do_train")])
                .help("remove it to train"),
        );
    }
    for (strategy, steps) in [
        ("logging_strategy", "logging_steps"),
        ("save_strategy", "save_steps"),
        ("eval_strategy", "eval_steps"),
    ] {
        if read.when(strategy, steps) == When::Every(Steps::Count(0)) && get(steps).place().is_some() {
            problems.push(
                at(Problem::new(format!("`{steps}` is 0")), &[get(steps)])
                    .help(format!("write a number of steps, or `{strategy}: \"no\"`")),
            );
        }
    }
    let (resume, overwrite) = (get("resume_from_checkpoint"), get("overwrite_output_dir"));
    if matches!(resume.value, Value::Bool(true)) && read.bool("overwrite_output_dir") {
        problems.push(
            at(
                Problem::new(
                    "`resume_from_checkpoint: true` and `overwrite_output_dir: true` exclude each other",
                ),
                &[resume, overwrite],
            )
            .help("resume the run in output_dir, or start a new one"),
        );
    }
}

/// Typed access to settings. A value that is missing or of another type was reported before; its stand-in is never
/// seen, because the configuration is not built then.
pub(super) struct Reader<'s> {
    pub settings: &'s Settings,
}

impl Reader<'_> {
    fn bool(&self, name: &str) -> bool {
        matches!(self.settings.get(name).value, Value::Bool(true))
    }

    fn int(&self, name: &str) -> i64 {
        match self.settings.get(name).value {
            Value::Int(x) => x,
            _ => 0,
        }
    }

    fn usize(&self, name: &str) -> usize {
        usize::try_from(self.int(name)).unwrap_or(0)
    }

    fn count(&self, name: &str) -> Option<usize> {
        match self.settings.get(name).value {
            Value::Int(x) => usize::try_from(x).ok(),
            _ => None,
        }
    }

    pub fn f64(&self, name: &str) -> f64 {
        match self.settings.get(name).value {
            Value::Float(x) => x,
            _ => 0.0,
        }
    }

    pub fn text(&self, name: &str) -> &str {
        match &self.settings.get(name).value {
            Value::Text(x) => x,
            _ => "",
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.text(name))
    }

    fn list(&self, name: &str) -> Vec<String> {
        match &self.settings.get(name).value {
            Value::List(names) => names.clone(),
            _ => Vec::new(),
        }
    }

    fn steps(&self, name: &str) -> Steps {
        match self.f64(name) {
            share if share > 0.0 && share < 1.0 => Steps::Share(share),
            count => Steps::Count(count as u64),
        }
    }

    fn warmup(&self) -> Steps {
        match self.steps("warmup_steps") {
            Steps::Count(0) => Steps::Share(self.f64("warmup_ratio")),
            steps => steps,
        }
    }

    fn when(&self, strategy: &str, steps: &str) -> When {
        match self.text(strategy) {
            "steps" => When::Every(self.steps(steps)),
            "epoch" => When::Epoch,
            _ => When::Never,
        }
    }
}
