//! A collective on regions as a value: what moves between the ranks, which a [`Transport`](crate::transport::Transport) carries.

use std::ops::Range;

use crate::blocks::Blocks;
use crate::held_region::HeldRegion;
use crate::ownership::Ownership;

/// A collective on regions that are held for it. The communicator has checked the arguments: ranges and blocks lie inside the
/// regions, each rank has its list of ranges, and elements that are summed have a dtype that can be added.
#[derive(Clone)]
pub enum Collective {
    /// Sums `range` over ranks in the fixed tree; all ranks hold the sums.
    AllReduce {
        /// Of each rank.
        region: HeldRegion,
        /// Elements.
        range: Range<usize>,
    },
    /// Sums over ranks in the fixed tree; each owner holds the sums of its ranges.
    ReduceScatter {
        /// Of each rank.
        region: HeldRegion,
        /// Of the sums.
        owners: Ownership,
    },
    /// Brings each owner's ranges to all ranks.
    AllGather {
        /// Of each rank, or replicated.
        region: HeldRegion,
        /// Of the elements.
        owners: Ownership,
    },
    /// Brings `range` of the rank `root` to all ranks.
    Broadcast {
        /// Of each rank, or replicated.
        region: HeldRegion,
        /// Elements.
        range: Range<usize>,
        /// The rank whose elements they are.
        root: usize,
    },
    /// Brings `range` of the rank `from` to the rank `to`.
    SendReceive {
        /// Of each rank.
        region: HeldRegion,
        /// Elements.
        range: Range<usize>,
        /// The rank that sends.
        from: usize,
        /// The rank that receives, which is another one.
        to: usize,
    },
    /// Brings a block of each rank's `from` into each rank's `to`. They are two regions, each with a buffer for each rank.
    AllToAll {
        /// What is sent.
        from: HeldRegion,
        /// Where it arrives.
        to: HeldRegion,
        /// Where the blocks lie in both.
        blocks: Blocks,
    },
}

impl Collective {
    /// The regions that it works on.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &HeldRegion> {
        let (first, second) = match self {
            Collective::AllReduce { region, .. }
            | Collective::ReduceScatter { region, .. }
            | Collective::AllGather { region, .. }
            | Collective::Broadcast { region, .. }
            | Collective::SendReceive { region, .. } => (region, None),
            Collective::AllToAll { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(first).chain(second)
    }

    /// Whether what a rank has of its own result lies where the result will be.
    pub(crate) fn is_in_place(&self) -> bool {
        !matches!(self, Collective::AllToAll { .. })
    }

    /// Keeps its regions lent for good: what a failed collective worked on another rank, or a library, may still read or write.
    pub(crate) fn lose(self) {
        match self {
            Collective::AllReduce { region, .. }
            | Collective::ReduceScatter { region, .. }
            | Collective::AllGather { region, .. }
            | Collective::Broadcast { region, .. }
            | Collective::SendReceive { region, .. } => region.lose(),
            Collective::AllToAll { from, to, .. } => {
                from.lose();
                to.lose();
            }
        }
    }
}
