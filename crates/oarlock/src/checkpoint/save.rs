//! Saving: each rank writes what it owns; rank 0 adds the manifest and gives the folder its name.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};

use oarlock_comm::Communicator;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ClientState;
use super::error::CheckpointError;
use super::files::{CHUNK_BYTES, HashedFile, hash_file, hex, sync_folder};
use super::folder::{TempFolder, temporary};
use super::manifest::{FileEntry, MANIFEST, Manifest, ParameterEntry, Piece, PlanEntry, STATE_DTYPE};
use super::outcome::share;
use crate::error::{Error, Result};
use crate::shard::{Engine, Placement, Slice};

// Safetensors files are little-endian; the state is written as it lies in memory.
const _: () = assert!(cfg!(target_endian = "little"));

/// Data begins at a multiple of this many bytes, so that it can be mapped as numbers.
const DATA_ALIGN: usize = 64;

/// What a rank has written.
#[derive(Serialize, Deserialize)]
struct RankFile {
    file: FileEntry,
    pieces: Vec<WrittenPiece>,
}

#[derive(Serialize, Deserialize)]
struct WrittenPiece {
    name: String,
    shape: Vec<usize>,
    kind: String,
    piece: Piece,
}

/// Saves the state of a model as the folder `dir`, which appears when it is complete; an older checkpoint of that name
/// is replaced only then. All ranks call it; `client` and `extra` count on rank 0, where `extra` writes files for
/// other programs into the folder that it is given.
///
/// # Errors
/// When a rank fails ([`CheckpointError::NotSaved`], the same on all ranks); then nothing of it is left, and training
/// can go on. Or when a rank is gone.
pub fn save(
    dir: &Path,
    comm: &Communicator,
    engine: &Engine,
    client: &ClientState,
    extra: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<()> {
    let not_saved =
        |(rank, cause)| Error::from(CheckpointError::NotSaved { path: dir.to_path_buf(), rank, cause });
    let mut folder = None;
    let created = match comm.rank() {
        0 => TempFolder::create(dir).map(|created| folder.insert(created).token().to_string()),
        _ => Ok(String::new()),
    };
    let tokens = share(comm, created.map_err(|error| error.to_string()))?.map_err(not_saved)?;
    let path = temporary(dir, &tokens[0]);

    let written = write_rank(&path, comm, engine).and_then(|written| {
        if comm.rank() == 0 {
            extra(&path)?;
        }
        Ok(written)
    });
    let ranks = share(comm, written.map_err(|error| error.to_string()))?.map_err(not_saved)?;

    let finished = match folder {
        Some(folder) => finish(folder, ranks, engine, client).map_err(|error| error.to_string()),
        None => Ok(()),
    };
    share(comm, finished)?.map_err(not_saved)?;
    Ok(())
}

/// Writes the safetensors file of this rank.
fn write_rank(folder: &Path, comm: &Communicator, engine: &Engine) -> Result<RankFile> {
    let name = format!("state/rank-{:05}-of-{:05}.safetensors", comm.rank(), comm.world_size());
    let path = folder.join(&name);
    let snapshot = engine.snapshot();
    let slices: Vec<Slice> = (0..snapshot.units()).flat_map(|unit| snapshot.slices(unit)).collect();
    let (header, pieces) = lay_out(&name, &slices);
    let mut file = HashedFile::create(&path)?;
    file.write(&header)?;
    let mut values = Vec::new();
    for slice in &slices {
        for part in chunks(slice) {
            values.resize(part.elements.len(), 0.0f32);
            snapshot.read(&part, &mut values)?;
            file.write(bytemuck::cast_slice(&values))?;
        }
    }
    let (bytes, hash) = file.finish()?;
    Ok(RankFile { file: FileEntry { path: name, bytes, xxh64: hex(hash) }, pieces })
}

/// The head of a safetensors file (the length of its JSON, then the JSON) and where each piece lies in it.
fn lay_out(file: &str, slices: &[Slice]) -> (Vec<u8>, Vec<WrittenPiece>) {
    let mut entries = serde_json::Map::new();
    entries.insert("__metadata__".into(), json!({ "format": "oarlock-state" }));
    let mut pieces = Vec::new();
    let mut at = 0;
    for Slice { kind, name, shape, elements } in slices {
        let end = at + 4 * elements.len() as u64;
        entries.insert(
            format!("{kind}/{name}/{}", elements.start),
            json!({ "dtype": STATE_DTYPE, "shape": [elements.len()], "data_offsets": [at, end] }),
        );
        let (first, len) = (elements.start as u64, elements.len() as u64);
        pieces.push(WrittenPiece {
            name: name.clone(),
            shape: shape.sizes().to_vec(),
            kind: kind.to_string(),
            piece: Piece { first, len, file: file.to_string(), offset: at },
        });
        at = end;
    }
    let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
    json.resize((8 + json.len()).next_multiple_of(DATA_ALIGN) - 8, b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    for piece in &mut pieces {
        piece.piece.offset += header.len() as u64;
    }
    (header, pieces)
}

/// A slice in parts that are moved at once.
pub(super) fn chunks(slice: &Slice) -> impl Iterator<Item = Slice> + '_ {
    let step = CHUNK_BYTES / 4;
    slice
        .elements
        .clone()
        .step_by(step)
        .map(move |start| Slice { elements: start..slice.elements.end.min(start + step), ..slice.clone() })
}

/// Writes the manifest and gives the folder its name.
fn finish(folder: TempFolder, ranks: Vec<RankFile>, engine: &Engine, client: &ClientState) -> Result<()> {
    let plan = PlanEntry {
        dtype: engine.options().dtype.to_string(),
        optimizer: match engine.options().placements.optimizer {
            Placement::Whole => "whole".into(),
            Placement::Sharded => "sharded".into(),
        },
    };
    let mut manifest = Manifest::new(ranks.len(), plan, engine.n_steps(), client.clone());
    let (mut extra, mut folders) = (Vec::new(), Vec::new());
    walk(folder.path(), &mut extra, &mut folders)?;
    for rank in ranks {
        manifest.files.push(rank.file);
        for WrittenPiece { name, shape, kind, piece } in rank.pieces {
            let parameter = manifest.parameters.entry(name).or_insert_with(|| ParameterEntry {
                shape,
                dtype: STATE_DTYPE.into(),
                state: Default::default(),
            });
            parameter.state.entry(kind).or_default().push(piece);
        }
    }
    for pieces in manifest.parameters.values_mut().flat_map(|parameter| parameter.state.values_mut()) {
        pieces.sort_by_key(|piece| piece.first);
    }
    let written: BTreeSet<PathBuf> =
        manifest.files.iter().map(|file| folder.path().join(&file.path)).collect();
    for path in extra.into_iter().filter(|path| !written.contains(path)) {
        manifest.files.push(seal(folder.path(), &path)?);
    }
    let path = folder.path().join(MANIFEST);
    let text = manifest.to_text().map_err(|problem| Error::bad_file(&path, problem.to_string()))?;
    let mut file = HashedFile::create(&path)?;
    file.write(text.as_bytes())?;
    file.finish()?;
    folders.iter().try_for_each(|folder| sync_folder(folder))?;
    folder.publish()
}

/// All files and folders in a folder, itself included.
fn walk(folder: &Path, files: &mut Vec<PathBuf>, folders: &mut Vec<PathBuf>) -> Result<()> {
    folders.push(folder.to_path_buf());
    let entries = std::fs::read_dir(folder).map_err(Error::io("read", folder))?;
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
    let file = File::open(path).map_err(Error::io("open", path))?;
    file.sync_all().map_err(Error::io("write", path))?;
    let (bytes, hash) = hash_file(&file).map_err(Error::io("read", path))?;
    Ok(FileEntry { path: inside, bytes, xxh64: hex(hash) })
}
