//! Reads by what the best model is found, and what follows from it: checkpoints, the end of the run, the final model.

use oarlock::config::{BestArgs, IntervalStrategy, Steps};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::table as keys;

/// How evaluations are compared; `None` where nobody asks. `evaluated` and `saved` say when that is done. What is wrong
/// goes to `problems`.
pub fn best(
    settings: &Settings,
    evaluated: IntervalStrategy,
    saved: IntervalStrategy,
    problems: &mut Problems,
) -> Option<BestArgs> {
    let loads = settings.get(keys::LOAD_BEST_MODEL_AT_END);
    let saves = settings.get(keys::SAVE_STRATEGY) == "best";
    let patience = settings.get(keys::EARLY_STOPPING_STEPS);
    let named = settings.said(keys::METRIC_FOR_BEST_MODEL).is_some();
    if !(loads || saves || named || patience.is_some()) {
        return None;
    }
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    let asks = [
        (keys::LOAD_BEST_MODEL_AT_END.row, loads),
        (keys::SAVE_STRATEGY.row, saves),
        (keys::EARLY_STOPPING_STEPS.row, patience.is_some()),
    ];
    if evaluated == IntervalStrategy::Never {
        for (key, _) in asks.into_iter().filter(|(_, asked)| *asked) {
            report(
                &format!("`{key}` needs evaluations during training"),
                &[key, keys::EVAL_STRATEGY.row],
                "write `eval_strategy: steps` and `eval_steps: …`",
            );
        }
    } else if loads && !saves {
        check_pace(settings, evaluated, saved, &mut report);
    }
    if loads && settings.get(keys::SAVE_ONLY_MODEL) {
        report(
            "`load_best_model_at_end` goes back to a whole checkpoint, and `save_only_model` leaves none",
            &[keys::SAVE_ONLY_MODEL.row, keys::LOAD_BEST_MODEL_AT_END.row],
            "remove save_only_model; save_total_limit keeps the folder small",
        );
    }
    let metric = if named { settings.word(keys::METRIC_FOR_BEST_MODEL) } else { "loss" };
    let metric = metric.strip_prefix("eval_").unwrap_or(metric);
    let is_loss = || ["loss", "loss_per_token"].iter().any(|name| metric.ends_with(name));
    let greater_is_better = settings.get(keys::GREATER_IS_BETTER).unwrap_or_else(|| !is_loss());
    let metric = format!("eval_{metric}");
    Some(BestArgs { metric, greater_is_better, patience, saves, load_at_end: loads })
}

/// Every checkpoint must have been evaluated, so that the best one is known.
fn check_pace(
    settings: &Settings,
    evaluated: IntervalStrategy,
    saved: IntervalStrategy,
    report: &mut impl FnMut(&str, &[&'static Row], &str),
) {
    let is_multiple = match (evaluated, saved) {
        (IntervalStrategy::Every(Steps::Count(evaluated)), IntervalStrategy::Every(Steps::Count(saved))) => {
            saved.is_multiple_of(evaluated.max(1))
        }
        (IntervalStrategy::Every(Steps::Share(evaluated)), IntervalStrategy::Every(Steps::Share(saved))) => {
            let [evaluated, saved] = [evaluated, saved].map(|share| (share * 1e6).round() as u64);
            saved.is_multiple_of(evaluated.max(1))
        }
        (IntervalStrategy::Epoch, IntervalStrategy::Epoch) => true,
        (IntervalStrategy::Every(_), IntervalStrategy::Every(_)) => false,
        _ => {
            let [evaluated, saved] = [keys::EVAL_STRATEGY, keys::SAVE_STRATEGY].map(|key| settings.get(key));
            return report(
                &format!(
                    "`load_best_model_at_end` needs an evaluation of every checkpoint, and `eval_strategy` is {evaluated}, \
                     `save_strategy` {saved}"
                ),
                &[keys::SAVE_STRATEGY.row, keys::EVAL_STRATEGY.row, keys::LOAD_BEST_MODEL_AT_END.row],
                &format!("write `save_strategy: {evaluated}`, or `save_strategy: best`"),
            );
        }
    };
    if !is_multiple {
        report(
            "`load_best_model_at_end` needs an evaluation of every checkpoint, and `save_steps` is not a multiple of \
             `eval_steps`",
            &[keys::SAVE_STEPS.row, keys::EVAL_STEPS.row, keys::LOAD_BEST_MODEL_AT_END.row],
            "write the same number for both, or a multiple for save_steps",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MINIMUM, good, train};
    use super::*;

    const EVAL: &str = "eval_dataset: e\neval_strategy: steps\neval_steps: 10\n";

    #[test]
    fn the_metric_has_transformers_defaults() {
        let best = |text: &str| good(&format!("{EVAL}{text}")).save.best.clone();
        assert_eq!(best(""), None);
        let expected = BestArgs {
            metric: "eval_loss".to_owned(),
            greater_is_better: false,
            patience: None,
            saves: false,
            load_at_end: true,
        };
        assert_eq!(best("load_best_model_at_end: true\nsave_steps: 20"), Some(expected.clone()));
        let accuracy = best("metric_for_best_model: rewards/accuracies\nearly_stopping_steps: 3").unwrap();
        assert_eq!((&*accuracy.metric, accuracy.greater_is_better), ("eval_rewards/accuracies", true));
        assert_eq!((accuracy.patience, accuracy.load_at_end), (Some(3), false));
        for losses in ["eval_loss_per_token", "eval_a_loss", "a_loss_per_token"] {
            assert!(
                !best(&format!("metric_for_best_model: {losses}")).unwrap().greater_is_better,
                "{losses}"
            );
        }
        let named = best("metric_for_best_model: eval_a_loss\ngreater_is_better: true").unwrap();
        assert_eq!((&*named.metric, named.greater_is_better), ("eval_a_loss", true));
        let saves = best("save_strategy: best\nload_best_model_at_end: true");
        assert_eq!(saves, Some(BestArgs { saves: true, ..expected }));
    }

    #[test]
    fn evaluations_and_checkpoints_must_go_together() {
        let error = |text: &str| match train(&format!("{MINIMUM}{text}"), &[], &[]) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        };
        let load = format!("{EVAL}load_best_model_at_end: true\n");
        for (text, words) in [
            (format!("{load}save_steps: 15"), "not a multiple of `eval_steps`"),
            (format!("{load}save_steps: 0.5"), "not a multiple of `eval_steps`"),
            (format!("{load}save_strategy: epoch"), "`eval_strategy` is steps, `save_strategy` epoch"),
            (format!("{load}save_strategy: no"), "`save_strategy` no"),
            (format!("{load}save_steps: 10\nsave_only_model: true"), "leaves none"),
            ("eval_dataset: e\nload_best_model_at_end: true".to_owned(), "needs evaluations during training"),
            ("eval_dataset: e\nearly_stopping_steps: 2".to_owned(), "needs evaluations during training"),
            ("eval_dataset: e\nsave_strategy: best".to_owned(), "needs evaluations during training"),
        ] {
            assert!(error(&text).contains(words), "{text}: {}", error(&text));
        }
        for text in ["save_steps: 30", "save_strategy: best", "save_steps: 10\nstage: rm"] {
            assert_eq!(error(&format!("{load}{text}")), "", "{text}");
        }
        let shares = "eval_dataset: e\neval_strategy: steps\neval_steps: 0.1\nload_best_model_at_end: true\n";
        assert_eq!(error(&format!("{shares}save_steps: 0.3")), "");
        assert_ne!(error(&format!("{shares}save_steps: 0.25")), "");
    }
}
