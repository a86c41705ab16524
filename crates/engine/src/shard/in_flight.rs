//! Gradients in flight to their sums.

use std::ops::Range;

use oarlock_comm::Ready;
use oarlock_tensor::{FlatBuffer, Store};

use crate::shard::compressed::quantized::FirstHop;
use crate::shard::pool::PoolBuffer;

/// Gradients of a group in flight.
pub(super) struct ReductionInFlight {
    /// Where they come from.
    pub flat: FlatBuffer,
    /// The buffer of sharded ones, and what happens to the sums that are there already.
    pub slot: Option<(PoolBuffer, Store)>,
    /// Their 16-bit copy.
    pub staging: Option<PoolBuffer>,
    /// Of those that leave in 4 bits.
    pub hop: Option<FirstHop>,
    /// The elements whose sums this rank receives.
    pub summed: Range<usize>,
    pub ready: Vec<Ready>,
}
