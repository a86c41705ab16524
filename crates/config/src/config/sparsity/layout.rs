//! The layouts of DeepSpeed's sparsity configurations, block by block, bit for bit.

use oarlock_tensor::{Error, Result};

use super::pattern::{Direction, Pattern, SparsityConfig};
use super::python_random::PythonRandom;

/// The most bits of a layout: 1 GiB of them.
const MOST_BITS: usize = 1 << 33;

/// Which blocks of keys each block of queries sees, for each head that has a layout of its own: a bit for each
/// [head, row, column].
pub(super) struct Layout {
    n: usize,
    kept: Vec<u64>,
}

impl Layout {
    /// Of `n` blocks for `heads` heads.
    pub(super) fn new(config: &SparsityConfig, heads: usize, n: usize) -> Result<Layout> {
        let bits =
            n.checked_mul(n).and_then(|blocks| blocks.checked_mul(heads)).filter(|bits| *bits <= MOST_BITS);
        let Some(bits) = bits else {
            return Err(Error::Usage(format!(
                "sparse attention: a layout of {n} x {n} blocks for {heads} heads is too large; take a larger block"
            )));
        };
        let mut layout = Layout { n, kept: vec![0; bits.div_ceil(64)] };
        let mut random = PythonRandom::new(config.seed);
        for head in 0..heads {
            layout.head(&config.pattern, head, &mut random)?;
        }
        Ok(layout)
    }

    /// Whether a block is kept.
    pub(super) fn keeps(&self, head: usize, row: usize, column: usize) -> bool {
        let bit = (head * self.n + row) * self.n + column;
        self.kept[bit / 64] >> (bit % 64) & 1 == 1
    }

    fn head(&mut self, pattern: &Pattern, head: usize, random: &mut PythonRandom) -> Result<()> {
        match pattern {
            Pattern::Dense => self.fill(head, (0, self.n), (0, self.n)),
            Pattern::Fixed { num_local_blocks, .. } => {
                self.windows(head, &[*num_local_blocks], pattern.direction());
                self.fixed_globals(head, pattern);
            }
            Pattern::Variable { num_random_blocks, local_window_blocks, .. } => {
                self.scattered(head, *num_random_blocks, Direction::Bidirectional, random)?;
                self.windows(head, local_window_blocks, pattern.direction());
                self.chosen_globals(head, pattern);
            }
            Pattern::BigBird { num_random_blocks, num_sliding_window_blocks, num_global_blocks, .. } => {
                self.scattered(head, *num_random_blocks, pattern.direction(), random)?;
                self.sliding(head, *num_sliding_window_blocks)?;
                self.enough("num_global_blocks", *num_global_blocks)?;
                self.fill(head, (0, *num_global_blocks), (0, self.n));
                self.fill(head, (0, self.n), (0, *num_global_blocks));
                self.hide_later(head, pattern.direction());
            }
            Pattern::BsLongformer { num_sliding_window_blocks, .. } => {
                self.sliding(head, *num_sliding_window_blocks)?;
                self.chosen_globals(head, pattern);
                self.hide_later(head, pattern.direction());
            }
        }
        Ok(())
    }

    fn keep(&mut self, head: usize, row: usize, column: usize) {
        let bit = (head * self.n + row) * self.n + column;
        self.kept[bit / 64] |= 1 << (bit % 64);
    }

    /// Keeps rows `from .. to` of columns `from .. to`, as far as there are such.
    fn fill(&mut self, head: usize, rows: (usize, usize), columns: (usize, usize)) {
        for row in rows.0..rows.1.min(self.n) {
            for column in columns.0..columns.1.min(self.n) {
                self.keep(head, row, column);
            }
        }
    }

    /// Local windows of these sizes, the last of which goes on to the end.
    fn windows(&mut self, head: usize, sizes: &[usize], direction: Direction) {
        let (mut start, mut index) = (0, 0);
        while start < self.n {
            let size = sizes[index.min(sizes.len() - 1)];
            let end = start.saturating_add(size).min(self.n);
            for row in start..end {
                let last = if direction == Direction::Unidirectional { row + 1 } else { end };
                self.fill(head, (row, row + 1), (start, last));
            }
            (start, index) = (end, index + 1);
        }
    }

    /// The last blocks of each local window, or those before them for later patterns; in a last window that is short, the
    /// last blocks of the sequence.
    fn fixed_globals(&mut self, head: usize, pattern: &Pattern) {
        let &Pattern::Fixed { num_local_blocks: local, num_global_blocks: global, .. } = pattern else {
            return;
        };
        let Pattern::Fixed { num_different_global_patterns: patterns, .. } = *pattern else { return };
        let first = local - (1 + head % patterns) * global;
        let whole = self.n - self.n % local;
        for start in (first..whole).step_by(local) {
            self.global(head, pattern, (start, start + global));
        }
        if whole < self.n {
            // DeepSpeed's start is below 0 here, which counts from the end, where the sequence is shorter than the blocks.
            let start = match self.n.checked_sub(global) {
                Some(latest) => (whole + first).min(latest),
                None => (2 * self.n).saturating_sub(global),
            };
            self.global(head, pattern, (start, (start + global).min(self.n)));
        }
    }

    /// The blocks that were chosen by their numbers.
    fn chosen_globals(&mut self, head: usize, pattern: &Pattern) {
        let (Pattern::Variable { global_block_indices: starts, global_block_end_indices: ends, .. }
        | Pattern::BsLongformer { global_block_indices: starts, global_block_end_indices: ends, .. }) =
            pattern
        else {
            return;
        };
        for (i, &start) in starts.iter().enumerate() {
            let end = ends.as_ref().map_or(start.saturating_add(1), |ends| ends[i]);
            if start < self.n {
                self.global(head, pattern, (start, end));
            }
        }
    }

    /// Blocks that are seen by all, or by all behind them, and that may see all themselves.
    fn global(&mut self, head: usize, pattern: &Pattern, blocks: (usize, usize)) {
        let (rows, is_horizontal) = match pattern {
            // What is later is hidden from these at the end.
            Pattern::BsLongformer { .. } => ((0, self.n), true),
            Pattern::Fixed { horizontal_global_attention: horizontal, .. }
            | Pattern::Variable { horizontal_global_attention: horizontal, .. } => {
                let first = if pattern.direction() == Direction::Bidirectional { 0 } else { blocks.0 };
                ((first, self.n), *horizontal)
            }
            Pattern::Dense | Pattern::BigBird { .. } => return,
        };
        self.fill(head, rows, blocks);
        if is_horizontal {
            self.fill(head, blocks, (0, self.n));
        }
    }

    /// The blocks around the diagonal.
    fn sliding(&mut self, head: usize, size: usize) -> Result<()> {
        self.enough("num_sliding_window_blocks", size)?;
        for row in 0..self.n {
            self.fill(head, (row, row + 1), (row.saturating_sub(size / 2), row + size / 2 + 1));
        }
        Ok(())
    }

    /// Blocks that are drawn for each row.
    fn scattered(
        &mut self,
        head: usize,
        number: usize,
        direction: Direction,
        random: &mut PythonRandom,
    ) -> Result<()> {
        self.enough("num_random_blocks", number)?;
        for row in 0..self.n {
            let among = if direction == Direction::Bidirectional { self.n } else { row + 1 };
            if number > among {
                return Err(Error::Usage(format!(
                    "sparse attention: num_random_blocks is {number}, but the first rows of unidirectional attention have \
                     fewer blocks to draw from"
                )));
            }
            for column in random.sample(among, number) {
                self.keep(head, row, column);
            }
        }
        Ok(())
    }

    fn hide_later(&mut self, head: usize, direction: Direction) {
        if direction == Direction::Unidirectional {
            for row in 0..self.n {
                for bit in (head * self.n + row) * self.n + row + 1..(head * self.n + row + 1) * self.n {
                    self.kept[bit / 64] &= !(1 << (bit % 64));
                }
            }
        }
    }

    fn enough(&self, name: &str, blocks: usize) -> Result<()> {
        if blocks <= self.n {
            return Ok(());
        }
        let n = self.n;
        Err(Error::Usage(format!("sparse attention: {name} is {blocks}, but a sequence has {n} blocks")))
    }
}
