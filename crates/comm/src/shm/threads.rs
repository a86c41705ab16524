//! Ranks that are threads of this process.

use std::convert::Infallible;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::Arc;

use super::group::Member;
use super::host::world;
use super::segment::Segment;
use crate::communicator::Communicator;
use crate::error::Result;

/// Ranks for the threads of this process; each thread takes one. [`on_threads`] also starts and joins the threads.
///
/// # Errors
/// When the system refuses shared memory or the number of ranks is impossible.
pub fn threads(world_size: usize) -> Result<Vec<Communicator>> {
    let segment = Arc::new(Segment::create(world_size)?.0);
    (0..world_size).map(|rank| Ok(world(Member::join(segment.clone(), rank)?))).collect()
}

/// Runs `rank` on `world_size` threads, each of which is one rank of a group, and returns what each returned, in the order
/// of ranks.
///
/// ```
/// let ranks = oarlock_comm::shm::on_threads(2, |comm| (comm.rank(), comm.world_size()))?;
/// assert_eq!(ranks, [(0, 2), (1, 2)]);
/// # Ok::<(), oarlock_comm::Error>(())
/// ```
///
/// # Errors
/// Those of [`threads`].
///
/// # Panics
/// When a rank panics; the others hear of it in their next collective.
pub fn on_threads<T: Send>(world_size: usize, rank: impl Fn(Communicator) -> T + Sync) -> Result<Vec<T>> {
    let ranks = try_on_threads(world_size, |comm| Ok::<T, Infallible>(rank(comm)))?;
    Ok(ranks.into_iter().map(|Ok(value)| value).collect())
}

/// The same for ranks that may fail: one that returns an error aborts the group with its message.
///
/// # Errors
/// Those of [`threads`].
///
/// # Panics
/// When a rank panics; the others hear of it in their next collective.
pub fn try_on_threads<T: Send, E: Display + Send>(
    world_size: usize,
    rank: impl Fn(Communicator) -> std::result::Result<T, E> + Sync,
) -> Result<Vec<std::result::Result<T, E>>> {
    let comms = threads(world_size)?;
    Ok(std::thread::scope(|scope| {
        let start = |comm: Communicator| {
            let rank = &rank;
            scope.spawn(move || {
                let result = rank(comm.clone());
                match &result {
                    Ok(_) => comm.finish(),
                    Err(error) => comm.abort(&error.to_string()),
                }
                result
            })
        };
        let running: Vec<_> = comms.into_iter().map(start).collect();
        running.into_iter().map(|rank| rank.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }))
}
