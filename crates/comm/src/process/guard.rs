//! A small process beside the launcher that ends the process groups of ranks when the launcher is killed. The kernel ends
//! the ranks themselves, but not what they started.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};

use crate::error::{Error, Result};

/// The most groups that it can remember; it must not allocate.
const MAX_GROUPS: usize = 4096;

/// The launcher's end of the connection to the guard. The guard ends with it.
pub(super) struct Guard {
    child: Child,
    connection: Option<OwnedFd>,
}

impl Guard {
    /// Starts the process: a copy of this one that only reads its end of a connection.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn start() -> Result<Guard> {
        // Of sockets, because writing to one whose reader was killed raises no signal. Each message is whole.
        let (reader, writer) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|e| Error::system("connect to the guard of the ranks", e))?;
        // The program is never executed: the forked copy is the guard.
        let mut command = Command::new("/proc/self/exe");
        command.stdin(Stdio::from(reader)).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec it makes system calls on its own stack, allocates nothing, takes no lock, and
        // never returns.
        unsafe {
            command.pre_exec(|| watch());
        }
        let child = command.spawn().map_err(|e| Error::system("start the guard of the ranks", e))?;
        Ok(Guard { child, connection: Some(writer) })
    }

    /// The child of this command, which leads a process group, tells the guard of its group before it is executed: what
    /// it starts cannot be there before the guard knows of it. The command keeps the guard alive: drop it first.
    ///
    /// # Errors
    /// When the system refuses another file.
    pub(super) fn watches(&self, command: &mut Command) -> Result<()> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let connection =
            connection.try_clone().map_err(|e| Error::system("connect a rank to its guard", e))?;
        // SAFETY: between fork and exec it makes two system calls and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                notify(connection.as_fd(), rustix::process::getpid().as_raw_nonzero().get());
                Ok(())
            });
        }
        Ok(())
    }

    /// This group has ended; its number can be used again.
    pub(super) fn remove(&mut self, group: Pid) {
        if let Some(connection) = &self.connection {
            notify(connection.as_fd(), -group.as_raw_nonzero().get());
        }
    }
}

/// Adds a group to the list of the guard, or takes the group of the negative number from it.
fn notify(connection: BorrowedFd, word: i32) {
    // It fails only if the guard was killed; the run goes on without it.
    let _ = rustix::net::send(connection, &word.to_ne_bytes(), SendFlags::NOSIGNAL);
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.connection = None;
        // It may have been stopped by a signal.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::CONT);
        }
        // It ends with its input and has no result.
        let _ = self.child.wait();
    }
}

/// Keeps a list of groups until the other end of its input is closed; then kills those on the list.
fn watch() -> ! {
    // Beyond the signals that a terminal sends to all of a session.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"oarlock-guard");
    close_all_but_standard();
    let mut groups: [i32; MAX_GROUPS] = [0; MAX_GROUPS];
    let input = rustix::stdio::stdin();
    let mut word = [0u8; 4];
    loop {
        match rustix::io::read(input, &mut word) {
            Ok(4) => {
                let word = i32::from_ne_bytes(word);
                let (old, new) = if word > 0 { (0, word) } else { (-word, 0) };
                if let Some(place) = groups.iter_mut().find(|group| **group == old) {
                    *place = new;
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    for group in groups {
        if let Some(group) = Pid::from_raw(group).filter(|_| group > 1) {
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
        }
    }
    signal_hook::low_level::exit(0)
}

/// Closes what the launcher has open, so that nobody waits for the end of a pipe that the guard holds. One of them is
/// what `Command::spawn` waits for.
fn close_all_but_standard() {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listing = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty());
    let Ok(listing) = listing else {
        (3..1024).for_each(close);
        return;
    };
    let own = raw(&listing);
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&listing, &mut buffer);
    while let Some(Ok(entry)) = entries.next() {
        let digits = entry.file_name().to_bytes();
        let number = digits.iter().try_fold(0 as RawFd, |number, digit| {
            digit.is_ascii_digit().then(|| number * 10 + RawFd::from(digit - b'0'))
        });
        if let Some(number) = number.filter(|&number| number > 2 && number != own) {
            close(number);
        }
    }
}

fn raw(file: &OwnedFd) -> RawFd {
    use std::os::fd::AsRawFd;
    file.as_fd().as_raw_fd()
}

fn close(file: RawFd) {
    // SAFETY: this copy of the process never returns to the code that owns the file, and no value that would close it
    // again is dropped here.
    unsafe { rustix::io::close(file) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_nobody_else_knows_of_ends_with_the_launcher() {
        let guard = Guard::start().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600").process_group(0);
        guard.watches(&mut command).unwrap();
        let mut child = command.spawn().unwrap();
        drop((command, guard));
        assert_eq!(Some(9), std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()));
    }

    #[test]
    fn a_stopped_guard_delays_nothing() {
        let guard = Guard::start().unwrap();
        let pid = Pid::from_raw(guard.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, Signal::STOP).unwrap();
        while !std::fs::read_to_string(format!("/proc/{}/stat", guard.child.id())).unwrap().contains(") T ") {
            std::thread::yield_now();
        }
        drop(guard);
        assert!(!std::path::Path::new(&format!("/proc/{}", pid.as_raw_nonzero())).exists());
    }
}
