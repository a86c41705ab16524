//! Numbered checkpoints in the folder of a project.

use std::path::{Path, PathBuf};

use crate::accelerator::handle::Accelerator;
use crate::checkpoint::{self, CheckpointError, Missing, by_root};
use crate::{Error, Result};

impl Accelerator {
    /// The number of the next checkpoint that [`Accelerator::save_state`] writes without a folder.
    pub fn save_iteration(&self) -> u64 {
        self.inner.saved.iteration()
    }

    /// Sets it; on all ranks alike.
    pub fn set_save_iteration(&self, iteration: u64) {
        self.inner.saved.set_iteration(iteration);
    }

    /// The folder of the next numbered checkpoint, which nothing stands in the way of. All ranks call it.
    #[track_caller]
    pub(crate) fn next_checkpoint(&self) -> Result<PathBuf> {
        let iteration = self.save_iteration();
        let folder = self.inner.config.project.checkpoints("save_state")?;
        let dir = folder.join(format!("checkpoint_{iteration}"));
        by_root(self.communicator(), || is_free(&folder, &dir, iteration))?.map_err(Error::Usage)?;
        Ok(dir)
    }

    /// The newest whole checkpoint of the project. All ranks call it; rank 0 looks.
    #[track_caller]
    pub(crate) fn newest_checkpoint(&self) -> Result<PathBuf> {
        let folder = self.inner.config.project.checkpoints("load_state")?;
        let newest = || Ok(Some(checkpoint::newest(&folder)?.found()));
        let found =
            by_root(self.communicator(), newest)?.map_err(Error::Usage)?.unwrap_or(Err(Missing::Checkpoint));
        Ok(found.map_err(|problem| CheckpointError::NotFound { path: folder, problem })?)
    }

    /// After a checkpoint was loaded: one of the project's is followed by the number after its last.
    #[track_caller]
    pub(crate) fn go_on_numbering(&self, loaded: &Path) -> Result<()> {
        let Ok(folder) = self.inner.config.project.checkpoints("load_state") else { return Ok(()) };
        if loaded.parent() != Some(&folder) {
            return Ok(());
        }
        let last = || Ok(checkpoint::list(&folder)?.last().map(|last| last.step));
        if let Some(last) = by_root(self.communicator(), last)?.map_err(Error::Usage)? {
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
