//! The end of a save, on rank 0: waits for the others' parts, adds the manifest, and gives the folder its name.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use super::folder::TempFolder;
use super::frozen;
use super::job::{RankFiles, joined};
use super::manifest::{FileEntry, MANIFEST, Manifest, ParameterEntry, STATE_DTYPE};
use super::state_file::WrittenPiece;
use super::weights::ModelFiles;
use crate::disk::{Algorithm, Sum, SummedFile, sync_folder};
use crate::{Error, Result};

/// Something that rank 0 does in the background, with the folder of the checkpoint.
pub type Deed = Box<dyn FnOnce(&Path) -> Result<()> + Send>;

/// How often rank 0 looks for the others' parts.
const LOOK: Duration = Duration::from_millis(4);

/// Where a rank says that it is done, and with what.
fn done_file(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("state/rank-{rank:05}.done"))
}

/// Tells rank 0 that this rank's part is on the disk.
pub fn report(folder: &Path, rank: usize, written: &RankFiles) -> Result<()> {
    let path = done_file(folder, rank);
    let text = serde_json::to_vec(written).map_err(|e| Error::bad_file(&path, e.to_string()))?;
    // Rank 0 is never to read half of it.
    oarlock_files::replace(&path, text).map_err(Error::io("write", &path))
}

/// What a rank reported; waits until it has, or until `given_up` says so.
pub fn await_report(folder: &Path, rank: usize, given_up: &dyn Fn() -> bool) -> Result<RankFiles> {
    let path = done_file(folder, rank);
    loop {
        match oarlock_comm::read_file(&path, oarlock_comm::MAX_CONFIG_BYTES) {
            Ok(text) => {
                fs::remove_file(&path).map_err(Error::io("remove", &path))?;
                return serde_json::from_slice(&text).map_err(|e| Error::bad_file(&path, e.to_string()));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("read", &path)(error));
            }
            Err(_) if given_up() => {
                return Err(Error::Usage(format!("rank {rank} has not written its part")));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Writes the files that only rank 0 writes.
pub fn write_rest(
    folder: &Path,
    model: Option<&Arc<ModelFiles>>,
    extra: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    if let Some(model) = model {
        model.write_rest(&|name| folder.join(name))?;
    }
    extra(folder)
}

/// Writes the manifest for what the ranks (and `others`: files that rank 0 began) have written and what else lies in the
/// folder, and gives the folder its name.
pub fn publish(
    mut manifest: Manifest,
    temporary: &mut TempFolder,
    others: Vec<FileEntry>,
    ranks: Vec<RankFiles>,
) -> Result<()> {
    let folder = temporary.path();
    list(&mut manifest, others, ranks);
    let rest = seal_rest(folder, &manifest.files, None)?;
    manifest.files.extend(rest);
    write_manifest(folder, &text_of(&manifest)?)?;
    temporary.publish()
}

/// Lists in a manifest what ranks have written, and files that were begun before.
pub fn list(manifest: &mut Manifest, others: Vec<FileEntry>, ranks: Vec<RankFiles>) {
    let (mut parts, mut pieces, mut left_out) = (others, Vec::new(), Vec::new());
    for rank in ranks {
        parts.extend(rank.files);
        pieces.extend(rank.pieces);
        left_out.extend(rank.frozen);
    }
    manifest.files = joined(parts.into_iter());
    manifest.frozen = frozen::joined(left_out.into_iter());
    for WrittenPiece { kind, name, shape, piece } in pieces {
        let parameter = manifest.parameters.entry(name).or_insert_with(|| ParameterEntry {
            shape: shape.clone(),
            dtype: STATE_DTYPE.into(),
            shapes: Default::default(),
            state: Default::default(),
        });
        if shape != parameter.shape {
            parameter.shapes.insert(kind.clone(), shape);
        }
        parameter.state.entry(kind).or_default().push(piece);
    }
    for pieces in manifest.parameters.values_mut().flat_map(|parameter| parameter.state.values_mut()) {
        pieces.sort_by_key(|piece| piece.first);
    }
}

/// Brings the files of a folder that are not listed to the disk, but for those in `others`, a folder in it.
pub fn seal_rest(folder: &Path, listed: &[FileEntry], others: Option<&str>) -> Result<Vec<FileEntry>> {
    let (mut found, mut folders) = (Vec::new(), Vec::new());
    walk(folder, &mut found, &mut folders)?;
    let written: BTreeSet<PathBuf> = listed.iter().map(|file| folder.join(&file.path)).collect();
    let is_of_others = |path: &PathBuf| others.is_some_and(|others| path.starts_with(folder.join(others)));
    let rest = found.iter().filter(|path| !written.contains(*path) && !is_of_others(path));
    rest.map(|path| seal(folder, path)).collect()
}

/// The text of a manifest that is complete.
pub fn text_of(manifest: &Manifest) -> Result<String> {
    manifest.to_text().map_err(|problem| Error::bad_file(Path::new(MANIFEST), problem.to_string()))
}

/// Writes the manifest as the last file of a folder, and brings the folder to the disk.
pub fn write_manifest(folder: &Path, text: &str) -> Result<()> {
    let mut file = SummedFile::create(&folder.join(MANIFEST))?;
    file.write_at(0, text.as_bytes())?;
    file.finish()?;
    let (mut found, mut folders) = (Vec::new(), Vec::new());
    walk(folder, &mut found, &mut folders)?;
    folders.iter().try_for_each(|folder| sync_folder(folder))
}

/// All files and folders in a folder, itself included.
fn walk(folder: &Path, files: &mut Vec<PathBuf>, folders: &mut Vec<PathBuf>) -> Result<()> {
    folders.push(folder.to_path_buf());
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(Error::io("read", folder))?.path());
    }
    paths.sort_unstable();
    for path in paths {
        if path.is_dir() { walk(&path, files, folders)? } else { files.push(path) }
    }
    Ok(())
}

/// Brings a file that the caller has written to the disk, and notes its size and checksum.
fn seal(folder: &Path, path: &Path) -> Result<FileEntry> {
    let inside = path.strip_prefix(folder).ok().and_then(Path::to_str);
    let inside = inside.ok_or_else(|| Error::bad_file(path, "its name is not text"))?.to_string();
    let file = fs::File::open(path).map_err(Error::io("open", path))?;
    file.sync_all().map_err(Error::io("write", path))?;
    let bytes = file.metadata().map_err(Error::io("read", path))?.len();
    let mut sums = Vec::new();
    if bytes > 0 {
        let hash = Algorithm::Xxh3.of_file(&file, 0, bytes).map_err(Error::io("read", path))?;
        sums.push(Sum { offset: 0, bytes, hash });
    }
    Ok(FileEntry { path: inside, bytes, sums, xxh64: None })
}
