//! The best evaluation of a run, the best of its checkpoints, and the evaluations since without progress, as
//! trainer_state.json keeps them.

use std::path::{Path, PathBuf};

use oarlock_config::config::BestArgs;
use oarlock_engine::report::log::PER_TOKEN;
use oarlock_engine::report::state::TrainerState;
use oarlock_engine::{Error, Result};
use serde_json::{Value, json};

use crate::train::objective::Objective;

/// The name under which transformers keeps the evaluations without progress.
const CALLBACK: &str = "EarlyStoppingCallback";
const COUNTER: &str = "/EarlyStoppingCallback/attributes/early_stopping_patience_counter";

/// What follows from an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// It is the best so far.
    pub is_best: bool,
    /// It was the last one without progress that is waited for.
    pub stops: bool,
}

/// What an evaluation of this objective is measured by.
pub fn metrics(objective: &dyn Objective) -> Vec<&'static str> {
    let per_token = objective.is_token_loss().then_some(PER_TOKEN);
    ["loss"].into_iter().chain(objective.metrics(true).iter().copied()).chain(per_token).collect()
}

/// Refuses a metric that no evaluation will have: each has these `metrics`, under the name of its data set where each is
/// evaluated by itself.
pub fn check_metric(metric: &str, evals: &[Option<&str>], metrics: &[&str]) -> Result<()> {
    let names: Vec<String> = evals
        .iter()
        .flat_map(|name| {
            let of = name.map_or(String::new(), |name| format!("{name}_"));
            metrics.iter().map(move |metric| format!("eval_{of}{metric}"))
        })
        .collect();
    if names.is_empty() || names.iter().any(|name| name == metric) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "metric_for_best_model is {metric}, and the evaluations of this run have {}",
        names.join(", ")
    )))
}

/// Compares the value of an evaluation with the best one of the steps before.
pub fn judge(args: &BestArgs, state: &mut TrainerState, value: f64) -> Verdict {
    let before = best_evaluation(args, state, |step| step < state.global_step);
    let is_best = args.is_better(value, before.map(|(_, value)| value));
    if is_best && state.best_model_checkpoint.is_none() {
        // As long as no checkpoint is the best one, the best evaluation is what there is.
        note(state, (state.global_step, value));
    }
    let waited = if is_best { 0 } else { waited(state) + 1 };
    if let Some(patience) = args.patience {
        let kept = json!({
            "args": {"early_stopping_patience": patience, "early_stopping_threshold": 0.0},
            "attributes": {"early_stopping_patience_counter": waited},
        });
        state.stateful_callbacks.insert(CALLBACK.to_owned(), kept);
    }
    Verdict { is_best, stops: has_stopped(args, state) }
}

/// Whether all evaluations that progress is waited for have passed without it.
pub fn has_stopped(args: &BestArgs, state: &TrainerState) -> bool {
    args.patience.is_some_and(|patience| waited(state) >= patience)
}

/// Evaluations since the best one.
fn waited(state: &TrainerState) -> u64 {
    let callbacks = Value::Object(state.stateful_callbacks.clone());
    callbacks.pointer(COUNTER).and_then(Value::as_u64).unwrap_or(0)
}

/// Notes that a checkpoint is saved now, in case it is the best one that was: by the evaluation of its very step. The best
/// metric is then that of the best checkpoint, whatever evaluations between checkpoints have said.
pub fn saving(args: &BestArgs, state: &mut TrainerState, dir: &Path) {
    let series = state.series(&args.metric);
    let value_at = |step: u64| series.iter().rfind(|(at, _)| *at == step).map(|(_, value)| *value);
    let Some(value) = value_at(state.global_step) else { return };
    let best = saved_step(state).and_then(value_at);
    if args.is_better(value, best) {
        state.best_model_checkpoint = Some(dir.to_string_lossy().into_owned());
        note(state, (state.global_step, value));
    }
}

fn note(state: &mut TrainerState, (step, value): (u64, f64)) {
    state.best_global_step = Some(step);
    state.best_metric = Some(value);
}

/// The step and the value of the best evaluation of the run, of the steps that are `wanted`; the one before its first
/// step is none of it.
pub fn best_evaluation(
    args: &BestArgs,
    state: &TrainerState,
    wanted: impl Fn(u64) -> bool,
) -> Option<(u64, f64)> {
    let mut best: Option<(u64, f64)> = None;
    for (step, value) in state.series(&args.metric) {
        if step > 0 && wanted(step) && args.is_better(value, best.map(|(_, value)| value)) {
            best = Some((step, value));
        }
    }
    best
}

/// The best checkpoint that was saved, in the folder of a run, wherever that was when it was saved.
pub fn checkpoint(state: &TrainerState, output: &Path) -> Option<PathBuf> {
    let saved = Path::new(state.best_model_checkpoint.as_ref()?);
    Some(output.join(saved.file_name()?))
}

fn saved_step(state: &TrainerState) -> Option<u64> {
    state.best_model_checkpoint.as_ref()?.rsplit('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> BestArgs {
        let metric = "eval_loss".to_owned();
        BestArgs { metric, greater_is_better: false, patience: Some(2), saves: false, load_at_end: true }
    }

    /// An evaluation as a run notes it.
    fn evaluated(args: &BestArgs, state: &mut TrainerState, step: u64, value: f64) -> (bool, bool) {
        state.global_step = step;
        let log = json!({"step": step, "eval_loss": value});
        state.log_history.extend(log.as_object().cloned());
        let verdict = judge(args, state, value);
        (verdict.is_best, verdict.stops)
    }

    #[test]
    fn evaluations_are_compared_as_transformers_compares_them() {
        let (args, mut state) = (args(), TrainerState::default());
        let verdicts: Vec<_> = [3.0, 2.0, 2.0, 1.5, 1.6, f64::NAN, 1.4]
            .into_iter()
            .zip(1..)
            .map(|(value, step)| evaluated(&args, &mut state, step, value))
            .collect();
        let (best, same, last) = ((true, false), (false, false), (false, true));
        assert_eq!(verdicts, [best, best, same, best, same, last, best]);
        assert_eq!((state.best_metric, state.best_global_step), (Some(1.4), Some(7)));

        let more = BestArgs { greater_is_better: true, patience: None, ..args };
        let mut state = TrainerState::default();
        let verdicts =
            [(1, 0.5), (2, 0.5), (3, 0.75)].map(|(step, value)| evaluated(&more, &mut state, step, value));
        assert_eq!(verdicts, [best, same, best]);
        assert!(state.stateful_callbacks.is_empty());
    }

    #[test]
    fn the_count_survives_the_file() {
        let (args, mut state) = (args(), TrainerState::default());
        for (step, value) in [(1, 2.0), (2, 2.5)] {
            evaluated(&args, &mut state, step, value);
        }
        let dir = tempfile::tempdir().unwrap();
        state.save(dir.path()).unwrap();
        let mut state = TrainerState::load(dir.path()).unwrap();
        assert!(!has_stopped(&args, &state));
        assert_eq!(evaluated(&args, &mut state, 3, 2.1), (false, true));
        assert!(has_stopped(&args, &state));
    }

    #[test]
    fn of_the_checkpoints_the_one_with_the_best_evaluation_is_kept_in_mind() {
        let (args, mut state) = (args(), TrainerState::default());
        for (step, value, saves) in
            [(1, 1.0, false), (2, 3.0, true), (3, 2.5, false), (4, 2.0, true), (6, 2.2, true)]
        {
            evaluated(&args, &mut state, step, value);
            if saves {
                saving(&args, &mut state, Path::new(&format!("there/checkpoint-{step}")));
            }
        }
        assert_eq!(state.best_model_checkpoint.as_deref(), Some("there/checkpoint-4"));
        // What is said of it is its own evaluation, although one between checkpoints was better.
        assert_eq!((state.best_metric, state.best_global_step), (Some(2.0), Some(4)));
        assert_eq!(best_evaluation(&args, &state, |_| true), Some((1, 1.0)));
        assert_eq!(checkpoint(&state, Path::new("here")), Some(PathBuf::from("here/checkpoint-4")));
    }
}
