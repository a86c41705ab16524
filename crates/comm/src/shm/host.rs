//! The launcher's side: creates the segment, hands it to its children, and reads what they write in it. Also how ranks
//! join a segment: inherited, or through a rendezvous.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::FdFlags;

use super::failure::Failure;
use super::group::Member;
use super::layout::{ABSENT, RUNNING};
use super::rendezvous;
use super::segment::{Segment, Token};
use super::status::{self, state, status};
use super::transport::SharedMemory;
use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::launched::Launched;
use crate::ledger::{RankState, RankStatus};

/// The one variable through which a rank learns of the segment: `file,rank,ranks,token`.
const VARIABLE: &str = "OARLOCK_SHARED_MEMORY";

/// A segment that the ranks of a launcher join. It has no name in any file system: it is freed with the last process that
/// maps it.
pub struct ShmHost {
    segment: Arc<Segment>,
    token: Token,
}

impl ShmHost {
    /// A fresh segment for `world_size` ranks.
    ///
    /// # Errors
    /// When the system refuses shared memory or the number of ranks is impossible.
    pub fn create(world_size: usize) -> Result<ShmHost> {
        let (segment, token) = Segment::create(world_size)?;
        Ok(ShmHost { segment: Arc::new(segment), token })
    }

    /// The number of ranks.
    pub fn world_size(&self) -> usize {
        self.segment.world_size()
    }

    /// Lets the process that `command` will start join as `rank`. Only this child inherits the segment.
    pub fn attach(&self, rank: usize, command: &mut Command) {
        let file = self.segment.file().as_raw_fd();
        command.env(VARIABLE, format!("{file},{rank},{},{:032x}", self.world_size(), self.token.0));
        let segment = self.segment.clone();
        // SAFETY: between fork and exec it makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(move || Ok(rustix::io::fcntl_setfd(segment.file(), FdFlags::empty())?));
        }
    }

    /// The first failure of the run, once there is one.
    pub fn failure(&self) -> Option<Error> {
        status::failure(&self.segment)
    }

    /// Tells all ranks that `rank` failed, unless a failure is known already.
    pub fn report_failure(&self, rank: usize, cause: &str) {
        self.segment.header().failure.post(&Failure::Peer { rank, cause: cause.into() });
    }

    /// Reports one of these ranks, whose processes have ended well, as failed if it never joined while others have.
    pub(crate) fn report_absent(&self, ended: &[usize]) {
        let is = |rank: usize, state: u32| self.segment.cell(rank).state.load(Ordering::Acquire) == state;
        if (0..self.world_size()).any(|rank| is(rank, RUNNING))
            && let Some(&rank) = ended.iter().find(|&&rank| is(rank, ABSENT))
        {
            self.report_failure(rank, "it ended, with exit code 0, but never joined the others");
        }
    }

    /// What each rank was last doing.
    pub fn statuses(&self) -> Vec<RankStatus> {
        (0..self.world_size()).map(|rank| status(&self.segment, rank)).collect()
    }
}

/// Joins the ranks of a [`ShmHost`] that this process inherited, if it inherited one and its rank is free.
///
/// # Errors
/// When what was handed down is not this run's segment, or another process has taken the rank.
pub(crate) fn join_inherited() -> Result<Option<Communicator>> {
    match std::env::var(VARIABLE) {
        Ok(value) => join(&value),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(error) => Err(Error::Join(format!("{VARIABLE}: {error}"))),
    }
}

/// Joins the ranks of another launcher on this machine; returns when all have joined.
pub(crate) fn join_launched(place: &Launched, notify: &dyn Fn(&str)) -> Result<Communicator> {
    Ok(world(rendezvous::join(place, notify)?))
}

/// The communicator of all ranks of a segment.
pub(super) fn world(member: Member) -> Communicator {
    Communicator::new(Arc::new(SharedMemory::world(member)))
}

/// Joins the inherited segment. `None` if an earlier program of this rank has used its place, as in a script that runs one
/// training after the other: the later ones meet as under any other launcher.
fn join(value: &str) -> Result<Option<Communicator>> {
    let malformed = || Error::Join(format!("{VARIABLE} should be file,rank,ranks,token; it is {value:?}"));
    let parts: Vec<&str> = value.split(',').collect();
    let &[file, rank, world_size, token] = parts.as_slice() else { return Err(malformed()) };
    let file: RawFd = file.parse().ok().filter(|&f| f >= 0).ok_or_else(malformed)?;
    let rank: usize = rank.parse().map_err(|_| malformed())?;
    let world_size: usize = world_size.parse().map_err(|_| malformed())?;
    let token = Token(u128::from_str_radix(token, 16).map_err(|_| malformed())?);
    // SAFETY: borrowed for the next two calls only. If the number is not open they fail; if it is another file, the
    // copy does not pass the checks of `Segment::open`.
    let inherited = unsafe { BorrowedFd::borrow_raw(file) };
    let own = rustix::io::fcntl_dupfd_cloexec(inherited, 3).map_err(|e| {
        Error::Join(format!(
            "{VARIABLE} names file {file}, which is not open here ({e}); ranks are started by the launcher"
        ))
    })?;
    let segment = Segment::open(own, world_size, token)?;
    // It is the segment: children of this process do not need it.
    rustix::io::fcntl_setfd(inherited, FdFlags::CLOEXEC)
        .map_err(|e| Error::system("keep the segment from children", e))?;
    if rank >= world_size {
        return Err(Error::Join(format!("{VARIABLE} says rank {rank} of {world_size}")));
    }
    let was_used = matches!(state(&segment, rank), RankState::Finished | RankState::Left | RankState::Dead);
    if was_used && Launched::from_env()?.is_some() {
        return Ok(None);
    }
    let member = Member::join(Arc::new(segment), rank)?;
    Ok(Some(world(member)))
}
