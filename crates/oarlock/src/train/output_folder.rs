//! Whether all machines of a run see one output folder, in which every rank writes its part of checkpoints and of the model.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::path::Path;

use oarlock_comm::Communicator;

use crate::checkpoint::{by_root, share};
use crate::error::{Error, Result};

/// Refuses an output folder that is another one on some machine, before anything is computed that could not be saved. All
/// ranks call it; on one machine it does nothing.
///
/// # Errors
/// The ranks that do not see what rank 0 writes, the same on all ranks; a folder that rank 0 cannot write.
pub fn check_is_common(comm: &Communicator, folder: &Path) -> Result<()> {
    let machines = comm.machines();
    if machines.iter().all(|machine| *machine == 0) {
        return Ok(());
    }
    let probe = |token: &str| folder.join(format!("seen-by-all-{token}.tmp"));
    let write = || {
        // A new name, so that no machine remembers that it is not there.
        let token = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        fs::write(probe(&token), "").map_err(Error::io("write", folder))?;
        Ok(token)
    };
    let token = by_root(comm, write)?.map_err(Error::Usage)?;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let seen =
        share::<_, String>(comm, Ok((probe(&token).is_file(), host)))?.map_err(|(_, e)| Error::Usage(e))?;
    if comm.rank() == 0 {
        // What cannot be removed disturbs nobody.
        let _ = fs::remove_file(probe(&token));
    }
    let blind: Vec<String> = (seen.iter().enumerate())
        .filter(|(_, (sees, _))| !sees)
        .map(|(rank, (_, host))| format!("rank {rank} on {host}"))
        .collect();
    if blind.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "output_dir {} is not one folder on all machines: {} cannot see what rank 0 on {} writes there. Every rank writes its \
         part of a checkpoint and of the model; name a folder on a file system that all machines share",
        folder.display(),
        blind.join(", "),
        seen.first().map_or("", |(_, host)| host),
    )))
}
