//! The stages, and which of them a run has.

mod preference;
mod raft;
pub mod stage;

use oarlock::config::{ExampleKind, ObjectiveArgs};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::resolve::Settings;

use self::stage::Stage;
use super::table as keys;

/// The stages that are there.
const STAGES: [Stage; 6] = [PT, SFT, preference::DPO, preference::KTO, RM, raft::RAFT];

/// Where answers are made.
pub const ANSWERS_ARE_MADE: &str =
    "answers are made by `do_predict` with `predict_with_generate`, and in stage raft";

const PT: Stage = Stage { examples: None, ..Stage::new("stage pt") };
const SFT: Stage = Stage { keys: &[PREDICTION], ..Stage::new("stage sft") };
const RM: Stage = Stage {
    examples: Some(ExampleKind::Pairs),
    keys: &[PREDICTION],
    read: |_, _| ObjectiveArgs::Rewards,
    ..Stage::new("stage rm")
};
const PREDICTION: &[Row] = &[*keys::DO_PREDICT.row];

/// The stage of a run.
pub fn of(settings: &Settings) -> Stage {
    named(settings.get(keys::STAGE))
}

/// The stage of this name; for none LLaMA-Factory's that is not there, so that the rest of a file is checked.
pub fn named(name: &str) -> Stage {
    let absent = Stage { makes_answers: true, ..Stage::new("stage ppo") };
    STAGES.into_iter().find(|stage| stage.name() == name).unwrap_or(absent)
}

/// Whether the stage of a run reads the key of this name.
pub fn reads(settings: &Settings, name: &str) -> bool {
    of(settings).has(name) || !STAGES.iter().any(|stage| stage.has(name))
}

/// The names of the stages of which something holds, and these in words: `pt, sft and raft`.
pub fn those(holds: impl Fn(&Stage) -> bool) -> (Vec<&'static str>, String) {
    let names: Vec<_> = STAGES.iter().filter(|stage| holds(stage)).map(Stage::name).collect();
    let (last, first) = names.split_last().unwrap_or((&"", &[]));
    let words = format!("{} and {last}", first.join(", "));
    (names, words)
}

#[cfg(test)]
mod tests {
    use oarlock_config::settings::keys::Status;

    use super::*;

    #[test]
    fn texts_and_rows_name_the_same_stages() {
        let Status::Among(there, _) = keys::STAGE.row.status else { panic!("{}", keys::STAGE.row) };
        assert_eq!(STAGES.map(|stage| stage.name()), there);
        for stage in STAGES {
            assert!(keys::STAGE.row.doc.contains(&format!("({}", stage.name())), "{}", stage.words);
            for text in [ANSWERS_ARE_MADE, keys::DO_SAMPLE.row.doc] {
                assert_eq!(text.contains(stage.words), stage.makes_answers, "{text}: {}", stage.words);
            }
        }
    }
}
