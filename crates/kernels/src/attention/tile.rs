//! The register tiles under attention: 16 lanes of f32 on each instruction set, and products of 8 x 32.
//!
//! Operands are made of 32-bit *units* along the reduction: one f32, or a pair of bf16 where the CPU multiplies
//! such pairs. One product serves both; only [`Kernel::dot`] differs.

use std::marker::PhantomData;

use crate::dtype::{DType, Float};
use crate::isa::{Isa, Path, vector_methods};
use crate::math;
use crate::multiply_add::{Fused, MultiplyAdd, Separate};

/// Lanes of a vector.
pub(super) const LANES: usize = 16;
/// Rows of a register tile.
pub(super) const ROWS: usize = 8;
/// Columns of a register tile, and of a packed panel: two vectors.
pub(super) const COLS: usize = 2 * LANES;

/// Two vectors: a row of a register tile.
pub(super) type Row<K> = [<K as Kernel>::V; 2];

/// Vectors of 16 f32 on one instruction set, and the product of units that it has.
///
/// # Safety
/// Every method may be called only where the CPU has the instruction set, inlined into a function that enables it,
/// and with pointers valid for the 16 (or stated) elements that it reads or writes. No alignment is needed.
pub(super) trait Kernel: Copy + Send + Sync + 'static {
    /// 16 lanes of 32 bits.
    type V: Copy;
    /// Elements of a unit.
    const PAIR: usize;
    /// Rows of a tile that the registers hold at once; divides [`ROWS`].
    const STRIP: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, x: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater of the two; `b` if one of them is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// Sums of the lanes of each: of each quarter by halves, then of the quarters by halves.
    unsafe fn sums(x: [Self::V; 4]) -> [f32; 4];
    /// Two to the power of each lane, below 2^-126 zero; NaN stays NaN.
    unsafe fn exp2(x: Self::V) -> Self::V;
    /// `x` in the lanes where `lo <= j < hi`, elsewhere `other`.
    unsafe fn keep(x: Self::V, other: Self::V, j: i32, lo: *const i32, hi: *const i32) -> Self::V;
    /// Writes the transpose of 16 x 16 units.
    unsafe fn transpose(src: *const u32, src_ld: usize, dst: *mut u32, dst_ld: usize);

    // What depends on the unit; this is for units of one number.

    /// `acc + a * b`, a unit's products summed into its lane.
    #[inline(always)]
    unsafe fn dot(acc: Self::V, a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: passed on.
        unsafe { Self::fma(a, b, acc) }
    }
    /// Writes a row of 32 numbers as 32 / PAIR units along the row.
    #[inline(always)]
    unsafe fn put_row(p: *mut u32, x: Row<Self>) {
        // SAFETY: passed on.
        unsafe {
            Self::store(p.cast(), x[0]);
            Self::store(p.add(LANES).cast(), x[1]);
        }
    }
    /// Writes two rows of 32 numbers as 2 / PAIR rows of 32 units across the rows, `ld` units apart.
    #[inline(always)]
    unsafe fn put_across(p: *mut u32, ld: usize, x0: Row<Self>, x1: Row<Self>) {
        // SAFETY: passed on.
        unsafe {
            Self::put_row(p, x0);
            Self::put_row(p.add(ld), x1);
        }
    }

    /// A product of 8 rows and `W` vectors, in strips that the registers hold.
    #[inline(always)]
    unsafe fn tile<const W: usize, const ROW_MAJOR: bool, const ADD: bool>(operands: Operands) {
        // SAFETY: passed on; the strips are the tile.
        unsafe {
            if Self::STRIP == ROWS {
                strip::<Self, ROWS, W, ROW_MAJOR, ADD>(operands, 0, 0);
            } else {
                for r in (0..ROWS).step_by(2) {
                    strip::<Self, 2, W, ROW_MAJOR, ADD>(operands, r, 0);
                }
            }
        }
    }
}

/// Minimax coefficients of 2^r for |r| <= 1/2, lowest power first; relative error 1.2e-7.
pub(super) const EXP2: [f32; 6] =
    [1.000_000_1, 0.693_146_94, 0.240_221_2, 0.055_507_13, 0.009_675_542, 0.001_327_647_1];

/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// How the rows of a product's left operand lie in memory.
#[derive(Clone, Copy)]
pub(super) enum Left {
    /// Units of a row follow each other; rows are `ld` apart.
    RowMajor {
        /// Units from row to row.
        ld: usize,
    },
    /// Units of a column follow each other; steps of the reduction are `ld` apart.
    ColMajor {
        /// Units from step to step.
        ld: usize,
    },
}

/// C = A B or C += A B for a tile: `steps` units, against a panel `b`; rows of C are `ldc` numbers apart.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    steps: usize,
    a: *const u32,
    ld: usize,
    b: *const u32,
    c: *mut f32,
    ldc: usize,
}

/// `R` rows from `row` on and `W` vectors from `vector` on of a tile, in registers.
///
/// # Safety
/// As for [`Kernel`]: the operands have the extents stated.
#[inline(always)]
pub(super) unsafe fn strip<
    K: Kernel,
    const R: usize,
    const W: usize,
    const ROW_MAJOR: bool,
    const ADD: bool,
>(
    operands: Operands,
    row: usize,
    vector: usize,
) {
    let Operands { steps, a, ld, b, c, ldc } = operands;
    // SAFETY: the caller vouches for these rows and `steps` columns of `a`, for `steps` rows of `b` and for C.
    unsafe {
        let (b, c) = (b.add(vector * LANES), c.add(row * ldc + vector * LANES));
        let mut sums = [[K::splat(0.0); W]; R];
        if ADD {
            for (r, row) in sums.iter_mut().enumerate() {
                for (w, sum) in row.iter_mut().enumerate() {
                    *sum = K::load(c.add(r * ldc + w * LANES));
                }
            }
        }
        let a = a.add(if ROW_MAJOR { row * ld } else { row });
        for k in 0..steps {
            let mut panel = [sums[0][0]; W];
            for (w, vector) in panel.iter_mut().enumerate() {
                *vector = K::load(b.add(k * COLS + w * LANES).cast());
            }
            for (r, row) in sums.iter_mut().enumerate() {
                let unit = if ROW_MAJOR { a.add(r * ld + k) } else { a.add(k * ld + r) };
                let unit = K::splat(unit.cast::<f32>().read());
                for w in 0..W {
                    row[w] = K::dot(row[w], unit, panel[w]);
                }
            }
        }
        for (r, row) in sums.iter().enumerate() {
            for (w, sum) in row.iter().enumerate() {
                K::store(c.add(r * ldc + w * LANES), *sum);
            }
        }
    }
}

/// The hyperbolic tangents of a tile, which `lanes` holds as well.
///
/// # Safety
/// As for [`Kernel`].
#[inline(always)]
pub(super) unsafe fn tanh<K: Kernel>(
    mut x: [Row<K>; ROWS],
    lanes: &mut [f32; ROWS * COLS],
) -> [Row<K>; ROWS] {
    // SAFETY: a tile is 8 rows of two vectors.
    unsafe {
        for (r, row) in x.iter().enumerate() {
            K::store(lanes.as_mut_ptr().add(r * COLS), row[0]);
            K::store(lanes.as_mut_ptr().add(r * COLS + LANES), row[1]);
        }
        lanes.iter_mut().for_each(|x| *x = math::tanh(*x));
        for (r, row) in x.iter_mut().enumerate() {
            *row = [K::load(lanes.as_ptr().add(r * COLS)), K::load(lanes.as_ptr().add(r * COLS + LANES))];
        }
    }
    x
}

/// A B over `steps` units: 8 rows of `a`, `ld` units apart, times the 32 columns of panel `b`.
///
/// # Safety
/// As for [`Kernel`]: `a` has 8 rows and `b` 32 columns of `steps` units.
#[inline(always)]
pub(super) unsafe fn product<K: Kernel>(
    steps: usize,
    a: *const u32,
    ld: usize,
    b: *const u32,
) -> [Row<K>; ROWS] {
    // SAFETY: passed on; `c` has 8 rows of two vectors.
    unsafe {
        let mut c = [[K::splat(0.0); 2]; ROWS];
        K::tile::<2, true, false>(Operands { steps, a, ld, b, c: c.as_mut_ptr().cast(), ldc: COLS });
        c
    }
}

/// C += A B for 8 rows of C, `ldc` numbers apart; `b` is one panel, C has its first `cols` columns,
/// rounded up to a vector.
///
/// # Safety
/// As for [`Kernel`]: `a`, `b` and `c` have the extents stated.
#[inline(always)]
pub(super) unsafe fn accumulate<K: Kernel>(
    steps: usize,
    a: *const u32,
    left: Left,
    b: *const u32,
    c: *mut f32,
    ldc: usize,
    cols: usize,
) {
    let (Left::RowMajor { ld } | Left::ColMajor { ld }) = left;
    let operands = Operands { steps, a, ld, b, c, ldc };
    // SAFETY: passed on; the second vector of a row is touched only if it has columns.
    unsafe {
        match (left, cols > LANES) {
            (Left::RowMajor { .. }, true) => K::tile::<2, true, true>(operands),
            (Left::RowMajor { .. }, false) => K::tile::<1, true, true>(operands),
            (Left::ColMajor { .. }, true) => K::tile::<2, false, true>(operands),
            (Left::ColMajor { .. }, false) => K::tile::<1, false, true>(operands),
        }
    }
}

/// Work that is compiled once for each kernel.
pub(super) trait Task {
    /// Does it.
    ///
    /// # Safety
    /// As for [`Kernel`]. Implementations are `#[inline(always)]`.
    unsafe fn run<K: Kernel>(self);
}

/// Runs `task` on the fastest kernel that `isa` proves and that `T` can use.
pub(super) fn dispatch<T: Float>(isa: Isa, task: impl Task) {
    #[cfg(target_arch = "x86_64")]
    {
        use super::tile_avx2::Avx2;
        use super::tile_avx512::{Avx512, Avx512Bf16};
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
        unsafe fn avx512bf16(task: impl Task) {
            // SAFETY: the features are enabled here.
            unsafe { task.run::<Avx512Bf16>() }
        }
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn avx512(task: impl Task) {
            // SAFETY: the features are enabled here.
            unsafe { task.run::<Avx512>() }
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2(task: impl Task) {
            // SAFETY: the features are enabled here.
            unsafe { task.run::<Avx2>() }
        }
        match isa.path() {
            // SAFETY: an `Isa` with this path exists only if the CPU was found to have its features.
            Path::Avx512Bf16 if T::DTYPE == DType::BF16 => return unsafe { avx512bf16(task) },
            // SAFETY: as above; this path implies plain AVX-512.
            Path::Avx512Bf16 | Path::Avx512 => return unsafe { avx512(task) },
            // SAFETY: as above.
            Path::Avx2 => return unsafe { avx2(task) },
            Path::Portable | Path::PortableFma => {}
        }
    }
    // SAFETY: plain Rust.
    unsafe {
        match isa.path() {
            Path::PortableFma => task.run::<Lanes<Fused>>(),
            _ => task.run::<Lanes<Separate>>(),
        }
    }
}

/// Elements of a unit in the kernel that [`dispatch`] picks.
pub(super) fn pair<T: Float>(isa: Isa) -> usize {
    if isa.path() == Path::Avx512Bf16 && T::DTYPE == DType::BF16 { 2 } else { 1 }
}

/// Lanes in plain Rust, for LLVM to vectorise.
#[derive(Clone, Copy)]
pub(super) struct Lanes<M>(PhantomData<M>);

type A16 = [f32; LANES];

/// Applies an expression to the lanes: loops, because closures are not always inlined.
macro_rules! lanes {
    ($i:ident => $x:expr) => {{
        let mut out = [0f32; LANES];
        for $i in 0..LANES {
            out[$i] = $x;
        }
        out
    }};
}

impl<M: MultiplyAdd> Kernel for Lanes<M> {
    type V = A16;
    const PAIR: usize = 1;
    const STRIP: usize = 2;

    vector_methods! {
        fn splat(x: f32) -> A16 { [x; LANES] }
        fn load(p: *const f32) -> A16 { p.cast::<A16>().read_unaligned() }
        fn store(p: *mut f32, x: A16) { p.cast::<A16>().write_unaligned(x) }
        fn add(a: A16, b: A16) -> A16 { lanes!(i => a[i] + b[i]) }
        fn sub(a: A16, b: A16) -> A16 { lanes!(i => a[i] - b[i]) }
        fn mul(a: A16, b: A16) -> A16 { lanes!(i => a[i] * b[i]) }
        fn fma(a: A16, b: A16, c: A16) -> A16 { M::lanes(a, b, c) }
        fn max(a: A16, b: A16) -> A16 { lanes!(i => if a[i] > b[i] { a[i] } else { b[i] }) }
        fn sums(x: [A16; 4]) -> [f32; 4] {
            let mut out = [0f32; 4];
            for (out, x) in out.iter_mut().zip(x) {
                let (quarters, _) = x.as_chunks::<4>();
                let sums: [f32; 4] = std::array::from_fn(|q| {
                    let [a, b, c, d] = quarters[q];
                    (a + c) + (b + d)
                });
                *out = (sums[0] + sums[2]) + (sums[1] + sums[3]);
            }
            out
        }
        fn exp2(x: A16) -> A16 {
            let shifted = Self::add(x, [MAGIC; LANES]);
            let r = Self::sub(x, Self::sub(shifted, [MAGIC; LANES]));
            let mut y = [EXP2[5]; LANES];
            for c in EXP2[..5].iter().rev() {
                y = Self::fma(y, r, [*c; LANES]);
            }
            lanes!(i => {
                let power = shifted[i].to_bits().wrapping_sub(MAGIC.to_bits()).wrapping_add(127) << 23;
                if x[i] < -126.0 { 0.0 } else { y[i] * f32::from_bits(power) }
            })
        }
        fn keep(x: A16, other: A16, j: i32, lo: *const i32, hi: *const i32) -> A16 {
            let lo = lo.cast::<[i32; LANES]>().read_unaligned();
            let hi = hi.cast::<[i32; LANES]>().read_unaligned();
            lanes!(i => if lo[i] <= j && j < hi[i] { x[i] } else { other[i] })
        }
        fn transpose(src: *const u32, src_ld: usize, dst: *mut u32, dst_ld: usize) {
            for i in 0..LANES {
                for j in 0..LANES {
                    *dst.add(j * dst_ld + i) = *src.add(i * src_ld + j);
                }
            }
        }
    }
}
