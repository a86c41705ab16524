//! Ranks that `mpirun` or `srun` started: the messages of [`messages`](crate::messages) through an MPI library.

mod library;

use std::sync::mpsc;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::{Launched, NOTICE, join_limit};
use crate::messages::{self, Library};
use library::Mpi;

/// Joins the ranks that `mpirun` or `srun` started; returns when all have joined. If the wait is long, `notify` is called
/// once with the reason.
pub(crate) fn join(place: &Launched, notify: &dyn Fn(&str)) -> Result<Communicator> {
    let limit = join_limit()?;
    messages::join(place, limit, || start(limit, notify))
}

/// Starts MPI. Its start has no time limit, so a thread waits for it.
fn start(limit: Duration, notify: &dyn Fn(&str)) -> Result<Box<dyn Library>> {
    let notice = NOTICE.min(limit / 2);
    let (started, start) = mpsc::channel();
    std::thread::Builder::new()
        .name("mpi start".into())
        // If nobody receives it the process is about to end.
        .spawn(move || drop(started.send(Mpi::start())))
        .map_err(|e| Error::system("start a thread that starts MPI", e))?;
    let library = match start.recv_timeout(notice) {
        Err(mpsc::RecvTimeoutError::Timeout) => {
            notify(&format!(
                "MPI waits for other ranks to start, at most {} s; check that all machines have this program and can \
                 reach each other",
                limit.as_secs()
            ));
            start.recv_timeout(limit.saturating_sub(notice))
        }
        other => other,
    };
    let library = library.map_err(|_| {
        let seconds = limit.as_secs();
        Error::Join(format!(
            "MPI did not start within {seconds} s: other ranks are missing, or machines cannot reach each other"
        ))
    })??;
    Ok(Box::new(library))
}
