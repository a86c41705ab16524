//! Sparse attention: which blocks of its scores a model computes, as DeepSpeed's `sparse_attention` describes them.
//!
//! Patterns, names and defaults are those of DeepSpeed's sparsity configurations, and so are the layouts, bit for bit. (Child
//! et al. 2019 for `fixed`, Zaheer et al. 2020 for `bigbird`, Beltagy et al. 2020 for `bslongformer`.)

mod layout;
mod pattern;
mod python_random;

use oarlock_tensor::ops::BlockMask;
use oarlock_tensor::{Error, Result};

use self::layout::Layout;
pub use self::pattern::{Direction, Pattern, SparsityConfig};

impl SparsityConfig {
    /// A pattern of blocks of 16 positions, the same for all heads.
    pub fn new(pattern: Pattern) -> SparsityConfig {
        SparsityConfig { block: 16, different_layout_per_head: false, pattern, seed: 0, max_seq_length: None }
    }

    /// Whether the settings fit together.
    ///
    /// # Errors
    /// [`Error::Usage`] with what does not.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Usage(format!("sparse attention: {what}")));
        if self.block == 0 || !self.block.is_multiple_of(16) {
            return wrong(format!("block is {}, but the kernels take multiples of 16", self.block));
        }
        match &self.pattern {
            Pattern::Dense | Pattern::BigBird { .. } => {}
            &Pattern::Fixed {
                num_local_blocks: local,
                num_global_blocks: global,
                num_different_global_patterns: patterns,
                ..
            } => {
                if local == 0 || global == 0 || !local.is_multiple_of(global) {
                    return wrong(format!(
                        "num_local_blocks, {local}, is not a multiple of num_global_blocks, {global}"
                    ));
                }
                if patterns == 0 || patterns > local / global {
                    return wrong(format!(
                        "num_different_global_patterns is {patterns}, but {local} local and {global} global blocks have 1 to {}",
                        local / global
                    ));
                }
                if patterns > 1 && !self.different_layout_per_head {
                    return wrong(format!(
                        "num_different_global_patterns is {patterns}, which needs different_layout_per_head"
                    ));
                }
            }
            Pattern::Variable { local_window_blocks: sizes, .. }
                if sizes.is_empty() || sizes.contains(&0) =>
            {
                return wrong(format!("local_window_blocks are {sizes:?}, but windows have a block or more"));
            }
            Pattern::Variable { global_block_indices: starts, global_block_end_indices: ends, .. }
            | Pattern::BsLongformer {
                global_block_indices: starts, global_block_end_indices: ends, ..
            } => {
                if let Some(ends) = ends {
                    if starts.len() != ends.len() {
                        return wrong(format!(
                            "global_block_indices are {}, but global_block_end_indices are {}",
                            starts.len(),
                            ends.len()
                        ));
                    }
                    if let Some((start, end)) = starts.iter().zip(ends).find(|(start, end)| start >= end) {
                        return wrong(format!("global blocks begin at {start} and end at {end}"));
                    }
                }
            }
        }
        let (Pattern::Fixed { horizontal_global_attention, .. }
        | Pattern::Variable { horizontal_global_attention, .. }) = self.pattern
        else {
            return Ok(());
        };
        if horizontal_global_attention && self.pattern.direction() == Direction::Unidirectional {
            return wrong("horizontal_global_attention needs bidirectional attention".to_owned());
        }
        Ok(())
    }

    /// The layout for a model of `n_heads` heads and sequences of up to `len` positions, which need not fill the last block:
    /// DeepSpeed's `make_layout`, or of a longer one the upper left part.
    ///
    /// # Errors
    /// As [`SparsityConfig::check`], more positions than [`SparsityConfig::max_seq_length`], and a sequence with fewer blocks
    /// than the pattern wants.
    pub fn layout(&self, n_heads: usize, len: usize) -> Result<BlockMask> {
        self.check()?;
        let longest = self.max_seq_length.unwrap_or(len);
        if len > longest {
            return Err(Error::Usage(format!(
                "sparse attention: sequences of {len} tokens are longer than the layout (max_seq_length is {longest})"
            )));
        }
        let heads = if self.different_layout_per_head { n_heads } else { 1 };
        let n = longest.div_ceil(self.block).max(1);
        let layout = Layout::new(self, heads, n)?;
        BlockMask::new(self.block, n, heads, |head, row, column| layout.keeps(head, row, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(change: impl FnOnce(&mut SparsityConfig), len: usize) -> String {
        let mut config = SparsityConfig::new(Pattern::fixed());
        change(&mut config);
        config.layout(2, len).unwrap_err().to_string()
    }

    #[test]
    fn what_does_not_fit_is_named() {
        assert!(said(|c| c.block = 8, 64).contains("block is 8, but the kernels take multiples of 16"));
        let fixed = |local, global, patterns| Pattern::Fixed {
            num_local_blocks: local,
            num_global_blocks: global,
            attention: Direction::Unidirectional,
            horizontal_global_attention: false,
            num_different_global_patterns: patterns,
        };
        let of = |pattern: Pattern| said(|c| c.pattern = pattern, 64);
        assert!(
            of(fixed(5, 2, 1)).contains("num_local_blocks, 5, is not a multiple of num_global_blocks, 2")
        );
        assert!(of(fixed(0, 0, 1)).contains("not a multiple"));
        assert!(of(fixed(4, 2, 3)).contains("have 1 to 2"));
        assert!(of(fixed(4, 2, 2)).contains("needs different_layout_per_head"));
        let windows = |sizes: &[usize]| Pattern::Variable {
            num_random_blocks: 9,
            local_window_blocks: sizes.to_vec(),
            global_block_indices: vec![0],
            global_block_end_indices: None,
            attention: Direction::Unidirectional,
            horizontal_global_attention: true,
        };
        assert!(of(windows(&[])).contains("windows have a block or more"));
        assert!(of(windows(&[2])).contains("horizontal_global_attention needs bidirectional attention"));
        let ranges = |starts: &[usize], ends: &[usize]| Pattern::BsLongformer {
            num_sliding_window_blocks: 3,
            global_block_indices: starts.to_vec(),
            global_block_end_indices: Some(ends.to_vec()),
            attention: Direction::Bidirectional,
        };
        assert!(of(ranges(&[0, 1], &[2])).contains("are 2, but global_block_end_indices are 1"));
        assert!(of(ranges(&[3], &[3])).contains("global blocks begin at 3 and end at 3"));
    }

    #[test]
    fn sequences_that_do_not_fit_a_pattern_are_named() {
        let of = |pattern: Pattern, len| said(|c| c.pattern = pattern, len);
        assert!(
            of(Pattern::big_bird(), 32)
                .contains("num_sliding_window_blocks is 3, but a sequence has 2 blocks")
        );
        let random = |n, attention| Pattern::BigBird {
            num_random_blocks: n,
            num_sliding_window_blocks: 1,
            num_global_blocks: 1,
            attention,
        };
        assert!(of(random(5, Direction::Bidirectional), 64).contains("num_random_blocks is 5"));
        assert!(of(random(2, Direction::Unidirectional), 64).contains("fewer blocks to draw from"));
        assert!(said(|c| c.max_seq_length = Some(100), 101).contains("max_seq_length is 100"));
        assert!(said(|c| c.max_seq_length = Some(1 << 29), 101).contains("take a larger block"));
    }

    /// A shorter sequence sees what its positions see in the whole layout, so that generated positions do not change.
    #[test]
    fn a_shorter_sequence_has_the_upper_left_part() {
        let mut config = SparsityConfig::new(Pattern::big_bird());
        config.max_seq_length = Some(500);
        let (whole, part) = (config.layout(1, 500).unwrap(), config.layout(1, 40).unwrap());
        assert_eq!(whole, part);
        assert_eq!(whole.n_blocks(), 32);
    }
}
