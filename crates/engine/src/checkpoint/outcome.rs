//! How ranks agree on whether a part of a save or a load succeeded.

use std::panic::Location;

use oarlock_comm::Communicator;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// What each rank achieved, in the order of ranks, or the failure of the lowest rank that failed: the same everywhere.
/// The outer result is that of the communication.
#[track_caller]
pub fn share<T, E>(
    comm: &Communicator,
    mine: std::result::Result<T, E>,
) -> Result<std::result::Result<Vec<T>, (usize, E)>>
where
    T: Serialize + DeserializeOwned,
    E: Serialize + DeserializeOwned,
{
    let here = Location::caller();
    let unwritten = |error| Error::Usage(format!("what this rank has to say cannot be written: {error}"));
    let all = comm.all_gather_bytes(&serde_json::to_vec(&mine).map_err(unwritten)?)?;
    let mut achieved = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        let elsewhere = |_| {
            Error::Usage(format!(
                "rank {rank} is in another call than rank {}, which is at {}:{}; all ranks call the same in the same \
                 order",
                comm.rank(),
                here.file(),
                here.line()
            ))
        };
        match serde_json::from_slice::<std::result::Result<T, E>>(bytes).map_err(elsewhere)? {
            Ok(outcome) => achieved.push(outcome),
            Err(error) => return Ok(Err((rank, error))),
        }
    }
    Ok(Ok(achieved))
}

/// What rank 0 has done or found, on all ranks, or why it failed. The outer result is that of the communication.
#[track_caller]
pub fn by_root<T>(
    comm: &Communicator,
    act: impl FnOnce() -> Result<T>,
) -> Result<std::result::Result<T, String>>
where
    T: Default + Serialize + DeserializeOwned,
{
    let mine = if comm.rank() == 0 { act().map_err(|error| error.to_string()) } else { Ok(T::default()) };
    let all = share(comm, mine)?;
    Ok(all.map(|all| all.into_iter().next().unwrap_or_default()).map_err(|(_, cause)| cause))
}
