//! Loading: everything is checked on all ranks before the first element of the model changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use oarlock_comm::Communicator;

use super::ClientState;
use super::error::{CheckpointError, Problem};
use super::files::{hash_file, hex};
use super::folder::{parent_of, recover};
use super::manifest::{FileEntry, Manifest, Piece};
use super::outcome::share;
use super::save::chunks;
use crate::error::{Error, Result};
use crate::shard::{Engine, Slice};

/// Restores the state that [`save`](super::save) wrote into `dir`, on any number of ranks and in any placement, to the
/// bit; returns what the training loop had kept. All ranks call it. Each reads what it needs, and the ranks divide the
/// files among them to verify the checksums.
///
/// # Errors
/// When the checkpoint is incomplete, damaged or of another model ([`CheckpointError::NotLoaded`], the same on all
/// ranks; the model is as it was), or a rank fails.
pub fn load(dir: &Path, comm: &Communicator, engine: &mut Engine) -> Result<ClientState> {
    let refused = |problem| Error::from(CheckpointError::NotLoaded { path: dir.to_path_buf(), problem });
    let opened = match comm.rank() {
        0 => open(dir).map(Some),
        _ => Ok(None),
    };
    let opened = share(comm, opened)?.map_err(|(_, problem)| refused(problem))?;
    let manifest = opened.into_iter().flatten().next().ok_or_else(|| refused(Problem::NoManifest))?;

    let needed = engine.needed_slices();
    let checked = check_model(&manifest, &needed).and_then(|()| check_files(dir, &manifest, comm));
    let names: BTreeSet<&str> = needed.iter().map(|slice| slice.name.as_str()).collect();
    let names: Vec<BTreeSet<String>> =
        share(comm, checked.map(|()| names.into_iter().map(str::to_string).collect()))?
            .map_err(|(_, problem)| refused(problem))?;
    if let Some(name) =
        manifest.parameters.keys().find(|&name| !names.iter().any(|names| names.contains(name)))
    {
        return Err(refused(Problem::UnknownParameter { name: name.clone() }));
    }

    let read = Reader { dir, manifest: &manifest, files: BTreeMap::new() }.restore(engine, &needed);
    share(comm, read.map_err(|error| error.to_string()))?
        .map_err(|(rank, cause)| refused(Problem::Interrupted { rank, cause }))?;
    engine.finish_load(manifest.optimizer_steps)?;
    Ok(manifest.client_state)
}

fn open(dir: &Path) -> std::result::Result<Manifest, Problem> {
    if let Some(name) = dir.file_name()
        && let Err(error) = recover(parent_of(dir), &name.to_string_lossy())
    {
        return Err(Problem::Unreadable { file: name.to_string_lossy().into(), cause: error.to_string() });
    }
    Manifest::open(dir)
}

/// Whether the checkpoint has all that this rank needs.
fn check_model(manifest: &Manifest, needed: &[Slice]) -> std::result::Result<(), Problem> {
    for Slice { kind, name, shape, .. } in needed {
        let Some(parameter) = manifest.parameters.get(name) else {
            return Err(Problem::MissingParameter { name: name.clone() });
        };
        if parameter.shape != shape.sizes() {
            let (found, expected) = (parameter.shape.clone(), shape.sizes().to_vec());
            return Err(Problem::Shape { name: name.clone(), found, expected });
        }
        if !parameter.state.contains_key(*kind) {
            return Err(Problem::MissingState { kind: kind.to_string(), name: name.clone() });
        }
    }
    Ok(())
}

/// Verifies the checksums of this rank's share of the files.
fn check_files(dir: &Path, manifest: &Manifest, comm: &Communicator) -> std::result::Result<(), Problem> {
    for FileEntry { path, bytes, xxh64 } in share_of(&manifest.files, comm.rank(), comm.world_size()) {
        let hashed = File::open(dir.join(path)).and_then(|file| hash_file(&file));
        let (found_bytes, found) = hashed.map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => Problem::MissingFile { file: path.clone() },
            _ => Problem::Unreadable { file: path.clone(), cause: cause.to_string() },
        })?;
        if found_bytes != *bytes {
            return Err(Problem::Size { file: path.clone(), found: found_bytes, expected: *bytes });
        }
        if hex(found) != *xxh64 {
            return Err(Problem::Checksum { file: path.clone(), found: hex(found), expected: xxh64.clone() });
        }
    }
    Ok(())
}

/// The files that a rank verifies: the largest first, each to the rank with the least so far.
fn share_of(files: &[FileEntry], rank: usize, world_size: usize) -> Vec<&FileEntry> {
    let mut by_size: Vec<&FileEntry> = files.iter().collect();
    by_size.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    let mut bytes = vec![0u64; world_size];
    let mut mine = Vec::new();
    for file in by_size {
        let least = (0..world_size).min_by_key(|&r| bytes[r]).unwrap_or(0);
        bytes[least] = bytes[least].saturating_add(file.bytes);
        if least == rank {
            mine.push(file);
        }
    }
    mine
}

struct Reader<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    /// The files that are open, by their paths inside the checkpoint.
    files: BTreeMap<&'a str, File>,
}

impl Reader<'_> {
    fn restore(mut self, engine: &mut Engine, needed: &[Slice]) -> Result<()> {
        let mut values = Vec::new();
        for slice in needed.iter().flat_map(chunks) {
            values.resize(slice.elements.len(), 0.0f32);
            self.read(&slice, &mut values)?;
            engine.write_state(&slice, &values)?;
        }
        Ok(())
    }

    /// Puts a slice together from the pieces that hold it; the manifest's check says that they hold all of it.
    fn read(&mut self, slice: &Slice, out: &mut [f32]) -> Result<()> {
        let parameter = self.manifest.parameters.get(&slice.name);
        let pieces: &[Piece] =
            parameter.and_then(|p| p.state.get(slice.kind)).map_or(&[], |pieces| pieces);
        let (start, end) = (slice.elements.start as u64, slice.elements.end as u64);
        let from = pieces.partition_point(|piece| piece.end() <= start);
        for piece in pieces[from..].iter().take_while(|piece| piece.first < end) {
            let (first, last) = (piece.first.max(start), piece.end().min(end));
            let part = &mut out[(first - start) as usize..(last - start) as usize];
            let path = self.dir.join(&piece.file);
            if !self.files.contains_key(piece.file.as_str()) {
                let file = File::open(&path).map_err(Error::io("open", &path))?;
                self.files.insert(&piece.file, file);
            }
            let at = piece.offset + 4 * (first - piece.first);
            self.files[piece.file.as_str()]
                .read_exact_at(bytemuck::cast_slice_mut(part), at)
                .map_err(Error::io("read", &path))?;
        }
        Ok(())
    }
}
