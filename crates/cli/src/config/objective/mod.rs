//! The stages: what holds of each, and what reads the arguments of its objective.

mod preference;
mod raft;

use oarlock::config::{ExampleKind, ObjectiveArgs};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

use super::table as keys;

/// The stages that are there.
const STAGES: [Stage; 6] = [PT, SFT, preference::DPO, preference::KTO, RM, raft::RAFT];

/// Where answers are made.
pub const ANSWERS_ARE_MADE: &str =
    "answers are made by `do_predict` with `predict_with_generate`, and in stage raft";

const PT: Stage = Stage { examples: None, ..Stage::new("stage pt") };
const SFT: Stage = Stage { keys: &[PREDICTION], ..Stage::new("stage sft") };
const RM: Stage = Stage {
    examples: PAIRS,
    keys: &[PREDICTION],
    read: |_, _| ObjectiveArgs::Rewards,
    ..Stage::new("stage rm")
};
const PREDICTION: &[Row] = &[*keys::DO_PREDICT.row];
const PAIRS: Option<ExampleKind> = Some(ExampleKind::Pairs);
const JUDGED: Option<ExampleKind> = Some(ExampleKind::UnpairedPreferences);

/// What holds of a stage, whatever its settings are.
#[derive(Clone, Copy)]
pub struct Stage {
    /// What messages call it: `stage` and its name.
    pub words: &'static str,
    /// Whether LLaMA-Factory does not have it.
    pub is_ours: bool,
    /// What of rows is learned; `None` where they are texts.
    pub examples: Option<ExampleKind>,
    /// Whether the model answers prompts, and is trained on its answers.
    pub makes_answers: bool,
    /// The keys that it reads and not every stage.
    keys: &'static [&'static [Row]],
    /// Reads what a step optimizes. What is wrong with it goes to the problems.
    pub read: fn(&Settings, &mut Problems) -> ObjectiveArgs,
}

impl Stage {
    const fn new(words: &'static str) -> Stage {
        let (examples, read) = (Some(ExampleKind::Answers), |_: &_, _: &mut _| ObjectiveArgs::NextToken);
        Stage { words, is_ours: false, examples, makes_answers: false, keys: &[], read }
    }

    /// The stage of a run.
    pub fn of(settings: &Settings) -> Stage {
        Stage::named(settings.get(keys::STAGE))
    }

    /// The stage of this name; for none LLaMA-Factory's that is not there, so that the rest of a file is checked.
    pub fn named(name: &str) -> Stage {
        let absent = Stage { makes_answers: true, ..Stage::new("stage ppo") };
        STAGES.into_iter().find(|stage| stage.name() == name).unwrap_or(absent)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.words.split_at("stage ".len()).1
    }

    /// Whether its loss compares whole answers.
    pub fn compares(&self) -> bool {
        [PAIRS, JUDGED].contains(&self.examples)
    }

    /// Whether it learns the answers of the data themselves.
    pub fn is_supervised(&self) -> bool {
        self.examples == Some(ExampleKind::Answers) && !self.makes_answers
    }

    /// Whether it reads the key of this name.
    pub fn reads(&self, name: &str) -> bool {
        let has = |stage: &Stage| stage.keys.iter().copied().flatten().any(|key| key.name == name);
        has(self) || !STAGES.iter().any(has)
    }
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
    fn those_that_are_there_have_a_row() {
        let Status::Among(there, _) = keys::STAGE.row.status else { panic!("{}", keys::STAGE.row) };
        assert_eq!(STAGES.map(|stage| stage.name()), there);
    }
}
