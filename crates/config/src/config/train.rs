//! A whole training run: its parts, each a struct in a file of its own, and the run itself.

use oarlock_tensor::DType;
use oarlock_tensor::ops::optimizer::Rule;

use super::data::DataArgs;
use super::eval::EvalArgs;
use super::finetuning::Finetuning;
use super::log::LogArgs;
use super::model::ModelArgs;
use super::monitor::MonitorArgs;
use super::objective::ObjectiveArgs;
use super::predict::Predict;
use super::ranks::RankArgs;
use super::save::SaveArgs;
use super::schedule::ScheduleArgs;
use super::shard::{Elems, LossScale, Recompute, ShardingConfig};
use super::token_loss::TokenLossArgs;
use crate::settings::keys::Range::{BelowOne, NotNegative, Positive};
use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{Bool, Float, Int, Text};
use crate::settings::section::section;

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

section! {
    /// The run itself.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TrainArgs of Train with TrainParts {
        /// How the loss is scaled in f16.
        loss_scale: LossScale,
        /// Which activations are recomputed in the backward pass.
        recompute: Recompute,
        /// Whether what recomputed units keep waits in main memory, where ranks compute on GPUs.
        offload_activations: bool,
        /// The optimizer.
        optimizer: OptimizerArgs,
        /// The course of the learning rate.
        schedule: ScheduleArgs,
        /// What is trained on each token.
        loss: TokenLossArgs,
        /// Which parameters are trained.
        finetuning: Finetuning,
        /// What a step optimizes.
        objective: ObjectiveArgs,
        /// Train at all; else only evaluate.
        enabled: bool,
    }

    /// The keys of the run itself.
    pub const TRAIN = [
        PER_DEVICE_TRAIN_BATCH_SIZE: usize = (Int(1), "per_device_train_batch_size", "8", Used, "Sequences of a rank in one forward pass") => Nothing batch_size;
        GRADIENT_ACCUMULATION_STEPS: usize = (Int(1), "gradient_accumulation_steps", "1", Used, "Forward and backward passes of an optimizer step") => Nothing accumulation;
        NUM_TRAIN_EPOCHS: f64 = (Float(Positive), "num_train_epochs", "3", Used, "Passes over the data");
        MAX_STEPS: i64 = (Int(-1), "max_steps", "-1", Used, "Optimizer steps; when positive it replaces num_train_epochs")
            => ByHand length: Length, "When the run ends." = |settings| match settings.get(MAX_STEPS) {
                steps if steps > 0 => Length::Steps(steps.unsigned_abs()),
                _ => Length::Epochs(settings.get(NUM_TRAIN_EPOCHS)),
            };
        MAX_GRAD_NORM: f64 = (Float(NotNegative), "max_grad_norm", "1", Used, "Maximum gradient norm; 0: no clipping") => Computes max_grad_norm: Option<f64>, "Norm to which gradients are clipped; `None` leaves them as they are." = |settings| Some(settings.get(MAX_GRAD_NORM)).filter(|norm| *norm > 0.0);
        BF16: bool = (Bool, "bf16", "false", Used, "Compute in bf16 with f32 master weights")
            => ByHand dtype: DType, "The dtype in which the model computes; master weights and moments are f32 in every case." = |settings| match (settings.get(BF16), settings.get(FP16)) {
                (true, _) => DType::BF16,
                (false, true) => DType::F16,
                (false, false) => DType::F32,
            };
        FP16: bool = (Bool, "fp16", "false", Used, "Compute in f16 with f32 master weights and a scaled loss");
        PURE_BF16: bool = (Bool, "pure_bf16", "false", Used, "As bf16: true; master weights and moments stay in f32");
        MIXED_PRECISION: Option<String> = (Text, "mixed_precision", "", Later("write bf16: true or fp16: true"), "Precision, as Accelerate and Megatron name it");
        FP8: bool = (Bool, "fp8", "false", Later("use bf16: true"), "Compute in fp8");
        TF32: bool = (Bool, "tf32", "", Used, "On a GPU, compute f32 matrix products in TF32, which is many times faster; no effect on the CPU") => Nothing tf32;
        SEED: u64 = (Int(0), "seed", "42", Used, "Seed of initial weights, shuffling, dropout and what val_size holds out") => Computes seed;
        DATA_SEED: Option<u64> = (Int(0), "data_seed", "", Used, "Seed of shuffling alone; unset: seed") => Computes data_seed: u64, "Seed of the order of the data." = |settings| settings.get(DATA_SEED).unwrap_or_default();
        FULL_DETERMINISM: bool = (Bool, "full_determinism", "false", NoEffect("every run is deterministic"), "Bitwise identical results on every run");
        LABEL_SMOOTHING_FACTOR: f64 = (Float(BelowOne), "label_smoothing_factor", "0", Used, "Label smoothing: the share of the loss that is spread over the whole vocabulary");
        NEFTUNE_NOISE_ALPHA: Option<f64> = (Float(NotNegative), "neftune_noise_alpha", "", Used, "Noise on the embeddings (NEFTune): uniform in ±alpha / √(tokens · hidden_size) for each example; 0 or unset: none");
        EARLY_STOPPING_STEPS: Option<u64> = (Int(1), "early_stopping_steps", "", Used, "Stop after N evaluations in a row without improvement of metric_for_best_model");
        AVERAGE_TOKENS_ACROSS_DEVICES: bool = (Bool, "average_tokens_across_devices", "true", NoEffect("every token of a step has the same weight on all ranks, always"), "Weight the loss by tokens over all ranks");
        AUTO_FIND_BATCH_SIZE: bool = (Bool, "auto_find_batch_size", "false", Later("memory is checked before the start"), "Halve the batch until it fits");
        TORCH_COMPILE: bool = (Bool, "torch_compile", "false", NoEffect("there is nothing to compile"), "Compile the model");
        TORCH_COMPILE_BACKEND: Option<String> = (Text, "torch_compile_backend", "", NoEffect("there is nothing to compile"), "Backend of compilation");
        TORCH_COMPILE_MODE: Option<String> = (Text, "torch_compile_mode", "", NoEffect("there is nothing to compile"), "Mode of compilation");
        USE_CPU: bool = (Bool, "use_cpu", "false", Used, "Train on the CPU, also where there is a GPU (device: cpu)");
        NO_CUDA: bool = (Bool, "no_cuda", "false", Used, "The older name of use_cpu");
        TORCH_EMPTY_CACHE_STEPS: Option<usize> = (Int(1), "torch_empty_cache_steps", "", NoEffect("buffers are allocated once"), "Empty the memory cache");
    ];
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
