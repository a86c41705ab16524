//! The micro-kernel interface: one register tile of C from a block of A and a packed panel of B.
//!
//! All kernels see 32-bit *words* along K: a word is one f32, or two consecutive bf16 (the earlier one in the lower half).
//! A product over `k` elements takes [`Micro::steps`] words.

use crate::dtype::{DType, bf16};
use crate::isa::{Isa, Path};
use crate::multiply_add::{Fused, Separate};

use super::kernel_portable;
#[cfg(target_arch = "x86_64")]
use super::{kernel_avx2, kernel_avx512};

/// Where a tile of C goes.
#[derive(Clone, Copy)]
pub(crate) enum Out {
    /// f32, unrounded.
    F32(*mut f32),
    /// bf16, rounded once. Only for kernels with [`Micro::writes_bf16`].
    Bf16(*mut bf16),
}

/// One call of a micro-kernel: C[rows, cols] (+)= A[rows, k] · B[k, cols].
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Rows of the tile, 1 to [`Micro::mr`].
    pub(crate) rows: usize,
    /// Columns of the tile, 1 to [`Micro::nr`].
    pub(crate) cols: usize,
    /// Words along K.
    pub(crate) steps: usize,
    /// The first word of the first row of A.
    pub(crate) a: *const u8,
    /// Bytes between rows of A: 4 in a packed panel (whose words are [`Micro::a_width`] apart), else the words of a row
    /// are contiguous.
    pub(crate) a_row_bytes: usize,
    /// A panel of B: `steps` groups of [`Micro::nr`] words.
    pub(crate) b: *const u32,
    /// The first element of the tile of C.
    pub(crate) c: Out,
    /// Elements between rows of C.
    pub(crate) c_stride: usize,
    /// Whether to add to C instead of overwriting it.
    pub(crate) add: bool,
}

/// [`Tile::a_row_bytes`] of a packed panel of A.
pub(crate) const PACKED: usize = 4;

/// A micro-kernel and its sizes.
#[derive(Clone, Copy)]
pub(crate) struct Micro {
    /// Rows of a full tile.
    pub(crate) mr: usize,
    /// Columns of a full tile; the width of a packed panel of B.
    pub(crate) nr: usize,
    /// The width of a packed panel of A, of which the first `mr` words of each step are used.
    pub(crate) a_width: usize,
    /// Whether a word is a pair of bf16.
    pub(crate) pairs: bool,
    /// Whether [`Out::Bf16`] is allowed.
    pub(crate) writes_bf16: bool,
    run: unsafe fn(&Tile),
}

impl Micro {
    /// The kernel for operands of `dtype`.
    pub(crate) fn of(isa: Isa, dtype: DType) -> Micro {
        match (isa.path(), dtype) {
            #[cfg(target_arch = "x86_64")]
            (Path::Avx512Bf16, DType::BF16) => Micro {
                mr: 14,
                nr: 32,
                a_width: 16,
                pairs: true,
                writes_bf16: true,
                run: kernel_avx512::bf16_tile,
            },
            #[cfg(target_arch = "x86_64")]
            (Path::Avx512 | Path::Avx512Bf16, _) => Micro {
                mr: 14,
                nr: 32,
                a_width: 16,
                pairs: false,
                writes_bf16: false,
                run: kernel_avx512::f32_tile,
            },
            #[cfg(target_arch = "x86_64")]
            (Path::Avx2, _) => Micro {
                mr: 6,
                nr: 16,
                a_width: 8,
                pairs: false,
                writes_bf16: true,
                run: kernel_avx2::f32_tile,
            },
            (path, _) => Micro {
                mr: 4,
                nr: 8,
                a_width: 4,
                pairs: false,
                writes_bf16: false,
                run: match path {
                    Path::PortableFma => kernel_portable::f32_tile::<Fused>,
                    _ => kernel_portable::f32_tile::<Separate>,
                },
            },
        }
    }

    /// Words that hold `k` elements.
    pub(crate) fn steps(&self, k: usize) -> usize {
        if self.pairs { k.div_ceil(2) } else { k }
    }

    /// Computes one tile. Each element of C is one chain of additions in the order of K, starting at zero; with
    /// [`Tile::add`] the old value is added last.
    ///
    /// # Safety
    /// `tile` must satisfy the bounds in [`Tile`], and its pointers must be valid for `rows` rows of `steps` words of A
    /// (a packed panel: `steps * a_width` words), `steps * nr` words of B, and `rows` rows of `cols` elements of C that
    /// nobody else touches.
    #[inline]
    pub(crate) unsafe fn tile(&self, tile: &Tile) {
        debug_assert!((1..=self.mr).contains(&tile.rows) && (1..=self.nr).contains(&tile.cols));
        // SAFETY: the caller's contract; `run` matches the CPU because `of` was given an `Isa`.
        unsafe { (self.run)(tile) }
    }
}
