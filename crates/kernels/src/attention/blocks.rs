//! Block masks: which blocks of a sequence's scores are kept, and the tiles of keys that they leave to some queries.

use std::ops::Range;
use std::sync::Arc;

use super::tile::ROWS;
use super::{AttentionShape, COLS};
use crate::error::{Error, Result};

/// Block sizes are multiples of this, so that no vector of queries and no tile of keys belongs to more than two blocks.
const UNIT: usize = 16;

/// Which blocks of the scores of a sequence are kept: for each head or for all of them, a bit for each block of queries and
/// block of keys. Blocks are counted from position 0; a shorter sequence has the upper left part. Clones share the bits.
///
/// A query sees the keys of kept blocks that it would see without a mask, so that masks compose with causality, windows
/// and documents.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockMask {
    block: usize,
    n_blocks: usize,
    n_heads: usize,
    /// Words of 64 blocks of keys: [head, block of queries, word].
    bits: Arc<[u64]>,
}

impl BlockMask {
    /// A mask of `n_blocks` x `n_blocks` blocks of `block` positions for one head or for each of `n_heads`, which
    /// `keeps(head, block of queries, block of keys)` fills.
    ///
    /// # Errors
    /// A block size that is not a multiple of 16, and no heads or blocks.
    pub fn new(
        block: usize,
        n_blocks: usize,
        n_heads: usize,
        mut keeps: impl FnMut(usize, usize, usize) -> bool,
    ) -> Result<BlockMask> {
        let fits = block > 0
            && block.is_multiple_of(UNIT)
            && n_blocks.checked_mul(block).is_some_and(|positions| positions > 0 && positions < 1 << 30);
        if !fits || n_heads == 0 {
            return Err(Error::Shape {
                op: "block mask",
                expected: format!(
                    "blocks of a multiple of {UNIT} positions, fewer than 2^30 in all, and a head"
                ),
                got: format!("{n_blocks} blocks of {block}, {n_heads} heads"),
            });
        }
        let words = n_blocks.div_ceil(64);
        let mut bits = vec![0u64; n_heads * n_blocks * words];
        for (row, bits) in bits.chunks_exact_mut(words).enumerate() {
            for column in 0..n_blocks {
                if keeps(row / n_blocks, row % n_blocks, column) {
                    bits[column / 64] |= 1 << (column % 64);
                }
            }
        }
        Ok(BlockMask { block, n_blocks, n_heads, bits: bits.into() })
    }

    /// The same for some of the heads.
    ///
    /// # Errors
    /// Heads that it does not have.
    pub fn of_heads(&self, heads: Range<usize>) -> Result<BlockMask> {
        if heads.is_empty() || heads.end > self.n_heads {
            let expected = format!("some of {} heads", self.n_heads);
            return Err(Error::Shape { op: "block mask", expected, got: format!("{heads:?}") });
        }
        let of_head = self.n_blocks * self.n_blocks.div_ceil(64);
        let bits = self.bits[heads.start * of_head..heads.end * of_head].into();
        Ok(BlockMask { bits, n_heads: heads.len(), ..*self })
    }

    /// Positions of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Blocks of a row and of a column.
    pub fn n_blocks(&self) -> usize {
        self.n_blocks
    }

    /// Heads that have a layout of their own; 1 if all share one.
    pub fn n_heads(&self) -> usize {
        self.n_heads
    }

    /// The longest sequence.
    pub fn positions(&self) -> usize {
        self.n_blocks * self.block
    }

    /// Whether block `column` of the keys is kept for block `row` of the queries. False outside the mask.
    pub fn keeps(&self, head: usize, row: usize, column: usize) -> bool {
        head < self.n_heads
            && row < self.n_blocks
            && column < self.n_blocks
            && self.row(head, row)[column / 64] >> (column % 64) & 1 == 1
    }

    /// The share of the pairs of blocks that are kept; of those on and below the diagonal if `causal`.
    pub fn density(&self, causal: bool) -> f64 {
        let n = self.n_blocks;
        let columns = |row| if causal { row + 1 } else { n };
        let rows = (0..self.n_heads).flat_map(|head| (0..n).map(move |row| (head, row)));
        let kept: u64 = rows.map(|(head, row)| self.kept(head, row, 0..columns(row))).sum();
        let pairs = if causal { n * (n + 1) / 2 } else { n * n };
        kept as f64 / (self.n_heads * pairs) as f64
    }

    /// Blocks that row `row` keeps among some columns.
    fn kept(&self, head: usize, row: usize, columns: Range<usize>) -> u64 {
        let words = self.row(head, row).iter().enumerate();
        let ones =
            |(w, bits): (usize, &u64)| (bits & below(columns.end, w) & !below(columns.start, w)).count_ones();
        words.map(|word| u64::from(ones(word))).sum()
    }

    /// Pairs of a query and a key that an attention over one sequence computes, over all its heads. A window counts in whole
    /// blocks.
    pub fn pairs(&self, shape: &AttentionShape) -> u64 {
        let AttentionShape { q_len, kv_len, n_heads, causal, window, .. } = *shape;
        self.pairs_of((q_len, kv_len), n_heads, causal, window)
    }

    /// Twice the mean number of keys that a query of a causal attention over `len` positions computes, over all heads.
    pub fn span(&self, n_heads: usize, window: Option<usize>, len: usize) -> u64 {
        2 * self.pairs_of((len, len), n_heads, true, window) / (n_heads * len).max(1) as u64
    }

    fn pairs_of(
        &self,
        (q_len, kv_len): (usize, usize),
        n_heads: usize,
        causal: bool,
        window: Option<usize>,
    ) -> u64 {
        let block = self.block;
        let mut pairs = 0;
        for (head, row) in (0..self.n_heads).flat_map(|head| (0..self.n_blocks).map(move |row| (head, row))) {
            // Queries of this row, by their positions.
            let from = (row * block).max(kv_len.saturating_sub(q_len));
            let to = ((row + 1) * block).min(kv_len);
            if from >= to {
                continue;
            }
            let first = window.map_or(0, |window| (from + 1).saturating_sub(window) / block);
            let last = if causal { row } else { kv_len / block };
            pairs += (to - from) as u64 * block as u64 * self.kept(head, row, first..last);
            // The block on the diagonal, or the last one, which the sequence may not fill.
            if self.keeps(head, row, last) {
                pairs += match causal {
                    true => (from..to).map(|position| (position - row * block + 1) as u64).sum(),
                    false => ((to - from) * (kv_len - last * block)) as u64,
                };
            }
        }
        pairs * (n_heads / self.n_heads) as u64
    }

    #[inline(always)]
    fn row(&self, head: usize, row: usize) -> &[u64] {
        let words = self.n_blocks.div_ceil(64);
        &self.bits[(head * self.n_blocks + row) * words..][..words]
    }

    /// Whether an attention of this shape can have the mask.
    ///
    /// # Errors
    /// Other heads, more keys than it covers, or queries that are not positions of the keys.
    pub fn check(&self, op: &'static str, shape: &AttentionShape) -> Result<()> {
        let heads_fit = self.n_heads == 1 || self.n_heads == shape.n_heads;
        if heads_fit && shape.kv_len <= self.positions() && shape.q_len <= shape.kv_len {
            return Ok(());
        }
        let (n_heads, positions) = (self.n_heads, self.positions());
        Err(Error::Shape {
            op,
            expected: format!(
                "what a mask of {n_heads} heads covers: at most {positions} keys, and queries among them"
            ),
            got: format!("{shape:?}"),
        })
    }
}

/// The bits of word `w` that stand for columns below `columns`.
fn below(columns: usize, w: usize) -> u64 {
    match columns.saturating_sub(w * 64) {
        0 => 0,
        n if n >= 64 => u64::MAX,
        n => (1 << n) - 1,
    }
}

/// Blocks of queries that `N` consecutive queries can lie in, at most: a bit of a byte stands for each.
const MOST_ROWS: usize = 8;

/// The rows of a mask that some consecutive queries of a head have. Sets of rows are bytes, a bit for each row.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    mask: &'a BlockMask,
    rows: [&'a [u64]; MOST_ROWS],
    n: usize,
    /// Position of the first query.
    position: usize,
}

impl<'a> Rows<'a> {
    /// Of the `n` queries from `q0` on, at most 64.
    #[inline(always)]
    pub(super) fn new(
        mask: &'a BlockMask,
        shape: &AttentionShape,
        head: usize,
        q0: usize,
        n: usize,
    ) -> Rows<'a> {
        let position = shape.kv_len - shape.q_len + q0;
        let (first, last) = (position / mask.block, (position + n - 1) / mask.block);
        let head = if mask.n_heads == 1 { 0 } else { head };
        let mut rows: [&[u64]; MOST_ROWS] = [&[]; MOST_ROWS];
        for row in first..=last {
            rows[row - first] = mask.row(head, row);
        }
        Rows { mask, rows, n: last - first + 1, position }
    }

    /// Keys that the mask covers.
    #[inline(always)]
    pub(super) fn positions(&self) -> usize {
        self.mask.positions()
    }

    /// The row of query `c` of them.
    #[inline(always)]
    fn of(&self, c: usize) -> usize {
        let row = (self.position + c) / self.mask.block - self.position / self.mask.block;
        row.min(self.n - 1)
    }

    /// The rows of queries `from .. to`.
    #[inline(always)]
    pub(super) fn set(&self, from: usize, to: usize) -> u8 {
        let (first, last) = (self.of(from), self.of(to - 1));
        (u8::MAX >> (7 - last)) & (u8::MAX << first)
    }

    /// The rows that keep the 8 keys from `j` on.
    #[inline(always)]
    pub(super) fn keeping(&self, j: usize) -> u8 {
        let column = j / self.mask.block;
        let mut set = 0;
        for r in 0..self.n {
            set |= ((self.rows[r][column / 64] >> (column % 64) & 1) as u8) << r;
        }
        set
    }

    /// The first key of the first block, from that of key `j` on, that one of the rows keeps; at most `end`.
    #[inline(always)]
    fn next(&self, j: usize, end: usize) -> usize {
        let first = j / self.mask.block;
        for w in first / 64..self.mask.n_blocks.div_ceil(64) {
            let mut bits = 0;
            for r in 0..self.n {
                bits |= self.rows[r][w];
            }
            if w == first / 64 {
                bits &= u64::MAX << (first % 64);
            }
            if bits != 0 {
                return ((w * 64 + bits.trailing_zeros() as usize) * self.mask.block).clamp(j, end);
            }
        }
        end
    }

    /// The first keys that the 32 queries from `from` on see where only some rows keep the keys: none in other rows.
    #[inline(always)]
    pub(super) fn limit(&self, keeping: u8, lo: &[i32], from: usize) -> [i32; COLS] {
        let mut limited = [i32::MAX; COLS];
        for (c, limited) in limited.iter_mut().enumerate() {
            if keeping >> self.of(from + c) & 1 == 1 {
                *limited = lo[c];
            }
        }
        limited
    }
}

/// Some tiles of 8 keys, in ascending order, with the rows that keep each.
pub(super) struct Tiles<const N: usize> {
    at: [usize; N],
    keeping: [u8; N],
    n: usize,
}

impl<const N: usize> Tiles<N> {
    /// How many.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.n
    }

    /// The first key of tile `t`.
    #[inline(always)]
    pub(super) fn at(&self, t: usize) -> usize {
        self.at[t]
    }

    /// The rows that keep tile `t`: all of them without a mask.
    #[inline(always)]
    pub(super) fn keeping(&self, t: usize) -> u8 {
        self.keeping[t]
    }

    /// The first tiles from `t` on whose keys follow each other, lie in `from .. to` and are kept by one of the rows.
    #[inline(always)]
    pub(super) fn run(&self, t: usize, rows: u8, from: usize, to: usize) -> Option<(usize, usize)> {
        let wanted = |t: usize| self.keeping[t] & rows != 0 && from <= self.at[t] && self.at[t] < to;
        let mut first = t;
        while first < self.n && !wanted(first) {
            first += 1;
        }
        if first >= self.n {
            return None;
        }
        let mut end = first + 1;
        while end < self.n && self.at[end] == self.at[end - 1] + ROWS && wanted(end) {
            end += 1;
        }
        Some((first, end))
    }
}

/// Goes through the tiles of keys that some queries see.
pub(super) struct Walk<'a> {
    rows: Option<Rows<'a>>,
    next: usize,
    end: usize,
}

impl<'a> Walk<'a> {
    /// Through the keys `first .. end`, whole tiles.
    #[inline(always)]
    pub(super) fn new(rows: Option<Rows<'a>>, (first, end): (usize, usize)) -> Walk<'a> {
        Walk { rows, next: first, end }
    }

    /// The next tiles, up to `N`; none at the end.
    #[inline(always)]
    pub(super) fn tiles<const N: usize>(&mut self) -> Option<Tiles<N>> {
        let mut tiles = Tiles { at: [0; N], keeping: [u8::MAX; N], n: 0 };
        while tiles.n < N && self.next < self.end {
            if let Some(rows) = &self.rows {
                let keeping = rows.keeping(self.next);
                if keeping == 0 {
                    self.next = rows.next(self.next, self.end);
                    continue;
                }
                tiles.keeping[tiles.n] = keeping;
            }
            tiles.at[tiles.n] = self.next;
            tiles.n += 1;
            self.next += ROWS;
        }
        (tiles.n > 0).then_some(tiles)
    }
}
