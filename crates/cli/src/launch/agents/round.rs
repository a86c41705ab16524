//! A round of a run, and what the nodes decide about it.

/// The nodes and ranks of one round, as one node sees them. Ranks are renumbered in every round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Which round this is, from 1.
    pub number: u64,
    /// Restarts so far that a failure caused.
    pub restart: u32,
    /// This node among those of the round; the store's own is 0 while it takes part.
    pub node_rank: usize,
    /// The ranks of each node.
    pub local_ranks: Vec<usize>,
    /// Where the ranks meet: the machine of the store.
    pub master_addr: String,
    /// A port there that was free a moment ago.
    pub master_port: u16,
    /// What the ranks of this round prove to each other: new in every round, and known to those alone who know the
    /// secret of the run. Empty where there is one machine.
    pub token: String,
    /// Whether the ranks encrypt what they send to other machines: the token is known to nobody else.
    pub encrypts: bool,
}

/// What the other nodes have decided while the ranks of this node run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The round continues.
    Nothing,
    /// End the ranks of this node and come to the next round.
    Restart {
        /// A node failed, was lost, or a new one waits.
        reason: String,
    },
    /// End the ranks of this node; there is no next round.
    Abort {
        /// What ended the run.
        reason: String,
    },
    /// All nodes are done.
    AllDone,
}

/// What follows from a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// All nodes come to the next round.
    Restart {
        /// The first failure, of this node or of another.
        reason: String,
    },
    /// No restarts are left.
    Abort {
        /// The first failure, where it is another than the reported one.
        reason: Option<String>,
    },
}
