//! One thing that takes memory, and how sizes are written.

/// One thing that takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Bytes of the rank with the largest share.
    pub rank: u64,
    /// Bytes of all ranks of the machine together.
    pub machine: u64,
    /// Whether the ranks share the memory, so that each has all of it in its address space.
    pub shared: bool,
}

impl Part {
    /// The same on each of `ranks` ranks.
    pub(super) fn each(name: &'static str, bytes: u64, ranks: usize) -> Part {
        Part { name, rank: bytes, machine: bytes.saturating_mul(ranks as u64), shared: false }
    }
}
