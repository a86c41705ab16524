//! Which blocks of attention's scores are kept: DeepSpeed's patterns and their defaults.

/// What a block of queries sees of the blocks of keys.
///
/// ```
/// use oarlock::nn::{Pattern, SparsityConfig};
///
/// let config = SparsityConfig::new(Pattern::fixed());
/// let layout = config.layout(8, 1024)?;
/// assert_eq!((layout.block(), layout.n_blocks()), (16, 64));
/// // Local windows of 4 blocks, and the last block of each for all behind it.
/// assert!(layout.keeps(0, 9, 8) && layout.keeps(0, 9, 3) && !layout.keeps(0, 9, 4));
/// # Ok::<(), oarlock::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparsityConfig {
    /// Positions of a block: a multiple of 16.
    pub block: usize,
    /// Whether each head has a layout of its own.
    pub different_layout_per_head: bool,
    /// Which blocks are kept.
    pub pattern: Pattern,
    /// Where random blocks come from: they are those that DeepSpeed draws right after `random.seed(seed)`.
    pub seed: u64,
    /// Positions of the whole layout; a shorter sequence has its upper left part. `None`: as many as the model is built for.
    pub max_seq_length: Option<usize>,
}

/// Whether a block may be seen by those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It may. In a causal model the positions before it do not see it nevertheless.
    Bidirectional,
    /// It may not.
    Unidirectional,
}

/// Which blocks are kept: DeepSpeed's `mode` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// All.
    Dense,
    /// Local windows, and blocks of each window that all see.
    Fixed {
        /// Blocks of a local window.
        num_local_blocks: usize,
        /// Blocks of a window that all see: a divisor of `num_local_blocks`.
        num_global_blocks: usize,
        /// Who sees them.
        attention: Direction,
        /// Whether they see all blocks, too.
        horizontal_global_attention: bool,
        /// Heads take turns with so many choices of the global blocks.
        num_different_global_patterns: usize,
    },
    /// Local windows of several sizes, chosen blocks that all see, and random ones.
    Variable {
        /// Random blocks of a row.
        num_random_blocks: usize,
        /// Blocks of the local windows, the last size for all that remain.
        local_window_blocks: Vec<usize>,
        /// Blocks that all see.
        global_block_indices: Vec<usize>,
        /// Where the range of blocks ends that begins at each of them; `None`: they are single blocks.
        global_block_end_indices: Option<Vec<usize>>,
        /// Who sees them.
        attention: Direction,
        /// Whether they see all blocks, too.
        horizontal_global_attention: bool,
    },
    /// Random blocks, a window around the diagonal, and the first blocks, which see all and are seen by all.
    BigBird {
        /// Random blocks of a row.
        num_random_blocks: usize,
        /// Blocks of the window.
        num_sliding_window_blocks: usize,
        /// First blocks that are global.
        num_global_blocks: usize,
        /// Whether what is later is hidden.
        attention: Direction,
    },
    /// A window around the diagonal, and chosen blocks, which see all and are seen by all.
    BsLongformer {
        /// Blocks of the window.
        num_sliding_window_blocks: usize,
        /// Blocks that are global.
        global_block_indices: Vec<usize>,
        /// Where the range of blocks ends that begins at each of them; `None`: they are single blocks.
        global_block_end_indices: Option<Vec<usize>>,
        /// Whether what is later is hidden.
        attention: Direction,
    },
}

impl Pattern {
    /// `fixed` with DeepSpeed's defaults: windows of 4 blocks, the last of each global.
    pub fn fixed() -> Pattern {
        Pattern::Fixed {
            num_local_blocks: 4,
            num_global_blocks: 1,
            attention: Direction::Bidirectional,
            horizontal_global_attention: false,
            num_different_global_patterns: 1,
        }
    }

    /// `variable` with DeepSpeed's defaults: windows of 4 blocks, and the first block of the sequence.
    pub fn variable() -> Pattern {
        Pattern::Variable {
            num_random_blocks: 0,
            local_window_blocks: vec![4],
            global_block_indices: vec![0],
            global_block_end_indices: None,
            attention: Direction::Bidirectional,
            horizontal_global_attention: false,
        }
    }

    /// `bigbird` with the defaults of DeepSpeed's class: a random block, a window of 3, and the first block.
    pub fn big_bird() -> Pattern {
        Pattern::BigBird {
            num_random_blocks: 1,
            num_sliding_window_blocks: 3,
            num_global_blocks: 1,
            attention: Direction::Bidirectional,
        }
    }

    /// `bslongformer` with DeepSpeed's defaults: a window of 3 blocks, and the first block of the sequence.
    pub fn bs_longformer() -> Pattern {
        Pattern::BsLongformer {
            num_sliding_window_blocks: 3,
            global_block_indices: vec![0],
            global_block_end_indices: None,
            attention: Direction::Bidirectional,
        }
    }

    pub(super) fn direction(&self) -> Direction {
        match self {
            Pattern::Dense => Direction::Bidirectional,
            Pattern::Fixed { attention, .. }
            | Pattern::Variable { attention, .. }
            | Pattern::BigBird { attention, .. }
            | Pattern::BsLongformer { attention, .. } => *attention,
        }
    }
}
