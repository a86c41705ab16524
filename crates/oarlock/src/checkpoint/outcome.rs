//! How ranks agree on whether a part of a save or a load succeeded.

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
    let unexpected =
        |error: serde_json::Error| Error::Usage(format!("the ranks' outcomes do not travel: {error}"));
    let all = comm.all_gather_bytes(&serde_json::to_vec(&mine).map_err(unexpected)?)?;
    let mut achieved = Vec::with_capacity(all.len());
    for (rank, bytes) in all.iter().enumerate() {
        match serde_json::from_slice::<std::result::Result<T, E>>(bytes).map_err(unexpected)? {
            Ok(outcome) => achieved.push(outcome),
            Err(error) => return Ok(Err((rank, error))),
        }
    }
    Ok(Ok(achieved))
}
