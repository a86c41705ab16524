//! Which ranks a communicator has: a region is for those that allocated it, since they alone know when the others use its
//! buffers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The ranks of a group in their order, as those of the world that it was split from.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Members {
    world: u64,
    ranks: Vec<usize>,
}

impl Members {
    /// All ranks of a new world.
    pub fn of_world(n_ranks: usize) -> Members {
        static WORLDS: AtomicU64 = AtomicU64::new(0);
        Members { world: WORLDS.fetch_add(1, Relaxed), ranks: (0..n_ranks).collect() }
    }

    /// Those in these places.
    pub fn group(&self, places: &[usize]) -> Members {
        let ranks = places.iter().filter_map(|&place| self.ranks.get(place).copied()).collect();
        Members { world: self.world, ranks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_the_same_ranks_in_the_same_order_are_alike() {
        let world = Members::of_world(4);
        assert_eq!(world.group(&[0, 1, 2, 3]), world);
        assert_eq!(world.group(&[3, 1]).group(&[1]), world.group(&[1]));
        for other in [world.group(&[1, 0, 2, 3]), world.group(&[0, 1]), Members::of_world(4)] {
            assert_ne!(other, world);
        }
    }
}
