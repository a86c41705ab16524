//! Ranks as threads of this process: torch's `mp.spawn` without processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use oarlock_comm::{Communicator, shm};

use crate::error::{Error, Result, SpawnError};
use crate::panics;
use crate::rank;

/// Runs `f(rank)` in `n_ranks` threads, which are the ranks of a group, and waits for all of them. In each
/// [`Accelerator::new`](crate::Accelerator::new) and
/// [`init_process_group`](super::init_process_group) find the rank and its group; nothing has to be set before.
///
/// Where a rank returns an error or panics, the others get an error from the collective that they wait in, or from
/// their next one. torch starts processes; [`spawn_processes`](super::spawn_processes) does that.
///
/// ```
/// use oarlock::distributed;
///
/// distributed::spawn(2, |rank| {
///     let group = distributed::init_process_group("gloo".parse()?, &Default::default())?;
///     assert_eq!((group.rank(), group.world_size()), (rank, 2));
///     group.barrier()
/// })?;
/// # Ok::<(), oarlock::Error>(())
/// ```
///
/// # Errors
/// [`SpawnError`] with the rank that failed first; or when there can be no such group.
pub fn spawn<F>(n_ranks: usize, f: F) -> Result<()>
where
    F: Fn(usize) -> Result<()> + Sync,
{
    run(n_ranks, &[], f)
}

/// The same, with variables for the ranks alone.
pub(super) fn run<F>(n_ranks: usize, variables: &[(&'static str, String)], f: F) -> Result<()>
where
    F: Fn(usize) -> Result<()> + Sync,
{
    if n_ranks == 0 {
        return Err(Error::Usage("spawn: 0 ranks were asked for; there is at least one".to_owned()));
    }
    let comms = shm::threads(n_ranks)?;
    let first = Mutex::new(None);
    std::thread::scope(|scope| {
        for comm in comms {
            let name = format!("rank {}", comm.rank());
            let (first, f) = (&first, &f);
            // One that does not start leaves its group, which the others then hear of.
            Builder::new()
                .name(name)
                .spawn_scoped(scope, move || one(&comm, variables, f, first))
                .map_err(Error::io("start", "a thread for a rank"))?;
        }
        Ok::<(), Error>(())
    })?;
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(()),
        Some(failure) => Err(failure.into()),
    }
}

/// A rank from its first to its last moment.
fn one(
    comm: &Communicator,
    variables: &[(&'static str, String)],
    f: &(dyn Fn(usize) -> Result<()> + Sync),
    first: &Mutex<Option<SpawnError>>,
) {
    let rank = comm.rank();
    // What a rank leaves half done, nobody sees: the group has failed with it.
    let ended = catch_unwind(AssertUnwindSafe(|| rank::within(comm, variables, || f(rank))));
    let (failure, cause) = match ended {
        Ok(Ok(())) => return comm.finish(),
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
}
