//! Ranks as threads of this process: torch's `mp.spawn` without processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use oarlock_comm::{Communicator, shm};

use super::rank;
use crate::report::error::SpawnError;
use crate::report::panics;
use crate::{Error, Result};

/// Runs `f(rank)` in `n_ranks` threads, which are the ranks of a group, and waits for all of them; returns what each has
/// returned, in the order of ranks. In each [`Accelerator::new`](crate::Accelerator::new) and
/// [`init_process_group`](super::init_process_group) find the rank and its group; nothing has to be set before.
///
/// Where a rank returns an error or panics, the others get an error from the collective that they wait in, or from
/// their next one. torch starts processes; [`spawn_processes`](super::spawn_processes) does that.
///
/// ```
/// use oarlock::distributed;
///
/// let ranks = distributed::spawn(2, |rank| {
///     let group = distributed::init_process_group("gloo".parse()?, &Default::default())?;
///     group.barrier()?;
///     Ok((rank, group.rank(), group.world_size()))
/// })?;
/// assert_eq!(ranks, [(0, 0, 2), (1, 1, 2)]);
/// # Ok::<(), oarlock::Error>(())
/// ```
///
/// # Errors
/// [`SpawnError`] with the rank that failed first; or when there can be no such group.
pub fn spawn<F, T>(n_ranks: usize, f: F) -> Result<Vec<T>>
where
    F: Fn(usize) -> Result<T> + Sync,
    T: Send,
{
    run(n_ranks, &[], f)
}

/// The same, with variables for the ranks alone.
pub(super) fn run<F, T>(n_ranks: usize, variables: &[(&'static str, String)], f: F) -> Result<Vec<T>>
where
    F: Fn(usize) -> Result<T> + Sync,
    T: Send,
{
    if n_ranks == 0 {
        return Err(Error::Usage("spawn: 0 ranks were asked for; there is at least one".to_owned()));
    }
    let comms = shm::threads(n_ranks)?;
    let first = Mutex::new(None);
    let values: Vec<Option<T>> = std::thread::scope(|scope| {
        let mut ranks = Vec::with_capacity(n_ranks);
        for comm in comms {
            let name = format!("rank {}", comm.rank());
            let (first, f) = (&first, &f);
            // One that does not start leaves its group, which the others then hear of.
            let rank = Builder::new().name(name).spawn_scoped(scope, move || one(&comm, variables, f, first));
            ranks.push(rank.map_err(Error::io("start", "a thread for a rank"))?);
        }
        // A panic of `f` does not get here.
        Ok::<_, Error>(ranks.into_iter().map(|rank| rank.join().ok().flatten()).collect())
    })?;
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(values.into_iter().flatten().collect()),
        Some(failure) => Err(failure.into()),
    }
}

/// A rank from its first to its last moment; nothing where it failed.
fn one<T>(
    comm: &Communicator,
    variables: &[(&'static str, String)],
    f: &(dyn Fn(usize) -> Result<T> + Sync),
    first: &Mutex<Option<SpawnError>>,
) -> Option<T> {
    let rank = comm.rank();
    // What a rank leaves half done, nobody sees: the group has failed with it.
    let ended = catch_unwind(AssertUnwindSafe(|| rank::within(comm, variables, || f(rank))));
    let (failure, cause) = match ended {
        Ok(Ok(value)) => {
            comm.finish();
            return Some(value);
        }
        Ok(Err(error)) => {
            let cause = error.to_string();
            (SpawnError::Failed { rank, error: Box::new(error) }, cause)
        }
        Err(panic) => {
            let message = panics::message(&*panic).to_owned();
            (SpawnError::Panicked { rank, message: message.clone() }, format!("panicked: {message}"))
        }
    };
    // Before the others hear of it, so that none of them is first.
    first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    comm.abort(&cause);
    None
}
