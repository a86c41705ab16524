//! Placements: whether a kind of state is whole on each rank or divided among them.

/// Where one kind of state (optimizer state, gradients, parameters) lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Each rank has all of it.
    Whole,
    /// Each rank has the part that it owns.
    Sharded,
}
