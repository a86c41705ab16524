//! The model alone, in Hugging Face form: each rank writes the weights that it owns, from where they lie.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oarlock_comm::Communicator;

use super::error::CheckpointError;
use super::job::write_slice;
use super::outcome::share;
use crate::error::{Error, Result};
use crate::model::hf::{ModelFiles, Staged, staged_path};
use crate::shard::{Engine, MASTER, Snapshot};

/// Writes the files of the model into the folder `dir`, next to what else is there; they get their names when all of
/// them are on the disk. Weight files of an earlier save that are not replaced are removed at the end. All ranks call
/// it; it returns when the model is whole.
///
/// # Errors
/// When a rank fails ([`CheckpointError::ModelNotSaved`], the same on all ranks); the folder is then as it was. Or when
/// a rank is gone.
pub fn save_model(dir: &Path, comm: &Communicator, engine: &Engine, files: ModelFiles) -> Result<()> {
    let not_saved =
        |(rank, cause)| Error::from(CheckpointError::ModelNotSaved { path: dir.to_path_buf(), rank, cause });
    let files = Arc::new(files);
    let mut staged = None;
    let created = match comm.rank() {
        0 => {
            let token = std::process::id().to_string();
            Staged::new(dir, files.clone(), token.clone())
                .and_then(|new| {
                    let staged = staged.insert(new);
                    files.create(&|name| staged.path_of(name))
                })
                .map(|_| token)
        }
        _ => Ok(String::new()),
    };
    let tokens = share(comm, created.map_err(|error| error.to_string()))?.map_err(not_saved)?;

    let token = tokens[0].clone();
    let folder = dir.to_path_buf();
    let writer = files.clone().writer(move |name| staged_path(&folder, &token, name));
    let written = write_weights(engine.snapshot(), writer);
    share(comm, written.map_err(|error| error.to_string()))?.map_err(not_saved)?;

    let published = match staged {
        Some(staged) => files.write_rest(&|name| staged.path_of(name)).and_then(|()| staged.publish()),
        None => Ok(()),
    };
    share(comm, published.map_err(|error| error.to_string()))?.map_err(not_saved)?;
    Ok(())
}

fn write_weights(mut snapshot: Snapshot, mut writer: crate::model::hf::ModelWriter) -> Result<()> {
    for unit in 0..snapshot.units() {
        for slice in snapshot.slices(unit).iter().filter(|slice| slice.kind == MASTER) {
            write_slice(&snapshot, slice, None, Some(&mut writer), &AtomicBool::new(false))?;
        }
        snapshot.release(unit);
    }
    writer.finish().map(|_| ())
}
