//! The parts of a checkpoint, from machines that do not share a folder, are joined.

use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::folder::TempFolder;
use super::manifest::{FileEntry, MANIFEST, Manifest};
use super::parts::make;
use super::publish::write_manifest;
use super::read::verify;
use crate::disk::SummedFile;
use crate::report::error::{CheckpointError, Problem};
use crate::{Error, Result};

/// Bytes that are copied at once.
const CHUNK: u64 = 8 << 20;

/// What [`gather`] has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gathered {
    /// The steps that the run had done.
    pub step: u64,
    /// Files of the checkpoint.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Joins what the machines of a run wrote of one checkpoint, in folders that were copied to this one, into the whole checkpoint
/// `out`. Checksums of all that is copied are verified; `out` appears when it is whole.
///
/// # Errors
/// When folders are of different checkpoints, when a file is in none of them (all are named), when every copy of one is damaged, or
/// when a file cannot be written; `out` is then as it was.
pub fn gather(parts: &[PathBuf], out: &Path) -> Result<Gathered> {
    let refused =
        |path: &Path, problem| Error::from(CheckpointError::NotLoaded { path: path.to_path_buf(), problem });
    let [first, others @ ..] = parts else {
        return Err(Error::Usage("no folder to gather a checkpoint from".to_string()));
    };
    let manifest = Manifest::read(first).map_err(|problem| refused(first, problem))?;
    for other in others {
        if Manifest::read(other).map_err(|problem| refused(other, problem))? != manifest {
            return Err(Error::Usage(format!(
                "{} is not a part of the checkpoint in {}: their manifests differ (other steps, or another run)",
                other.display(),
                first.display()
            )));
        }
    }
    let missing: Vec<&str> = (manifest.files.iter())
        .map(|file| file.path.as_str())
        .filter(|path| !parts.iter().any(|part| part.join(path).is_file()))
        .collect();
    if !missing.is_empty() {
        return Err(Error::Usage(missing_parts(&manifest, &missing)));
    }
    let mut folder = TempFolder::create(out)?;
    for file in &manifest.files {
        copy(parts, &manifest, file, folder.path())?;
    }
    let text = oarlock_comm::read_text(first.join(MANIFEST), oarlock_comm::MAX_RECORDS_BYTES)
        .map_err(Error::io("read", first))?;
    write_manifest(folder.path(), &text)?;
    folder.publish()?;
    let bytes = manifest.files.iter().map(|file| file.bytes).sum();
    Ok(Gathered { step: manifest.client_state.step, files: manifest.files.len(), bytes })
}

/// Which files are in no folder, and whose they are.
fn missing_parts(manifest: &Manifest, missing: &[&str]) -> String {
    let rank = |file: &&str| super::manifest::rank_of_state_file(file, manifest.world_size);
    let owners: BTreeSet<usize> = missing.iter().filter_map(rank).collect();
    let leaders: BTreeSet<usize> =
        owners.iter().filter_map(|&rank| manifest.stores.get(rank).copied()).collect();
    let whose = match leaders.is_empty() {
        true => String::new(),
        false => {
            let listed: Vec<String> = leaders.iter().map(usize::to_string).collect();
            format!(
                "; copy the folder of the machine of rank {} here, too",
                listed.join(" and that of rank ")
            )
        }
    };
    format!(
        "{} {} in none of the folders{whose}",
        missing.join(", "),
        if missing.len() == 1 { "is" } else { "are" }
    )
}

/// Copies a file from a folder in which all of it is as it was written.
fn copy(parts: &[PathBuf], manifest: &Manifest, file: &FileEntry, to: &Path) -> Result<()> {
    let mut last = Problem::MissingFile { file: file.path.clone() };
    let mut from = first_of(parts);
    for part in parts.iter().filter(|part| part.join(&file.path).is_file()) {
        match file.sums.iter().try_for_each(|sum| verify(part, manifest, file, sum)) {
            Ok(()) => {
                let (source, target) = (part.join(&file.path), to.join(&file.path));
                make(&target, 0)?;
                let opened = oarlock_comm::open_file(&source).map_err(Error::io("open", &source))?;
                let mut written = SummedFile::create(&target)?;
                let mut chunk = Vec::new();
                for at in (0..file.bytes).step_by(CHUNK as usize) {
                    chunk.resize(CHUNK.min(file.bytes - at) as usize, 0);
                    opened.read_exact_at(&mut chunk, at).map_err(Error::io("read", &source))?;
                    written.write_at(at, &chunk)?;
                }
                written.finish()?;
                return Ok(());
            }
            Err(problem) => (last, from) = (problem, part),
        }
    }
    Err(CheckpointError::NotLoaded { path: from.to_path_buf(), problem: last }.into())
}

fn first_of(parts: &[PathBuf]) -> &Path {
    parts.first().map_or(Path::new(""), PathBuf::as_path)
}
