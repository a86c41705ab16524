//! What a checkpoint tells of the run that saved it: its settings and what it read. A run that goes on from it compares both
//! with its own.

mod settings;
mod spelled;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use oarlock_config::config::TrainConfig;
use oarlock_engine::checkpoint::ClientState;
use oarlock_engine::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::train::inputs::Inputs;
use settings::{Effect, ROWS, Setting, Settings};
use spelled::spelled;

/// Its place among what a checkpoint keeps.
const KEY: &str = "run";

/// The settings of a run, and fingerprints of what it read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The optimizer steps of the whole training.
    total_steps: u64,
    settings: BTreeMap<String, Value>,
    inputs: Inputs,
}

/// What is other than before, in lines.
#[derive(Debug, Default, PartialEq)]
struct Differences {
    /// What changes what is computed.
    changing: Vec<String>,
    /// The rest.
    harmless: Vec<String>,
}

impl RunRecord {
    /// Of a run of so many steps, with so many rows in each.
    pub fn new(config: &TrainConfig, total_steps: u64, rows: u64, inputs: Inputs) -> RunRecord {
        let settings = Settings::of(config, rows).0.into_iter();
        let settings = settings.map(|Setting { name, value, .. }| (name.to_owned(), value)).collect();
        RunRecord { total_steps, settings, inputs }
    }

    /// Keeps it in a checkpoint.
    ///
    /// # Errors
    /// None that is known: its parts have a form in JSON.
    pub fn keep(&self, client: &mut ClientState) -> Result<()> {
        client.client.insert(KEY.to_owned(), serde_json::to_value(self).map_err(Error::other)?);
        Ok(())
    }

    /// What to say where a run goes on from the checkpoint `dir`, which holds `client`.
    ///
    /// # Errors
    /// What is other than in the run that saved it and changes what is computed, unless that was accepted.
    pub fn compare(&self, client: &ClientState, config: &TrainConfig, dir: &Path) -> Result<Vec<String>> {
        let dir = dir.display();
        let kept = client.client.get(KEY).and_then(|kept| RunRecord::deserialize(kept).ok());
        let Some(kept) = kept else {
            return Ok(vec![format!(
                "warning: {dir} does not say with which settings and data it was made; whether they are the same now is not \
                 known"
            )]);
        };
        if client.step > self.total_steps && config.save.restarted.is_none() {
            return Err(Error::Refused(format!(
                "{dir} is {} steps into its training, and this run is to end after {}; write a larger max_steps or \
                 num_train_epochs, name an earlier checkpoint in resume_from_checkpoint, or give another output_dir",
                client.step, self.total_steps
            )));
        }
        let Differences { changing, harmless } = self.differences(&kept, client.step, config);
        let mut warnings = Vec::new();
        if !harmless.is_empty() {
            warnings.push(format!("what is other than in the run that saved it: {}", harmless.join("; ")));
        }
        if changing.is_empty() {
            return Ok(warnings);
        }
        if config.save.resume_anyway {
            warnings.push(format!(
                "warning: what is computed is other than in the run that saved it, as resume_anyway allows: {}",
                changing.join("; ")
            ));
            return Ok(warnings);
        }
        // The end of a long list may be cut off on its way to other ranks, so the remedy comes first.
        let mut text = format!(
            "{dir} was saved by a run that computes something else; to go on all the same, write `resume_anyway: true`; to begin \
             anew, give another output_dir:"
        );
        for line in changing {
            let _ = write!(text, "\n  {line}");
        }
        Err(Error::Refused(text))
    }

    fn differences(&self, then: &RunRecord, done: u64, config: &TrainConfig) -> Differences {
        let mut found = Differences::default();
        let known: BTreeMap<&str, Setting> =
            Settings::of(config, 0).0.into_iter().map(|setting| (setting.name, setting)).collect();
        let names: std::collections::BTreeSet<&String> =
            then.settings.keys().chain(self.settings.keys()).collect();
        for name in names {
            let setting = known.get(name.as_str());
            let effect = setting.map(|setting| setting.effect);
            let values = [then.settings.get(name), self.settings.get(name)];
            // What one run does not have at all follows from another setting, or another version does not know it.
            if values.contains(&None) && effect != Some(Effect::Length) {
                continue;
            }
            let [before, now] = values.map(|value| value.cloned().unwrap_or(Value::Null));
            if before == now {
                continue;
            }
            let is_rust = setting.is_some_and(|setting| setting.is_rust);
            let line =
                format!("{name} was {}, is {}", shown(name, &before, is_rust), shown(name, &now, is_rust));
            let is_harmless = match effect {
                Some(Effect::Computes) => false,
                Some(Effect::Ranks) => config.save.restarted.is_some(),
                Some(Effect::Length | Effect::Nothing) | None => true,
            };
            if is_harmless { found.harmless.push(line) } else { found.changing.push(line) }
        }
        let same_rows = then.settings.get(ROWS) == self.settings.get(ROWS);
        // A longer training, or one that is at its end, computes nothing else than the two would have together.
        if self.total_steps < then.total_steps && done < self.total_steps && same_rows {
            found.changing.push(format!(
                "the run was to have {} steps, and is to have {}, by which the learning rate falls earlier",
                then.total_steps, self.total_steps
            ));
        }
        let judges = config.save.best.is_some();
        for (line, changes) in self.inputs.differences(&then.inputs, judges) {
            if changes { found.changing.push(line) } else { found.harmless.push(line) }
        }
        found
    }
}

/// A value as a file holds it.
fn shown(name: &str, value: &Value, is_rust: bool) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) if is_rust => spelled(name, text),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
