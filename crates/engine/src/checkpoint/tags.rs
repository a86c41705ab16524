//! Checkpoints by tag, as DeepSpeed names them: `DIR/global_step500`, and a file `DIR/latest` with the last tag.

use std::io;
use std::path::{Component, Path, PathBuf};

use oarlock_comm::Communicator;

use super::load::load;
use super::manifest::{ClientState, Manifest};
use super::outcome::by_root;
use super::retain::newest;
use super::saver::{Contents, Saver};
use crate::report::error::{CheckpointError, Missing};
use crate::shard::Engine;
use crate::{Error, Result};

/// The file that holds the last tag.
pub const LATEST: &str = "latest";

/// Begins to save as `dir/tag`; without a tag that is `global_step` and the optimizer's step. `dir/latest` names it when
/// it is whole. All ranks call it; the rest is as of [`Saver::begin`].
///
/// # Errors
/// As [`Saver::begin`], and [`CheckpointError::Tag`] on all ranks where the tags differ or are not a name for a folder.
#[track_caller]
pub fn save_checkpoint(
    saver: &mut Saver,
    dir: &Path,
    tag: Option<&str>,
    comm: &Communicator,
    engine: &Engine,
    contents: Contents,
) -> Result<()> {
    let tag = tag.map_or_else(|| format!("global_step{}", engine.n_steps()), str::to_string);
    same_everywhere(comm, &tag)?;
    if !is_name(&tag) {
        return Err(CheckpointError::Tag(format!("the tag \"{tag}\" is not a name for a folder")).into());
    }
    let target = dir.join(&tag);
    let Contents { then, .. } = contents;
    let then = Box::new(move |path: &Path| {
        write_latest(path.parent().unwrap_or(path), &tag)?;
        then(path)
    });
    saver.begin(&target, comm, engine, Contents { then, ..contents })
}

/// Loads `dir/tag`; without a tag what `dir/latest` names, or nothing where there is no such file. Returns where it was
/// and what the training loop had kept. All ranks call it; the rest is as of [`load`].
///
/// # Errors
/// As [`load`], [`CheckpointError::Tag`] on all ranks where the tags differ, and [`CheckpointError::NotFound`].
#[track_caller]
pub fn load_checkpoint(
    dir: &Path,
    tag: Option<&str>,
    comm: &Communicator,
    engine: &mut Engine,
) -> Result<Option<(PathBuf, ClientState)>> {
    same_everywhere(comm, tag.unwrap_or_default())?;
    // One rank looks: the file may change between two looks.
    let look = || tag.map_or_else(|| read_latest(dir), |tag| Ok(Some(tag.to_string())));
    let Some(tag) = by_root(comm, look)?.map_err(CheckpointError::Tag)? else { return Ok(None) };
    let path = dir.join(&tag);
    let client = load(&path, comm, engine)?;
    Ok(Some((path, client)))
}

/// The checkpoint that a path means: the folder itself, its `tag`, what its `latest` names, or its newest `checkpoint-N`.
///
/// # Errors
/// [`CheckpointError::NotFound`].
pub fn find(path: &Path, tag: Option<&str>) -> Result<PathBuf> {
    let missing = |problem| CheckpointError::NotFound { path: path.to_path_buf(), problem };
    if let Some(tag) = tag {
        let found = Some(path.join(tag)).filter(|found| is_name(tag) && found.is_dir());
        return Ok(found.ok_or_else(|| missing(Missing::Tag(tag.to_string())))?);
    }
    if Manifest::is_in(path) {
        return Ok(path.to_path_buf());
    }
    match read_latest(path)? {
        Some(tag) if path.join(&tag).is_dir() => Ok(path.join(tag)),
        Some(tag) => Err(missing(Missing::Tag(tag)).into()),
        None => Ok(newest(path)?.found().map_err(missing)?),
    }
}

/// The folder that DeepSpeed saved under a tag, or under what `path/latest` names; without either `path` itself.
///
/// # Errors
/// [`CheckpointError::NotFound`].
pub fn find_tag(path: &Path, tag: Option<&str>) -> Result<PathBuf> {
    let missing = |problem| CheckpointError::NotFound { path: path.to_path_buf(), problem };
    let tag = match tag {
        Some(tag) => Some(tag.to_string()),
        None => read_latest(path)?,
    };
    let Some(tag) = tag else { return Ok(path.to_path_buf()) };
    let found = Some(path.join(&tag)).filter(|found| is_name(&tag) && found.is_dir());
    Ok(found.ok_or_else(|| missing(Missing::Tag(tag)))?)
}

#[track_caller]
fn same_everywhere(comm: &Communicator, tag: &str) -> Result<()> {
    let tags = comm.all_gather_bytes(tag.as_bytes())?;
    match tags.iter().position(|other| *other != tags[0]) {
        None => Ok(()),
        Some(rank) => {
            let [first, other] = [0, rank].map(|rank| String::from_utf8_lossy(&tags[rank]).into_owned());
            let message =
                format!("the tag is \"{first}\" on rank 0 and \"{other}\" on rank {rank}; give the same");
            Err(CheckpointError::Tag(message).into())
        }
    }
}

fn is_name(tag: &str) -> bool {
    let mut parts = Path::new(tag).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == tag)
}

/// The tag in `dir/latest`, if there is such a file.
fn read_latest(dir: &Path) -> Result<Option<String>> {
    let path = dir.join(LATEST);
    let text = match oarlock_comm::read_text(&path, oarlock_comm::MAX_CONFIG_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(Error::io("read", &path))?,
    };
    let tag = text.trim();
    match is_name(tag) {
        true => Ok(Some(tag.to_string())),
        false => Err(CheckpointError::NotFound { path: dir.to_path_buf(), problem: Missing::Name }.into()),
    }
}

/// Replaces `dir/latest`; whoever reads it finds the old tag or the new one.
fn write_latest(dir: &Path, tag: &str) -> Result<()> {
    let path = dir.join(LATEST);
    oarlock_files::replace(&path, tag).map_err(Error::io("write", &path))
}
