//! The shape of an attention, as its kernels take it, and the grids of their launches.

mod tile;
mod tune;
mod tuned;

use std::f32::consts::LOG2_E;

use crate::cudnn::Pass;
use crate::element::Element;
use crate::geometry::{Geometry, grid};
pub use tile::{Tile, TiledKernel, WGMMA_ARCH, tiled_instances, usual_instances};
pub use tune::Bench;
pub use tuned::{Key, Measured, Tuned};

/// The sizes of heads that kernels are compiled for. Heads with fewer elements, a multiple of 8, take the next of them.
pub const HEAD_DIMS: &[u32] = &[32, 64, 96, 128, 192, 256];
/// Threads of a block with the usual tile.
pub const THREADS: u32 = 128;

/// Warps of a block without a tile.
const WARPS: usize = THREADS as usize / 32;
/// Rows of a block of the pass for few queries.
const DECODE_ROWS: usize = 16;
/// The pass for few queries takes so many at most, and as many tiles of keys at least.
const FEW_QUERIES: usize = 8;
const LEAST_TILES: usize = 4;
/// Its blocks: two for each multiprocessor of an H100.
const DECODE_BLOCKS: usize = 2 * 132;

/// Blocks of gradients of keys and values that a GPU should have: four for each multiprocessor of an H100, as those of early keys
/// take longer than those of late ones.
const KEY_BLOCKS: usize = 4 * 132;
/// Rows of such a block, as far as their number goes.
const KEY_ROWS: usize = 64;

/// Queries and output are [batch, q_len, heads, head_dim], keys and values [batch, kv_capacity, kv_heads, head_dim],
/// log-sum-exps [batch, heads, q_len]. Query `i` is at position `kv_len - q_len + i`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence.
    pub q_len: usize,
    /// Keys of a sequence.
    pub kv_len: usize,
    /// Rows of storage of a sequence in keys and values.
    pub kv_capacity: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Whether a query sees only the keys up to its own position.
    pub causal: bool,
    /// With a window of `w`, a query sees no key more than `w - 1` positions before its own.
    pub window: Option<usize>,
    /// With a cap of `c`, a score `s` becomes `c tanh(s / c)`.
    pub logit_cap: Option<f32>,
}

impl AttentionShape {
    /// `factor` and `cap`: scores in powers of two are `factor` times the product of query and key, or with a cap, `cap`
    /// times the hyperbolic tangent of that.
    pub fn score_scale(&self) -> (f32, f32) {
        match self.logit_cap {
            None => (self.scale * LOG2_E, 0.0),
            Some(cap) => (self.scale / cap, cap * LOG2_E),
        }
    }

    /// The unit's size of heads; none where no unit takes such heads.
    pub fn unit_head_dim(&self) -> Option<u32> {
        let fits = self.head_dim.is_multiple_of(8) && self.head_dim > 0;
        HEAD_DIMS.iter().copied().find(|&dim| fits && dim as usize >= self.head_dim)
    }

    /// The tile that its unit has without another choice.
    pub fn usual_tile(&self, pass: Pass, element: Element) -> Tile {
        Tile::usual(pass, element, self.compiled_head_dim() as u32)
    }

    /// The tile of a kernel on a GPU whose blocks have so much shared memory, without a measurement: that of warpgroups where it has
    /// them, else the usual one or the largest below it that fits. None where none fits.
    pub fn default_tile(
        &self,
        kernel: TiledKernel,
        element: Element,
        (has_wgmma, shared_bytes): (bool, usize),
    ) -> Option<Tile> {
        let head_dim = self.compiled_head_dim() as u32;
        let of_warpgroups = Tile::usual_of_warpgroups(kernel, element, head_dim).filter(|_| has_wgmma);
        let mut tiles =
            of_warpgroups.into_iter().chain(Tile::usual_or_less(kernel.pass(), element, head_dim));
        tiles.find(|tile| self.tiled(kernel, element, *tile).shared_bytes <= shared_bytes)
    }

    /// Elements of a head in the tiles of its unit.
    fn compiled_head_dim(&self) -> usize {
        self.unit_head_dim().unwrap_or(HEAD_DIMS[HEAD_DIMS.len() - 1]) as usize
    }

    /// Bytes of a row of a tile, with its padding.
    fn row_bytes(&self, element: Element) -> usize {
        self.compiled_head_dim() * element.size() + 16
    }

    /// Of a pass with this tile.
    pub fn tiled(&self, kernel: TiledKernel, element: Element, tile: Tile) -> Geometry {
        let (row_bytes, rows, walked) = (self.row_bytes(element), tile.rows as usize, tile.walked as usize);
        let scratch_bytes = tile.scratch_bytes(element);
        let over_queries = [self.heads * self.batch, self.q_len.div_ceil(rows), 1];
        let stages = kernel.stages(element, self.compiled_head_dim(), tile);
        let (grid, own_rows, more) = match kernel {
            TiledKernel::Forward => (over_queries, rows, 0),
            TiledKernel::BackwardQ => (over_queries, 2 * rows, 0),
            TiledKernel::BackwardKv => {
                let passes = self.kv_passes();
                let tiles = passes * self.kv_capacity.div_ceil(rows);
                let grid = [self.kv_heads * self.kv_splits() * self.batch, tiles, 1];
                // Log-sum-exps, inner products and visible keys of the queries.
                (grid, 2 * rows, stages * walked * 16)
            }
        };
        let shared_bytes = (own_rows + 2 * stages * walked) * row_bytes + scratch_bytes + more;
        Geometry { threads: tile.threads(), ..self.geometry(grid, shared_bytes) }
    }

    /// How often keys are walked along for their gradients: once for keys and once for values where registers hold one of them.
    fn kv_passes(&self) -> usize {
        if self.compiled_head_dim() > 128 { 2 } else { 1 }
    }

    /// Over how many blocks the heads of a group are divided, for the gradients of a tile of keys and values. A model with few
    /// heads of keys has few of these tiles. The number does not depend on the GPU, so that the bits do not.
    pub fn kv_splits(&self) -> usize {
        let tiles = self.kv_passes() * self.kv_capacity.div_ceil(KEY_ROWS) * self.kv_heads * self.batch;
        (KEY_BLOCKS / tiles.max(1)).clamp(1, (self.heads / self.kv_heads.max(1)).max(1))
    }

    /// Bytes of the parts of these gradients, in f32; 0 where one block has all heads of a group.
    pub fn kv_parts_bytes(&self) -> usize {
        let splits = self.kv_splits();
        if splits == 1 { 0 } else { 2 * 4 * splits * self.n_keys() }
    }

    /// Elements of keys.
    fn n_keys(&self) -> usize {
        self.batch * self.kv_capacity * self.kv_heads * self.head_dim
    }

    /// Of the sums of these parts, and how many they are.
    pub fn kv_join(&self) -> (Geometry, usize) {
        let n = self.n_keys();
        (self.geometry([(2 * n / 8).div_ceil(THREADS as usize), 1, 1], 0), n)
    }

    /// Of the inner products of outputs and their gradients: a lane has eight elements of a row.
    pub fn delta(&self) -> Geometry {
        let lanes = (self.compiled_head_dim() / 8).next_power_of_two();
        self.geometry([(self.batch * self.heads * self.q_len * lanes).div_ceil(THREADS as usize), 1, 1], 0)
    }

    /// Into how many splits the pass for few queries divides the keys that they see: as many as fill a GPU with the other
    /// blocks of the launch, each of a tile at least; 1 where the usual forward pass serves as well. The number does not
    /// depend on the GPU, so that the bits do not.
    pub fn n_splits(&self, element: Element) -> usize {
        let tiles = self.seen_keys().div_ceil(self.usual_tile(Pass::Forward, element).walked as usize);
        if self.q_len > FEW_QUERIES || tiles < LEAST_TILES {
            return 1;
        }
        let blocks = (self.kv_heads * self.decode_chunks() * self.batch).max(1);
        (DECODE_BLOCKS / blocks).clamp(1, tiles)
    }

    /// Keys that a few queries at the end see.
    fn seen_keys(&self) -> usize {
        match self.window {
            Some(window) if self.causal => self.kv_len.min(window + self.q_len - 1),
            _ => self.kv_len,
        }
    }

    /// Blocks that the rows of a group of heads need.
    fn decode_chunks(&self) -> usize {
        (self.heads / self.kv_heads * self.q_len).div_ceil(DECODE_ROWS)
    }

    /// Of the pass for few queries, with this many splits of the keys.
    pub fn decode(&self, element: Element, n_splits: usize) -> Geometry {
        let walked = self.usual_tile(Pass::Forward, element).walked as usize;
        let floats = DECODE_ROWS * (self.compiled_head_dim() + walked + 5);
        let shared_bytes = 2 * walked * self.row_bytes(element) + 4 * floats;
        self.geometry([n_splits, self.kv_heads * self.decode_chunks(), self.batch], shared_bytes)
    }

    /// Of the joining of splits.
    pub fn decode_join(&self) -> Geometry {
        self.geometry([(self.batch * self.heads * self.q_len).div_ceil(WARPS), 1, 1], 0)
    }

    fn geometry(&self, blocks: [usize; 3], shared_bytes: usize) -> Geometry {
        Geometry { grid: grid(blocks), threads: THREADS, shared_bytes: shared_bytes.next_multiple_of(128) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shared memory that a block may have: on an RTX 30, 40 and 50, an L4 and an L40; on an A100; on an H100 and a B200.
    const MOST: [usize; 3] = [99 << 10, 163 << 10, 227 << 10];

    #[test]
    fn splits_fill_a_gpu_and_are_tiles() {
        let one = AttentionShape {
            batch: 1,
            q_len: 1,
            kv_len: 4096,
            kv_capacity: 8192,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            scale: 1.0,
            causal: true,
            window: None,
            logit_cap: None,
        };
        let of = |shape: AttentionShape| shape.n_splits(Element::BF16);
        assert_eq!(of(one), 33);
        assert_eq!(of(AttentionShape { kv_len: 300, ..one }), 5);
        assert_eq!(of(AttentionShape { window: Some(300), ..one }), 5);
        assert_eq!(of(AttentionShape { batch: 64, ..one }), 1);
        assert_eq!(of(AttentionShape { kv_len: 190, ..one }), 1);
        assert_eq!(of(AttentionShape { q_len: 9, ..one }), 1);
    }

    #[test]
    fn every_pass_fits_into_shared_memory() {
        let base = AttentionShape {
            batch: 1,
            q_len: 64,
            kv_len: 64,
            kv_capacity: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 64,
            scale: 1.0,
            causal: true,
            window: None,
            logit_cap: None,
        };
        let of = |head_dim| AttentionShape { head_dim, ..base };
        let tile = |dim, element, kernel, most| {
            let tile = Tuned::default().tile((&of(dim), element), kernel, most);
            tile.unwrap_or_else(|| panic!("no tile of {element} {dim} fits into {most}"))
        };
        for (dim, element) in (32..=256)
            .step_by(8)
            .flat_map(|dim| [Element::F32, Element::BF16, Element::F16].map(|e| (dim, e)))
        {
            for (most, kernel) in MOST.iter().flat_map(|most| TiledKernel::ALL.map(|kernel| (*most, kernel)))
            {
                let pass = of(dim).tiled(kernel, element, tile(dim, element, kernel, most));
                assert!(pass.shared_bytes <= most, "{element} {dim}: {}", pass.shared_bytes);
                assert!(of(dim).decode(element, 3).shared_bytes <= most, "{element} {dim}");
            }
            // The largest GPU has room for the usual ones.
            let usual = TiledKernel::ALL.map(|kernel| tile(dim, element, kernel, MOST[2]));
            assert_eq!(usual, TiledKernel::ALL.map(|kernel| of(dim).usual_tile(kernel.pass(), element)));
        }
        let said =
            |dim, element| TiledKernel::ALL.map(|kernel| tile(dim, element, kernel, MOST[0]).to_string());
        assert_eq!(said(64, Element::F32), ["64x32"; 3]);
        assert_eq!(said(128, Element::F32), ["64x16", "64x16", "64x16"]);
        assert_eq!(said(192, Element::F32), ["32x16"; 3]);
        assert_eq!(said(256, Element::F32), ["16x16"; 3]);
        assert_eq!(said(256, Element::BF16), ["64x32", "64x16", "64x32"]);
        assert_eq!(AttentionShape { head_dim: 80, ..base }.unit_head_dim(), Some(96));
        assert_eq!(AttentionShape { head_dim: 12, ..base }.unit_head_dim(), None);
    }
}
