//! A checkpoint in parts is loaded: what the ranks of a machine need and their folder lacks comes from another machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use oarlock_comm::Communicator;

use super::folder::parent_of;
use super::manifest::{MANIFEST, Manifest};
use super::outcome::share;
use super::parts::{is_own, make};
use super::stores::{Delivery, Stores, deliver};
use crate::disk::sync_folder;
use crate::report::error::Problem;
use crate::{Error, Result};

/// What a file is called until all of it is there.
const FETCHED: &str = ".fetched";

/// Completes the folder of a checkpoint on every machine by what its ranks need: `needed` are this rank's files. Where the ranks are
/// placed as those that wrote it, and each needs its own state alone, nothing is sent. All ranks call it. The stores, and which
/// files of the manifest each rank's has.
///
/// # Errors
/// The outer result is that of the communication, the inner one the same on all ranks: files that no machine has.
pub fn complete(
    dir: &Path,
    manifest: &Manifest,
    comm: &Communicator,
    stores: &Stores,
    needed: &BTreeSet<&str>,
) -> Result<std::result::Result<BTreeSet<String>, Problem>> {
    let leads = stores.leader_of(comm.rank()) == comm.rank();
    let mine: Vec<bool> = (manifest.files.iter())
        .map(|file| fs::metadata(dir.join(&file.path)).is_ok_and(|found| found.len() == file.bytes))
        .collect();
    let wants: Vec<bool> = (manifest.files.iter())
        .map(|file| needed.contains(file.path.as_str()) || !is_own(&file.path))
        .collect();
    let all = share::<_, String>(comm, Ok((mine, wants)))?.map_err(|(_, cause)| Error::Usage(cause))?;
    let mut deliveries = Vec::new();
    for (index, file) in manifest.files.iter().enumerate() {
        let to: Vec<usize> = (stores.each())
            .filter(|&leader| {
                !all[leader].0[index] && stores.ranks_of(leader).iter().any(|&rank| all[rank].1[index])
            })
            .collect();
        let Some(from) = stores.each().find(|&leader| all[leader].0[index]) else {
            return Ok(Err(Problem::MissingFile { file: file.path.clone() }));
        };
        let runs = file.sums.iter().filter(|_| !to.is_empty());
        deliveries.extend(runs.map(|sum| Delivery {
            from,
            to: to.clone(),
            path: file.path.clone(),
            offset: sum.offset,
            bytes: sum.bytes,
        }));
    }
    let interrupted = |(rank, cause)| Problem::Interrupted { rank, cause };
    let gets = |delivery: &&Delivery| delivery.to.contains(&comm.rank());
    let fetched: BTreeSet<&str> = deliveries.iter().filter(gets).map(|one| one.path.as_str()).collect();
    let size = |path: &str| manifest.files.iter().find(|file| file.path == path).map_or(0, |file| file.bytes);
    let under = |path: &str| match fetched.contains(path) {
        true => dir.join(format!("{path}{FETCHED}")),
        false => dir.join(path),
    };
    let made = fetched.iter().try_for_each(|path| make(&under(path), size(path)));
    if let Err(failed) = share(comm, made.map_err(|error| error.to_string()))? {
        return Ok(Err(interrupted(failed)));
    }
    if let Err(failed) = deliver(comm, &deliveries, &under)? {
        return Ok(Err(interrupted(failed)));
    }
    // Of the first machine that has it.
    let read = || oarlock_comm::read_text(dir.join(MANIFEST), oarlock_comm::MAX_RECORDS_BYTES);
    let own = if leads { read().ok() } else { None };
    let texts = share::<_, String>(comm, Ok(own))?.map_err(|(_, cause)| Error::Usage(cause))?;
    let Some(text) = texts.into_iter().flatten().next() else { return Ok(Err(Problem::NoManifest)) };
    let settle = || {
        for path in &fetched {
            fs::rename(under(path), dir.join(path)).map_err(Error::io("rename", dir))?;
        }
        if leads && !dir.join(MANIFEST).is_file() {
            oarlock_files::replace(&dir.join(MANIFEST), &text).map_err(Error::io("write", dir))?;
        }
        if leads { sync_folder(dir).and_then(|()| sync_folder(parent_of(dir))) } else { Ok(()) }
    };
    let settled = share(comm, settle().map_err(|error| error.to_string()))?;
    let here = manifest.files.iter().map(|file| &file.path).filter(|path| dir.join(path).is_file()).cloned();
    Ok(settled.map(|_| here.collect()).map_err(interrupted))
}
