//! What a rank writes of a checkpoint: its slices of the state, and of the model in Hugging Face form.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::frozen::{FrozenPart, part_of};
use super::manifest::{FileEntry, qualified, state_file_of};
use super::state_file::{StateFile, WrittenPiece};
use super::weights::{ModelFiles, ModelWriter, WrittenFile};
use crate::disk::Sum;
use crate::shard::{MASTER, Slice, Snapshot};
use crate::{Error, Result};

/// Bytes that are handled at once, so that what the next one does with them finds them in the cache.
const CHUNK_BYTES: usize = 1 << 20;

/// What a rank has written. Of a file that several ranks write, each lists the runs that are its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankFiles {
    pub files: Vec<FileEntry>,
    pub pieces: Vec<WrittenPiece>,
    /// Its parts of the fingerprints of what is left out.
    pub frozen: Vec<FrozenPart>,
}

/// A rank's part of a save.
pub struct Job {
    /// The state of each model, in their order.
    pub models: Vec<Snapshot>,
    pub folder: PathBuf,
    pub rank: usize,
    pub world_size: usize,
    /// Whether the state is written.
    pub state: bool,
    /// Of each model, the frozen parameters that the state leaves out.
    pub left_out: Vec<BTreeSet<String>>,
    /// The files of the first model, if they are written; they are there.
    pub model: Option<Arc<ModelFiles>>,
    /// Set when the save has failed elsewhere.
    pub canceled: Arc<AtomicBool>,
}

impl Job {
    /// Writes everything; all of it is on the disk then.
    pub fn run(mut self) -> Result<RankFiles> {
        let units: Vec<(usize, usize, Vec<Slice>)> = (self.models.iter().enumerate())
            .flat_map(|(model, snapshot)| (0..snapshot.units()).map(move |unit| (model, unit)))
            .map(|(model, unit)| (model, unit, self.wanted(model, unit)))
            .collect();
        let mut state = match self.state {
            true => Some(self.create_state_file(&units)?),
            false => None,
        };
        let folder = self.folder.clone();
        let mut writer = self.model.take().map(|files| files.writer(move |name| folder.join(name)));
        let mut frozen = Vec::new();
        for (model, unit, slices) in &units {
            let (snapshot, canceled) = (&mut self.models[*model], &self.canceled);
            for slice in slices {
                // The files of an adapter have no place for what is left out.
                let is_left_out = self.left_out[*model].contains(&slice.name);
                let has_place = |writer: &&mut ModelWriter| !is_left_out || writer.holds(&slice.name);
                let writer = writer.as_mut().filter(|_| *model == 0).filter(has_place);
                let mut state = state.as_mut();
                if is_left_out && state.take().is_some() {
                    frozen.push(part_of(snapshot, slice, qualified(*model, &slice.name))?);
                }
                if state.is_some() || writer.is_some() {
                    write_slice(snapshot, slice, state, writer, canceled)?;
                }
            }
            snapshot.release(*unit);
        }
        let mut written = RankFiles { frozen, ..RankFiles::default() };
        if let Some(state) = state {
            let (file, pieces) = state.finish()?;
            written.files.push(file);
            written.pieces = pieces;
        }
        if let Some(writer) = writer {
            written.files.extend(writer.finish()?.into_iter().map(entry_of));
        }
        Ok(written)
    }

    fn wanted(&self, model: usize, unit: usize) -> Vec<Slice> {
        let wanted = |slice: &Slice| !slice.elements.is_empty() && (self.state || slice.kind == MASTER);
        self.models[model].slices(unit).into_iter().filter(wanted).collect()
    }

    fn create_state_file(&self, units: &[(usize, usize, Vec<Slice>)]) -> Result<StateFile> {
        let named: Vec<Slice> = units
            .iter()
            .flat_map(|(model, _, slices)| slices.iter().map(move |slice| (*model, slice)))
            .filter(|(model, slice)| !self.left_out[*model].contains(&slice.name))
            .map(|(model, slice)| in_manifest(model, slice))
            .collect();
        StateFile::create(&self.folder, state_file_of(self.rank, self.world_size), named.iter())
    }
}

/// A slice of the model `index` under the name that manifests have for it.
pub fn in_manifest(index: usize, slice: &Slice) -> Slice {
    Slice { name: qualified(index, &slice.name), ..slice.clone() }
}

/// A part of a file, as a manifest lists it.
pub fn entry_of(WrittenFile { name, bytes, sums }: WrittenFile) -> FileEntry {
    FileEntry { path: name, bytes, sums, xxh64: None }
}

/// Writes a slice into the state file, and weights into the model as well.
pub fn write_slice(
    snapshot: &Snapshot,
    slice: &Slice,
    mut state: Option<&mut StateFile>,
    model: Option<&mut ModelWriter>,
    canceled: &AtomicBool,
) -> Result<()> {
    let mut model = model.filter(|_| slice.kind == MASTER);
    let mut first = slice.elements.start;
    // What went wrong in here; the snapshot knows only that something did.
    let mut failure = None;
    let shown = snapshot.with_bytes(slice, &mut |bytes| {
        let mut write = |chunk: &[u8]| {
            if canceled.load(Ordering::Relaxed) {
                return Err(Error::Usage("the save was given up".to_string()));
            }
            if let Some(state) = &mut state {
                state.write(chunk)?;
            }
            if let Some(model) = &mut model {
                match bytemuck::try_cast_slice(chunk) {
                    Ok(values) => model.write(&slice.name, first, values)?,
                    Err(_) => model.write(&slice.name, first, &bytemuck::pod_collect_to_vec(chunk))?,
                }
            }
            first += chunk.len() / 4;
            Ok(())
        };
        for chunk in bytes.chunks(CHUNK_BYTES) {
            if let Err(error) = write(chunk) {
                failure = Some(error);
                return Err(io::Error::other("a file cannot be written"));
            }
        }
        Ok(())
    });
    failure.map_or(shown, Err)?;
    state.map_or(Ok(()), StateFile::end_slice)
}

/// Merges the sums of a run of bytes that several have written.
pub fn joined(parts: impl Iterator<Item = FileEntry>) -> Vec<FileEntry> {
    let mut files: Vec<FileEntry> = Vec::new();
    for part in parts {
        match files.iter_mut().find(|file| file.path == part.path) {
            Some(file) => file.sums.extend(part.sums),
            None => files.push(part),
        }
    }
    files.iter_mut().for_each(|file| file.sums.sort_by_key(|sum: &Sum| sum.offset));
    files
}
