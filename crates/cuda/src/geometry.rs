//! The grids of kernels: how many blocks, and how much shared memory.

use crate::table::THREADS;

/// Rows that a block of a norm's backward pass takes, with one partial sum for the weights.
pub const ROW_BLOCK: usize = 32;
/// Rows of up to this many elements are the work of a warp, longer ones that of a block.
pub const WARP_ROW: usize = 1024;
/// The most blocks of kernels that walk over their elements with the whole grid: enough for every GPU.
const MOST_BLOCKS: usize = 132 * 16;

/// The grid of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: usize,
}

impl Geometry {
    /// Blocks of the usual size along x.
    fn blocks(n: usize) -> Geometry {
        Geometry { grid: [n.max(1) as u32, 1, 1], threads: THREADS, shared_bytes: 0 }
    }
}

/// Of elementwise kernels: a thread takes eight elements, and the next ones a whole grid further.
pub fn elements(n: usize) -> Geometry {
    Geometry::blocks(n.div_ceil(8 * THREADS as usize).min(MOST_BLOCKS))
}

/// Of kernels that work on rows.
pub fn rows(n_rows: usize, dim: usize) -> Geometry {
    let per_block = if dim <= WARP_ROW { THREADS as usize / 32 } else { 1 };
    Geometry::blocks(n_rows.div_ceil(per_block).min(MOST_BLOCKS))
}

/// Rows of the partial sums of a norm's backward pass.
pub fn norm_partials(n_rows: usize) -> usize {
    n_rows.div_ceil(ROW_BLOCK)
}

/// Of a norm's backward pass, with `n_sums` gradients that are sums over rows.
pub fn norm_backward(n_rows: usize, dim: usize, n_sums: usize) -> Geometry {
    let n_teams = if dim <= WARP_ROW { THREADS as usize / 32 } else { 1 };
    // Sums lie in runs of eight.
    let shared_bytes = (n_sums * n_teams * dim.next_multiple_of(8) * 4).next_multiple_of(128);
    Geometry { shared_bytes, ..Geometry::blocks(norm_partials(n_rows)) }
}

/// Of the losses of rows of logits: a block for each row.
pub fn losses(n_rows: usize) -> Geometry {
    Geometry::blocks(n_rows.min(MOST_BLOCKS))
}

/// Of sums over a dim that is not the last: a block for 32 columns.
pub fn sum_rows(outer: usize, inner: usize) -> Geometry {
    Geometry::blocks((outer * inner.div_ceil(32)).min(MOST_BLOCKS))
}

/// The most rows of a sum over a dim that is not the last: what the trees of the eight warps of a block can hold.
pub const MOST_SUMMED_ROWS: usize = 8 << 23;

/// Elements of a block of a squared norm.
pub const NORM_BLOCK: usize = 4096;

/// Of squared norms.
pub fn squared_norm(n: usize) -> Geometry {
    Geometry::blocks(n.div_ceil(NORM_BLOCK).min(MOST_BLOCKS))
}

/// Of what one block does.
pub fn one_block() -> Geometry {
    Geometry::blocks(1)
}
