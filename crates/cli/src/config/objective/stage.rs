//! What holds of a stage, whatever its settings are.

use oarlock::config::{ExampleKind, ObjectiveArgs};
use oarlock_config::settings::keys::Row;
use oarlock_config::settings::problem::Problems;
use oarlock_config::settings::resolve::Settings;

/// A stage of training.
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
    pub keys: &'static [&'static [Row]],
    /// Reads what a step optimizes. What is wrong with it goes to the problems.
    pub read: fn(&Settings, &mut Problems) -> ObjectiveArgs,
}

impl Stage {
    /// One that learns the answers of conversations.
    pub const fn new(words: &'static str) -> Stage {
        let (examples, read) = (Some(ExampleKind::Answers), |_: &_, _: &mut _| ObjectiveArgs::NextToken);
        Stage { words, is_ours: false, examples, makes_answers: false, keys: &[], read }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.words.split_at("stage ".len()).1
    }

    /// Whether its loss compares whole answers.
    pub fn compares(&self) -> bool {
        matches!(self.examples, Some(ExampleKind::Pairs | ExampleKind::UnpairedPreferences))
    }

    /// Whether it learns the answers of the data themselves.
    pub fn is_supervised(&self) -> bool {
        self.examples == Some(ExampleKind::Answers) && !self.makes_answers
    }

    /// Whether the key of this name is among its own.
    pub fn has(&self, name: &str) -> bool {
        self.keys.iter().copied().flatten().any(|key| key.name == name)
    }
}
