//! Matrix products against f64.

use half::{bf16, f16};
use oarlock_cuda::gemm::GemmShape;

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

/// A product: sizes, and how its matrices lie.
#[derive(Clone, Copy)]
struct Case {
    shape: GemmShape,
    /// Elements between rows, and between matrices, beyond what is needed.
    gap: usize,
    alpha: f32,
    beta: f32,
    with_bias: bool,
    /// Whether what is added is another matrix than the result.
    with_c: bool,
}

const fn case(batch: usize, [m, n, k]: [usize; 3], transposed: [bool; 2], gap: usize) -> Case {
    let shape = GemmShape { batch, m, n, k, a_transposed: transposed[0], b_transposed: transposed[1] };
    Case { shape, gap, alpha: 1.0, beta: 0.0, with_bias: false, with_c: false }
}

/// Strides of rows and matrices.
fn strides(rows: usize, cols: usize, gap: usize) -> [usize; 2] {
    [cols + gap, rows * (cols + gap) + 8 * gap]
}

fn compare<T: Float, O: Float>(library: &Library, case: Case, tolerance: f64) {
    let Case { shape, gap, alpha, beta, with_bias, with_c } = case;
    let GemmShape { batch, m, n, k, .. } = shape;
    let a_at = if shape.a_transposed { strides(k, m, gap) } else { strides(m, k, gap) };
    let b_at = if shape.b_transposed { strides(n, k, gap) } else { strides(k, n, gap) };
    let d_at = strides(m, n, gap);
    let (a, b) = (values::<T>(1, batch * a_at[1]), values::<T>(2, batch * b_at[1]));
    let (c, before) = (values::<O>(3, batch * d_at[1]), values::<O>(4, batch * d_at[1]));
    let bias = values::<O>(5, n);
    let got = in_every_order(library, |gpu| {
        let (a, b, c, d) = (gpu.buffer(&a), gpu.buffer(&b), gpu.buffer(&c), gpu.buffer(&before));
        let bias = gpu.buffer(&bias);
        let bias: Option<&Buffer<O>> = with_bias.then_some(&bias);
        let added = if with_c { &c } else { &d };
        let [[a_row, a_batch], [b_row, b_batch], [d_row, d_batch]] =
            [a_at, b_at, d_at].map(|at| at.map(|x| x as u64));
        let [m, n, k] = [m, n, k].map(|x| x as u32);
        let args =
            args![a, a_row, a_batch, b, b_row, b_batch, added, bias, d, d_row, d_batch, alpha, beta, m, n, k];
        gpu.run(shape.op(), &[T::ELEMENT, O::ELEMENT], shape.geometry(T::ELEMENT), args);
        d.read()
    });
    let (a, b) = (f64s(&a), f64s(&b));
    let added = f64s(if with_c { &c } else { &before });
    // What is between rows and matrices stays.
    let mut want = f64s(&before);
    for (i, row, col) in (0..batch).flat_map(|i| (0..m).flat_map(move |r| (0..n).map(move |c| (i, r, c)))) {
        let at = |[stride, batch]: [usize; 2], transposed: bool, row: usize, col: usize| {
            i * batch + if transposed { col * stride + row } else { row * stride + col }
        };
        let term = |k| a[at(a_at, shape.a_transposed, row, k)] * b[at(b_at, shape.b_transposed, k, col)];
        let place = at(d_at, false, row, col);
        let kept = if beta == 0.0 { 0.0 } else { f64::from(beta) * added[place] };
        want[place] = f64::from(alpha) * (0..k).map(term).sum::<f64>() + kept;
        want[place] += if with_bias { bias[col].f64() } else { 0.0 };
    }
    assert_close(&format!("{shape:?} of {} to {}", T::ELEMENT, O::ELEMENT), &got, &want, tolerance);
}

const FORMS: [[bool; 2]; 4] = [[false, false], [false, true], [true, false], [true, true]];

/// Every kernel of the family.
pub fn check(library: &Library) {
    for (i, form) in FORMS.into_iter().enumerate() {
        // Several tiles with edges, some aligned and some not.
        compare::<f32, f32>(library, case(1, [131, 9, 37], form, i % 2), 2e-6);
        compare::<bf16, f32>(library, case(1, [136, 24, 104], form, 0), 2e-6);
        compare::<bf16, bf16>(
            library,
            Case { with_bias: true, ..case(2, [5, 131, 70], form, 3) },
            bf16::ROUNDING,
        );
        // Rows whose begin is aligned, and whose end is not.
        compare::<f16, f32>(library, Case { beta: 1.0, ..case(1, [45, 13, 45], form, 3) }, 2e-6);
        let added =
            Case { alpha: 0.5, beta: -2.0, with_c: true, with_bias: true, ..case(2, [17, 18, 12], form, 4) };
        compare::<f16, f16>(library, added, f16::ROUNDING);
        compare::<f32, f32>(library, added, 2e-6);
    }
    // A second stripe of tiles, lower than the first.
    compare::<f32, f32>(library, case(1, [1026, 130, 3], FORMS[1], 0), 2e-6);
    compare::<bf16, bf16>(library, case(1, [1, 1, 1], FORMS[0], 0), bf16::ROUNDING);
}

#[test]
fn products_match_the_reference() {
    on_emulator(check);
}
