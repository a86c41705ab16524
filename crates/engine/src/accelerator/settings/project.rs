//! The folder of a project: where logs and checkpoints go.

use std::path::{Path, PathBuf};

use crate::checkpoint::Frozen;
use crate::{Error, Result};

/// Where checkpoints and logs go. The fields are those of Accelerate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectConfiguration {
    /// The folder of the project.
    pub project_dir: Option<PathBuf>,
    /// The folder of logs; by default that of the project.
    pub logging_dir: Option<PathBuf>,
    /// [`Accelerator::save_state`](crate::Accelerator::save_state) without a folder writes `checkpoints/checkpoint_0`,
    /// `checkpoint_1` … in the project's, and [`Accelerator::load_state`](crate::Accelerator::load_state) without one
    /// takes the newest whole one.
    pub automatic_checkpoint_naming: bool,
    /// How many of these are kept, at least one. The oldest is removed when the new one is whole; Accelerate removes it
    /// before it writes, and a crash in between leaves one too few.
    pub total_limit: Option<usize>,
    /// The number of the first one. A loop that loads a checkpoint of the project goes on after the last that is there;
    /// Accelerate begins at this number again, and its next save fails.
    pub iteration: u64,
    /// Without effect: all ranks write one checkpoint together. Machines find out whether they share its folder, and each that
    /// does not writes its part into its own.
    pub save_on_each_node: bool,
    /// Let [`Accelerator::save_state`](crate::Accelerator::save_state) save while gradients accumulate, as Accelerate
    /// does. The gradients are not kept: a loop that resumes makes the step of that window from the rest of its
    /// micro-batches.
    pub save_inside_window: bool,
    /// Whether [`Accelerator::save_state`](crate::Accelerator::save_state) saves frozen parameters. By default it leaves
    /// them out of the checkpoints of models with adapters.
    pub frozen: Frozen,
}

impl ProjectConfiguration {
    /// A project in this folder, whose checkpoints are numbered.
    pub fn numbered(project_dir: impl Into<PathBuf>) -> ProjectConfiguration {
        ProjectConfiguration {
            project_dir: Some(project_dir.into()),
            automatic_checkpoint_naming: true,
            ..ProjectConfiguration::default()
        }
    }

    /// The folder of logs.
    pub(crate) fn logs(&self) -> Option<&Path> {
        self.logging_dir.as_deref().or(self.project_dir.as_deref())
    }

    /// The folder of numbered checkpoints, for `call` without a folder.
    pub(crate) fn checkpoints(&self, call: &str) -> Result<PathBuf> {
        match (&self.project_dir, self.automatic_checkpoint_naming) {
            (Some(dir), true) => Ok(dir.join("checkpoints")),
            (None, true) => Err(Error::Usage(format!(
                "{call} without a folder: automatic_checkpoint_naming needs a project_dir; set it in the \
                 ProjectConfiguration"
            ))),
            (_, false) => Err(Error::Usage(format!(
                "{call} without a folder: give one, or set automatic_checkpoint_naming in the ProjectConfiguration"
            ))),
        }
    }
}
