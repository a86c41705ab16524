//! The folder of a checkpoint comes into being in one moment, and what died before that moment is cleared away.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::BuildHasher;
use std::io;
use std::path::{Path, PathBuf};

use super::manifest::{MANIFEST, Manifest};
use crate::disk::sync_folder;
use crate::{Error, Result};

const TEMPORARY: &str = ".tmp-";
const ASIDE: &str = ".old-";
const KEPT: &str = ".kept";

/// The folder in which the checkpoint `target` is written.
pub fn temporary(target: &Path, token: &str) -> PathBuf {
    sibling(target, TEMPORARY, token)
}

fn sibling(target: &Path, marker: &str, token: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!("{marker}{token}"));
    target.with_file_name(name)
}

/// A name that no other save has.
pub fn new_token() -> String {
    // The keys of the standard library's hash maps are random in each process and differ in each map.
    format!("{:016x}", RandomState::new().hash_one(std::process::id()))
}

/// The number N of `checkpoint-N`, or of `checkpoint_N`, as custom training loops number theirs.
pub fn step_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("checkpoint")?.strip_prefix(['-', '_'])?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Whether a save gives such names by itself.
fn is_of_a_run(name: &str) -> bool {
    let tag = name.strip_prefix("global_step");
    step_of(name).is_some() || tag.is_some_and(|step| step.parse::<u64>().is_ok())
}

/// The folder above; of a bare name it is the current one.
pub fn parent_of(target: &Path) -> &Path {
    target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A checkpoint in the making; it vanishes with this value unless it is published.
pub struct TempFolder {
    target: PathBuf,
    token: String,
    path: PathBuf,
    /// Shows other runs that this folder is alive. Released by the system however this process ends.
    _lock: File,
    published: bool,
}

impl TempFolder {
    /// Makes the folder for `target`, and removes what dead runs have left beside it.
    pub fn create(target: &Path) -> Result<TempFolder> {
        let Some(name) = target.file_name() else {
            return Err(Error::Usage(format!(
                "{} is not a name for a checkpoint's folder",
                target.display()
            )));
        };
        let parent = parent_of(target);
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let name = name.to_string_lossy();
        recover(parent, &name)?;
        sweep(parent, &name)?;
        refuse_foreign(target)?;
        let token = new_token();
        let path = temporary(target, &token);
        fs::create_dir(&path).map_err(Error::io("create", &path))?;
        let lock = oarlock_comm::open_folder(&path).map_err(Error::io("open", &path))?;
        // Where the file system knows no locks, nobody can take one either, and nothing is swept.
        let _ = lock.try_lock();
        let folder = TempFolder { target: target.to_path_buf(), token, path, _lock: lock, published: false };
        let state = folder.path.join("state");
        fs::create_dir(&state).map_err(Error::io("create", &state))?;
        Ok(folder)
    }

    /// What tells this save from others.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Where it lies now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder its name. An older checkpoint of that name stays whole until this one has it.
    pub fn publish(&mut self) -> Result<()> {
        let old = sibling(&self.target, ASIDE, &self.token);
        let replaces = exists(&self.target)?;
        if replaces {
            refuse_foreign(&self.target)?;
            set_aside(&self.target)?;
            fs::rename(&self.target, &old).map_err(Error::io("rename", &self.target))?;
        }
        if let Err(error) = fs::rename(&self.path, &self.target) {
            if replaces {
                // If this fails as well, the next look at the folder finishes it.
                let _ = fs::rename(&old, &self.target);
            }
            return Err(Error::io("rename", &self.path)(error));
        }
        self.published = true;
        sync_folder(parent_of(&self.target))?;
        if replaces {
            // What cannot be removed now is removed by the next save.
            let _ = fs::remove_dir_all(&old);
        }
        Ok(())
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if !self.published {
            // The failure that led here is the one to report; the next save sweeps what is left.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Removes a checkpoint. Its name vanishes first, so that no half of it is ever found under it. Files in it that its save did
/// not write stay, in a folder of the same name with `.kept` behind it.
///
/// # Errors
/// When it cannot be removed.
pub fn remove(target: &Path) -> Result<()> {
    set_aside(target)?;
    let doomed = temporary(target, &new_token());
    fs::rename(target, &doomed).map_err(Error::io("remove", target))?;
    fs::remove_dir_all(&doomed).map_err(Error::io("remove", &doomed))
}

/// Moves the files of a checkpoint that its manifest does not list into a folder beside it.
fn set_aside(target: &Path) -> Result<()> {
    // What a damaged one lists cannot be known.
    let Ok(manifest) = Manifest::read(target) else { return Ok(()) };
    let own: BTreeSet<PathBuf> = (manifest.files.iter().map(|file| file.path.as_str()))
        .chain([MANIFEST])
        .map(|path| target.join(path))
        .collect();
    let kept = sibling(target, KEPT, "");
    let mut folders = vec![target.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for (_, path) in entries(&folder)? {
            let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
            match is_folder {
                true => folders.push(path),
                false if own.contains(&path) => {}
                false => keep(target, &path, &kept)?,
            }
        }
    }
    Ok(())
}

/// Moves a file of a checkpoint into a folder, under the path that it has.
fn keep(target: &Path, path: &Path, kept: &Path) -> Result<()> {
    let Ok(inside) = path.strip_prefix(target) else { return Ok(()) };
    let mut to = kept.join(inside);
    if exists(&to)? {
        to = sibling(kept, "-", &new_token()).join(inside);
    }
    let folder = parent_of(&to);
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    fs::rename(path, &to).map_err(Error::io("rename", path))
}

/// Finishes exchanges that a crash has interrupted: those of `name` and of all checkpoints of a run.
pub fn recover(parent: &Path, name: &str) -> Result<()> {
    for Leftover { stem, token, path } in leftovers(parent, ASIDE, name)? {
        let target = parent.join(stem);
        if !exists(&target)? {
            let newer = temporary(&target, &token);
            // A live run that is between its two renames holds this lock, and so does whoever else recovers.
            let lock = oarlock_comm::open_folder(&newer);
            if let Ok(lock) = &lock {
                let _ = lock.lock();
            }
            let whole = if Manifest::open_part(&newer).is_ok() { &newer } else { &path };
            if let Err(error) = fs::rename(whole, &target)
                && !exists(&target)?
            {
                return Err(Error::io("rename", whole)(error));
            }
            sync_folder(parent)?;
        }
        // Nobody needs it; what cannot be removed now is removed next time.
        let _ = fs::remove_dir_all(&path);
    }
    Ok(())
}

/// Finishes or removes what runs that died have left in the folder of a run: half a save, or half a removal.
///
/// # Errors
/// When something cannot be read or removed.
pub fn clear_leftovers(output_dir: &Path) -> Result<()> {
    recover(output_dir, "")?;
    sweep(output_dir, "")
}

/// Removes the temporary folders of runs that died.
fn sweep(parent: &Path, name: &str) -> Result<()> {
    for Leftover { path, .. } in leftovers(parent, TEMPORARY, name)? {
        if oarlock_comm::open_folder(&path).is_ok_and(|folder| folder.try_lock().is_ok()) {
            fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
        }
    }
    Ok(())
}

struct Leftover {
    /// The name of the checkpoint.
    stem: String,
    token: String,
    path: PathBuf,
}

fn leftovers(parent: &Path, marker: &str, name: &str) -> Result<Vec<Leftover>> {
    let of_ours = |(stem, token): &(&str, &str)| {
        let is_token = token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit());
        is_token && (*stem == name || is_of_a_run(stem))
    };
    let mut found = Vec::new();
    for (entry, path) in entries(parent)? {
        if let Some((stem, token)) = entry.rsplit_once(marker).filter(of_ours) {
            found.push(Leftover { stem: stem.to_string(), token: token.to_string(), path });
        }
    }
    Ok(found)
}

/// The names in a folder, in order; none if it does not exist.
pub fn entries(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(Error::io("read", folder))?,
    };
    let mut names = Vec::new();
    for entry in read {
        let entry = entry.map_err(Error::io("read", folder))?;
        // A name that is not text is none of ours.
        if let Ok(name) = entry.file_name().into_string() {
            names.push((name, entry.path()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(Error::io("read", path))
}

/// A folder that is not a checkpoint is somebody's: it is never replaced, unless it is empty.
fn refuse_foreign(target: &Path) -> Result<()> {
    if !exists(target)? || exists(&target.join(MANIFEST))? {
        return Ok(());
    }
    if target.is_dir() && entries(target)?.is_empty() {
        return Ok(());
    }
    let problem = "it is there already and is not a checkpoint of Oarlock; give another name or move it away";
    Err(Error::bad_file(target, problem))
}
