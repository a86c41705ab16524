//! A process group: some ranks of a run, and this one's place among them.

use std::fmt;
use std::sync::Arc;

use oarlock_comm::Communicator;

use crate::{Error, Result};

/// Ranks that run collectives together. Clones are the same group. Ranks are named by their numbers in the whole run, as
/// in torch, also in collectives of a sub-group.
#[derive(Clone)]
pub struct ProcessGroup {
    pub(super) comm: Communicator,
    /// The number in the run of each rank of the group.
    ranks: Arc<[usize]>,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup(rank {} of ranks {:?})", self.ranks[self.rank()], self.ranks)
    }
}

impl ProcessGroup {
    /// All ranks of a communicator.
    pub fn over(comm: Communicator) -> ProcessGroup {
        let ranks = (0..comm.world_size()).collect();
        ProcessGroup { comm, ranks }
    }

    /// The place of this rank in the group, from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// The ranks of the group.
    pub fn world_size(&self) -> usize {
        self.comm.world_size()
    }

    /// The number in the run of each rank of the group.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The communicator of the group, as [`Accelerator::over`](crate::Accelerator::over) takes it.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// A group of some ranks of this one, in the order of their numbers; `None` in a rank that is not among them. All
    /// ranks of this group call it, with the same ranks.
    ///
    /// # Errors
    /// A rank that is named twice or is not in this group, no rank, a rank that failed.
    #[track_caller]
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<ProcessGroup>> {
        let mut members = ranks.iter().map(|&rank| self.place_of(rank)).collect::<Result<Vec<usize>>>()?;
        members.sort_unstable();
        if members.is_empty() || members.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Error::Usage(format!(
                "new_group: the ranks {ranks:?} make no group; name at least one rank, and each once"
            )));
        }
        let rest: Vec<usize> = (0..self.world_size()).filter(|place| !members.contains(place)).collect();
        let is_member = members.contains(&self.rank());
        let ranks = members.iter().map(|&place| self.ranks[place]).collect();
        let groups: Vec<Vec<usize>> = [members, rest].into_iter().filter(|group| !group.is_empty()).collect();
        let comm = self.comm.split(&groups)?;
        Ok(is_member.then_some(ProcessGroup { comm, ranks }))
    }

    /// Where a rank of the run stands in this group.
    pub(super) fn place_of(&self, rank: usize) -> Result<usize> {
        self.ranks.iter().position(|&own| own == rank).ok_or_else(|| {
            Error::Usage(format!("rank {rank} is not in the group, which has the ranks {:?}", self.ranks))
        })
    }
}
