//! Why a result is not written into a folder.

use std::path::{Path, PathBuf};

/// A folder that holds what a result would replace, or would be mixed with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}; {}", folder.display(), self.what(), self.remedy())]
pub struct Occupied {
    /// The folder.
    pub folder: PathBuf,
    /// The files that are in the way.
    pub files: Vec<String>,
    /// Who was to write.
    pub by: &'static str,
    /// What would become of them.
    pub(crate) conflict: Conflict,
    /// Whether they may be replaced by one that is told to overwrite.
    pub can_overwrite: bool,
}

/// What would become of files that are in the way of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// They would be replaced.
    Replaced,
    /// They would lie beside the weights of another model, whose files they would be taken for.
    Mixed,
}

/// The most files that are named.
const NAMED: usize = 6;

impl Occupied {
    /// Files that `by` did not write, or not as they are now, and would replace.
    pub(crate) fn replaced(
        folder: &Path,
        files: Vec<String>,
        by: &'static str,
        overwrites: bool,
    ) -> Occupied {
        let conflict = Conflict::Replaced;
        Occupied { folder: folder.to_path_buf(), files, by, conflict, can_overwrite: !overwrites }
    }

    /// Weights of another model, which stay.
    pub(crate) fn mixed(folder: &Path, files: Vec<String>, by: &'static str) -> Occupied {
        let conflict = Conflict::Mixed;
        Occupied { folder: folder.to_path_buf(), files, by, conflict, can_overwrite: false }
    }

    /// The files, the first of them by name.
    pub fn named(&self) -> String {
        let mut named = self.files.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        if self.files.len() > NAMED {
            named.push_str(&format!(" and {} more", self.files.len() - NAMED));
        }
        named
    }

    /// What is in the way, without the folder.
    pub fn what(&self) -> String {
        let (named, by) = (self.named(), self.by);
        match self.conflict {
            Conflict::Replaced if self.can_overwrite => {
                format!("{named} would be replaced, and no earlier {by} wrote that, or it was changed since")
            }
            Conflict::Replaced => {
                format!("{named} would be replaced, and is not a file, or part of a checkpoint")
            }
            Conflict::Mixed => {
                format!(
                    "{named} would lie beside the weights of another model, and no earlier {by} wrote that"
                )
            }
        }
    }

    fn remedy(&self) -> &'static str {
        match self.can_overwrite {
            true => "nothing was written; name another folder, or allow that files are overwritten",
            false => "nothing was written; name another folder, or move them away",
        }
    }
}
