//! `trainer_state.json` in the layout of Hugging Face: how far a run is and everything it logged.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::file_error::{Error, Result, io_error};
use super::files;

/// The name of the file, in `output_dir` and in every checkpoint.
pub const FILE: &str = "trainer_state.json";

/// The state of a run. The fields are in alphabetical order, as in the file; those that only other programs use are
/// kept as they were found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainerState {
    /// Step of the best evaluation.
    pub best_global_step: Option<u64>,
    /// Its metric.
    pub best_metric: Option<f64>,
    /// Its checkpoint.
    pub best_model_checkpoint: Option<String>,
    /// Passes over the data, with the part of the current one.
    pub epoch: f64,
    /// Steps between evaluations.
    pub eval_steps: u64,
    /// Optimizer steps done.
    pub global_step: u64,
    /// Always false.
    pub is_hyper_param_search: bool,
    /// Always true.
    pub is_local_process_zero: bool,
    /// Always true.
    pub is_world_process_zero: bool,
    /// Everything that was logged.
    pub log_history: Vec<Map<String, Value>>,
    /// Steps between logs.
    pub logging_steps: u64,
    /// Optimizer steps of the whole run.
    pub max_steps: u64,
    /// Tokens trained on, by all ranks.
    pub num_input_tokens_seen: u64,
    /// Passes over the data, rounded up.
    pub num_train_epochs: u64,
    /// Steps between checkpoints.
    pub save_steps: u64,
    /// State of callbacks; none of ours.
    pub stateful_callbacks: Map<String, Value>,
    /// Floating-point operations so far.
    pub total_flos: f64,
    /// Sequences of a rank in one forward pass.
    pub train_batch_size: Option<u64>,
    /// Always null.
    pub trial_name: Option<String>,
    /// Always null.
    pub trial_params: Option<Map<String, Value>>,
}

impl Default for TrainerState {
    fn default() -> Self {
        TrainerState {
            best_global_step: None,
            best_metric: None,
            best_model_checkpoint: None,
            epoch: 0.0,
            eval_steps: 500,
            global_step: 0,
            is_hyper_param_search: false,
            is_local_process_zero: true,
            is_world_process_zero: true,
            log_history: Vec::new(),
            logging_steps: 500,
            max_steps: 0,
            num_input_tokens_seen: 0,
            num_train_epochs: 0,
            save_steps: 500,
            stateful_callbacks: Map::new(),
            total_flos: 0.0,
            train_batch_size: None,
            trial_name: None,
            trial_params: None,
        }
    }
}

impl TrainerState {
    /// Reads `trainer_state.json` of a folder.
    ///
    /// # Errors
    /// If it cannot be read or is not such a file.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES)
            .map_err(io_error("read", &path))?;
        serde_json::from_str(&text).map_err(|error| Error::Content {
            what: "trainer state",
            path,
            cause: error.to_string(),
        })
    }

    /// Writes `trainer_state.json` into a folder.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        files::replace_json(&folder.join(FILE), &json!(self))
    }

    /// The logged values of a key, with their steps.
    pub fn series(&self, key: &str) -> Vec<(u64, f64)> {
        let point = |log: &Map<String, Value>| Some((log.get("step")?.as_u64()?, log.get(key)?.as_f64()?));
        self.log_history.iter().filter_map(point).collect()
    }

    /// Forgets what was logged after a step.
    pub fn cut_back(&mut self, step: u64) {
        self.log_history.retain(|log| log.get("step").and_then(Value::as_u64).is_none_or(|at| at <= step));
        self.global_step = self.global_step.min(step);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_the_disk_and_reads_those_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let mut state = TrainerState { global_step: 7, epoch: 0.1 + 0.2, ..TrainerState::default() };
        let log = json!({"loss": 1.5, "step": 5});
        state.log_history.push(log.as_object().unwrap().clone());
        state.save(folder.path()).unwrap();
        assert_eq!(TrainerState::load(folder.path()).unwrap(), state);

        let theirs =
            r#"{"epoch": 1.0, "global_step": 3, "log_history": [{"step": 3, "eval_loss": 2}], "new_key": 1}"#;
        std::fs::write(folder.path().join(FILE), theirs).unwrap();
        let state = TrainerState::load(folder.path()).unwrap();
        assert_eq!(state.series("eval_loss"), [(3, 2.0)]);
        assert_eq!(state.save_steps, 500);

        std::fs::write(folder.path().join(FILE), "{\"epoch\": \"one\"}").unwrap();
        let error = TrainerState::load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("is not a trainer state: invalid type: string \"one\""), "{error}");
    }

    #[test]
    fn cutting_back_forgets_later_steps() {
        let mut state = TrainerState { global_step: 9, ..TrainerState::default() };
        for step in [3, 6, 9] {
            state.log_history.push(json!({"step": step, "loss": 1.0}).as_object().unwrap().clone());
        }
        state.cut_back(6);
        assert_eq!(state.global_step, 6);
        assert_eq!(state.series("loss"), [(3, 1.0), (6, 1.0)]);
    }
}
