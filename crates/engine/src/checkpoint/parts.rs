//! The end of a save whose ranks wrote into folders of their own: what is not a rank's own is brought to all of them,
//! each gets the manifest of the whole, and then its name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use oarlock_comm::Communicator;

use super::folder::TempFolder;
use super::job::RankFiles;
use super::manifest::{FileEntry, Manifest};
use super::outcome::{by_root, share};
use super::publish::{Deed, list, text_of, write_manifest};
use super::stores::{Delivery, Stores, deliver};
use crate::report::error::CheckpointError;
use crate::{Error, Result};

/// The folder of the files that are of one rank each.
pub const RANKS: &str = "state";

/// What a rank keeps of a save in parts until all have written.
pub struct Parts {
    stores: Stores,
    /// Where this rank writes.
    path: PathBuf,
    /// On the leader of a store.
    folder: Option<TempFolder>,
    begun: Vec<FileEntry>,
    manifest: Manifest,
    /// What each store does when the checkpoint has its name.
    then: Option<Deed>,
}

impl Parts {
    pub fn new(
        stores: Stores,
        path: PathBuf,
        folder: Option<TempFolder>,
        begun: Vec<FileEntry>,
        manifest: Manifest,
        then: Deed,
    ) -> Parts {
        Parts { stores, path, folder, begun, manifest, then: Some(then) }
    }

    /// Ends the save into `dir`. All ranks call it with what they have written.
    ///
    /// # Errors
    /// The outer result is that of the communication, the inner one that of the save, the same on all ranks.
    pub fn publish(
        &mut self,
        comm: &Communicator,
        dir: &Path,
        written: RankFiles,
    ) -> Result<std::result::Result<(), CheckpointError>> {
        let not_saved = |(rank, cause)| CheckpointError::NotSaved { path: dir.to_path_buf(), rank, cause };
        let ranks = match share::<_, String>(comm, Ok(written))? {
            Ok(ranks) => ranks,
            Err(failed) => return Ok(Err(not_saved(failed))),
        };
        let deliveries = common_runs(&self.stores, &ranks);
        let sizes: BTreeSet<(&str, u64)> = (ranks.iter().flat_map(|rank| &rank.files))
            .filter(|file| !is_own(&file.path))
            .map(|file| (file.path.as_str(), file.bytes))
            .collect();
        let prepared = match &self.folder {
            Some(_) => sizes.iter().try_for_each(|(path, bytes)| make(&self.path.join(path), *bytes)),
            None => Ok(()),
        };
        if let Err(failed) = share(comm, prepared.map_err(|error| error.to_string()))? {
            return Ok(Err(not_saved(failed)));
        }
        if let Err(failed) = deliver(comm, &deliveries, &|path| self.path.join(path))? {
            return Ok(Err(not_saved(failed)));
        }
        let text = by_root(comm, || {
            list(&mut self.manifest, std::mem::take(&mut self.begun), ranks);
            text_of(&self.manifest)
        })?;
        let text = match text {
            Ok(text) => text,
            Err(cause) => return Ok(Err(not_saved((0, cause)))),
        };
        // All have everything before any gives its folder the name.
        let mut step = |act: &mut dyn FnMut(&mut TempFolder) -> Result<()>| {
            let done = self.folder.as_mut().map_or(Ok(()), act).map_err(|error| error.to_string());
            share(comm, done)
        };
        if let Err(failed) = step(&mut |folder| write_manifest(folder.path(), &text))? {
            return Ok(Err(not_saved(failed)));
        }
        if let Err(failed) = step(&mut |folder| folder.publish())? {
            return Ok(Err(not_saved(failed)));
        }
        let then = self.then.take().filter(|_| self.folder.is_some());
        let after = then.map_or(Ok(()), |then| then(dir)).map_err(|error| error.to_string());
        Ok(share(comm, after)?
            .map(|_| ())
            .map_err(|(_, cause)| CheckpointError::AfterSave { path: dir.to_path_buf(), cause }))
    }
}

/// Whether a file is that of one rank, and stays where it is.
pub fn is_own(path: &str) -> bool {
    Path::new(path).starts_with(RANKS)
}

/// What has to reach all stores, from those that wrote it.
pub fn common_runs(stores: &Stores, ranks: &[RankFiles]) -> Vec<Delivery> {
    let of_rank = |(rank, files): (usize, &RankFiles)| {
        let from = stores.leader_of(rank);
        let to: Vec<usize> = stores.each().filter(|&leader| leader != from).collect();
        let common = files.files.iter().filter(|file| !is_own(&file.path));
        let run = common.flat_map(|file| file.sums.iter().map(move |sum| (file, sum)));
        run.map(|(file, sum)| Delivery {
            from,
            to: to.clone(),
            path: file.path.clone(),
            offset: sum.offset,
            bytes: sum.bytes,
        })
        .collect::<Vec<_>>()
    };
    ranks.iter().enumerate().flat_map(of_rank).collect()
}

/// Makes a file of a size, unless it is there already.
pub fn make(path: &Path, bytes: u64) -> Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    }
    oarlock_files::open_or_create(path).and_then(|file| file.set_len(bytes)).map_err(Error::io("write", path))
}
