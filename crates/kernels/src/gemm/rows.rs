//! Products with a few rows of A (generation): B is read once, in place, at the speed of memory.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use std::marker::PhantomData;

use crate::Cpu;
use crate::dtype::Float;
use crate::isa::{Isa, Path, vector_methods};
use crate::multiply_add::{Fused, MultiplyAdd, Separate};
use crate::pieces::Columns;

use super::convert::{narrow, widen};
use super::pack::prefetch;
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
    let (c_data, c_stride) = (Columns::of(c.data), c.row_stride);
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
        Path::PortableFma => body::<T, Plain<Fused>>(by_column, x, w, stride, k, n, sums),
        _ => body::<T, Plain<Separate>>(by_column, x, w, stride, k, n, sums),
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
    body::<T, [__m256; 2]>(by_column, x, w, stride, k, n, sums);
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
        // A row alone needs more columns for as many sums in flight.
        if sums.len() == 1 && V::N_SUMS >= 16 && n - j >= 8 {
            dots::<T, V, 1, 8>(x, &w[j * stride..], stride, k, j, sums);
            j += 8;
            continue;
        }
        let width = if n - j >= 4 { 4 } else { 1 };
        let mut r = 0;
        while r < sums.len() {
            let (w, x, left) = (&w[j * stride..], &x[r * k..], sums.len() - r);
            let out = &mut sums[r..];
            // What does not fit the registers at once is done in two halves.
            r += match (width, V::N_SUMS, left) {
                (4, 16.., 4..) => dots::<T, V, 4, 4>(x, w, stride, k, j, out),
                (4, 16.., 2..) => dots::<T, V, 2, 4>(x, w, stride, k, j, out),
                (4, 4.., 2..) => {
                    dots::<T, V, 2, 2>(x, w, stride, k, j, out);
                    dots::<T, V, 2, 2>(x, &w[2 * stride..], stride, k, j + 2, out)
                }
                (4, 4.., _) => dots::<T, V, 1, 4>(x, w, stride, k, j, out),
                (4, _, _) => {
                    dots::<T, V, 1, 2>(x, w, stride, k, j, out);
                    dots::<T, V, 1, 2>(x, &w[2 * stride..], stride, k, j + 2, out)
                }
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
    let whole = k - k % LANES;
    // SAFETY: the callers have the instructions of `V`; `whole` elements exist in each row.
    unsafe {
        let mut acc = [[V::zero(); J]; R];
        for i in (0..whole).step_by(LANES) {
            for (j, w) in w.iter().enumerate() {
                // The columns that follow, of which the hardware sees only the beginning coming.
                prefetch(w.as_ptr().wrapping_add(J * stride + i));
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

/// Lanes of a vector, on each path: they decide in which order dot products are summed.
const LANES: usize = 16;

/// A vector of f32. Its functions may be called only on a CPU that has its instructions.
trait Lanes: Copy {
    /// Vectors of sums that the registers hold beside their operands.
    const N_SUMS: usize;
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

/// A vector in plain Rust.
#[derive(Clone, Copy)]
struct Plain<M>([f32; LANES], PhantomData<M>);

impl<M: MultiplyAdd> Lanes for Plain<M> {
    const N_SUMS: usize = 2;
    #[inline(always)]
    fn multiply_add(x: f32, y: f32, sum: f32) -> f32 {
        M::one(x, y, sum)
    }
    vector_methods! {
        fn zero() -> Self { Plain([0.0; LANES], PhantomData) }
        fn load[T: Float](p: *const T) -> Self {
            Plain(p.cast::<[T; LANES]>().read_unaligned().map(widen), PhantomData)
        }
        fn fma(x: Self, y: Self, sum: Self) -> Self { Plain(M::lanes(x.0, y.0, sum.0), PhantomData) }
        fn sum(x: Self) -> f32 {
            let mut x = x.0;
            for half in [8, 4, 2, 1] {
                for i in 0..half {
                    x[i] += x[i + half];
                }
            }
            x[0]
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for [__m256; 2] {
    const N_SUMS: usize = 4;
    vector_methods! {
        fn zero() -> Self { [_mm256_setzero_ps(); 2] }
        // Arrays and vectors of one size. A bf16 is the upper half of an f32.
        fn load[T: Float](p: *const T) -> Self {
            if T::DTYPE == crate::DType::BF16 {
                let p: *const __m128i = p.cast();
                let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
                let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(1)));
                return [
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                ];
            }
            let [low, high] = p.cast::<[[T; 8]; 2]>().read_unaligned();
            [
                std::mem::transmute::<[u32; 8], __m256>(words(low)),
                std::mem::transmute::<[u32; 8], __m256>(words(high)),
            ]
        }
        fn fma(x: Self, y: Self, sum: Self) -> Self {
            [_mm256_fmadd_ps(x[0], y[0], sum[0]), _mm256_fmadd_ps(x[1], y[1], sum[1])]
        }
        fn sum(x: Self) -> f32 { sum_of_eight(_mm256_add_ps(x[0], x[1])) }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for __m512 {
    const N_SUMS: usize = 16;
    vector_methods! {
        fn zero() -> Self { _mm512_setzero_ps() }
        // As above.
        fn load[T: Float](p: *const T) -> Self {
            if T::DTYPE == crate::DType::BF16 {
                let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                return _mm512_castsi512_ps(_mm512_slli_epi32::<16>(x));
            }
            std::mem::transmute(words(p.cast::<[T; 16]>().read_unaligned()))
        }
        fn fma(x: Self, y: Self, sum: Self) -> Self { _mm512_fmadd_ps(x, y, sum) }
        fn sum(x: Self) -> f32 {
            sum_of_eight(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)))
        }
    }
}

/// The sum of eight lanes, by halves.
///
/// # Safety
/// On a CPU with AVX.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sum_of_eight(x: __m256) -> f32 {
    // SAFETY: the caller's contract.
    unsafe {
        let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
        _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
    }
}
