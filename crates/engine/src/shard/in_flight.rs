//! Which gradients are being reduced, and which may be next.

use std::ops::Range;

use oarlock_comm::Ready;
use oarlock_tensor::{FlatBuffer, Store};

use crate::shard::pool::PoolBuffer;
use crate::shard::quantized::FirstHop;

/// What a unit needs.
pub(super) struct UnitUse {
    pub name: String,
    /// The groups that its ops use; shared weights belong to several units.
    pub groups: Vec<usize>,
    /// Those that no unit before it uses: their gradients are complete after its backward pass.
    pub completes: Vec<usize>,
}

/// Gradients of a group in flight.
pub(super) struct ReductionInFlight {
    pub index: usize,
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
    /// How often a backward pass had left a unit.
    pub left: u64,
}

impl ReductionInFlight {
    pub fn has_buffers(&self) -> bool {
        self.slot.is_some() || self.staging.is_some()
    }
}

/// Which groups are summed, in the order in which all ranks do that: the units in reverse, then what is in no unit. Whole
/// gradients may leave before the end of the last backward pass of a step, in the same order.
pub(super) struct Early {
    order: Vec<usize>,
    /// The units that use each group.
    users: Vec<Vec<usize>>,
    /// How many of `order` have been begun in this step.
    n_begun: usize,
    /// Recorded passes of each unit that have not run backward.
    n_recorded: Vec<usize>,
    is_complete: Vec<bool>,
    is_begun: Vec<bool>,
    /// Whether the passes that are recorded are the last of the step.
    pub is_expected: bool,
}

impl Early {
    pub fn new(units: &[UnitUse], n_groups: usize) -> Early {
        let in_units: Vec<usize> =
            units.iter().rev().flat_map(|unit| unit.completes.iter().copied()).collect();
        let rest = (0..n_groups).filter(|group| !in_units.contains(group));
        let order = in_units.iter().copied().chain(rest).collect();
        let users =
            |group: usize| (0..units.len()).filter(|&unit| units[unit].groups.contains(&group)).collect();
        Early {
            order,
            users: (0..n_groups).map(users).collect(),
            n_begun: 0,
            n_recorded: vec![0; units.len()],
            is_complete: vec![false; n_groups],
            is_begun: vec![false; n_groups],
            is_expected: false,
        }
    }

    /// A pass of a unit was recorded.
    pub fn recorded(&mut self, unit: usize) {
        self.n_recorded[unit] += 1;
    }

    /// A recorded pass of a unit runs backward.
    pub fn ran(&mut self, unit: usize) {
        self.n_recorded[unit] = self.n_recorded[unit].saturating_sub(1);
    }

    /// The backward pass has left the unit that completes a group: no recorded pass of any unit adds to it any more.
    pub fn complete(&mut self, group: usize) {
        self.is_complete[group] = self.users[group].iter().all(|&unit| self.n_recorded[unit] == 0);
    }

    /// The next group in order.
    pub fn next(&mut self) -> Option<usize> {
        let group = *self.order.get(self.n_begun)?;
        self.n_begun += 1;
        self.is_begun[group] = true;
        Some(group)
    }

    /// The next group in order, if it is complete.
    pub fn next_complete(&mut self) -> Option<usize> {
        match self.order.get(self.n_begun) {
            Some(&group) if self.is_complete[group] => self.next(),
            _ => None,
        }
    }

    /// Whether the gradients of a group have left in this step.
    pub fn has_left(&self, group: usize) -> bool {
        self.is_begun[group]
    }

    pub fn begin_step(&mut self) {
        self.n_begun = 0;
        self.n_recorded.fill(0);
        self.is_complete.fill(false);
        self.is_begun.fill(false);
        self.is_expected = false;
    }
}
