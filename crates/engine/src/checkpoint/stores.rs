//! Folders that not all machines see: which ranks write into the same one, and how files reach the others.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use oarlock_comm::Communicator;

use super::outcome::share;
use crate::{Error, Result};

/// Bytes that are sent at once.
const CHUNK: u64 = 8 << 20;

/// The ranks of a run by the file system on which they see an output folder. Each store has a leader: its first rank, which makes
/// folders, and writes what is not a rank's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stores {
    leaders: Vec<usize>,
}

/// A part of a file that one store has and others want.
pub struct Delivery {
    pub from: usize,
    pub to: Vec<usize>,
    /// The file, inside the folder.
    pub path: String,
    pub offset: u64,
    pub bytes: u64,
}

impl Stores {
    /// One store for all.
    pub fn one(world_size: usize) -> Stores {
        Stores { leaders: vec![0; world_size] }
    }

    /// The stores whose leaders are given for each rank.
    ///
    /// # Errors
    /// When one is not the first of its ranks.
    pub fn new(leaders: Vec<usize>) -> Result<Stores> {
        let is_first = |(rank, &leader): (usize, &usize)| leader <= rank && leaders[leader] == leader;
        match leaders.iter().enumerate().all(is_first) {
            true => Ok(Stores { leaders }),
            false => Err(Error::Usage(format!("no stores: {leaders:?} are not the first ranks of each"))),
        }
    }

    /// Looks who sees which folder of this name, which is made where it is not there. All ranks call it; on one machine it does
    /// nothing.
    ///
    /// # Errors
    /// A folder that a machine cannot write, or that some ranks of a machine do not see; the same on all ranks.
    pub fn of_folder(comm: &Communicator, folder: &Path) -> Result<Stores> {
        let machines = comm.machines();
        if machines.iter().all(|machine| *machine == 0) {
            return Ok(Stores::one(machines.len()));
        }
        let first =
            |rank: usize| machines.iter().position(|&machine| machine == machines[rank]).unwrap_or(rank);
        let probe = |token: &str| folder.join(format!("seen-by-all-{token}.tmp"));
        let write = || {
            if first(comm.rank()) != comm.rank() {
                return Ok(String::new());
            }
            // A new name, so that no machine remembers that it is not there.
            let token = oarlock_files::token().map_err(Error::io("name a file in", folder))?;
            fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
            oarlock_files::create_new(&probe(&token)).map_err(Error::io("write", folder))?;
            Ok(token)
        };
        let written = write().map_err(|error: Error| error.to_string());
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let remove = || {
            // What cannot be removed disturbs nobody.
            let token = written.as_ref().ok().filter(|token| !token.is_empty());
            token.map(|token| fs::remove_file(probe(token)));
        };
        let named = written.clone().map_err(|cause| (host.clone(), cause));
        let shared = share(comm, named).inspect_err(|_| remove())?;
        let tokens = shared.map_err(|(rank, (host, cause))| {
            remove();
            Error::Refused(format!("rank {rank} on {host}: output_dir: {cause}"))
        })?;
        let sees = |rank: &usize| first(*rank) == *rank && probe(&tokens[*rank]).is_file();
        let seen: Vec<usize> = (0..machines.len()).filter(sees).collect();
        let all = share::<_, String>(comm, Ok((seen, host))).inspect_err(|_| remove());
        let all = all?.map_err(|(_, e)| Error::Usage(e))?;
        remove();
        let blind = (0..machines.len()).find(|&rank| !all[rank].0.contains(&first(rank)));
        if let Some(rank) = blind {
            return Err(Error::Usage(format!(
                "output_dir {}: rank {rank} on {} does not see what rank {} of the same machine writes there; do both run in \
                 containers with other folders?",
                folder.display(),
                all[rank].1,
                first(rank),
            )));
        }
        Stores::new((0..machines.len()).map(|rank| all[first(rank)].0[0]).collect())
    }

    /// Whether all ranks see one folder.
    pub fn are_one(&self) -> bool {
        self.leaders.iter().all(|&leader| leader == 0)
    }

    /// The leader of the store of each rank.
    pub fn leaders(&self) -> &[usize] {
        &self.leaders
    }

    /// The first rank that sees the same folder.
    pub fn leader_of(&self, rank: usize) -> usize {
        self.leaders[rank]
    }

    /// The leaders of the stores, one each.
    pub fn each(&self) -> impl Iterator<Item = usize> {
        self.leaders.iter().enumerate().filter(|(rank, leader)| rank == *leader).map(|(rank, _)| rank)
    }

    /// The ranks of a store.
    pub fn ranks_of(&self, leader: usize) -> Vec<usize> {
        (0..self.leaders.len()).filter(|&rank| self.leaders[rank] == leader).collect()
    }
}

/// Brings parts of files from one store to others, all to the disk. `path_of` says where a file lies on this rank; files that are
/// written are there. All ranks call it with the same deliveries.
///
/// # Errors
/// The outer result is that of the communication, the inner one the same on all ranks: who failed, and why.
pub fn deliver(
    comm: &Communicator,
    deliveries: &[Delivery],
    path_of: &dyn Fn(&str) -> PathBuf,
) -> Result<std::result::Result<(), (usize, String)>> {
    let me = comm.rank();
    let mut failed = None;
    let mut written: Vec<PathBuf> = Vec::new();
    for Delivery { from, to, path, offset, bytes } in deliveries {
        let path = path_of(path);
        for at in (*offset..offset + bytes).step_by(CHUNK as usize) {
            let wanted = CHUNK.min(offset + bytes - at) as usize;
            let mut chunk = Vec::new();
            if me == *from {
                chunk.resize(wanted, 0);
                let read = oarlock_comm::open_file(&path).and_then(|file| file.read_exact_at(&mut chunk, at));
                if let Err(cause) = read {
                    failed.get_or_insert(Error::io("read", &path)(cause).to_string());
                    // The others learn it at the end.
                    chunk.fill(0);
                }
            }
            let chunk = comm.broadcast_bytes(*from, &chunk)?;
            if to.contains(&me) && failed.is_none() {
                match oarlock_files::open(&path).and_then(|file| file.write_all_at(&chunk, at)) {
                    Ok(()) if written.contains(&path) => {}
                    Ok(()) => written.push(path.clone()),
                    Err(cause) => failed = Some(Error::io("write", &path)(cause).to_string()),
                }
            }
        }
    }
    let sync = |path: &PathBuf| {
        File::open(path)
            .and_then(|file| file.sync_all())
            .map_err(|cause| Error::io("write", path)(cause).to_string())
    };
    let outcome = failed.map_or_else(|| written.iter().try_for_each(sync), Err);
    Ok(share(comm, outcome)?.map(|_| ()))
}
