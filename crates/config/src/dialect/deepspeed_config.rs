//! A DeepSpeed configuration by itself, for a custom training loop: without a language model or data to train it on.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use oarlock_tensor::DType;

use super::block::{Dialect, Dialects, Ranks};
use super::deepspeed_keys;
use super::left_out::defaults as optimizer_defaults;
use super::read::{read, shard};
use crate::config::optimizer_keys;
use crate::config::schedule_keys;
use crate::config::table::{self as keys, TRAINING};
use crate::config::{
    DeepSpeedShape, Elems, LossScale, OptimizerArgs, ScheduleArgs, Shape, ShardingConfig, Steps,
};
use crate::settings::json;
use crate::settings::keys::{Row, Status};
use crate::settings::location::{Location, SourceText, ValueSource};
use crate::settings::node::{Data, Entry, Node, find, find_mut, put};
use crate::settings::problem::{Problem, Problems};
use crate::settings::resolve::{AUTO, Settings};
use crate::settings::value::Value;

/// The highest rate of DeepSpeed's warm-ups.
const PEAK: &str = "scheduler.params.warmup_max_lr";

/// The same of `WarmupDecayLR` where nobody says it.
const WARMUP_MAX_LR: f64 = 1e-3;

/// What `gradient_clipping` is where nobody says it.
const GRADIENT_CLIPPING: f64 = 1.0;

/// Keys that only `oarlock train` follows, whose loop reports, profiles and builds the model.
const OF_TRAINER: &[&str] = &[
    "activation_checkpointing.number_checkpoints",
    "comms_logger.enabled",
    "csv_monitor.enabled",
    "flops_profiler.enabled",
    "sparse_attention.mode",
    "steps_per_print",
    "tensorboard.enabled",
    "wall_clock_breakdown",
    "wandb.enabled",
];

/// A DeepSpeed configuration as it was written: JSON with comments and trailing commas. A key that does not exist, or a
/// value of another type, is found when it is read. (DeepSpeed leaves unknown keys at the top alone.)
///
/// ```
/// use oarlock::deepspeed::Config;
///
/// let config = Config::from_text("ds.json", r#"{ "train_batch_size": 8, /* over all ranks */ }"#)?;
/// assert_eq!(config.get("train_batch_size").as_deref(), Some("8"));
///
/// let error = Config::from_text("ds.json", "{ \"train_bath_size\": 8 }").unwrap_err();
/// assert!(error.to_string().contains("did you mean `train_batch_size`?"));
/// # Ok::<(), oarlock_config::settings::Problems>(())
/// ```
#[derive(Clone, Debug)]
pub struct DeepSpeedConfig {
    entries: Vec<Entry>,
}

/// What a configuration says to a custom training loop, on a number of ranks.
#[derive(Clone, Debug)]
pub struct DeepSpeedArgs {
    /// 0 to 3.
    pub stage: u8,
    /// What is sharded across the ranks.
    pub shard: ShardingConfig<Elems>,
    /// The dtype in which the model computes.
    pub dtype: DType,
    /// How the loss is scaled, in f16.
    pub loss_scale: Option<LossScale>,
    /// The optimizer, if one is named.
    pub optimizer: Option<OptimizerArgs>,
    /// The learning rate of the optimizer, and of the schedule.
    pub learning_rate: f64,
    /// The schedule, if one is named.
    pub schedule: Option<ScheduleArgs>,
    /// Samples of an optimizer step over all ranks.
    pub train_batch_size: usize,
    /// Samples of a rank in one forward pass.
    pub micro_batch_size: usize,
    /// Forward and backward passes of an optimizer step.
    pub gradient_accumulation_steps: usize,
    /// The norm to which gradients are clipped; 0: not at all.
    pub gradient_clipping: f64,
    /// What the user should know of keys that have no effect in a loop of their own.
    pub notes: Vec<String>,
}

impl DeepSpeedConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read, and everything that is wrong in it, each with its location.
    pub fn from_file(path: impl AsRef<Path>) -> Result<DeepSpeedConfig, Problems> {
        Self::checked(json::file(&path.as_ref().to_string_lossy(), "the DeepSpeed configuration")?)
    }

    /// Reads a text, which messages call `name`.
    ///
    /// # Errors
    /// Everything that is wrong in it, each with its location.
    pub fn from_text(name: &str, text: &str) -> Result<DeepSpeedConfig, Problems> {
        Self::checked(json::text(name, text.to_owned(), "the DeepSpeed configuration")?)
    }

    /// Reads a value, such as one of `serde_json::json!`.
    ///
    /// # Errors
    /// Everything that is wrong in it.
    pub fn from_value(value: &serde_json::Value) -> Result<DeepSpeedConfig, Problems> {
        Self::from_text("deepspeed configuration", &format!("{value:#}"))
    }

    fn checked(entries: Vec<Entry>) -> Result<DeepSpeedConfig, Problems> {
        let mut problems = Problems::default();
        Dialect::deepspeed(&entries, &mut problems);
        problems.into_result(|| DeepSpeedConfig { entries })
    }

    /// What is written at a path such as `zero_optimization.stage`, if it is one word.
    pub fn get(&self, path: &str) -> Option<String> {
        self.word(path).map(|(text, _)| text.to_owned())
    }

    /// Whether `"auto"` is written at a path.
    pub fn is_auto(&self, path: &str) -> bool {
        self.word(path).is_some_and(|(text, _)| text == AUTO)
    }

    /// Writes a value where `"auto"` is written.
    pub fn fill(&mut self, path: &str, value: impl Display) {
        if let Some(node) = find_mut(&mut self.entries, path).filter(|node| node.word() == Some(AUTO)) {
            *node = Node::scalar(value.to_string(), node.location.clone());
        }
    }

    /// Writes a value where `"auto"` or nothing is written; `author` is who says so.
    ///
    /// # Errors
    /// Another value is written there.
    pub fn agree(&mut self, path: &str, value: impl Display, author: &str) -> Result<(), Problem> {
        let value = value.to_string();
        self.fill(path, &value);
        let location = Location {
            source: Arc::new(SourceText {
                read_from: ValueSource::Arguments,
                name: author.to_owned(),
                text: value.clone(),
                words: Vec::new(),
            }),
            bytes: 0..value.len(),
        };
        match self.word(path) {
            None => put(&mut self.entries, path, Node::scalar(value, location)),
            Some((text, _))
                if text == value
                    || text.parse::<f64>().ok().is_some_and(|text| value.parse() == Ok(text)) => {}
            Some((text, location)) => {
                let problem = Problem::new(format!("`{path}` is {text}, and {author} says {value}"));
                return Err(problem.at(location, "").help("remove one of them, or write \"auto\""));
            }
        }
        Ok(())
    }

    /// Removes whole blocks.
    pub fn forget(&mut self, blocks: &[&str]) {
        self.entries.retain(|entry| !blocks.contains(&entry.key.as_str()));
    }

    /// What it says on `ranks` ranks to a model of this hidden size, if it has one.
    ///
    /// # Errors
    /// Everything that is wrong between the keys, and each `"auto"` that nobody has resolved.
    pub fn resolve(&self, ranks: usize, hidden_size: Option<usize>) -> Result<DeepSpeedArgs, Problems> {
        let mut settings = Settings::of(TRAINING);
        let own = self.with_defaults();
        let names_peak = own.word(PEAK).is_some();
        settings.derive(keys::DEEPSPEED, Value::Map(own.entries), "the configuration");
        settings.derive(
            keys::NUM_PROCESSES,
            Value::Int(i64::try_from(ranks).unwrap_or(i64::MAX)),
            "the ranks",
        );
        settings.derive(keys::MAX_GRAD_NORM, Value::Float(GRADIENT_CLIPPING), "DeepSpeed's default");
        settings.derive(keys::ADAM_EPSILON, Value::Float(1e-8), "DeepSpeed's default");
        let mut problems = Problems::default();
        let mut dialects = read(&mut settings, &json::file, &mut problems);
        problems.append(dialects.missing());
        let Some(block) = &dialects.deepspeed else { return Err(problems) };
        self.refuse_autos(hidden_size, &mut problems);
        let said = |key: &'static Row| block.settings.said(key).is_some();
        if !said(deepspeed_keys::TRAIN_BATCH_SIZE.row)
            && !said(deepspeed_keys::TRAIN_MICRO_BATCH_SIZE_PER_GPU.row)
        {
            problems.push(
                Problem::new("the DeepSpeed configuration says neither `train_batch_size` nor `train_micro_batch_size_per_gpu`")
                    .help("write \"train_micro_batch_size_per_gpu\", also where the model is not trained; the batch of a step is that x gradient_accumulation_steps x ranks"),
            );
        }
        if settings.get(keys::SEQUENCE_PARALLEL_SIZE) > 1 {
            let message = "`sequence_parallel_size` divides the sequences of `oarlock train`; an engine does not know them";
            let help = "remove it, and set AcceleratorConfig::sequence_parallel_size in a loop of your own";
            block.settings.report(
                &mut problems,
                message,
                &[deepspeed_keys::SEQUENCE_PARALLEL_SIZE.row],
                help,
            );
        }
        if settings.get(keys::FP16) && settings.get(keys::BF16) {
            let names = [deepspeed_keys::FP16_ENABLED.row, deepspeed_keys::BF16_ENABLED.row];
            let message = "`fp16` and `bf16` are mutually exclusive";
            block.settings.report(&mut problems, message, &names, "keep one of them");
        }
        let [has_optimizer, has_schedule] =
            [deepspeed_keys::OPTIMIZER_TYPE.row, deepspeed_keys::SCHEDULER_TYPE.row].map(said);
        let (lr, decay) = optimizer_defaults(block);
        for (key, default) in [(keys::LEARNING_RATE, lr), (keys::WEIGHT_DECAY, decay)] {
            if !settings.setting(key).is_written() {
                settings.derive(key, Value::Float(default), "DeepSpeed's default");
            }
        }
        let learning_rate = settings.get(keys::LEARNING_RATE);
        let schedule = has_schedule.then(|| {
            let mut shape = schedule_keys::shape(&settings, learning_rate, &mut problems);
            needs_total(&shape, &mut problems);
            if let Shape::DeepSpeed(
                DeepSpeedShape::WarmupLr(warmup) | DeepSpeedShape::WarmupDecayLr { warmup, .. },
            ) = &mut shape
            {
                // A rate that is written holds for all parameter groups, whatever theirs is.
                warmup.max_lr = names_peak.then_some(learning_rate);
            }
            ScheduleArgs {
                learning_rate,
                shape,
                warmup: Steps::Count(settings.get(keys::WARMUP_STEPS) as u64),
            }
        });
        let optimizer = has_optimizer.then(|| optimizer_keys::optimizer(&settings, &mut problems));
        // An engine on the CPU has in main memory what is offloaded there, and the notes go to nobody.
        let sharding = shard(&mut dialects, Ranks::new(ranks, true), &mut problems);
        if let Some(optimizer) = &optimizer {
            optimizer_keys::check_placement(&settings, optimizer, &sharding.config, &mut problems);
        }
        let dtype = match (settings.get(keys::BF16), settings.get(keys::FP16)) {
            (true, _) => DType::BF16,
            (false, true) => DType::F16,
            (false, false) => DType::F32,
        };
        let [micro_batch_size, gradient_accumulation_steps] =
            [keys::PER_DEVICE_TRAIN_BATCH_SIZE, keys::GRADIENT_ACCUMULATION_STEPS]
                .map(|key| settings.get(key).max(1));
        let train_batch_size =
            micro_batch_size.checked_mul(gradient_accumulation_steps).and_then(|n| n.checked_mul(ranks));
        if train_batch_size.is_none() {
            let what = format!(
                "{gradient_accumulation_steps} steps of {micro_batch_size} samples on {ranks} ranks are more than a \
                 `train_batch_size` can be"
            );
            problems.push(Problem::new(what).help("lower `train_micro_batch_size_per_gpu`"));
        }
        let stage = stage_of(&dialects);
        let notes = dialects.deepspeed.as_ref().map(without_effect).unwrap_or_default();
        problems.into_result(|| DeepSpeedArgs {
            stage,
            notes,
            shard: sharding.config,
            dtype,
            loss_scale: (dtype == DType::F16).then_some(sharding.loss_scale),
            optimizer,
            learning_rate,
            schedule,
            train_batch_size: train_batch_size.unwrap_or(usize::MAX),
            micro_batch_size,
            gradient_accumulation_steps,
            gradient_clipping: settings.get(keys::MAX_GRAD_NORM),
        })
    }

    /// With what DeepSpeed means where a schedule of its own says nothing. The rate that such a schedule names holds from
    /// the first step on, whatever the optimizer's is; `WarmupLR` without one rises to the optimizer's.
    fn with_defaults(&self) -> DeepSpeedConfig {
        const RATE: &str = "optimizer.params.lr";
        let mut config = self.clone();
        match (self.word("scheduler.type"), self.node(PEAK).is_some()) {
            (Some(("WarmupLR" | "WarmupDecayLR", _)), true) => {}
            // The other schedule takes the optimizer's rate.
            (Some(("WarmupDecayLR", location)), false) => {
                put(&mut config.entries, PEAK, Node::scalar(WARMUP_MAX_LR.to_string(), location.clone()));
            }
            _ => return config,
        }
        if let Some(rate) = find_mut(&mut config.entries, RATE) {
            *rate = Node::scalar("null", rate.location.clone());
        }
        config
    }

    fn refuse_autos(&self, hidden_size: Option<usize>, problems: &mut Problems) {
        for (path, location) in self.autos() {
            let size = deepspeed_keys::SIZES.iter().find(|(key, ..)| key.name() == path);
            let problem = match size.map(|(_, auto, _)| auto.formula()) {
                // The model or a default says what it is, or other keys do.
                Some(Some(_)) if hidden_size.is_some() => continue,
                Some(None) => continue,
                None if path == deepspeed_keys::TRAIN_BATCH_SIZE.name() => continue,
                Some(Some(formula)) => Problem::new(format!(
                    "`{path}` is \"auto\", which is {formula} of the model's hidden size h, and the model does not say one"
                ))
                .help("write a number, or give `hidden_size`"),
                None => Problem::new(format!("`{path}` is \"auto\", and nothing here says what it is"))
                    .help("write a value; DeepSpeed itself knows no \"auto\", only Accelerate's `prepare` and transformers do"),
            };
            problems.push(problem.at(&location, ""));
        }
    }

    /// Where `"auto"` is written.
    fn autos(&self) -> Vec<(String, Location)> {
        fn walk(path: &str, node: &Node, found: &mut Vec<(String, Location)>) {
            match &node.data {
                Data::Scalar { text, .. } if text.trim() == AUTO => {
                    found.push((path.to_owned(), node.location.clone()));
                }
                Data::Map(inner) => {
                    inner.iter().for_each(|e| walk(&format!("{path}.{}", e.key), &e.value, found));
                }
                Data::List(items) => items.iter().for_each(|item| walk(path, item, found)),
                Data::Scalar { .. } => {}
            }
        }
        let mut found = Vec::new();
        self.entries.iter().for_each(|entry| walk(&entry.key, &entry.value, &mut found));
        found
    }

    fn word(&self, path: &str) -> Option<(&str, &Location)> {
        self.node(path).and_then(|node| Some((node.word()?, &node.location)))
    }

    /// What is written there, if it is not null.
    fn node(&self, path: &str) -> Option<&Node> {
        find(&self.entries, path).filter(|node| !node.is_null())
    }
}

fn stage_of(dialects: &Dialects) -> u8 {
    let Some(block) = &dialects.deepspeed else { return 0 };
    match block.settings.said(deepspeed_keys::ZERO_OPTIMIZATION) {
        Some(_) => u8::from(block.settings.get(deepspeed_keys::ZERO_OPTIMIZATION)),
        None => u8::try_from(block.settings.get(deepspeed_keys::ZERO_OPTIMIZATION_STAGE)).unwrap_or(u8::MAX),
    }
}

/// What to say of keys that were written and have no effect in a loop of the user's own.
fn without_effect(block: &Dialect) -> Vec<String> {
    let written = || block.settings.iter().filter(|setting| setting.is_written());
    let idle = written().filter_map(|setting| match setting.key.status {
        Status::NoEffect(reason) => Some(format!("{} ({reason})", setting.key.name)),
        _ => None,
    });
    let idle: Vec<String> = idle.collect();
    let of_trainer = written().filter(|setting| {
        let is_off = matches!(setting.value, Value::Bool(false) | Value::Null);
        OF_TRAINER.contains(&setting.key.name) && !is_off
    });
    let of_trainer: Vec<&str> = of_trainer.map(|setting| setting.key.name).collect();
    let mut notes = Vec::new();
    if !idle.is_empty() {
        notes.push(format!("accepted without effect: {}", idle.join(", ")));
    }
    if !of_trainer.is_empty() {
        let of_trainer = of_trainer.join(", ");
        notes.push(format!(
            "without effect in a loop of your own: {of_trainer}; `Accelerator::init_trackers` logs, `Accelerator::profile` \
             profiles, and the model says what it recomputes"
        ));
    }
    notes
}

fn needs_total(shape: &Shape, problems: &mut Problems) {
    let name = match shape {
        Shape::DeepSpeed(DeepSpeedShape::WarmupDecayLr { total_num_steps: None, .. }) => "WarmupDecayLR",
        Shape::DeepSpeed(DeepSpeedShape::WarmupCosineLr { total_num_steps: None, .. }) => "WarmupCosineLR",
        _ => return,
    };
    problems.push(
        Problem::new(format!("the schedule {name} needs `total_num_steps`"))
            .help("write it into scheduler.params; a custom training loop does not say how long it is"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, ranks: usize) -> Result<DeepSpeedArgs, String> {
        let config = DeepSpeedConfig::from_text("ds.json", text).map_err(|problems| problems.to_string())?;
        config.resolve(ranks, None).map_err(|problems| problems.to_string())
    }

    #[test]
    fn two_of_the_three_batch_sizes_say_the_third() {
        for (text, expected) in [
            (
                r#"{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}"#,
                (16, 2, 4),
            ),
            (r#"{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}"#, (16, 2, 4)),
            (r#"{"train_batch_size": 16, "gradient_accumulation_steps": 4}"#, (16, 2, 4)),
            (r#"{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}"#, (16, 2, 4)),
            (r#"{"train_batch_size": 16}"#, (16, 8, 1)),
            (r#"{"train_micro_batch_size_per_gpu": 2}"#, (4, 2, 1)),
        ] {
            let args = resolve(text, 2).unwrap();
            let found = (args.train_batch_size, args.micro_batch_size, args.gradient_accumulation_steps);
            assert_eq!(found, expected, "{text}");
        }
        let none = resolve(r#"{"gradient_accumulation_steps": 4}"#, 2).unwrap_err();
        assert!(none.contains("neither `train_batch_size` nor"), "{none}");
        let wrong = r#"{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}"#;
        let wrong = resolve(wrong, 2).unwrap_err();
        assert!(wrong.contains("ds.json:1:") && wrong.contains("is 16"), "{wrong}");
    }

    #[test]
    fn what_is_left_out_is_deepspeeds() {
        let text = r#"{"train_batch_size": 4, "zero_optimization": true, "fp16": {"enabled": true},
            "optimizer": {"type": "Adam", "params": {"lr": 0.00015}}, "scheduler": {"type": "WarmupLR"}}"#;
        let args = resolve(text, 2).unwrap();
        assert_eq!((args.stage, args.dtype, args.gradient_clipping), (1, DType::F16, 1.0));
        // The schedule rises to the optimizer's rate, and its warm-up takes DeepSpeed's 1000 steps.
        assert_eq!((args.learning_rate, args.schedule.unwrap().warmup), (0.00015, Steps::Count(1000)));
        assert_eq!(args.optimizer.unwrap().weight_decay, 0.0);
        let decaying = text.replace(r#""WarmupLR""#, r#""WarmupDecayLR", "params": {"total_num_steps": 9}"#);
        assert_eq!(resolve(&decaying, 2).unwrap().learning_rate, 1e-3);
        let list =
            decaying.replace("\"total_num_steps\"", "\"warmup_max_lr\": [1e-3, 1e-4], \"total_num_steps\"");
        let reported = resolve(&list, 2).unwrap_err();
        assert!(reported.contains("ds.json:2:") && reported.contains("a number, at least 0"), "{reported}");
    }

    #[test]
    fn keys_without_effect_in_a_loop_are_noted() {
        let text = r#"{"train_batch_size": 4, "memory_breakdown": true, "pipeline": {"stages": 2}, "steps_per_print": 10,
            "csv_monitor": {"enabled": true, "output_path": "x"}, "wandb": {"enabled": false},
            "wall_clock_breakdown": false, "zero_optimization": {"stage": 1, "overlap_comm": true}}"#;
        let [idle, of_trainer] = <[String; 2]>::try_from(resolve(text, 2).unwrap().notes).unwrap();
        assert_eq!(
            idle,
            "accepted without effect: memory_breakdown (write memory_steps: N for lines on memory), pipeline (the stages \
             are those of the PipelineModule, or of pipeline_model_parallel_size)"
        );
        assert!(
            of_trainer
                .starts_with("without effect in a loop of your own: steps_per_print, csv_monitor.enabled; "),
            "{of_trainer}"
        );
        assert!(resolve(r#"{"train_batch_size": 4}"#, 2).unwrap().notes.is_empty());
        let dropped = resolve(r#"{"train_batch_size": 4, "dataloader_drop_last": true}"#, 2).unwrap_err();
        assert!(dropped.contains("`dataloader_drop_last: true` is not supported yet"), "{dropped}");
    }

    #[test]
    fn a_schedule_of_deepspeed_that_says_a_rate_sets_it() {
        for (schedule, expected) in [
            (r#""WarmupLR""#, 0.25),
            (r#""WarmupLR", "params": {"warmup_max_lr": 0.5}"#, 0.5),
            (r#""WarmupDecayLR", "params": {"total_num_steps": 9}"#, 1e-3),
            (r#""WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_max_lr": 0.5}"#, 0.5),
        ] {
            let text = format!(
                r#"{{"train_batch_size": 4, "optimizer": {{"type": "Adam", "params": {{"lr": 0.25}}}}, "scheduler": {{"type": {schedule}}}}}"#
            );
            assert_eq!(resolve(&text, 1).unwrap().learning_rate, expected, "{schedule}");
        }
    }

    #[test]
    fn an_auto_that_nobody_resolves_is_reported_with_its_location() {
        let text = "{\n\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 1,\n\
                    \"zero_optimization\": {\"stage\": 3, \"stage3_max_live_parameters\": \"auto\",\n\
                    \"reduce_bucket_size\": \"auto\"},\n\
                    \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}}";
        let reported = resolve(text, 1).unwrap_err();
        assert_eq!(reported.lines().count(), 2, "{reported}");
        assert!(reported.contains("ds.json:4:23: `zero_optimization.reduce_bucket_size`"), "{reported}");
        assert!(reported.contains("`optimizer.params.lr` is \"auto\", and nothing here"), "{reported}");
        let mut config = DeepSpeedConfig::from_text("ds.json", text).unwrap();
        config.fill("optimizer.params.lr", 0.25);
        let args = config.resolve(1, Some(10)).unwrap();
        assert_eq!((args.learning_rate, args.shard.max_live_elems), (0.25, Elems::Count(1_000_000_000)));
        assert_eq!(args.shard.reduce_bucket_elems, Elems::HiddenSquared);
    }

    #[test]
    fn what_code_says_fills_gaps_and_contradicts_nothing() {
        let mut config =
            DeepSpeedConfig::from_text("ds.json", r#"{"zero_optimization": {"stage": 2}}"#).unwrap();
        config.agree("train_micro_batch_size_per_gpu", 4, "the loader").unwrap();
        config.agree("zero_optimization.stage", 2, "the plugin").unwrap();
        config.agree("zero_optimization.offload_optimizer.device", "cpu", "the plugin").unwrap();
        let args = config.resolve(1, None).unwrap();
        assert_eq!((args.micro_batch_size, args.stage), (4, 2));
        let device = config.get("zero_optimization.offload_optimizer.device");
        assert_eq!(device.as_deref(), Some("cpu"));
        let reported = config.agree("zero_optimization.stage", 3, "the plugin").unwrap_err().line();
        assert!(
            reported.starts_with("ds.json:1:33: `zero_optimization.stage` is 2, and the plugin says 3"),
            "{reported}"
        );
    }
}
