//! The collective operations, and how a few numbers are combined over ranks.

/// The collective operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Operation {
    /// Wait for all.
    Barrier,
    /// Reserve a region.
    Allocate,
    /// Divide the ranks into groups.
    Split,
    /// Sum over ranks, everywhere.
    AllReduce,
    /// Sum over ranks, each range at its owner.
    ReduceScatter,
    /// Each owner's ranges, everywhere.
    AllGather,
    /// One rank's range, everywhere.
    Broadcast,
    /// One rank's range, at another rank.
    SendReceive,
    /// Block j of each rank, at rank j.
    AllToAll,
    /// A few bytes of each rank, everywhere.
    AllGatherBytes,
    /// A few bytes of one rank, everywhere.
    BroadcastBytes,
    /// A few numbers, combined over ranks.
    AllReduceScalars,
    /// A value that must be the same on all ranks.
    Agree,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Operation; 13] = [
        Operation::Barrier,
        Operation::Allocate,
        Operation::Split,
        Operation::AllReduce,
        Operation::ReduceScatter,
        Operation::AllGather,
        Operation::Broadcast,
        Operation::SendReceive,
        Operation::AllToAll,
        Operation::AllGatherBytes,
        Operation::BroadcastBytes,
        Operation::AllReduceScalars,
        Operation::Agree,
    ];

    /// Whether it sends something; the others only prepare.
    pub(crate) fn sends(self) -> bool {
        !matches!(self, Operation::Allocate | Operation::Split)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Barrier => "barrier",
            Operation::Allocate => "allocate",
            Operation::Split => "split",
            Operation::AllReduce => "all_reduce",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::AllGather => "all_gather",
            Operation::Broadcast => "broadcast",
            Operation::SendReceive => "send_receive",
            Operation::AllToAll => "all_to_all",
            Operation::AllGatherBytes => "all_gather_bytes",
            Operation::BroadcastBytes => "broadcast_bytes",
            Operation::AllReduceScalars => "all_reduce_f64",
            Operation::Agree => "agree",
        }
    }

    /// What a rank sends among `ranks` ranks, as a share of the bytes that a call covers, if no byte goes over the wire
    /// twice: `2 (n - 1) / n` for an all-reduce, `(n - 1) / n` for an all-gather, a reduce-scatter and an all-to-all.
    pub fn sent_share(self, ranks: usize) -> f64 {
        let others = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Operation::AllReduce => 2.0 * others,
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => others,
            _ => 1.0,
        }
    }
}

/// How a few numbers are combined over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scalar {
    /// The sum, in a fixed pairwise tree over ranks.
    Sum,
    /// The greatest; NaN if any is NaN.
    Max,
    /// The least; NaN if any is NaN.
    Min,
}

impl Scalar {
    pub(crate) fn combine(self, a: f64, b: f64) -> f64 {
        match self {
            Scalar::Sum => a + b,
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Scalar::Max => a.max(b),
            Scalar::Min => a.min(b),
        }
    }
}
