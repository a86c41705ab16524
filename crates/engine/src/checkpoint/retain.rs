//! The checkpoints of a run: which there are, which is the newest whole one, which may go.

use std::path::{Path, PathBuf};

use super::folder::{entries, recover, remove, step_of};
use super::manifest::Manifest;
use crate::Result;
use crate::report::error::{Missing, Problem};

/// A folder `checkpoint-N` or `checkpoint_N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The N of its name.
    pub step: u64,
    /// The folder.
    pub path: PathBuf,
    /// Whether it holds the model alone, and nothing to go on from.
    pub only_model: bool,
    /// Why it cannot be taken; nothing where it is whole. Sizes are checked here, contents when it is loaded.
    pub problem: Option<Problem>,
}

impl std::fmt::Display for Listed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.path.display())?;
        self.problem.iter().try_for_each(|problem| write!(f, ": {problem}"))
    }
}

/// What a run can go on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Newest {
    /// The newest whole checkpoint that holds the state.
    pub path: Option<PathBuf>,
    /// The newer ones that are not whole, the newest first.
    pub skipped: Vec<Listed>,
}

impl Newest {
    /// The checkpoint to go on from, or what the folder lacks.
    pub(crate) fn found(self) -> std::result::Result<PathBuf, Missing> {
        let damaged = |listed: Listed| {
            let name = listed.path.file_name()?.to_string_lossy().into_owned();
            Some(Missing::Whole { name, problem: Box::new(listed.problem?) })
        };
        let why = || self.skipped.into_iter().next().and_then(damaged).unwrap_or(Missing::Checkpoint);
        self.path.ok_or_else(why)
    }
}

/// The checkpoints in a run's folder, the oldest first. A replacement that a crash interrupted is finished on the way.
///
/// # Errors
/// When the folder cannot be read. One that does not exist has no checkpoints.
pub fn list(output_dir: &Path) -> Result<Vec<Listed>> {
    Ok(folders(output_dir)?.into_iter().map(|(step, path)| inspect(step, path)).collect())
}

/// The newest whole checkpoint in a run's folder; those with the model alone do not count. Ranks should ask one of them and share the answer: the folder may
/// change between two looks.
///
/// # Errors
/// As [`list`].
pub fn newest(output_dir: &Path) -> Result<Newest> {
    let mut newest = Newest::default();
    for (step, path) in folders(output_dir)?.into_iter().rev() {
        let listed = inspect(step, path);
        match listed.problem {
            Some(_) => newest.skipped.push(listed),
            None if listed.only_model => {}
            None => {
                newest.path = Some(listed.path);
                break;
            }
        }
    }
    Ok(newest)
}

/// Removes old checkpoints until `keep` whole ones are left, but never the last; returns what it removed. Damaged ones
/// go when they are older than all that are kept. Folders that Oarlock did not write, or that this version cannot
/// read, stay. One rank calls it, after a save.
///
/// # Errors
/// When a folder cannot be read or removed.
pub fn retain(output_dir: &Path, keep: usize) -> Result<Vec<PathBuf>> {
    retain_beside(output_dir, keep, None)
}

/// As [`retain`], but `best` stays as well: it is one of the `keep`, or the second where that is 1.
///
/// # Errors
/// As [`retain`].
pub fn retain_beside(output_dir: &Path, keep: usize, best: Option<&Path>) -> Result<Vec<PathBuf>> {
    let all = list(output_dir)?;
    let is_best = |listed: &Listed| listed.problem.is_none() && Some(&*listed.path) == best;
    let newest = all.iter().rfind(|listed| listed.problem.is_none());
    let best_is_older = all.iter().any(is_best) && !newest.is_some_and(is_best);
    // The best one keeps a place until it comes.
    let mut room = if best_is_older { keep.max(2) - 1 } else { keep.max(1) };
    let mut removed = Vec::new();
    for listed in all.into_iter().rev() {
        if best_is_older && is_best(&listed) {
            continue;
        }
        if room > 0 {
            room -= usize::from(listed.problem.is_none());
        } else if is_ours(&listed) {
            remove(&listed.path)?;
            removed.push(listed.path);
        }
    }
    Ok(removed)
}

/// Removes whole and damaged checkpoints of steps after `step`: those that are left of a training run which another one
/// replaces, and which would else count as newer than its own. Folders that Oarlock did not write stay.
///
/// # Errors
/// When a folder cannot be read or removed.
pub fn remove_later(output_dir: &Path, step: u64) -> Result<Vec<PathBuf>> {
    let later = list(output_dir)?.into_iter().filter(|listed| listed.step > step && is_ours(listed));
    later.map(|listed| remove(&listed.path).map(|()| listed.path)).collect()
}

/// The folders of checkpoints in a run's folder, with their steps, the oldest first.
pub(super) fn folders(output_dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    recover(output_dir, "")?;
    let named = entries(output_dir)?.into_iter();
    let mut folders: Vec<_> = named
        .filter_map(|(name, path)| Some((step_of(&name)?, path)))
        .filter(|(_, path)| path.is_dir())
        .collect();
    folders.sort();
    Ok(folders)
}

fn inspect(step: u64, path: PathBuf) -> Listed {
    match Manifest::open_part(&path) {
        Ok(manifest) => Listed { step, path, only_model: !manifest.has_state(), problem: None },
        Err(problem) => Listed { step, path, only_model: false, problem: Some(problem) },
    }
}

/// Whether its manifest is one that this version could have written.
fn is_ours(listed: &Listed) -> bool {
    matches!(listed.problem, None | Some(Problem::MissingFile { .. } | Problem::Size { .. }))
}
