//! What the order of a step depends on: the groups of each unit, and what of them moves.

use oarlock_tensor::DType;

use crate::shard::placement::{Lifetime, ShardingConfig};

/// What the order of a step depends on.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The units in the order of the forward pass.
    pub units: Vec<UnitUse>,
    /// The groups of parameters that units name, and those of no unit.
    pub groups: Vec<GroupUse>,
    /// How long gathered weights live.
    pub lifetime: Lifetime,
    /// Fewer elements than these between the passes of a unit, and its weights stay gathered.
    pub reuse_elems: usize,
    /// Elements that are gathered ahead of their use.
    pub prefetch_elems: usize,
    /// Elements beyond which nothing is gathered ahead.
    pub max_live_elems: usize,
    /// Whether units compute while collectives proceed.
    pub overlaps: bool,
    /// Whether each rank keeps a part of what a forward pass has gathered, from which the backward pass gathers: hpZ.
    pub keeps_second_copy: bool,
    /// Whether gradients travel in copies of another dtype.
    pub converts_gradients: bool,
}

/// The groups of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitUse {
    /// Those that its ops use; shared weights belong to several units.
    pub groups: Vec<usize>,
    /// Those that no unit before it uses: their gradients are complete after its backward pass.
    pub completes: Vec<usize>,
}

/// A group of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupUse {
    /// Elements.
    pub elems: usize,
    /// Whether its weights are gathered for each use.
    pub is_gathered: bool,
    /// What becomes of its gradients.
    pub gradients: GradientUse,
}

/// What becomes of the gradients of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradientUse {
    /// Nothing is trained.
    None,
    /// They stay, and are summed once a step.
    Whole,
    /// They leave through a buffer after each backward pass.
    Sharded {
        /// Whether other groups of ranks have sums of their own, to which they are added before the step.
        across: bool,
    },
}

impl GradientUse {
    pub(super) fn are_sharded(self) -> bool {
        matches!(self, GradientUse::Sharded { .. })
    }
}

impl Plan {
    /// Of units and groups that are held as a configuration says, where each collective is waited for.
    pub fn new(units: Vec<UnitUse>, groups: Vec<GroupUse>, config: &ShardingConfig) -> Plan {
        Plan {
            units,
            groups,
            lifetime: config.lifetime,
            reuse_elems: config.reuse_elems,
            prefetch_elems: config.prefetch_elems,
            max_live_elems: config.max_live_elems,
            overlaps: false,
            keeps_second_copy: false,
            converts_gradients: config.reduces_in() != DType::F32,
        }
    }

    /// Whether whole gradients may leave during the last backward pass of a step.
    pub fn reduces_early(&self) -> bool {
        self.overlaps && !self.groups.iter().any(|group| group.gradients.are_sharded())
    }

    /// Whether nothing moves during a pass.
    pub fn is_still(&self) -> bool {
        let moves = |group: &GroupUse| group.is_gathered || group.gradients.are_sharded();
        !self.reduces_early() && !self.groups.iter().any(moves)
    }

    /// The groups whose new weights travel to all ranks after a step in which each has updated a part, in the order in
    /// which a forward pass uses them.
    pub fn published(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.groups.len()).filter(|&group| !self.groups[group].is_gathered)
    }

    /// Whether the weights of a unit stay from its forward pass to its backward pass.
    pub(super) fn keeps_for_backward(&self, unit: usize) -> bool {
        // The backward pass begins with the unit that the forward pass ends with.
        self.lifetime == Lifetime::ForwardToBackward
            || unit + 1 == self.units.len()
            || self.elems_until_backward(unit) < self.reuse_elems
    }

    /// The elements of the units between the two passes of a unit: each is used forward and backward.
    fn elems_until_backward(&self, unit: usize) -> usize {
        let groups = self.units[unit + 1..].iter().flat_map(|unit| &unit.groups);
        2 * groups.map(|&group| self.groups[group].elems).sum::<usize>()
    }

    /// Elements that are in a buffer while a group is gathered.
    pub(super) fn gathered_elems(&self, group: usize) -> usize {
        if self.groups[group].is_gathered { self.groups[group].elems } else { 0 }
    }
}
