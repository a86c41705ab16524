//! Matrix products against f64.

use half::{bf16, f16};
use oarlock_cuda::gemm::GemmShape;
use oarlock_reference::product::{Layout, Product};

use crate::emulator::{Buffer, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, Number};

/// A product whose matrices have this many elements between rows, and eight times as many between matrices.
fn case(batch: usize, [m, n, k]: [usize; 3], [a, b]: [bool; 2], gap: usize) -> Product {
    let layout = |sizes, transposed| Layout::new(sizes, transposed, gap, 8 * gap);
    let (a, b, d) = (layout([m, k], a), layout([k, n], b), layout([m, n], false));
    Product { batch, m, n, k, a, b, d, alpha: 1.0, beta: 0.0, with_c: false, with_bias: false }
}

fn compare<T: Float, O: Float>(library: &Library, case: Product, tolerance: f64) {
    let Product { batch, m, n, k, alpha, beta, with_c, with_bias, .. } = case;
    let (a_transposed, b_transposed) = (case.a.transposed, case.b.transposed);
    let shape = GemmShape { batch, m, n, k, a_transposed, b_transposed };
    let x = case.operands::<T, O>();
    let got = in_every_order(library, |gpu| {
        let (a, b, c, d) = (gpu.buffer(&x.a), gpu.buffer(&x.b), gpu.buffer(&x.c), gpu.buffer(&x.before));
        let bias = gpu.buffer(&x.bias);
        let bias: Option<&Buffer<O>> = with_bias.then_some(&bias);
        let added = if with_c { &c } else { &d };
        let [[a_row, a_batch], [b_row, b_batch], [d_row, d_batch]] =
            [case.a, case.b, case.d].map(|at| [at.row_stride, at.batch_stride].map(|x| x as u64));
        let [m, n, k] = [m, n, k].map(|x| x as u32);
        let args =
            args![a, a_row, a_batch, b, b_row, b_batch, added, bias, d, d_row, d_batch, alpha, beta, m, n, k];
        gpu.run(shape.op(), &[T::ELEMENT, O::ELEMENT], shape.geometry(T::ELEMENT), args);
        d.read()
    });
    case.check(&format!("{shape:?} of {} to {}", T::ELEMENT, O::ELEMENT), &x, &got, tolerance);
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
            Product { with_bias: true, ..case(2, [5, 131, 70], form, 3) },
            bf16::ROUNDING,
        );
        // Rows whose begin is aligned, and whose end is not.
        compare::<f16, f32>(library, Product { beta: 1.0, ..case(1, [45, 13, 45], form, 3) }, 2e-6);
        let added = Product {
            alpha: 0.5,
            beta: -2.0,
            with_c: true,
            with_bias: true,
            ..case(2, [17, 18, 12], form, 4)
        };
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
