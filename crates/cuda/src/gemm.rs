//! The size of a matrix product, as its kernels take it, and the grid of its launch.

use crate::element::Element;
use crate::geometry::{Geometry, grid};
use crate::table::THREADS;

/// Rows and columns of the tile of a block.
const TILE: usize = 128;
/// Elements of the inner dim in a tile of 16-bit operands, and tiles of each operand in shared memory.
const DEPTH: usize = 32;
const STAGES: usize = 3;
/// Elements of the inner dim in a tile of f32, of which there are two.
const PLAIN_DEPTH: usize = 16;
/// The most matrices of a launch: blocks along z.
pub const MOST_BATCH: usize = 65_535;

/// `D [m, n] = alpha op(A) op(B) + beta C + bias` with sums over `k`, for each matrix of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmShape {
    /// Matrices; a launch takes up to [`MOST_BATCH`].
    pub batch: usize,
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// What is summed over.
    pub k: usize,
    /// Whether A lies as `[k, m]`.
    pub a_transposed: bool,
    /// Whether B lies as `[n, k]`.
    pub b_transposed: bool,
}

impl GemmShape {
    /// The name of the op in the table.
    pub fn op(&self) -> &'static str {
        match (self.a_transposed, self.b_transposed) {
            (false, false) => "gemm_nn",
            (false, true) => "gemm_nt",
            (true, false) => "gemm_tn",
            (true, true) => "gemm_tt",
        }
    }

    /// Of `y [m, rows] = x Wᵀ` with a quantized weight `[rows, cols]`, or backward of `y [m, cols] = x W`.
    pub fn quantized(m: usize, [rows, cols]: [usize; 2], forward: bool) -> GemmShape {
        let (n, k) = if forward { (rows, cols) } else { (cols, rows) };
        GemmShape { batch: 1, m, n, k, a_transposed: false, b_transposed: forward }
    }

    /// The launch for operands of this type.
    pub fn geometry(&self, element: Element) -> Geometry {
        let tiles = self.m.div_ceil(TILE).saturating_mul(self.n.div_ceil(TILE));
        let shared_bytes = match element {
            Element::F32 => 2 * 2 * PLAIN_DEPTH * (TILE + 4) * 4,
            _ => STAGES * (piece(self.a_transposed) + piece(!self.b_transposed)),
        };
        Geometry {
            grid: grid([tiles, 1, self.batch]),
            threads: THREADS,
            shared_bytes: shared_bytes.next_multiple_of(128),
        }
    }
}

/// Bytes of a tile of an operand of 16 bits, which lies with rows along the inner dim, or across it. Each row is 16 bytes
/// longer than its elements.
fn piece(across: bool) -> usize {
    let (rows, cols) = if across { (DEPTH, TILE) } else { (TILE, DEPTH) };
    rows * (2 * cols + 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_blocks_fit_on_an_a100() {
        for [a_transposed, b_transposed] in [[false, false], [false, true], [true, false], [true, true]] {
            let shape = GemmShape { batch: 2, m: 300, n: 129, k: 7, a_transposed, b_transposed };
            for element in [Element::F32, Element::BF16] {
                let launch = shape.geometry(element);
                assert_eq!(launch.grid, [6, 1, 2]);
                // The sums of the warps go through the same memory.
                assert!(
                    (8 * 16 * 36 * 4..=80 << 10).contains(&launch.shared_bytes),
                    "{}",
                    launch.shared_bytes
                );
            }
        }
    }
}
