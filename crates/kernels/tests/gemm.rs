//! Products against f64 references: every path, type pair and layout, odd shapes, and 1, 2 and 7 threads bitwise.

use std::sync::LazyLock;

use oarlock_kernels::gemm::convert::{narrow, widen};
use oarlock_kernels::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes, peak_flops};
use oarlock_kernels::{Cpu, DType, Float, Isa, Par, Store, bf16, f16};

use crate::everywhere::has_the_promised_bits;

static POOLS: LazyLock<[Par; 2]> = LazyLock::new(|| [2, 7].map(|n| Par::threads(n).unwrap()));

/// Values with few mantissa bits, so that they are exact in every type.
fn value(i: usize, seed: usize) -> f32 {
    let h = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (seed as u64) << 32);
    let h = (h ^ h >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56;
    (h as f32 - 127.5) / 64.0
}

struct Matrix<T> {
    data: Vec<T>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    transposed: bool,
}

impl<T: Float> Matrix<T> {
    fn new(rows: usize, cols: usize, transposed: bool, gap: usize, seed: usize) -> Self {
        let (stored_rows, stored_cols) = if transposed { (cols, rows) } else { (rows, cols) };
        let row_stride = stored_cols + gap;
        let len = if stored_rows == 0 { 0 } else { (stored_rows - 1) * row_stride + stored_cols };
        // What lies between rows must never be read into a sum.
        let element = |i| if i % row_stride < stored_cols { value(i, seed) } else { f32::NAN };
        Matrix {
            data: (0..len).map(|i| T::from_f32(element(i))).collect(),
            rows,
            cols,
            row_stride,
            transposed,
        }
    }

    fn view(&self) -> MatRef<'_, T> {
        let &Matrix { ref data, rows, cols, row_stride, transposed } = self;
        MatRef { data, rows, cols, row_stride, transposed }
    }

    fn at(&self, r: usize, c: usize) -> f64 {
        let i = if self.transposed { c * self.row_stride + r } else { r * self.row_stride + c };
        f64::from(self.data[i].to_f32())
    }
}

fn product<T: Float, C: Float>(
    cpu: &Cpu,
    a: &Matrix<T>,
    b: &Matrix<T>,
    c: &Matrix<C>,
    store: Store,
) -> Matrix<C> {
    let mut out = Matrix { data: c.data.clone(), ..*c };
    let mut scratch = vec![0xff; gemm_scratch_bytes(cpu, a.rows, b.cols, a.cols, T::DTYPE)];
    let view = MatMut { data: &mut out.data, rows: c.rows, cols: c.cols, row_stride: c.row_stride };
    gemm(cpu, a.view(), b.view(), view, store, &mut scratch);
    out
}

fn check<T: Float, C: Float>(m: usize, n: usize, k: usize) {
    for (a_t, b_t, gap) in [(false, false, 0), (false, true, 3), (true, false, 1), (true, true, 0)] {
        let a = Matrix::<T>::new(m, k, a_t, gap, 1);
        let b = Matrix::<T>::new(k, n, b_t, gap, 2);
        let c = Matrix::<C>::new(m, n, false, gap, 3);
        let references: Vec<_> = (0..m * n)
            .step_by((m * n / 500).max(1))
            .map(|i| {
                let (r, j) = (i / n, i % n);
                let terms = || (0..k).map(|i| a.at(r, i) * b.at(i, j));
                (r, j, terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>())
            })
            .collect();
        let half_ulp = match C::DTYPE {
            DType::BF16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            _ => 0.0,
        };
        for store in [Store::Overwrite, Store::Add] {
            let mut promised: Option<Vec<u8>> = None;
            for isa in Isa::available() {
                let what = format!(
                    "[{m}, {n}, {k}] a_t {a_t} b_t {b_t} {store:?} {} {} -> {}",
                    isa.path(),
                    T::DTYPE,
                    C::DTYPE
                );
                let solo = product(&Cpu { isa, par: Par::solo() }, &a, &b, &c, store);
                for &(r, j, dot, magnitude) in &references {
                    let old = if store == Store::Add { c.at(r, j) } else { 0.0 };
                    let expected = old + dot;
                    let error = (solo.at(r, j) - expected).abs();
                    // A chain of k additions of which each may err by half a unit in the last place.
                    let bound = magnitude * 2f64.powi(-24) * (k as f64).sqrt().max(4.0)
                        + (expected.abs() + 1e-3) * half_ulp * 1.01;
                    assert!(error <= bound, "{what} at {r}, {j}: {} instead of {expected}", solo.at(r, j));
                }
                let bits = bytemuck::cast_slice::<C, u8>(&solo.data);
                if has_the_promised_bits(isa.path(), T::DTYPE) {
                    assert!(
                        *promised.get_or_insert(bits.to_vec()) == *bits,
                        "{what}: the bits of this path alone"
                    );
                }
                for par in &*POOLS {
                    let cpu = Cpu { isa, par: par.clone() };
                    let other = product(&cpu, &a, &b, &c, store);
                    let same = bits == bytemuck::cast_slice::<C, u8>(&other.data);
                    assert!(same, "{what}: {} threads give other bits", par.n_threads());
                }
            }
        }
    }
}

fn check_all_types(m: usize, n: usize, k: usize) {
    check::<f32, f32>(m, n, k);
    check::<bf16, bf16>(m, n, k);
    check::<bf16, f32>(m, n, k);
    check::<f16, f16>(m, n, k);
    check::<f16, f32>(m, n, k);
}

/// As [`check`] of the bits alone, with numbers whose products and sums are rounded.
fn check_bits<T: Float, C: Float>(m: usize, n: usize, k: usize) {
    for transposed in [false, true] {
        let mut a = Matrix::<T>::new(m, k, transposed, 0, 1);
        let mut b = Matrix::<T>::new(k, n, !transposed, 0, 2);
        for (i, x) in a.data.iter_mut().chain(&mut b.data).enumerate() {
            *x = T::from_f32((value(i, 5) + value(i, 6) * 1e-3) * 1.234_567_9);
        }
        let c = Matrix::<C>::new(m, n, false, 0, 3);
        let paths = Isa::available().into_iter().filter(|isa| has_the_promised_bits(isa.path(), T::DTYPE));
        let mut found: Vec<_> = paths
            .map(|isa| {
                let cpu = Cpu { isa, par: Par::solo() };
                let each = [Store::Overwrite, Store::Add].map(|store| product(&cpu, &a, &b, &c, store).data);
                (isa.path(), each.map(|data| bytemuck::cast_slice::<C, u8>(&data).to_vec()))
            })
            .collect();
        let (first, bits) = found.remove(0);
        for (path, others) in found {
            assert!(others == bits, "[{m}, {n}, {k}] {} -> {}: {path} and {first}", T::DTYPE, C::DTYPE);
        }
    }
}

#[test]
fn paths_that_fuse_multiply_add_give_the_same_bits() {
    for (m, n, k) in [
        (1, 70, 67),
        (1, 3, 1000),
        (2, 67, 1003),
        (5, 130, 33),
        (7, 9, 15),
        (8, 64, 16),
        (9, 33, 1),
        (23, 70, 800),
        (50, 130, 1601),
    ] {
        check_bits::<f32, f32>(m, n, k);
        check_bits::<f16, f16>(m, n, k);
        check_bits::<f16, f32>(m, n, k);
        check_bits::<bf16, bf16>(m, n, k);
        check_bits::<bf16, f32>(m, n, k);
    }
}

#[test]
fn small_and_odd_shapes() {
    for m in [1, 2, 7, 8, 9, 15] {
        check_all_types(m, 37, 19);
    }
    check_all_types(1, 1, 1);
    check_all_types(9, 1, 1);
    check_all_types(28, 32, 2);
    check_all_types(33, 65, 64);
    check_all_types(31, 100, 47);
}

#[test]
#[ignore = "heavy"]
fn several_blocks_in_every_dimension() {
    check::<f32, f32>(30, 1400, 800);
    check::<bf16, f32>(150, 70, 1601);
    check::<bf16, bf16>(20, 450, 5001);
    check::<f16, f16>(20, 230, 5001);
    // Rows a page apart.
    check::<f32, f32>(20, 20, 1024);
    check::<bf16, bf16>(20, 20, 2048);
}

#[test]
fn empty_products() {
    let cpu = Cpu { isa: Isa::detect(), par: Par::solo() };
    let mut c = [1f32; 6];
    gemm::<f32, f32>(
        &cpu,
        MatRef::new(&[], 2, 0),
        MatRef::new(&[], 0, 3),
        MatMut::new(&mut c, 2, 3),
        Store::Add,
        &mut [],
    );
    assert_eq!(c, [1.0; 6]);
    let over = Store::Overwrite;
    gemm::<f32, f32>(
        &cpu,
        MatRef::new(&[], 2, 0),
        MatRef::new(&[], 0, 3),
        MatMut::new(&mut c, 2, 3),
        over,
        &mut [],
    );
    assert_eq!(c, [0.0; 6]);
    gemm::<f32, f32>(
        &cpu,
        MatRef::new(&[], 0, 4),
        MatRef::new(&[0.0; 12], 4, 3),
        MatMut::new(&mut [], 0, 3),
        over,
        &mut [],
    );
}

#[test]
fn infinities_and_nans_arrive() {
    for isa in Isa::available() {
        let cpu = Cpu { isa, par: Par::solo() };
        for m in [3, 20] {
            let mut a = Matrix::<bf16>::new(m, 33, false, 0, 1);
            a.data[0] = bf16::INFINITY;
            a.data[33] = bf16::NAN;
            let b = Matrix::<bf16>::new(33, 20, true, 0, 2);
            let c = product(&cpu, &a, &b, &Matrix::<bf16>::new(m, 20, false, 0, 3), Store::Overwrite);
            assert!(
                (0..20).all(|j| c.at(0, j).is_infinite() && c.at(1, j).is_nan() && c.at(2, j).is_finite())
            );
        }
    }
}

#[test]
fn bf16_results_are_the_f32_sums_rounded_once() {
    for isa in Isa::available() {
        let cpu = Cpu { isa, par: Par::solo() };
        let (m, n, k) = (23, 41, 64);
        let a = Matrix::<bf16>::new(m, k, false, 0, 1);
        let b = Matrix::<bf16>::new(k, n, true, 0, 2);
        let wide = product(&cpu, &a, &b, &Matrix::<f32>::new(m, n, false, 3, 3), Store::Overwrite);
        let got = product(&cpu, &a, &b, &Matrix::<bf16>::new(m, n, false, 3, 3), Store::Overwrite);
        // The sums have so few digits that some lie between two neighbors in bf16.
        let tie = |x: f32| x.to_bits() & 0xffff == 0x8000;
        assert!((0..m).any(|r| (0..n).any(|j| tie(wide.at(r, j) as f32))));
        for (r, j) in (0..m).flat_map(|r| (0..n).map(move |j| (r, j))) {
            let rounded = f64::from(bf16::from_f32(wide.at(r, j) as f32).to_f32());
            assert_eq!(got.at(r, j), rounded, "{} at {r}, {j}", isa.path());
        }
    }
}

#[test]
#[should_panic(expected = "reaches beyond its data")]
fn short_data_is_refused() {
    let cpu = Cpu { isa: Isa::detect(), par: Par::solo() };
    let b = MatRef { data: &[0f32; 11][..], rows: 4, cols: 3, row_stride: 3, transposed: false };
    gemm(
        &cpu,
        MatRef::new(&[0f32; 8], 2, 4),
        b,
        MatMut::new(&mut [0f32; 6], 2, 3),
        Store::Overwrite,
        &mut [0; 4096],
    );
}

#[test]
fn peak_is_positive_for_every_path() {
    for isa in Isa::available() {
        let cpu = Cpu { isa, par: Par::solo() };
        assert!(peak_flops(&cpu, DType::F32) > 1e8 && peak_flops(&cpu, DType::BF16) > 1e8);
    }
}

#[test]
fn every_f16_and_its_neighborhood_convert_as_half_does() {
    for half in 0..=u16::MAX {
        let (ours, theirs) = (widen(f16::from_bits(half)), f16::from_bits(half).to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{half:#x}");
        let wide = theirs.to_bits();
        for bits in
            [wide.wrapping_sub(1), wide, wide + 1, wide + 0xfff, wide + 0x1000, wide + 0x1001, wide + 0x1800]
        {
            let x = f32::from_bits(bits);
            let (ours, theirs) = (narrow::<f16>(x), f16::from_f32(x));
            assert!(ours.to_bits() == theirs.to_bits() || (x.is_nan() && ours.is_nan()), "{x:e} {bits:#x}");
        }
    }
}
