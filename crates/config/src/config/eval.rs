//! Evaluation: when it happens, and with which batches.

use super::data::{EVAL_DATASET, VAL_SIZE};
use super::interval::IntervalStrategy;
use crate::settings::keys::Range::NotNegative;
use crate::settings::keys::Status::{NoEffect, Used};
use crate::settings::keys::ValueType::{Bool, Choice, Float, Int, Steps};
use crate::settings::section::section;

section! {
    /// Evaluation.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct EvalArgs of Eval

    /// The keys of evaluation.
    pub const EVAL = [
        DO_EVAL: bool = (Bool, "do_eval", "false", Used, "Evaluate at the end; the default if there is evaluation data") => Unrecorded at_end: bool, "Evaluate after the last step." = |settings| settings.get(DO_EVAL) && (settings.get(VAL_SIZE) != 0.0 || !settings.get(EVAL_DATASET).is_empty());
        EVAL_STRATEGY: String = (Choice(&["no", "steps", "epoch"]), "eval_strategy", "no", Used, "When to evaluate") => ByHand when: IntervalStrategy, "When to evaluate during training." = |settings| IntervalStrategy::of(settings.get(EVAL_STRATEGY), settings.get(EVAL_STEPS).unwrap_or_default());
        EVALUATION_STRATEGY: Option<String> = (Choice(&["no", "steps", "epoch"]), "evaluation_strategy", "", Used, "Older name of eval_strategy");
        EVAL_STEPS: Option<f64> = (Steps, "eval_steps", "", Used, "Steps between evaluations; unset: logging_steps");
        PER_DEVICE_EVAL_BATCH_SIZE: usize = (Int(1), "per_device_eval_batch_size", "8", Used, "Sequences of a rank in one evaluation pass") => Nothing batch_size;
        EVAL_ON_START: bool = (Bool, "eval_on_start", "false", Used, "Evaluate before the first step, too") => Unrecorded at_start;
        EVAL_DELAY: f64 = (Float(NotNegative), "eval_delay", "0", Used, "Steps, or epochs with eval_strategy: epoch, before the first evaluation of eval_strategy") => Nothing delay;
        EVAL_ON_EACH_DATASET: bool = (Bool, "eval_on_each_dataset", "false", Used, "Evaluate each data set of eval_dataset separately, as eval_NAME_loss");
        EVAL_ACCUMULATION_STEPS: Option<usize> = (Int(1), "eval_accumulation_steps", "", NoEffect("what evaluation needs of a batch is summed at once, and no predictions are kept"), "Steps before predictions leave the device");
        EVAL_NUM_BEAMS: Option<usize> = (Int(1), "eval_num_beams", "", NoEffect("there is no beam search"), "Beams of generation");
        PREDICTION_LOSS_ONLY: bool = (Bool, "prediction_loss_only", "false", NoEffect("evaluation keeps no predictions, and its other metrics cost nothing"), "Evaluate the loss only");
        COMPUTE_ACCURACY: bool = (Bool, "compute_accuracy", "false", Used, "Also evaluate the token accuracy, as eval_accuracy: the mean over examples");
    ];
}
