//! Products with a few rows of A (generation): B is read once, in place, at the speed of memory.

use crate::cpu::Cpu;
use crate::cpu::isa::{Isa, Path};
use crate::dtype::Float;

use super::convert::{narrow, widen};
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
        _ => body::<T, 4, false>(by_column, x, w, stride, k, n, sums),
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
    body::<T, 16, true>(by_column, x, w, stride, k, n, sums);
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
    body::<T, 8, true>(by_column, x, w, stride, k, n, sums);
}

#[inline(always)]
fn body<T: Float, const L: usize, const FMA: bool>(
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
                add_scaled::<T, FMA>(&mut sums[..n], x[i], &row[..n]);
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
                (4, 4..) if L == 16 => dots::<T, L, FMA, 4, 4>(x, w, stride, k, j, out),
                (4, 2..) => dots::<T, L, FMA, 2, 4>(x, w, stride, k, j, out),
                (4, _) => dots::<T, L, FMA, 1, 4>(x, w, stride, k, j, out),
                _ => dots::<T, L, FMA, 1, 1>(x, w, stride, k, j, out),
            };
        }
        j += width;
    }
}

#[inline(always)]
fn fma<const FMA: bool>(x: f32, y: f32, sum: f32) -> f32 {
    if FMA { x.mul_add(y, sum) } else { x * y + sum }
}

#[inline(always)]
fn add_scaled<T: Float, const FMA: bool>(sums: &mut [f32], x: f32, row: &[T]) {
    for (sum, &w) in sums.iter_mut().zip(row) {
        *sum = fma::<FMA>(x, widen(w), *sum);
    }
}

/// Dot products of `R` rows of `x` with `J` rows of `w`; returns `R`.
#[inline(always)]
fn dots<T: Float, const L: usize, const FMA: bool, const R: usize, const J: usize>(
    x: &[f32],
    w: &[T],
    stride: usize,
    k: usize,
    col: usize,
    sums: &mut [[f32; COLS]],
) -> usize {
    let x: [&[f32]; R] = std::array::from_fn(|r| &x[r * k..][..k]);
    let w: [&[T]; J] = std::array::from_fn(|j| &w[j * stride..][..k]);
    let mut acc = [[[0f32; L]; J]; R];
    for i in (0..k - k % L).step_by(L) {
        for j in 0..J {
            let y: [f32; L] = std::array::from_fn(|l| widen(w[j][i..i + L][l]));
            for r in 0..R {
                let x = &x[r][i..i + L];
                for l in 0..L {
                    acc[r][j][l] = fma::<FMA>(x[l], y[l], acc[r][j][l]);
                }
            }
        }
    }
    for r in 0..R {
        for j in 0..J {
            let mut lanes = acc[r][j];
            for i in k - k % L..k {
                lanes[i % L] = fma::<FMA>(x[r][i], widen(w[j][i]), lanes[i % L]);
            }
            let mut half = L;
            while half > 1 {
                half /= 2;
                for l in 0..half {
                    lanes[l] += lanes[l + half];
                }
            }
            sums[r][col + j] = lanes[0];
        }
    }
    R
}
