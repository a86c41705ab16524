//! The folder of a project: where logs go, and how checkpoints are numbered.

use std::path::{Path, PathBuf};

use super::Accelerator;
use crate::checkpoint::{self, CheckpointError, Missing, share};
use crate::error::{Error, Result};

/// Where checkpoints and logs go. The fields are those of Accelerate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectConfiguration {
    /// The folder of the project.
    pub project_dir: Option<PathBuf>,
    /// The folder of logs; by default that of the project.
    pub logging_dir: Option<PathBuf>,
    /// [`Accelerator::save_state`] without a folder writes `checkpoints/checkpoint_0`, `checkpoint_1` … in the project's,
    /// and [`Accelerator::load_state`] without one takes the newest whole one.
    pub automatic_checkpoint_naming: bool,
    /// How many of these are kept, at least one. The oldest is removed when the new one is whole; Accelerate removes it
    /// before it writes, and a crash in between leaves one too few.
    pub total_limit: Option<usize>,
    /// The number of the first one. A loop that loads a checkpoint of the project goes on after the last that is there;
    /// Accelerate begins at this number again, and its next save fails.
    pub iteration: u64,
    /// Without effect: all ranks are on one machine, and write one checkpoint together.
    pub save_on_each_node: bool,
    /// Let [`Accelerator::save_state`] save while gradients accumulate, as Accelerate does. The gradients are not kept:
    /// a loop that resumes makes the step of that window from the rest of its micro-batches.
    pub save_inside_window: bool,
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
    pub(super) fn logs(&self) -> Option<&Path> {
        self.logging_dir.as_deref().or(self.project_dir.as_deref())
    }

    /// The folder of numbered checkpoints, for `call` without a folder.
    fn checkpoints(&self, call: &str) -> Result<PathBuf> {
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

impl Accelerator {
    /// The number of the next checkpoint that [`Accelerator::save_state`] writes without a folder.
    pub fn save_iteration(&self) -> u64 {
        self.inner.saving.iteration()
    }

    /// Sets it; on all ranks alike.
    pub fn set_save_iteration(&self, iteration: u64) {
        self.inner.saving.set_iteration(iteration);
    }

    /// The folder of the next numbered checkpoint, which nothing stands in the way of. All ranks call it.
    #[track_caller]
    pub(super) fn next_checkpoint(&self) -> Result<PathBuf> {
        let iteration = self.save_iteration();
        let folder = self.inner.config.project.checkpoints("save_state")?;
        let dir = folder.join(format!("checkpoint_{iteration}"));
        let free = match self.is_main_process() {
            true => is_free(&folder, &dir, iteration).map_err(|error| error.to_string()),
            false => Ok(()),
        };
        share(&self.comm, free)?.map_err(|(_, cause)| Error::Usage(cause))?;
        Ok(dir)
    }

    /// The newest whole checkpoint of the project. All ranks call it; rank 0 looks.
    #[track_caller]
    pub(super) fn newest_checkpoint(&self) -> Result<PathBuf> {
        let folder = self.inner.config.project.checkpoints("load_state")?;
        let newest = match self.is_main_process() {
            true => checkpoint::newest(&folder).map(|newest| newest.path).map_err(|error| error.to_string()),
            false => Ok(None),
        };
        let found = share(&self.comm, newest)?.map_err(|(_, cause)| Error::Usage(cause))?;
        let missing = CheckpointError::NotFound { path: folder, problem: Missing::Checkpoint };
        Ok(found.into_iter().flatten().next().ok_or(missing)?)
    }

    /// After a checkpoint was loaded: one of the project's is followed by the number after its last.
    #[track_caller]
    pub(super) fn go_on_numbering(&self, loaded: &Path) -> Result<()> {
        let Ok(folder) = self.inner.config.project.checkpoints("load_state") else { return Ok(()) };
        if loaded.parent() != Some(&folder) {
            return Ok(());
        }
        let last = match self.is_main_process() {
            true => checkpoint::list(&folder)
                .map(|listed| listed.last().map(|last| last.step))
                .map_err(|error| error.to_string()),
            false => Ok(None),
        };
        let last = share(&self.comm, last)?.map_err(|(_, cause)| Error::Usage(cause))?;
        if let Some(last) = last.into_iter().flatten().next() {
            self.set_save_iteration(self.save_iteration().max(last.saturating_add(1)));
        }
        Ok(())
    }
}

/// Whether a checkpoint of this number would be the newest of its folder.
fn is_free(folder: &Path, dir: &Path, iteration: u64) -> Result<()> {
    let taken = dir.try_exists().map_err(Error::io("read", dir))?;
    let later = checkpoint::list(folder)?.into_iter().find(|listed| listed.step >= iteration);
    let path = match (taken, &later) {
        (true, _) => dir,
        (false, Some(later)) => &later.path,
        (false, None) => return Ok(()),
    };
    Err(Error::Usage(format!(
        "save_state: {} exists already, and checkpoint {iteration} would have to be the newest; go on from it with \
         load_state, set `iteration` to a later number, or give another project_dir",
        path.display()
    )))
}
