//! What a training run will do: plain structs, one for each part of the program, and the table that says where
//! every value comes from. Immutable after [`super::train_config`]; nobody reads a file or the environment again.

use std::fmt::Write as _;
use std::path::PathBuf;

use oarlock_tensor::ops::optimizer::Rule;

use super::dialect::Dialects;
use super::keys::{Group, Status};
use super::monitor::MonitorArgs;
use super::problem::{Problem, Problems};
use super::resolve::{self, Setting, Settings};
use super::shape::ScheduleArgs;
use super::sharding::{LossScale, Recompute, ShardArgs};
use super::source::Origin;

/// The most ranks of a run, and of a machine, that a number is believed to mean.
pub const MOST_RANKS: usize = 1 << 16;

/// A whole training run.
#[derive(Clone, Debug)]
pub struct TrainConfig {
    /// The model to train.
    pub model: ModelArgs,
    /// The text to train on.
    pub data: DataArgs,
    /// The training itself.
    pub train: TrainArgs,
    /// Evaluation.
    pub eval: EvalArgs,
    /// Checkpoints and the final model.
    pub save: SaveArgs,
    /// Logs.
    pub log: LogArgs,
    /// Trackers, and what DeepSpeed's engine reports.
    pub monitor: MonitorArgs,
    /// What is divided over the ranks.
    pub shard: ShardArgs,
    /// Processes.
    pub ranks: RankArgs,
    pub(super) settings: Settings,
    pub(super) dialects: Dialects,
}

/// The model to train.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelArgs {
    /// Where its settings come from.
    pub source: ModelSource,
    /// The folder of tokenizer.json.
    pub tokenizer: PathBuf,
    /// Begin with seeded random weights.
    pub from_scratch: bool,
}

/// Where the settings of a model come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// The folder of config.json, tokenizer.json and weights.
    Folder(PathBuf),
    /// The fields of a config.json, written into the configuration.
    Fields(serde_json::Map<String, serde_json::Value>),
}

/// The text to train on.
#[derive(Clone, Debug, PartialEq)]
pub struct DataArgs {
    /// Paths, or names in `dataset_info.json`.
    pub datasets: Vec<String>,
    /// The same for the evaluation.
    pub eval_datasets: Vec<String>,
    /// The folder of `dataset_info.json` and its files.
    pub dataset_dir: PathBuf,
    /// Tokens of a sequence.
    pub cutoff_len: usize,
    /// How texts become sequences.
    pub rows: RowFormat,
    /// Draw the sequences in a seeded random order.
    pub shuffle: bool,
    /// Read at most so many records of a data set.
    pub max_samples: Option<usize>,
    /// What is held out for the evaluation.
    pub held_out: HeldOut,
    /// Build the token cache anew.
    pub overwrite_cache: bool,
}

/// How texts become sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// Joined and cut into full sequences.
    Packed,
    /// The same, but no text sees another.
    PackedApart,
    /// One text a sequence, cut or padded.
    OneText,
    /// MiniMind's: begin, one text, end, cut or padded.
    Minimind,
}

/// How much of the training data is held out for the evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeldOut {
    /// Nothing.
    None,
    /// So many records.
    Records(usize),
    /// This share of the records.
    Share(f64),
}

/// The training itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainArgs {
    /// Sequences of a rank in one forward pass.
    pub batch_size: usize,
    /// Forward and backward passes of an optimizer step.
    pub accumulation: usize,
    /// When the training ends.
    pub length: Length,
    /// Norm to which gradients are clipped; `None` leaves them as they are.
    pub max_grad_norm: Option<f64>,
    /// What the model computes in.
    pub precision: Precision,
    /// How the loss is scaled in f16.
    pub loss_scale: LossScale,
    /// Which activations are computed anew in the backward pass.
    pub recompute: Recompute,
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// Seed of the order of the data.
    pub data_seed: u64,
    /// The optimizer.
    pub optimizer: OptimizerArgs,
    /// The course of the learning rate.
    pub schedule: ScheduleArgs,
    /// Train at all; else only evaluate.
    pub enabled: bool,
}

/// When a training ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// After so many passes over the data.
    Epochs(f64),
    /// After so many optimizer steps.
    Steps(u64),
}

/// What a model computes in. Master weights and moments are f32 in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// f16, with a scaled loss.
    F16,
}

/// The optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerArgs {
    /// How gradients change weights, with its parameters.
    pub rule: Rule,
    /// Weight decay, not on norms and biases.
    pub weight_decay: f64,
}

/// A number of optimizer steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Steps {
    /// So many.
    Count(u64),
    /// This share of all steps, rounded up.
    Share(f64),
}

impl Steps {
    /// The number, given how many steps there are in all.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Steps::Count(steps) => steps,
            Steps::Share(share) => (share * total as f64).ceil() as u64,
        }
    }
}

/// When something is done again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// Never.
    Never,
    /// At the end of every epoch.
    Epoch,
    /// Every so many steps.
    Every(Steps),
}

/// Evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvalArgs {
    /// When to evaluate during the training.
    pub when: When,
    /// Steps before the first of these evaluations; epochs where they come with epochs.
    pub delay: f64,
    /// Evaluate before the first step.
    pub at_start: bool,
    /// Evaluate after the last step.
    pub at_end: bool,
    /// Sequences of a rank in one evaluation pass.
    pub batch_size: usize,
}

/// Checkpoints and the final model.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveArgs {
    /// The folder of everything that is written.
    pub output_dir: PathBuf,
    /// Where the run begins.
    pub resume: Resume,
    /// Whether earlier results in the folder may be replaced.
    pub overwrite: bool,
    /// When to save.
    pub when: When,
    /// Keep the last so many checkpoints; `None`: all.
    pub keep: Option<usize>,
    /// Save weights without what resuming needs.
    pub only_model: bool,
}

/// Where a run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// At the newest checkpoint of `output_dir`, or anew if there is none.
    IfPresent,
    /// Anew.
    Never,
    /// At the newest checkpoint of `output_dir`; none is an error.
    Newest,
    /// At this checkpoint.
    From(PathBuf),
}

/// Logs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogArgs {
    /// When to log.
    pub when: When,
    /// Log the first step, too.
    pub first_step: bool,
    /// Draw `training_loss.png`.
    pub plot_loss: bool,
    /// Plain lines instead of a progress line.
    pub plain: bool,
    /// Steps between lines on memory; 0 for none.
    pub memory_steps: usize,
    /// Refuse a training that would not fit into memory.
    pub memory_check: bool,
    /// Steps between tables of the time of each phase; `None` for none.
    pub profile: Option<u64>,
}

/// Processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankArgs {
    /// Ranks.
    pub num_processes: usize,
    /// Threads of a rank; `None`: the cores divided by the ranks.
    pub threads: Option<usize>,
    /// The name of the kernels' instruction set; `None`: the fastest of the CPU.
    pub cpu_path: Option<String>,
}

impl TrainConfig {
    /// Where the value of a key comes from; `None` for an unknown key.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.settings.iter().find(|setting| setting.key.name == name).map(|setting| &setting.origin)
    }

    /// A problem of the keys with these names, at the places at which they are written.
    pub fn problem(&self, message: impl Into<String>, names: &[&str]) -> Problem {
        self.settings.problem(message, names)
    }

    /// What is asked for and is not there: the configuration can be shown, but not run.
    pub fn missing(&self) -> Problems {
        let mut missing = resolve::missing(&self.settings);
        missing.append(self.dialects.missing());
        missing
    }

    /// The configuration, if all that it asks for is there.
    ///
    /// # Errors
    /// What is not there.
    pub fn complete(self) -> Result<Self, Problems> {
        self.missing().into_result(|| self)
    }

    /// What somebody wrote although it changes nothing here, each with the reason.
    pub fn without_effect(&self) -> impl Iterator<Item = (&Setting, &'static str)> {
        self.all().filter_map(|setting| match setting.key.status {
            Status::NoEffect(reason) if setting.is_written() => Some((setting, reason)),
            _ => None,
        })
    }

    /// What the log should say of the configuration, such as older forms and what they mean.
    pub fn notes(&self) -> &[String] {
        &self.dialects.notes
    }

    /// The settings, and those of other programs' blocks.
    fn all(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter().chain(self.dialects.iter().flat_map(|block| block.settings.iter()))
    }

    /// The same in one line for the start of a run; `None` if there is nothing to say.
    pub fn without_effect_line(&self) -> Option<String> {
        let names: Vec<&str> = self.without_effect().map(|(setting, _)| setting.key.name).collect();
        (!names.is_empty())
            .then(|| format!("accepted without effect: {} (--print-config says why)", names.join(", ")))
    }

    /// Every value that has a meaning, with its origin, and what changes nothing, with the reason. Of other programs'
    /// blocks it shows what was written.
    pub fn table(&self) -> String {
        let mut parts: Vec<(&str, Vec<Row>)> = Vec::new();
        for group in Group::ALL {
            let of_group = |setting: &&Setting| setting.key.is_used() && setting.key.group == group;
            parts.push((group.title(), self.settings.iter().filter(of_group).map(Row::of).collect()));
        }
        for block in self.dialects.iter() {
            let written = |setting: &&Setting| setting.key.is_used() && setting.is_written();
            parts.push((block.title, block.settings.iter().filter(written).map(Row::of).collect()));
        }
        let ignored = self.without_effect().map(|(setting, reason)| {
            let row = Row::of(setting);
            Row { origin: format!("{}: {reason}", row.origin), ..row }
        });
        parts.push(("Accepted without effect", ignored.collect()));
        parts.retain(|(_, rows)| !rows.is_empty());

        let rows = || parts.iter().flat_map(|(_, rows)| rows);
        let names = rows().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let values = rows().map(|row| row.value.chars().count()).max().unwrap_or(0).min(48);
        let mut out = String::new();
        for (title, rows) in &parts {
            let _ = writeln!(out, "{title}");
            for Row { name, value, origin } in rows {
                let _ = writeln!(out, "  {name:names$}  {value:values$}  {origin}");
            }
        }
        for note in self.notes() {
            let _ = writeln!(out, "Note: {note}");
        }
        out
    }

    /// Every value that has a meaning, for trackers: numbers and switches as such, anything else in words.
    pub fn as_json(&self) -> serde_json::Map<String, serde_json::Value> {
        use super::value::Value;
        let value = |setting: &Setting| match &setting.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(x) => (*x).into(),
            Value::Int(x) => (*x).into(),
            Value::Float(x) => (*x).into(),
            other => other.to_string().into(),
        };
        let used = self.settings.iter().filter(|setting| setting.key.is_used());
        used.map(|setting| (setting.key.name.to_owned(), value(setting))).collect()
    }

    /// The values that somebody wrote, as YAML lines: the file `training_args.yaml`, which repeats the run.
    pub fn as_yaml(&self) -> String {
        let mut out = String::new();
        for setting in self.settings.iter().filter(|setting| setting.is_written()) {
            let _ = writeln!(out, "{}: {}", setting.key.name, yaml_value(setting));
        }
        out
    }
}

/// A line of [`TrainConfig::table`].
struct Row {
    name: &'static str,
    value: String,
    origin: String,
}

impl Row {
    fn of(setting: &Setting) -> Self {
        Row { name: setting.key.name, value: setting.value.to_string(), origin: setting.origin.to_string() }
    }
}

fn yaml_value(setting: &Setting) -> String {
    use super::value::Value;
    match &setting.value {
        Value::Null => "null".to_owned(),
        Value::Bool(x) => x.to_string(),
        Value::Int(x) => x.to_string(),
        Value::Float(x) => super::value::number(*x),
        Value::Text(x) => quoted(x),
        Value::List(names) => {
            format!("[{}]", names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(", "))
        }
        Value::Map(fields) => {
            let fields =
                fields.iter().map(|field| format!("{}: {}", quoted(&field.name), field.value.to_yaml()));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Words in double quotes where YAML could take them for something else. JSON's escapes are YAML's.
pub(super) fn quoted(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || matches!(c, '/' | '.' | '_'))
        && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+'))
        && super::value::boolean(text).is_none()
        && super::value::float(text).is_none()
        && !matches!(text.to_ascii_lowercase().as_str(), "null" | "nan" | "inf");
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
