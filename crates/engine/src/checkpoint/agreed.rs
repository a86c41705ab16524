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
use crate::report::error::Problem;
use crate::{Error, Result};

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
struct LocalCheckpoint {
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
    let machines: Vec<(usize, &(String, Vec<LocalCheckpoint>))> =
        all.iter().enumerate().filter(|(rank, _)| stores.leader_of(*rank) == *rank).collect();
    let mut agreed = Agreed::default();
    let (with, without): (Vec<_>, Vec<_>) = machines.iter().partition(|(_, (_, held))| !held.is_empty());
    if !with.is_empty() && !without.is_empty() {
        let names = |held: &[LocalCheckpoint]| held.iter().map(|one| one.name.clone()).collect();
        agreed.apart = with.iter().map(|(rank, (host, held))| (*rank, host.clone(), names(held))).collect();
        agreed.without = without.iter().map(|(rank, (host, _))| (*rank, host.clone())).collect();
    }
    // Of each checkpoint, by step and name: the rank that leads a machine, its host, and what it holds.
    type Holder<'a> = (usize, &'a str, &'a LocalCheckpoint);
    let mut by_step: BTreeMap<(u64, &str), Vec<Holder<'_>>> = BTreeMap::new();
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

fn held(output_dir: &Path, since: Option<SystemTime>) -> Result<Vec<LocalCheckpoint>> {
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
        all.push(LocalCheckpoint { step, name, found });
    }
    Ok(all)
}

/// Whether what machines have of a checkpoint is whole together, and holds the state; why it is not whole.
fn whole(held: &[(usize, &str, &LocalCheckpoint)]) -> std::result::Result<bool, String> {
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

#[cfg(test)]
mod tests {
    use super::super::manifest::{ClientState, FileEntry, FrozenEntry, MANIFEST, PlanEntry};
    use super::*;
    use crate::disk::Sum;

    /// Writes what a machine has of a checkpoint of two ranks: the state of some.
    fn write(output: &Path, step: u64, ranks: &[usize]) {
        let plan = PlanEntry {
            dtype: "f32".into(),
            optimizer: "sharded".into(),
            gradients: "whole".into(),
            parameters: "whole".into(),
            rule: "adamw".into(),
        };
        let mut manifest = Manifest::new(2, plan, step, ClientState::default());
        let frozen = FrozenEntry { shape: vec![1], fingerprint: "0123456789abcdef".into() };
        manifest.frozen.insert("w".into(), frozen);
        manifest.stores = vec![0, 1];
        let folder = output.join(format!("checkpoint-{step}"));
        fs::create_dir_all(folder.join("state")).unwrap();
        for rank in 0..2 {
            let path = format!("state/rank-{rank:05}-of-00002.safetensors");
            if ranks.contains(&rank) {
                fs::write(folder.join(&path), b"state").unwrap();
            }
            manifest.files.push(FileEntry { path, bytes: 5, sums: vec![Sum::of(0, b"state")], xxh64: None });
        }
        fs::write(folder.join(MANIFEST), manifest.seal().unwrap()).unwrap();
    }

    /// What two machines with these folders agree on, as both see it.
    fn agreed(folders: [&Path; 2]) -> Agreed {
        let mut all: Vec<Agreed> = oarlock_comm::shm::on_threads(2, |comm| {
            let stores = Stores::new(vec![0, 1]).unwrap();
            let agreed = newest_of_all(folders[comm.rank()], &comm, &stores, None, &[]).unwrap();
            let names = |path: &PathBuf| PathBuf::from(path.file_name().unwrap());
            Agreed {
                path: agreed.path.as_ref().map(names),
                skipped: agreed.skipped.iter().map(|(path, why)| (names(path), why.clone())).collect(),
                ..agreed
            }
        })
        .unwrap();
        assert_eq!(all[0], all[1]);
        all.swap_remove(0)
    }

    #[test]
    fn machines_go_on_from_the_newest_that_is_whole_on_all_together() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
        for (output, rank) in [(&first, 0), (&second, 1)] {
            write(output, 5, &[rank]);
            write(output, 10, &[rank]);
        }
        assert_eq!(agreed([&first, &second]).path, Some("checkpoint-10".into()));
        // One lacks the newest.
        fs::remove_dir_all(second.join("checkpoint-10")).unwrap();
        let older = agreed([&first, &second]);
        assert_eq!(older.path, Some("checkpoint-5".into()));
        assert_eq!(older.skipped.len(), 1);
        // One has nothing: no part of it is anywhere else.
        write(&second, 10, &[1]);
        fs::remove_dir_all(&first).unwrap();
        let none = agreed([&first, &second]);
        assert_eq!((none.path, none.skipped.len()), (None, 2));
        assert!(none.skipped[0].1.contains("without state/rank-00000-of-00002"), "{:?}", none.skipped);
        assert_eq!(
            (none.apart[0].0, &none.apart[0].2),
            (1, &vec!["checkpoint-5".into(), "checkpoint-10".into()])
        );
        assert_eq!(none.without[0].0, 0);
        // What one machine has whole is enough for all: the others get it.
        write(&second, 10, &[0, 1]);
        assert_eq!(agreed([&first, &second]).path, Some("checkpoint-10".into()));
        // Those of two runs are none.
        write(&first, 10, &[0]);
        let manifest = first.join("checkpoint-10").join(MANIFEST);
        write(&first, 11, &[0]);
        fs::rename(first.join("checkpoint-11").join(MANIFEST), manifest).unwrap();
        fs::remove_dir_all(first.join("checkpoint-11")).unwrap();
        let two = agreed([&first, &second]);
        assert_eq!(two.path, None);
        assert!(two.skipped[0].1.contains("another save under the same name"), "{:?}", two.skipped);
    }
}
