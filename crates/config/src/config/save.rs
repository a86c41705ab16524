//! Checkpoints and the final model: where they are, when they are written, and where a run begins.

use std::path::PathBuf;
use std::time::SystemTime;

use super::best::BestArgs;
use super::interval::IntervalStrategy;
use super::method::DO_TRAIN;
use super::shard::StateDict;
use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{self, Bool, BoolOrPath, Choice, Int, Path, Steps, Text};
use crate::settings::resolve::Settings;
use crate::settings::secret::Secret;
use crate::settings::section::section;
use crate::settings::value::Value;

section! {
    /// Checkpoints and the final model.
    #[derive(Clone, Debug, PartialEq)]
    pub struct SaveArgs of Save with SaveParts {
        /// When the run began, where a launcher has started its ranks again: it goes on from what it has saved itself, whatever it
        /// began from, on as many ranks as are left.
        restarted: Option<SystemTime>,
        /// The form of checkpoints.
        state_dict: StateDict,
        /// Write whole weights beside the sharded ones into every checkpoint.
        whole_weights: bool,
        /// By what the best model is found, where that is looked for.
        best: Option<BestArgs>,
    }

    /// The keys of checkpoints.
    pub const SAVE = [
        OUTPUT_DIR: Option<String> = (Path, "output_dir", "", Used, "Folder of checkpoints, logs and the final model") => ByHand output_dir: PathBuf, "The folder of everything that is written." = |settings| PathBuf::from(settings.word(OUTPUT_DIR));
        OVERWRITE_OUTPUT_DIR: bool = (Bool, "overwrite_output_dir", "false", Used, "Start from the beginning even if the folder contains checkpoints or a model, and replace files of the same names; the first save removes later checkpoints. Also for export") => Unrecorded overwrite;
        BEGIN_ANEW: bool = (Bool, "begin_anew", "false", Used, "Our own: start from the beginning and replace what earlier runs left in output_dir; a file that no run wrote, or that was changed since, ends the run instead") => Unrecorded begin_anew;
        RESUME_FROM_CHECKPOINT: Value = (BoolOrPath, "resume_from_checkpoint", "", Used, "Folder of a checkpoint, true for the newest, false for none; unset: the newest if there is one") => Unrecorded resume: Resume, "Where the run begins." = resume;
        RESUME_ANYWAY: bool = (Bool, "resume_anyway", "false", Used, "Our own: resume even if settings or data that affect the result have changed since the checkpoint") => Unrecorded resume_anyway;
        SAVE_STRATEGY: String = (Choice(&["no", "steps", "epoch", "best"]), "save_strategy", "steps", Used, "When to save; best: after each evaluation that is the best so far") => ByHand when: IntervalStrategy, "When to save." = |settings| IntervalStrategy::of(settings.get(SAVE_STRATEGY), settings.get(SAVE_STEPS));
        SAVE_STEPS: f64 = (Steps, "save_steps", "500", Used, "Steps between checkpoints");
        SAVE_TOTAL_LIMIT: Option<usize> = (Int(0), "save_total_limit", "", Used, "Keep the last N checkpoints, the best one included; 0 or unset: all") => Nothing keep: Option<usize>, "Keep the last N checkpoints; `None`: all." = |settings| settings.get(SAVE_TOTAL_LIMIT).filter(|keep| *keep > 0);
        SAVE_ONLY_MODEL: bool = (Bool, "save_only_model", "false", Used, "Save the weights without the state that resuming needs") => Nothing only_model;
        SAVE_SAFETENSORS: bool = (Bool, "save_safetensors", "true", Later("weights are always written as safetensors"), "Write weights as safetensors");
        SAVE_ON_EACH_NODE: bool = (Bool, "save_on_each_node", "false", NoEffect("the machines find out whether they share output_dir; each that does not saves in its own"), "Save on every machine");
        IGNORE_DATA_SKIP: bool = (Bool, "ignore_data_skip", "false", Later("a resumed run continues at its place in the data"), "Restart the data when resuming");
        LOAD_BEST_MODEL_AT_END: bool = (Bool, "load_best_model_at_end", "false", Used, "Load the best checkpoint at the end; it becomes the final model");
        METRIC_FOR_BEST_MODEL: Option<String> = (Text, "metric_for_best_model", "", Used, "Metric that compares evaluations, such as eval_loss or rewards/accuracies; unset: loss");
        GREATER_IS_BETTER: Option<bool> = (Bool, "greater_is_better", "", Used, "Whether a higher metric is better; unset: true unless its name ends with loss");
        PUSH_TO_HUB: bool = (Bool, "push_to_hub", "false", Later("models stay on this machine"), "Upload the model");
        HUB_MODEL_ID: Option<String> = (Text, "hub_model_id", "", NoEffect("models stay on this machine"), "Name in the hub");
        HUB_STRATEGY: String = (Choice(&["end", "every_save", "checkpoint", "all_checkpoints"]), "hub_strategy", "every_save", NoEffect("models stay on this machine"), "When to upload");
        HUB_TOKEN: Option<Secret> = (ValueType::Secret, "hub_token", "", NoEffect("models stay on this machine"), "Token of the hub");
    ];
}

fn resume(settings: &Settings) -> Resume {
    let begins_anew = settings.get(OVERWRITE_OUTPUT_DIR) || settings.get(BEGIN_ANEW);
    match settings.get(RESUME_FROM_CHECKPOINT) {
        Value::Bool(true) => Resume::Newest,
        Value::Bool(false) => Resume::Never,
        Value::Text(path) => Resume::From(PathBuf::from(path)),
        // What is only evaluated is the model that is named, as in LLaMA-Factory.
        _ if begins_anew || !settings.get(DO_TRAIN) => Resume::Never,
        _ => Resume::IfPresent,
    }
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
