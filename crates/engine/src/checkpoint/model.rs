//! The model alone, in Hugging Face form: each rank writes the weights that it owns, from where they lie.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use oarlock_comm::Communicator;

use super::job::{RankFiles, entry_of, write_slice};
use super::manifest::FileEntry;
use super::outcome::share;
use super::parts::common_runs;
use super::stores::{Stores, deliver};
use super::weights::{ModelFiles, ModelWriter, Staged, WrittenFile, staged_path};
use crate::report::error::CheckpointError;
use crate::shard::{Engine, MASTER, Snapshot};
use crate::{Error, Result};

/// Writes the files of the model into the folder `dir`, next to what else is there; they get their names when all of
/// them are on the disk. Parameters in `left_out` are not written, and are not in `files`. Files of an earlier save by the same
/// writer are replaced or removed; `more` writes what is in the files but no parameter, on rank 0. All ranks
/// call it; it returns when the model is whole.
///
/// # Errors
/// When a rank fails ([`CheckpointError::ModelNotSaved`], the same on all ranks); the folder is then as it was. Or when
/// a rank is gone.
#[track_caller]
pub fn save_model(
    dir: &Path,
    comm: &Communicator,
    engine: &Engine,
    files: ModelFiles,
    left_out: &BTreeSet<String>,
    more: impl FnOnce(&mut ModelWriter) -> Result<()>,
) -> Result<()> {
    save_model_in(dir, comm, &Stores::one(comm.world_size()), engine, files, left_out, more)
}

/// As [`save_model`], into every store: what its ranks have not written is brought there.
#[track_caller]
pub fn save_model_in(
    dir: &Path,
    comm: &Communicator,
    stores: &Stores,
    engine: &Engine,
    files: ModelFiles,
    left_out: &BTreeSet<String>,
    more: impl FnOnce(&mut ModelWriter) -> Result<()>,
) -> Result<()> {
    let not_saved =
        |(rank, cause)| Error::from(CheckpointError::ModelNotSaved { path: dir.to_path_buf(), rank, cause });
    let files = Arc::new(files);
    let (mut staged, mut parts) = (None, Vec::new());
    let mut create = || {
        let token = std::process::id().to_string();
        let staged = staged.insert(Staged::new(dir, files.clone(), token.clone())?);
        parts = files.create(&|name| staged.path_of(name))?;
        Ok(token)
    };
    let leader = stores.leader_of(comm.rank());
    let made = if leader == comm.rank() {
        create().map_err(|error: Error| error.to_string())
    } else {
        Ok(String::new())
    };
    let token = share(comm, made)?.map_err(not_saved)?.swap_remove(leader);

    let (folder, its) = (dir.to_path_buf(), token.clone());
    let writer = files.clone().writer(move |name| staged_path(&folder, &its, name));
    let written = write_weights(engine.snapshot(), left_out, writer, |writer| match comm.rank() {
        0 => more(writer),
        _ => Ok(()),
    });
    let written = share(comm, written.map_err(|error| error.to_string()))?.map_err(not_saved)?;
    if !stores.are_one() {
        let runs = common_runs(stores, &written);
        deliver(comm, &runs, &|name| staged_path(dir, &token, name))?.map_err(not_saved)?;
    }

    let of_entry = |FileEntry { path, bytes, sums, .. }: FileEntry| WrittenFile { name: path, bytes, sums };
    parts.extend(written.into_iter().flat_map(|rank| rank.files).map(of_entry));
    let publish = || match staged {
        Some(staged) => files.write_rest(&|name| staged.path_of(name)).and_then(|()| staged.publish(parts)),
        None => Ok(()),
    };
    share(comm, publish().map_err(|error| error.to_string()))?.map_err(not_saved).map(|_| ())
}

fn write_weights(
    mut snapshot: Snapshot,
    left_out: &BTreeSet<String>,
    mut writer: ModelWriter,
    more: impl FnOnce(&mut ModelWriter) -> Result<()>,
) -> Result<RankFiles> {
    for unit in 0..snapshot.units() {
        let slices = snapshot.slices(unit).into_iter().filter(|slice| slice.kind == MASTER);
        for slice in slices.filter(|slice| !left_out.contains(&slice.name)) {
            write_slice(&snapshot, &slice, None, Some(&mut writer), &AtomicBool::new(false))?;
        }
        snapshot.release(unit);
    }
    more(&mut writer)?;
    let files = writer.finish()?.into_iter().map(entry_of).collect();
    Ok(RankFiles { files, ..RankFiles::default() })
}

/// Bytes as people write them: `10GB`, `500MB`, `4GiB`, `1000000`. What `max_shard_size` takes.
///
/// # Errors
/// Another text, or no bytes at all; the message says what was expected.
pub fn shard_size(text: &str) -> std::result::Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; expected one such as 5GB, 500MB, 4GiB or 1000000");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "KB" => 1000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KIB" => 1 << 10,
        "MIB" => 1 << 20,
        "GIB" => 1 << 30,
        "TIB" => 1 << 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::shard_size;

    #[test]
    fn sizes() {
        for (text, expected) in [("5GB", 5_000_000_000), ("500mb", 500_000_000), ("2KiB", 2048), ("7", 7)] {
            assert_eq!(shard_size(text), Ok(expected), "{text}");
        }
        for text in ["", "GB", "0", "-1", "5 GB x", "1.5GB", "99999999999TB"] {
            assert!(shard_size(text).unwrap_err().contains("is not a size"), "{text}");
        }
    }
}
