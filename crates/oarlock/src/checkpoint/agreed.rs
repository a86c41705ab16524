//! The newest checkpoint that is whole on all machines together: each looks into its own folder, and all decide the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use oarlock_comm::Communicator;
use serde::{Deserialize, Serialize};

use super::manifest::Manifest;
use super::outcome::share;
use super::retain::folders;
use super::stores::Stores;
use crate::error::{Error, Problem, Result};

/// What a run of several machines can go on from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The newest whole checkpoint that holds the state.
    pub path: Option<PathBuf>,
    /// The newer ones that are not whole, the newest first, each with the reason.
    pub skipped: Vec<(PathBuf, String)>,
    /// The machines that hold checkpoints where others hold none: each by a rank and its host, with the names.
    pub apart: Vec<(usize, String, Vec<String>)>,
    /// Those that hold none then.
    pub without: Vec<(usize, String)>,
}

/// What a machine has of a checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Held {
    step: u64,
    name: String,
    found: std::result::Result<Found, Problem>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    /// The same on all machines, unless they hold those of two runs.
    checksum: String,
    has_state: bool,
    missing: BTreeSet<String>,
    /// Why it is not whole by itself.
    problem: Option<Problem>,
}

/// Looks for it in an output folder, among the checkpoints that were saved `since` then and are none of `aside`. All ranks
/// call it; `stores` says who sees which folder.
///
/// # Errors
/// A folder that cannot be read, the same on all ranks.
#[track_caller]
pub fn newest_of_all(
    output_dir: &Path,
    comm: &Communicator,
    stores: &Stores,
    since: Option<SystemTime>,
    aside: &[PathBuf],
) -> Result<Agreed> {
    let leads = stores.leader_of(comm.rank()) == comm.rank();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mine = match leads {
        true => held(output_dir, since).map_err(|error| error.to_string()),
        false => Ok(Vec::new()),
    };
    let all = share(comm, mine.map(|held| (host, held)))?
        .map_err(|(rank, cause)| Error::Usage(format!("rank {rank}: {cause}")))?;
    let machines: Vec<(usize, &(String, Vec<Held>))> =
        all.iter().enumerate().filter(|(rank, _)| stores.leader_of(*rank) == *rank).collect();
    let mut agreed = Agreed::default();
    let (with, without): (Vec<_>, Vec<_>) = machines.iter().partition(|(_, (_, held))| !held.is_empty());
    if !with.is_empty() && !without.is_empty() {
        let names = |held: &[Held]| held.iter().map(|one| one.name.clone()).collect();
        agreed.apart = with.iter().map(|(rank, (host, held))| (*rank, host.clone(), names(held))).collect();
        agreed.without = without.iter().map(|(rank, (host, _))| (*rank, host.clone())).collect();
    }
    let mut by_step: BTreeMap<(u64, &str), Vec<(usize, &str, &Held)>> = BTreeMap::new();
    for (rank, (host, held)) in &machines {
        for one in held {
            by_step.entry((one.step, &one.name)).or_default().push((*rank, host, one));
        }
    }
    for ((_, name), held) in by_step.into_iter().rev() {
        let path = output_dir.join(name);
        if aside.contains(&path) {
            continue;
        }
        match whole(&held) {
            Ok(true) => {
                agreed.path = Some(path);
                break;
            }
            Ok(false) => {}
            Err(why) => agreed.skipped.push((path, why)),
        }
    }
    Ok(agreed)
}

fn held(output_dir: &Path, since: Option<SystemTime>) -> Result<Vec<Held>> {
    let mut all = Vec::new();
    for (step, path) in folders(output_dir)? {
        let saved = fs::metadata(&path).and_then(|data| data.modified());
        if since.is_some_and(|since| !saved.is_ok_and(|at| at >= since)) {
            continue;
        }
        let found = Manifest::read(&path).map(|manifest| {
            let is_there = |file: &str, bytes: u64| {
                fs::metadata(path.join(file)).is_ok_and(|found| found.len() == bytes)
            };
            let missing = manifest.files.iter().filter(|file| !is_there(&file.path, file.bytes));
            Found {
                checksum: manifest.checksum().to_owned(),
                has_state: manifest.has_state(),
                missing: missing.map(|file| file.path.clone()).collect(),
                problem: Manifest::open(&path).err(),
            }
        });
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push(Held { step, name, found });
    }
    Ok(all)
}

/// Whether what machines have of a checkpoint is whole together, and holds the state; why it is not whole.
fn whole(held: &[(usize, &str, &Held)]) -> std::result::Result<bool, String> {
    let mut found =
        held.iter().filter_map(|(rank, host, one)| Some((*rank, *host, one.found.as_ref().ok()?)));
    let Some((_, _, first)) = found.next() else {
        let problem = held.iter().find_map(|(_, _, one)| one.found.as_ref().err());
        return Err(problem.map_or_else(String::new, ToString::to_string));
    };
    let mut missing = first.missing.clone();
    for (rank, host, other) in found {
        if other.checksum != first.checksum {
            return Err(format!("rank {rank} on {host} holds one of another save under the same name"));
        }
        missing.retain(|file| other.missing.contains(file));
    }
    match (missing.first(), &first.problem) {
        (None, _) => Ok(first.has_state),
        (Some(_), Some(problem)) if held.len() == 1 => Err(problem.to_string()),
        (Some(file), _) => Err(format!("the file {file} is on no machine")),
    }
}
