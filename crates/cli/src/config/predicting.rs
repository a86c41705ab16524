//! Reads what is predicted after training: answers of a chat model, or scores of a reward model.

use oarlock::config::{Elems, Placement, Predict, PredictArgs, ShardingConfig};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::objective::stage::Stage;
use super::table as keys;

/// What is predicted; `None` for nothing. What is wrong with it goes to `problems`.
pub fn predict(
    settings: &Settings,
    stage: &Stage,
    shard: &ShardingConfig<Elems>,
    problems: &mut Problems,
) -> Option<Predict> {
    match settings.get(keys::DO_PREDICT) && stage.has(keys::DO_PREDICT.name()) {
        true if !stage.is_supervised() => Some(Predict::Scores),
        true if settings.get(keys::PREDICT_WITH_GENERATE) => {
            Some(Predict::Answers(answers(settings, shard, problems)))
        }
        _ => None,
    }
}

fn answers(settings: &Settings, shard: &ShardingConfig<Elems>, problems: &mut Problems) -> PredictArgs {
    if shard.placements.parameters != Placement::Whole {
        let message = "`predict_with_generate` needs the weights on every rank, and they are sharded";
        let help = "generate after training, or shard gradients and optimizer state only";
        settings.report(problems, message, &[keys::PREDICT_WITH_GENERATE.row], help);
    }
    sampling(settings, problems)
}

/// How answers are made. What is wrong with it goes to `problems`.
pub fn sampling(settings: &Settings, problems: &mut Problems) -> PredictArgs {
    let mut report = |message: &str, keys: &[&'static Row], help: &str| {
        settings.report(problems, message, keys, help);
    };
    if settings.get(keys::NUM_BEAMS) != 1 {
        report("`num_beams` is more than 1: there is no beam search", &[keys::NUM_BEAMS.row], "remove it");
    }
    let top_p = settings.get(keys::TOP_P) as f32;
    if !(top_p > 0.0 && top_p <= 1.0) {
        report("`top_p` is not above 0 and at most 1", &[keys::TOP_P.row], "write 1 to draw from all tokens");
    }
    let penalty = settings.get(keys::REPETITION_PENALTY) as f32;
    if penalty <= 0.0 {
        report("`repetition_penalty` is 0", &[keys::REPETITION_PENALTY.row], "write 1 for none");
    }
    PredictArgs {
        max_new_tokens: settings.get(keys::MAX_NEW_TOKENS),
        temperature: match settings.get(keys::DO_SAMPLE) {
            true => settings.get(keys::TEMPERATURE) as f32,
            false => 0.0,
        },
        top_k: usize::try_from(settings.get(keys::TOP_K)).unwrap_or(0),
        top_p,
        repetition_penalty: penalty,
        skip_special_tokens: settings.get(keys::SKIP_SPECIAL_TOKENS),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MINIMUM, good, train};
    use super::*;

    const ASKED: &str = "stage: sft\neval_dataset: e\ndo_predict: true\npredict_with_generate: true\n";

    #[test]
    fn answers_are_generated_where_both_keys_ask_for_them() {
        assert_eq!(good("stage: sft").predict, None);
        let args = good(ASKED).predict;
        let expected = PredictArgs {
            max_new_tokens: 1024,
            temperature: 0.95,
            top_k: 50,
            top_p: 0.7,
            repetition_penalty: 1.0,
            skip_special_tokens: true,
        };
        assert_eq!(args, Some(Predict::Answers(expected)));
        let greedy = good(&format!("{ASKED}do_sample: false\nmax_new_tokens: 8\ntop_k: -1")).predict;
        let expected = PredictArgs { temperature: 0.0, max_new_tokens: 8, top_k: 0, ..expected };
        assert_eq!(greedy, Some(Predict::Answers(expected)));
        assert_eq!(good("stage: rm\neval_dataset: e\ndo_predict: true").predict, Some(Predict::Scores));
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let error = |text: &str| match train(&format!("{MINIMUM}{ASKED}{text}"), &[], &[]) {
            Ok(_) => String::new(),
            Err(problems) => problems.to_string(),
        };
        assert!(error("num_beams: 4").contains("no beam search"));
        assert!(error("top_p: 0").contains("`top_p` is not above 0"));
        assert!(error("fsdp: full_shard").contains("needs the weights on every rank"));
    }
}
