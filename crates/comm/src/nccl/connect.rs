//! How ranks that have met become those of a communicator of NCCL: by an id that their first one makes.

use std::time::Duration;

use oarlock_cuda::nccl::{Comm, Nccl, Patience, UniqueId};
use oarlock_tensor::SideStream;

use crate::communicator::Communicator;
use crate::error::Result;

/// How long ranks that have just met wait for NCCL to connect them, if they are not told to give up earlier.
const CONNECT: Duration = Duration::from_secs(120);

/// Joins the ranks of a communicator in one of NCCL. If one fails, all do, and each says why.
///
/// # Errors
/// Those of collectives of `comm`.
pub(super) fn connect(
    comm: &Communicator,
    nccl: &Nccl,
    side: &SideStream,
) -> Result<std::result::Result<Comm, String>> {
    let id = if comm.rank() == 0 { nccl.unique_id().map(Some) } else { Ok(None) };
    let made = match &id {
        Ok(id) => id.map(|id| id.to_bytes().to_vec()).unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    let message = comm.broadcast_bytes(0, &made)?;
    let patience = Patience::new(comm.transport().patience().limit().min(CONNECT));
    let joined = match (<[u8; UniqueId::BYTES]>::try_from(&message[..]), id) {
        (_, Err(error)) => Err(error.to_string()),
        (Err(_), _) => Err("rank 0 could not make an id".to_string()),
        (Ok(id), _) => {
            let (rank, n) = (comm.rank(), comm.world_size());
            let joined = nccl.join(side.context(), UniqueId::from_bytes(id), rank, n, patience);
            joined.map_err(|error| error.to_string())
        }
    };
    let said = joined.as_ref().err().cloned().unwrap_or_default();
    let all = comm.all_gather_bytes(said.as_bytes())?;
    match (joined, all.iter().position(|said| !said.is_empty())) {
        (Ok(joined), None) => Ok(Ok(joined)),
        // What has joined is aborted when it goes.
        (joined, rank) => Ok(Err(joined.err().unwrap_or_else(|| {
            rank.map_or_else(String::new, |r| format!("rank {r}: {}", String::from_utf8_lossy(&all[r])))
        }))),
    }
}
