//! How ranks agree on whether a part of a save or a load succeeded.

use std::panic::Location;

use oarlock_comm::Communicator;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

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
