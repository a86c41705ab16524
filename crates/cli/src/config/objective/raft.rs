//! Reads stage raft: how many answers each prompt gets, how they are made, and what scores them.

use oarlock::config::{ObjectiveArgs, RaftArgs, RaftParts, ReferenceArgs, RewardArgs};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::stage::Stage;
use crate::config::{hub, predicting, table as keys};

/// Rejection sampling.
pub const RAFT: Stage =
    Stage { is_ours: true, makes_answers: true, keys: &[keys::RAFT_KEYS], read, ..Stage::new("stage raft") };

fn read(settings: &Settings, problems: &mut Problems) -> ObjectiveArgs {
    let mut report = |message: &str, names: &[&'static Row], help: &str| {
        settings.report(problems, message, names, help);
    };
    let (function, pattern) = (settings.get(keys::REWARD_FUNCTION), settings.get(keys::REWARD_PATTERN));
    let model = settings.get(keys::REWARD_MODEL).map(|word| hub::local(settings, word));
    if function.is_some() && model.is_some() {
        let both = [keys::REWARD_FUNCTION.row, keys::REWARD_MODEL.row];
        report("`reward_function` and `reward_model` are mutually exclusive", &both, "keep one of them");
    }
    if pattern.is_some() && function != Some("regex") {
        let help = "write `reward_function: regex`, or remove it";
        report("`reward_pattern` belongs to `reward_function: regex`", &[keys::REWARD_PATTERN.row], help);
    }
    for key in [keys::PACKING, keys::NEAT_PACKING] {
        if settings.setting(key).is_written() && settings.get(key) {
            let message = "prompts are not packed: each is answered by itself";
            report(message, &[key.row, keys::STAGE.row], "remove it");
        }
    }
    let reward = match (function, model) {
        (None, Some(model)) => {
            RewardArgs::Model(ReferenceArgs { model: Some(model), ..ReferenceArgs::default() })
        }
        (Some("length"), _) => RewardArgs::Length,
        (Some("regex"), _) => {
            let pattern = pattern.unwrap_or_default();
            match fancy_regex::Regex::new(&pattern.replace("{answer}", "0")) {
                Ok(_) if pattern.is_empty() => report(
                    "`reward_function: regex` has no pattern",
                    &[keys::REWARD_FUNCTION.row],
                    "write `reward_pattern: …`; {answer} in it stands for the final answer of the data",
                ),
                Ok(_) => {}
                Err(error) => report(
                    &format!("`reward_pattern` is not a regular expression: {error}"),
                    &[keys::REWARD_PATTERN.row],
                    "put a \\ before characters that stand for themselves",
                ),
            }
            RewardArgs::Regex(pattern.to_owned())
        }
        (Some(_), _) => RewardArgs::ExactMatch,
        (None, None) => {
            report(
                "stage raft has nothing that scores answers",
                &[keys::STAGE.row],
                "write `reward_function: exact_match`, `regex` or `length`, or `reward_model: …`, the folder of a reward \
                 model (stage rm writes one)",
            );
            RewardArgs::ExactMatch
        }
    };
    let sampling = predicting::sampling(settings, problems);
    let min_reward = match (&reward, settings.get(keys::MIN_REWARD)) {
        (_, Some(min_reward)) => Some(min_reward),
        // The scores of a model have no zero of their own.
        (RewardArgs::Model(_), None) => None,
        (_, None) => Some(0.0),
    };
    ObjectiveArgs::Raft(RaftArgs::read(settings, RaftParts { sampling, reward, min_reward }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{bad, good};

    fn read(text: &str) -> RaftArgs {
        match &good(&format!("stage: raft\n{text}")).train.objective {
            ObjectiveArgs::Raft(args) => args.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rule_or_a_model_scores_answers() {
        let args =
            read("reward_function: exact_match\nnum_generations: 8\ntemperature: 1\nmax_new_tokens: 16");
        assert_eq!(
            (args.num_generations, args.reward, args.min_reward),
            (8, RewardArgs::ExactMatch, Some(0.0))
        );
        assert_eq!((args.sampling.temperature, args.sampling.max_new_tokens), (1.0, 16));
        let args = read("reward_function: regex\nreward_pattern: 'is {answer}'\nmin_reward: 0.5");
        assert_eq!((args.reward, args.min_reward), (RewardArgs::Regex("is {answer}".into()), Some(0.5)));
        assert_eq!(read("reward_function: length").reward, RewardArgs::Length);
        let args = read("reward_model: rm");
        let RewardArgs::Model(model) = args.reward else { panic!("{args:?}") };
        assert_eq!((model.model, args.min_reward), (Some("rm".into()), None));
        let chat = good("stage: raft\nreward_function: length").data.chat.clone().unwrap();
        assert!(chat.mask_history, "the last answer alone is the expected one");
    }

    #[test]
    fn what_scores_nothing_is_refused() {
        for (text, message) in [
            ("", "stage raft has nothing that scores answers"),
            (
                "reward_function: length\nreward_model: m",
                "`reward_function` and `reward_model` are mutually exclusive",
            ),
            ("reward_function: regex", "`reward_function: regex` has no pattern"),
            ("reward_function: regex\nreward_pattern: '('", "`reward_pattern` is not a regular expression"),
            (
                "reward_function: length\nreward_pattern: a",
                "`reward_pattern` belongs to `reward_function: regex`",
            ),
            ("reward_function: length\nneat_packing: true", "prompts are not packed"),
            ("reward_function: length\ntop_p: 0", "`top_p` is not above 0"),
        ] {
            let reported = bad(&format!("stage: raft\n{text}"), &[], &[]);
            assert!(reported.contains(message), "{text}: {reported}");
        }
    }
}
