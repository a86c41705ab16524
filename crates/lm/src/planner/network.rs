//! The links between machines: what a collective sends, and how long that takes (an alpha-beta model).
//!
//! The formulas are those of `crates/comm/src/messages`: what the ranks of a machine have is added, or copied, inside of it. For a
//! group on `n` machines and a buffer of B bytes, a machine sends `B (n - 1) / n` bytes to others in a gather or a
//! reduce-scatter, and twice that in an all-reduce.

use oarlock_comm::Operation;

use super::profile::Line;

/// The link of each machine to all others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// Seconds until a small message of another machine has been received: alpha.
    pub latency: f64,
    /// Bytes per second that a machine sends, and receives at the same time: 1 / beta.
    pub bandwidth: f64,
    /// Seconds of computation that a rank loses for each byte that it sends meanwhile; 0 where a core is to spare for that.
    pub overhead: f64,
}

/// The ranks of a group, and how many such groups are at work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranks {
    /// Machines that the group is on.
    pub machines: usize,
    /// Ranks of the group on each of them.
    pub per_machine: usize,
    /// Groups of each machine.
    pub groups: usize,
    /// Bytes of an element of a sum.
    pub sum_bytes: usize,
}

/// One call of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// What is done.
    pub operation: CallKind,
    /// Bytes of the region, or of the values that a rank brings.
    pub bytes: u64,
    /// Among which ranks.
    pub over: Over,
}

/// The ranks that take part in a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Over {
    /// Those that divide a state among them.
    Shard,
    /// Those that hold the same shard.
    Replicas,
    /// All.
    All,
}

/// The collectives of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallKind {
    /// Sums, everywhere.
    AllReduce,
    /// Sums, each at its owner.
    ReduceScatter,
    /// What each owns, everywhere.
    AllGather,
    /// A few values of each rank, everywhere.
    Values,
}

impl CallKind {
    /// The operation of a communicator.
    pub fn operation(self) -> Operation {
        match self {
            CallKind::AllReduce => Operation::AllReduce,
            CallKind::ReduceScatter => Operation::ReduceScatter,
            CallKind::AllGather => Operation::AllGather,
            CallKind::Values => Operation::AllReduceScalars,
        }
    }
}

impl Ranks {
    /// All of them.
    pub fn n(&self) -> usize {
        self.machines * self.per_machine
    }

    /// Whether what a machine's ranks have is added inside of it: else a sum of sums would have other bits.
    fn adds_inside(&self) -> bool {
        self.per_machine > 1 && self.per_machine.is_power_of_two()
    }

    /// Bytes that a machine sends to others for one call of each of its groups.
    pub fn sent(&self, call: Call) -> f64 {
        let Ranks { machines, per_machine, groups, sum_bytes } = *self;
        let (n, r) = (machines as f64, per_machine as f64);
        // Without it every rank sends every other its part.
        let copies = if self.adds_inside() { 1.0 } else { r };
        let part = groups as f64 * copies * call.bytes as f64 * (n - 1.0) / n;
        // The sums of a machine travel in f32.
        let widened = if self.adds_inside() { 4.0 / sum_bytes as f64 } else { 1.0 };
        match call.operation {
            CallKind::AllReduce => (widened + 1.0) * part,
            CallKind::ReduceScatter => widened * part,
            CallKind::AllGather => part,
            // Every rank has its own bytes for every rank of the other machines.
            CallKind::Values => groups as f64 * r * r * (n - 1.0) * call.bytes as f64,
        }
    }

    /// Bytes that a rank sends to other machines for one call.
    pub fn sent_by_rank(&self, call: Call) -> f64 {
        self.sent(call) / (self.groups * self.per_machine) as f64
    }

    /// Bytes of the other ranks of its machine that a rank adds or copies.
    fn inside(&self, call: Call) -> f64 {
        let Ranks { machines, per_machine, .. } = *self;
        let others = per_machine as f64 - 1.0;
        let owners = if self.adds_inside() { per_machine } else { machines * per_machine } as f64;
        match call.operation {
            CallKind::Values => others * call.bytes as f64,
            CallKind::AllReduce => 2.0 * others * call.bytes as f64 / owners,
            _ => others * call.bytes as f64 / owners,
        }
    }

    /// Messages that follow one another in a call: the headers that all exchange, then the data of each phase.
    fn rounds(&self, call: Call) -> f64 {
        match call.operation {
            CallKind::Values => 1.0,
            CallKind::ReduceScatter | CallKind::AllGather => 2.0,
            CallKind::AllReduce => 3.0,
        }
    }

    /// The time of a call over messages; `inside` is that of a message between ranks of a machine. What goes inside of a
    /// machine goes while the link is at work.
    pub fn time(&self, call: Call, network: Network, inside: Line) -> f64 {
        if self.n() == 1 {
            return 0.0;
        }
        let latency = if self.machines > 1 { network.latency } else { inside.fixed };
        let link = self.sent(call) / network.bandwidth;
        self.rounds(call) * latency + link.max(self.inside(call) * inside.each)
    }
}
