//! What a region knows of the collectives that hold it.

use oarlock_tensor::WriteLease;

/// Whose collectives hold a region, and how many do.
pub(crate) struct Hold {
    pub communicator: u64,
    pub n_collectives: usize,
    /// Dropped with the last of them.
    _lease: WriteLease,
}

impl Hold {
    /// Of the first collective.
    pub fn new(communicator: u64, lease: WriteLease) -> Hold {
        Hold { communicator, n_collectives: 1, _lease: lease }
    }
}
