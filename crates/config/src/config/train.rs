//! What a training run does: plain structs, one for each part of the program.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use oarlock_tensor::cpu::quantized::Format;
use oarlock_tensor::ops::optimizer::Rule;
use oarlock_tensor::{DType, DeviceKind};

use super::best::BestArgs;
use super::data::{ChatArgs, ExampleKind, Mix, Packing, ValSize};
use super::finetuning::Finetuning;
use super::monitor::MonitorArgs;
use super::pipeline::PipelineArgs;
use super::predict::Predict;
use super::preference::ObjectiveArgs;
use super::schedule::{ScheduleArgs, Steps};
use super::shard::{Elems, LossScale, Recompute, ShardingConfig, StateDict};
use super::sparsity::SparsityConfig;
use super::token_loss::TokenLossArgs;

/// The most ranks of a run, and of a machine, that a number is believed to mean.
pub const MOST_RANKS: usize = 1 << 16;

/// A whole training run.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainConfig {
    /// The model to train.
    pub model: ModelArgs,
    /// The text to train on.
    pub data: DataArgs,
    /// The run itself.
    pub train: TrainArgs,
    /// Evaluation.
    pub eval: EvalArgs,
    /// What is predicted at the end; `None` for nothing.
    pub predict: Option<Predict>,
    /// Checkpoints and the final model.
    pub save: SaveArgs,
    /// Logs.
    pub log: LogArgs,
    /// Trackers, and what DeepSpeed's engine reports.
    pub monitor: MonitorArgs,
    /// What is sharded across the ranks.
    pub shard: ShardingConfig<Elems>,
    /// Processes.
    pub ranks: RankArgs,
    /// How the configuration was written, for logs and trackers.
    pub description: RunDescription,
}

/// What logs and trackers say about the configuration of a run. Whoever reads a configuration from a text fills it in;
/// it may stay empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunDescription {
    /// The settings as YAML lines: the file `training_args.yaml`, which repeats the run.
    pub yaml: String,
    /// The settings by name, for trackers.
    pub values: serde_json::Map<String, serde_json::Value>,
    /// Lines for the start of the log, such as older forms of a setting and what they mean.
    pub notes: Vec<String>,
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
    /// Keep the weights of all linear layers but the output weights in this format; they are not trained then.
    pub quantization: Option<Format>,
    /// Which blocks of its scores attention computes; `None`: what the model's config.json says.
    pub sparse_attention: Option<SparsityConfig>,
    /// Tokens that it gets.
    pub new_tokens: NewTokens,
    /// How its rotary frequencies are changed for sequences that are longer than those of its pretraining.
    pub rope_scaling: Option<RopeArgs>,
}

/// Tokens that a model gets beside those of its tokenizer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewTokens {
    /// Ordinary ones.
    pub tokens: Vec<String>,
    /// Special ones, which answers are shown without.
    pub special: Vec<String>,
    /// What describes special ones; their embeddings begin as the mean of those of the description.
    pub descriptions: Vec<(String, String)>,
    /// Whether these get noise as well.
    pub noise_on_descriptions: bool,
    /// Whether the vocabulary grows to that of the tokenizer also where no token is new.
    pub resize: bool,
    /// Whether output weights that are the embedding's become weights of their own, since an adapter trains copies of both.
    pub unties: bool,
}

impl NewTokens {
    /// Whether the vocabulary may grow.
    pub fn may_grow(&self) -> bool {
        self.resize || !self.tokens.is_empty() || !self.special.is_empty()
    }
}

/// A rotary scaling that a run chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeArgs {
    /// Its kind.
    pub kind: RopeKind,
    /// The longest sequence; `None` stands for twice as many positions as the model was made for.
    pub max_len: Option<usize>,
}

/// A kind of rotary scaling that a run can choose: `rope_type` in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeKind {
    /// All frequencies are divided.
    Linear,
    /// The base grows with the length.
    Dynamic,
    /// Frequencies are blended along the dimensions.
    Yarn,
    /// Low frequencies are divided.
    Llama3,
}

impl RopeKind {
    /// All of them, by name.
    pub const NAMES: [(&'static str, RopeKind); 4] = [
        ("linear", RopeKind::Linear),
        ("dynamic", RopeKind::Dynamic),
        ("yarn", RopeKind::Yarn),
        ("llama3", RopeKind::Llama3),
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<RopeKind> {
        RopeKind::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, kind)| kind)
    }
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
    pub packing: Packing,
    /// How conversations become tokens; `None` trains on texts.
    pub chat: Option<ChatArgs>,
    /// Draw the sequences in a seeded random order.
    pub shuffle: bool,
    /// Read at most so many records of a data set.
    pub max_samples: Option<usize>,
    /// What is split off for the evaluation, if anything is.
    pub val_size: Option<ValSize>,
    /// Build the token cache again.
    pub overwrite_cache: bool,
    /// How several data sets become one.
    pub mix: Mix,
    /// Draw sequences of similar length together.
    pub group_by_length: bool,
    /// Evaluate each data set of the evaluation by itself.
    pub eval_each: bool,
    /// Threads that tokenize; `None`: all.
    pub workers: Option<usize>,
    /// The folder of a tokenized data set: read if it is there, else written.
    pub tokenized: Option<PathBuf>,
}

impl DataArgs {
    /// The sequences of an example: two answers to one prompt are two.
    pub fn n_segments(&self) -> usize {
        match &self.chat {
            Some(chat) if chat.examples == ExampleKind::Pairs => 2,
            _ => 1,
        }
    }
}

/// The run itself.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainArgs {
    /// Sequences of a rank in one forward pass.
    pub batch_size: usize,
    /// Forward and backward passes of an optimizer step.
    pub accumulation: usize,
    /// When the run ends.
    pub length: Length,
    /// Norm to which gradients are clipped; `None` leaves them as they are.
    pub max_grad_norm: Option<f64>,
    /// The dtype in which the model computes; master weights and moments are f32 in every case.
    pub dtype: DType,
    /// Whether products of f32 are in TF32, where ranks compute on GPUs.
    pub tf32: bool,
    /// How the loss is scaled in f16.
    pub loss_scale: LossScale,
    /// Which activations are recomputed in the backward pass.
    pub recompute: Recompute,
    /// Whether what recomputed units keep waits in main memory, where ranks compute on GPUs.
    pub offload_activations: bool,
    /// Seed of initial weights and dropout.
    pub seed: u64,
    /// Seed of the order of the data.
    pub data_seed: u64,
    /// The optimizer.
    pub optimizer: OptimizerArgs,
    /// The course of the learning rate.
    pub schedule: ScheduleArgs,
    /// What is trained on each token.
    pub loss: TokenLossArgs,
    /// Which parameters are trained.
    pub finetuning: Finetuning,
    /// What a step optimizes.
    pub objective: ObjectiveArgs,
    /// Train at all; else only evaluate.
    pub enabled: bool,
}

/// When a training run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// After so many passes over the data.
    Epochs(f64),
    /// After so many optimizer steps.
    Steps(u64),
}

/// The optimizer.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerArgs {
    /// How gradients change weights, with its parameters.
    pub rule: Rule,
    /// Weight decay, not on norms and biases.
    pub weight_decay: f64,
    /// Words in the names of the matrices to which a rule for hidden matrices applies; empty for all of them.
    pub targets: Vec<String>,
}

/// When something is done again and again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntervalStrategy {
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
    /// When to evaluate during training.
    pub when: IntervalStrategy,
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
    /// Whether settings and data that change what is computed may be other than in the run that saved the checkpoint.
    pub resume_anyway: bool,
    /// When the run began, where a launcher has started its ranks again: it goes on from what it has saved itself, whatever it
    /// began from, on as many ranks as are left.
    pub restarted: Option<SystemTime>,
    /// Whether earlier results in the folder may be replaced.
    pub overwrite: bool,
    /// Whether the run begins anew over what earlier runs left in the folder, and over nothing else.
    pub begin_anew: bool,
    /// When to save.
    pub when: IntervalStrategy,
    /// Keep the last so many checkpoints; `None`: all.
    pub keep: Option<usize>,
    /// Save weights without what resuming needs.
    pub only_model: bool,
    /// The form of checkpoints.
    pub state_dict: StateDict,
    /// Write whole weights beside the sharded ones into every checkpoint.
    pub whole_weights: bool,
    /// By what the best model is found, where that is looked for.
    pub best: Option<BestArgs>,
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
    pub when: IntervalStrategy,
    /// Log the first step, too.
    pub first_step: bool,
    /// Draw `training_loss.png`.
    pub plot_loss: bool,
    /// Plain lines instead of a progress line.
    pub plain: bool,
    /// Steps between lines on memory; 0 for none.
    pub memory_steps: usize,
    /// Refuse a training run that would not fit into memory.
    pub memory_check: bool,
    /// Steps between tables of the time of each phase; `None` for none.
    pub profile: Option<u64>,
}

/// Processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankArgs {
    /// Ranks.
    pub num_processes: usize,
    /// Ranks over which each sequence is divided; 1: it is whole on a rank.
    pub sequence_parallel: usize,
    /// Threads of a rank; `None`: the cores divided by the ranks.
    pub threads: Option<usize>,
    /// Where tensors lie and ops run.
    pub device: DeviceKind,
    /// The name of the kernels' instruction set; `None`: the fastest of the CPU.
    pub cpu_path: Option<String>,
    /// How long ranks wait in a collective for one that is alive.
    pub timeout: Duration,
    /// How the model is divided into stages.
    pub pipeline: PipelineArgs,
}
