//! The server: its own runtime, the connections that it accepts, and its end.

use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::backend::Backend;
use crate::connection;
use crate::hosts::Hosts;
use crate::options::Options;
use crate::routes::router;
use crate::state::{N_COMPUTING_THREADS, Phase, Shared};

/// How long answers have for their last words when the time for them is over.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// How long to wait when the system has no room for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a server has not come to run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The listener is of no use.
    #[error("the server cannot listen: {0}")]
    Listener(#[source] io::Error),
    /// There are no threads for it.
    #[error("the server has no threads: {0}")]
    Threads(#[source] io::Error),
}

/// How a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Connections that were not done when the time for that was over.
    pub n_cut_off: usize,
}

/// Ends a server from any thread. A server goes on if this is dropped.
#[derive(Debug)]
pub struct Stop(oneshot::Sender<()>);

impl Stop {
    /// Says that the server is to end.
    pub fn stop(self) {
        // Where the server has ended there is nothing to do.
        _ = self.0.send(());
    }
}

/// What ends a server, and the future that waits for it, for callers without a runtime.
pub fn stop() -> (Stop, impl Future<Output = ()> + Send + 'static) {
    let (sender, receiver) = oneshot::channel();
    let wait = async move {
        if receiver.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    (Stop(sender), wait)
}

/// Serves until `shutdown` is ready. Then nothing more is accepted, what waits for its turn is refused, and what has begun
/// has [`crate::Limits::drain_time`] to be finished. The runtime is the server's own; a task of another one cannot call this.
///
/// # Errors
/// Where the server has not come to run.
pub fn serve(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    options: Options,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<Ended, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(options.n_threads.clamp(1, 2))
        .max_blocking_threads(N_COMPUTING_THREADS)
        .thread_name("oarlock-serve")
        .enable_io()
        .enable_time()
        .build()
        .map_err(ServeError::Threads)?;
    let ended = runtime.block_on(run(listener, backend, options, shutdown));
    // What a backend computes cannot be stopped; nobody waits for it.
    runtime.shutdown_background();
    ended
}

async fn run(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    options: Options,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<Ended, ServeError> {
    let address = listener.local_addr().map_err(ServeError::Listener)?;
    listener.set_nonblocking(true).map_err(ServeError::Listener)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::Listener)?;
    let hosts = Hosts::new(address, &options.allowed_hosts);
    let places = Arc::new(Semaphore::new(options.limits.n_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let drain_time = options.limits.drain_time;
    let shared = Arc::new(Shared::new(backend, options, hosts));
    let router = router(&shared);
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let place = Arc::clone(&places).acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((listener.accept().await?.0, place))
        };
        tokio::select! {
            accepted = accepted => match accepted {
                Ok((stream, place)) => {
                    let serving = connection::serve(stream, router.clone(), Arc::clone(&shared));
                    connections.spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = &mut shutdown => break,
        }
    }
    drop(listener);
    shared.enter(Phase::Draining);
    if timeout(drain_time, end_all(&mut connections)).await.is_ok() {
        return Ok(Ended { n_cut_off: 0 });
    }
    let n_cut_off = connections.len();
    shared.enter(Phase::Over);
    if timeout(LAST_WORDS_TIME, end_all(&mut connections)).await.is_err() {
        connections.shutdown().await;
    }
    Ok(Ended { n_cut_off })
}

async fn end_all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}
