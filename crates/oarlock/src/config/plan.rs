//! What a training run will do: plain structs, one for each part of the program, and the table that says where
//! every value comes from. Immutable after [`super::train_config`]; nobody reads a file or the environment again.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::keys::{Group, Status};
use super::resolve::{Setting, Settings};
use super::source::Origin;

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
    /// Processes.
    pub ranks: RankArgs,
    pub(super) settings: Settings,
}

/// The model to train.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelArgs {
    /// The folder of config.json, tokenizer.json and weights.
    pub path: PathBuf,
    /// Begin with seeded random weights.
    pub from_scratch: bool,
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
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// Seed of the order of the data.
    pub data_seed: u64,
    /// AdamW.
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
}

/// AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OptimizerArgs {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Weight decay, not on norms and biases.
    pub weight_decay: f64,
}

/// The course of the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScheduleArgs {
    /// The peak.
    pub learning_rate: f64,
    /// The shape.
    pub shape: Shape,
    /// Warm-up; zero steps for none.
    pub warmup: Steps,
}

/// The shape of the learning rate over the steps, with the names and arguments of transformers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// `constant`: no warm-up either.
    Constant,
    /// `constant_with_warmup`.
    ConstantWithWarmup,
    /// `linear`, down to zero.
    Linear,
    /// `cosine`.
    Cosine {
        /// Waves; half a wave goes down to zero.
        num_cycles: f64,
    },
    /// `cosine_with_restarts`.
    CosineWithRestarts {
        /// Restarts.
        num_cycles: f64,
    },
    /// `polynomial`.
    Polynomial {
        /// The last learning rate.
        lr_end: f64,
        /// The exponent.
        power: f64,
    },
    /// `inverse_sqrt`.
    InverseSqrt {
        /// Time scale; `None`: the warm-up steps, or 10,000 without warm-up.
        timescale: Option<f64>,
    },
    /// `cosine_with_min_lr`.
    CosineWithMinLr {
        /// Waves.
        num_cycles: f64,
        /// The lowest rate as a share of the peak.
        min_lr_rate: f64,
    },
    /// `cosine_warmup_with_min_lr`, whose warm-up begins above zero.
    CosineWarmupWithMinLr {
        /// Waves.
        num_cycles: f64,
        /// The lowest rate as a share of the peak.
        min_lr_rate: f64,
        /// The first rate as a share of the peak; `None`: one step of the warm-up.
        warmup_lr_rate: Option<f64>,
    },
    /// `warmup_stable_decay`.
    WarmupStableDecay {
        /// Steps at the peak; `None`: what warm-up and decay leave.
        num_stable_steps: Option<u64>,
        /// Steps of the decay.
        num_decay_steps: u64,
        /// The curve of the warm-up.
        warmup_type: Curve,
        /// The curve of the decay.
        decay_type: Curve,
        /// The lowest rate as a share of the peak.
        min_lr_ratio: f64,
        /// Waves of a cosine decay.
        num_cycles: f64,
    },
    /// `minimind_seed`: MiniMind's first formula, per micro-step, beginning at 1.1 times the rate.
    MinimindSeed,
    /// `minimind3`: MiniMind's newest formula, per micro-step, beginning at the rate.
    Minimind3,
}

/// A curve of `warmup_stable_decay`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// `linear`.
    Linear,
    /// `cosine`.
    Cosine,
    /// `1-sqrt`.
    OneMinusSqrt,
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

    /// What somebody wrote although it changes nothing here, each with the reason.
    pub fn without_effect(&self) -> impl Iterator<Item = (&Setting, &'static str)> {
        self.settings.iter().filter_map(|setting| match setting.key.status {
            Status::NoEffect(reason) if setting.is_written() => Some((setting, reason)),
            _ => None,
        })
    }

    /// The same in one line for the start of a run; `None` if there is nothing to say.
    pub fn without_effect_line(&self) -> Option<String> {
        let names: Vec<&str> = self.without_effect().map(|(setting, _)| setting.key.name).collect();
        (!names.is_empty())
            .then(|| format!("accepted without effect: {} (--print-config says why)", names.join(", ")))
    }

    /// Every value that has a meaning, with its origin, and what changes nothing, with the reason.
    pub fn table(&self) -> String {
        let rows: Vec<(&Setting, String, String)> = self
            .settings
            .iter()
            .filter(|setting| setting.key.is_used())
            .map(|setting| (setting, setting.value.to_string(), setting.origin.to_string()))
            .collect();
        let width =
            |of: &dyn Fn(&(&Setting, String, String)) -> usize| rows.iter().map(of).max().unwrap_or(0);
        let names = width(&|row| row.0.key.name.chars().count());
        let values = width(&|row| row.1.chars().count()).min(48);
        let mut out = String::new();
        for group in Group::ALL {
            let mut of_group = rows.iter().filter(|row| row.0.key.group == group).peekable();
            if of_group.peek().is_some() {
                let _ = writeln!(out, "{}", group.title());
            }
            for (setting, value, origin) in of_group {
                let _ = writeln!(out, "  {:names$}  {value:values$}  {origin}", setting.key.name);
            }
        }
        let mut ignored = self.without_effect().peekable();
        if ignored.peek().is_some() {
            out.push_str("Accepted without effect\n");
        }
        for (setting, reason) in ignored {
            let _ = writeln!(
                out,
                "  {:names$}  {:values$}  {}: {reason}",
                setting.key.name,
                setting.value.to_string(),
                setting.origin
            );
        }
        out
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
