//! The grids of kernels: how many blocks, and how much shared memory.

use crate::pieces::Pieces;
use crate::table::THREADS;

/// Rows that a block of a norm's backward pass takes, with one partial sum for the weights.
pub const ROW_BLOCK: usize = 32;
/// Rows of a token that the backward pass of an embedding sums by themselves where there are more of them.
pub const EMBED_RUN: usize = 32;
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
        Geometry { grid: grid([n, 1, 1]), threads: THREADS, shared_bytes: 0 }
    }
}

/// So many blocks along each dim, at least one. More than a number of 32 bits are the largest one, which no GPU takes.
pub(crate) fn grid(blocks: [usize; 3]) -> [u32; 3] {
    blocks.map(|n| u32::try_from(n.max(1)).unwrap_or(u32::MAX))
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

/// How the sums over a dim that is not the last are cut into chunks of rows. Where there are several, the sums of the chunks are
/// summed in the same way. All of it is one pairwise tree over the rows, whatever the cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSums {
    sizes: [usize; 3],
    /// Packs of eight columns that a block takes.
    pub width: usize,
    /// Rows that a thread takes.
    pub run: usize,
}

/// Rows that a thread of a sum over rows loads at once, and the most that it takes.
const RUNS: [usize; 2] = [8, 128];
/// The most chunks of rows, so that a second launch can sum them.
const MOST_CHUNKS: usize = 256;

impl RowSums {
    /// For `[outer, n, inner]` elements, of which the middle dim is summed.
    pub fn new(sizes: [usize; 3]) -> RowSums {
        let [_, _, inner] = sizes;
        let ([least, most], packs) = (RUNS, inner.div_ceil(8).next_power_of_two());
        let of = |width: usize, run: usize| RowSums { sizes, width: width.min(packs), run };
        // Up to about a thousand rows one launch is sooner done than two.
        let whole = [of(32, least), of(16, least), of(8, least), of(8, 2 * least), of(8, 4 * least)];
        if let Some(whole) = whole.into_iter().find(|cut| cut.n_chunks() == 1) {
            return whole;
        }
        let runs = std::iter::successors(Some(least), |run| Some(2 * run)).take_while(|run| *run < most);
        let found = runs.map(|run| of(32, run)).find(|cut| cut.n_chunks() <= MOST_CHUNKS);
        found.unwrap_or(of(32, most))
    }

    /// Chunks of rows: 1 where one launch makes the sums.
    pub fn n_chunks(&self) -> usize {
        self.sizes[1].div_ceil(THREADS as usize / self.width * self.run).max(1)
    }

    /// The sizes of the sums of the chunks, whose middle dim is summed next.
    pub fn partials(&self) -> [usize; 3] {
        [self.sizes[0], self.n_chunks(), self.sizes[2]]
    }

    /// The grid.
    pub fn geometry(&self) -> Geometry {
        let tiles = self.sizes[2].div_ceil(8 * self.width);
        Geometry::blocks(self.sizes[0].saturating_mul(self.n_chunks()).saturating_mul(tiles).min(MOST_BLOCKS))
    }
}

/// Elements of a block of a squared norm.
pub const NORM_BLOCK: usize = 4096;

/// Of squared norms, and of sums of as many numbers.
pub fn squared_norm(n: usize) -> Geometry {
    Geometry::blocks(n.div_ceil(NORM_BLOCK).min(MOST_BLOCKS))
}

/// Of kernels that work on [`Pieces`]: a block for each task.
pub fn pieces(pieces: &Pieces<'_>) -> Geometry {
    Geometry::blocks(pieces.n_tasks().min(MOST_BLOCKS))
}

/// Of the sums of whole runs of rows in the backward pass of an embedding.
pub fn embed_runs(n_rows: usize, dim: usize) -> Geometry {
    elements(n_rows / EMBED_RUN * dim.next_multiple_of(8))
}

/// Of what one block does.
pub fn one_block() -> Geometry {
    Geometry::blocks(1)
}
