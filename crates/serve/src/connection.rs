//! One connection: heads within their limits, writes that make progress, and an end that lets the client read its answer.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep, timeout};

use crate::state::{Phase, Shared};

/// How much is still read of a request that was answered before its end, and for how long. Without this the kernel would
/// reset the connection, and the client might not see why its request was refused.
const LINGER_BYTES: usize = 256 << 10;
const LINGER_TIME: Duration = Duration::from_millis(500);

/// The smallest buffer that hyper accepts.
const LEAST_HEAD_BYTES: usize = 8 << 10;

type Answer = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

/// Serves a connection until one side ends it.
pub(crate) async fn serve(stream: TcpStream, router: Router, shared: Arc<Shared>) {
    // Pieces of a stream go out as they come; where this cannot be had, they come later.
    _ = stream.set_nodelay(true);
    let limits = &shared.options.limits;
    let routes = TowerToHyperService::new(router);
    let service =
        service_fn(move |request: hyper::Request<Incoming>| -> Answer { Box::pin(routes.call(request)) });
    let io = TokioIo::new(Timed::new(stream, limits.write_time));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(limits.head_bytes.max(LEAST_HEAD_BYTES))
        .max_header_size(limits.head_bytes)
        .serve_connection(io, service);
    let mut draining = pin!(shared.reaches(Phase::Draining));
    let mut is_draining = false;
    let ended = poll_fn(|context| {
        if !is_draining && draining.as_mut().poll(context).is_ready() {
            is_draining = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        connection.poll_without_shutdown(context)
    });
    if ended.await.is_ok() {
        let mut stream = connection.into_parts().io.into_inner();
        // The client may be gone, or may send without end; neither matters any more.
        _ = timeout(LINGER_TIME, linger(&mut stream)).await;
    }
}

/// Says that nothing more comes, and reads until the client says so too.
async fn linger(stream: &mut Timed) -> io::Result<()> {
    stream.shutdown().await?;
    let mut sink = [0; 8 << 10];
    let mut n_read = 0;
    while n_read < LINGER_BYTES {
        match stream.read(&mut sink).await? {
            0 => return Ok(()),
            n => n_read += n,
        }
    }
    Ok(())
}

/// A stream whose writes fail if the other side takes nothing for too long.
struct Timed {
    stream: TcpStream,
    write_time: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Timed {
    fn new(stream: TcpStream, write_time: Duration) -> Timed {
        Timed { stream, write_time, waiting: None }
    }

    /// What came of a write: progress ends the wait, and a wait ends the connection.
    fn watch<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let write_time = self.write_time;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(write_time)));
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets keep nothing back.
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
