//! Products with a few rows of A (generation): B is read once, in place, at the speed of memory.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::Cpu;
use crate::dtype::Float;
use crate::isa::{Isa, Path, vector_methods};

use super::convert::{narrow, widen};
#[cfg(target_arch = "x86_64")]
use super::pack::words;
use super::{MatMut, MatRef, Store};

/// The most rows of A that take this way.
pub(super) const MAX_ROWS: usize = 8;
/// Columns of C in one task.
const COLS: usize = 64;

pub(super) fn scratch_bytes(m: usize, k: usize) -> usize {
    4 * m * k + align_of::<f32>()
}

/// The sizes and views must fit and `scratch` be large enough; `gemm` checks that.
pub(super) fn run<T: Float, C: Float>(
    cpu: &Cpu,
    a: MatRef<T>,
    b: MatRef<T>,
    c: MatMut<C>,
    store: Store,
    scratch: &mut [u8],
) {
    let (m, n, k) = (c.rows, c.cols, a.cols);
    let start = scratch.as_ptr().align_offset(align_of::<f32>());
    let x: &mut [f32] = bytemuck::cast_slice_mut(&mut scratch[start..start + 4 * m * k]);
    for (r, x) in x.chunks_exact_mut(k).enumerate() {
        if a.transposed {
            x.iter_mut().enumerate().for_each(|(i, x)| *x = widen(a.data[i * a.row_stride + r]));
        } else {
            x.iter_mut().zip(&a.data[r * a.row_stride..]).for_each(|(x, &a)| *x = widen(a));
        }
    }
    let x = &*x;
    let (c_data, c_stride) = (Columns(c.data.as_mut_ptr()), c.row_stride);
    cpu.par.for_each(n.div_ceil(COLS), |task| {
        let col = task * COLS;
        let n_cols = COLS.min(n - col);
        let mut sums = [[0f32; COLS]; MAX_ROWS];
        let w = if b.transposed { &b.data[col * b.row_stride..] } else { &b.data[col..] };
        product(cpu.isa, b.transposed, x, w, b.row_stride, k, n_cols, &mut sums[..m]);
        for (r, sums) in sums.iter().enumerate().take(m) {
            // SAFETY: row `r` of C has these columns, and no other task touches them.
            let to = unsafe { std::slice::from_raw_parts_mut(c_data.at(r * c_stride + col), n_cols) };
            for (to, &sum) in to.iter_mut().zip(sums) {
                *to = narrow(if store == Store::Add { sum + widen(*to) } else { sum });
            }
        }
    });
}

/// C, of which each task writes columns of its own.
struct Columns<T>(*mut T);
// SAFETY: tasks write disjoint columns, and `T: Send`.
unsafe impl<T: Send> Sync for Columns<T> {}
impl<T> Columns<T> {
    fn at(&self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// `sums[r][j] = Σ x[r][i] · w(i, j)` for `n` columns j; stored rows of `w` are columns if `by_column`.
fn product<T: Float>(
    isa: Isa,
    by_column: bool,
    x: &[f32],
    w: &[T],
    stride: usize,
    k: usize,
    n: usize,
    sums: &mut [[f32; COLS]],
) {
    match isa.path() {
        // SAFETY: an `Isa` proves its features.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 | Path::Avx512Bf16 => unsafe { avx512(by_column, x, w, stride, k, n, sums) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => unsafe { avx2(by_column, x, w, stride, k, n, sums) },
        _ => body::<T, [f32; 4]>(by_column, x, w, stride, k, n, sums),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
fn avx512<T: Float>(
    by_column: bool,
    x: &[f32],
    w: &[T],
    stride: usize,
    k: usize,
    n: usize,
    sums: &mut [[f32; COLS]],
) {
    body::<T, __m512>(by_column, x, w, stride, k, n, sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<T: Float>(
    by_column: bool,
    x: &[f32],
    w: &[T],
    stride: usize,
    k: usize,
    n: usize,
    sums: &mut [[f32; COLS]],
) {
    body::<T, __m256>(by_column, x, w, stride, k, n, sums);
}

#[inline(always)]
fn body<T: Float, V: Lanes>(
    by_column: bool,
    x: &[f32],
    w: &[T],
    stride: usize,
    k: usize,
    n: usize,
    sums: &mut [[f32; COLS]],
) {
    if !by_column {
        for (i, row) in w.chunks(stride.max(n)).take(k).enumerate() {
            for (sums, x) in sums.iter_mut().zip(x.chunks_exact(k)) {
                for (sum, &w) in sums.iter_mut().zip(&row[..n]) {
                    *sum = V::multiply_add(x[i], widen(w), *sum);
                }
            }
        }
        return;
    }
    let mut j = 0;
    while j < n {
        let width = if n - j >= 4 { 4 } else { 1 };
        let mut r = 0;
        while r < sums.len() {
            let (w, x, left) = (&w[j * stride..], &x[r * k..], sums.len() - r);
            let out = &mut sums[r..];
            r += match (width, left) {
                (4, 4..) if V::MANY_REGISTERS => dots::<T, V, 4, 4>(x, w, stride, k, j, out),
                (4, 2..) => dots::<T, V, 2, 4>(x, w, stride, k, j, out),
                (4, _) => dots::<T, V, 1, 4>(x, w, stride, k, j, out),
                _ => dots::<T, V, 1, 1>(x, w, stride, k, j, out),
            };
        }
        j += width;
    }
}

/// Dot products of `R` rows of `x` with `J` rows of `w`; returns `R`.
#[inline(always)]
fn dots<T: Float, V: Lanes, const R: usize, const J: usize>(
    x: &[f32],
    w: &[T],
    stride: usize,
    k: usize,
    col: usize,
    sums: &mut [[f32; COLS]],
) -> usize {
    let x: [&[f32]; R] = std::array::from_fn(|r| &x[r * k..][..k]);
    let w: [&[T]; J] = std::array::from_fn(|j| &w[j * stride..][..k]);
    let whole = k - k % V::LANES;
    // SAFETY: the callers have the instructions of `V`; `whole` elements exist in each row.
    unsafe {
        let mut acc = [[V::zero(); J]; R];
        for i in (0..whole).step_by(V::LANES) {
            for (j, w) in w.iter().enumerate() {
                let y = V::load(w.as_ptr().add(i));
                for (r, x) in x.iter().enumerate() {
                    acc[r][j] = V::fma(V::load(x.as_ptr().add(i)), y, acc[r][j]);
                }
            }
        }
        for (sums, acc) in sums.iter_mut().zip(&acc) {
            for (sum, acc) in sums[col..].iter_mut().zip(acc) {
                *sum = V::sum(*acc);
            }
        }
    }
    if whole < k {
        for (sums, x) in sums.iter_mut().zip(x) {
            for (sum, w) in sums[col..].iter_mut().zip(w) {
                *sum = (whole..k).fold(*sum, |sum, i| V::multiply_add(x[i], widen(w[i]), sum));
            }
        }
    }
    R
}

/// A vector of f32. Its functions may be called only on a CPU that has its instructions.
trait Lanes: Copy {
    /// Elements of a vector.
    const LANES: usize;
    /// Whether there are 32 vector registers instead of 16.
    const MANY_REGISTERS: bool;
    #[inline(always)]
    fn multiply_add(x: f32, y: f32, sum: f32) -> f32 {
        x.mul_add(y, sum)
    }
    unsafe fn zero() -> Self;
    unsafe fn load<T: Float>(p: *const T) -> Self;
    unsafe fn fma(x: Self, y: Self, sum: Self) -> Self;
    /// The sum of all lanes, by halves.
    unsafe fn sum(x: Self) -> f32;
}

impl Lanes for [f32; 4] {
    const LANES: usize = 4;
    const MANY_REGISTERS: bool = false;
    #[inline(always)]
    fn multiply_add(x: f32, y: f32, sum: f32) -> f32 {
        x * y + sum
    }
    vector_methods! {
        fn zero() -> Self { [0.0; 4] }
        fn load[T: Float](p: *const T) -> Self { p.cast::<[T; 4]>().read_unaligned().map(widen) }
        fn fma(x: Self, y: Self, sum: Self) -> Self { std::array::from_fn(|l| x[l] * y[l] + sum[l]) }
        fn sum(x: Self) -> f32 { (x[0] + x[2]) + (x[1] + x[3]) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m256 {
    const LANES: usize = 8;
    const MANY_REGISTERS: bool = false;
    vector_methods! {
        fn zero() -> Self { _mm256_setzero_ps() }
        // Arrays and vectors of one size.
        fn load[T: Float](p: *const T) -> Self {
            std::mem::transmute(words(p.cast::<[T; 8]>().read_unaligned()))
        }
        fn fma(x: Self, y: Self, sum: Self) -> Self { _mm256_fmadd_ps(x, y, sum) }
        fn sum(x: Self) -> f32 {
            let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m512 {
    const LANES: usize = 16;
    const MANY_REGISTERS: bool = true;
    vector_methods! {
        fn zero() -> Self { _mm512_setzero_ps() }
        // As above.
        fn load[T: Float](p: *const T) -> Self {
            std::mem::transmute(words(p.cast::<[T; 16]>().read_unaligned()))
        }
        fn fma(x: Self, y: Self, sum: Self) -> Self { _mm512_fmadd_ps(x, y, sum) }
        fn sum(x: Self) -> f32 { _mm512_reduce_add_ps(x) }
    }
}
