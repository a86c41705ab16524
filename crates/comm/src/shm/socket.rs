//! Records between processes of one user over an abstract Unix socket. One send is one receive, and a record may carry a
//! file. Nothing waits beyond its deadline.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;

use crate::error::{Error, Result};

/// The longest record.
pub(super) const RECORD: usize = 1024;

/// A name that others can connect to, for as long as the value lives.
pub(super) struct Listener(OwnedFd);

/// One end of a connection.
pub(super) struct Connection {
    socket: OwnedFd,
    /// The process at the other end when it connected, and its user.
    pub(super) pid: u32,
    pub(super) uid: u32,
}

/// The result of a receive.
pub(super) enum Received {
    /// A record, and the file that it carries.
    Record(Vec<u8>, Option<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The other end is closed.
    Closed,
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|e| Error::system("make a socket", e))
}

fn address(name: &str) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(|e| Error::system("name a socket", e))
}

impl Listener {
    /// `None` where the name is taken.
    pub(super) fn bind(name: &str) -> Result<Option<Listener>> {
        let socket = socket()?;
        match rustix::net::bind(&socket, &address(name)?) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => return Ok(None),
            Err(e) => return Err(Error::system(format!("take the name @{name} for a socket"), e)),
        }
        rustix::net::listen(&socket, 256).map_err(|e| Error::system(format!("listen on @{name}"), e))?;
        Ok(Some(Listener(socket)))
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> Result<Option<Connection>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.0, flags) {
            Ok(socket) => Connection::new(socket).map(Some),
            // A peer that gave up meanwhile is ignored.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(e) => Err(Error::system("accept a rank", e)),
        }
    }

    /// Refuses connections from now on; the name stays taken.
    pub(super) fn close(&self) {
        // It cannot fail for a listening socket; if it did, late ranks would wait until their time limit.
        let _ = rustix::net::shutdown(&self.0, Shutdown::Both);
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Connection {
    fn new(socket: OwnedFd) -> Result<Connection> {
        let peer = rustix::net::sockopt::socket_peercred(&socket)
            .map_err(|e| Error::system("ask who connects", e))?;
        let (pid, uid) = (peer.pid.as_raw_nonzero().get() as u32, peer.uid.as_raw());
        Ok(Connection { socket, pid, uid })
    }

    /// `None` where nobody listens, or the queue is full.
    pub(super) fn open(name: &str) -> Result<Option<Connection>> {
        let socket = socket()?;
        match rustix::net::connect(&socket, &address(name)?) {
            Ok(()) => Connection::new(socket).map(Some),
            Err(Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(Error::system(format!("connect to @{name}"), e)),
        }
    }

    /// Sends one record. False if it was not sent: a peer that is gone is noticed at the next receive.
    pub(super) fn send(&self, record: &[u8], file: Option<BorrowedFd>) -> bool {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files: Vec<BorrowedFd> = file.into_iter().collect();
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
            return false;
        }
        let record = &record[..record.len().min(RECORD)];
        let send =
            || rustix::net::sendmsg(&self.socket, &[IoSlice::new(record)], &mut control, SendFlags::NOSIGNAL);
        retry_on_intr(send).is_ok()
    }

    pub(super) fn receive(&self) -> Received {
        let mut bytes = [0u8; RECORD];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::net::recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        match got {
            Ok(got) if got.bytes > 0 => {
                let file = control.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut files) => files.next(),
                    _ => None,
                });
                Received::Record(bytes[..got.bytes.min(RECORD)].to_vec(), file)
            }
            Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
            _ => Received::Closed,
        }
    }

    /// The next record or the end of the connection; nothing once the deadline has passed.
    pub(super) fn receive_until(&self, deadline: Instant) -> Received {
        loop {
            match self.receive() {
                Received::Nothing if Instant::now() < deadline => wait(&[self.as_fd()], deadline),
                other => return other,
            }
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until one of the files can be read, the deadline has passed, or 100 ms are over.
pub(super) fn wait(files: &[BorrowedFd], deadline: Instant) {
    let mut polled: Vec<PollFd> =
        files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN)).collect();
    let pause = deadline.saturating_duration_since(Instant::now()).min(Duration::from_millis(100));
    let limit = Timespec { tv_sec: 0, tv_nsec: pause.as_nanos() as i64 };
    // The caller checks for itself, whatever this returns.
    let _ = rustix::event::poll(&mut polled, Some(&limit));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_and_files_arrive_whole_and_a_closed_name_stays_taken() {
        let name = format!("oarlock-test-socket-{}", std::process::id());
        let soon = || Instant::now() + Duration::from_secs(10);
        assert!(Connection::open(&name).unwrap().is_none());
        let listener = Listener::bind(&name).unwrap().unwrap();
        let one = Connection::open(&name).unwrap().unwrap();
        let other = listener.accept().unwrap().unwrap();
        assert!(listener.accept().unwrap().is_none());
        assert_eq!((one.pid, other.pid), (std::process::id(), std::process::id()));
        assert_eq!(one.uid, rustix::process::getuid().as_raw());
        assert!(matches!(other.receive(), Received::Nothing));
        let file = tempfile();
        assert!(one.send(b"first", None) && one.send(b"second", Some(file.as_fd())));
        let Received::Record(record, None) = other.receive_until(soon()) else { panic!() };
        assert_eq!(record, b"first");
        let Received::Record(record, Some(_)) = other.receive_until(soon()) else { panic!() };
        assert_eq!(record, b"second");
        drop(one);
        assert!(matches!(other.receive_until(soon()), Received::Closed));
        assert!(!other.send(b"late", None));
        listener.close();
        assert!(Connection::open(&name).unwrap().is_none());
        assert!(Listener::bind(&name).unwrap().is_none());
        drop(listener);
        assert!(Listener::bind(&name).unwrap().is_some());
    }

    fn tempfile() -> OwnedFd {
        rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }
}
