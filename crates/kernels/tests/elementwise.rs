//! Elementwise sums, conversions and biases against their formulas.

use oarlock_kernels::elementwise::{
    add_assign, axpy, bias_add, bias_grad, bias_grad_scratch, cast, fill, scale_clamp,
};
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::{Store, bf16, f16};
use oarlock_reference::number::Number;
use oarlock_reference::reduce::sums;

use crate::everywhere::{Element, assert_close, f64s, same_everywhere, values};

#[test]
fn scaled_elements_are_cut_off_and_nan_stays() {
    let mut x = values::<f32>(3, 1000);
    x.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]);
    let got = same_everywhere(|cpu| {
        let mut y = x.clone();
        scale_clamp(cpu, 0.5, 0.25, &mut y);
        // NaN differs from itself.
        assert!(y[1000].is_nan());
        y[1000] = 0.0;
        y
    });
    let expected: Vec<f32> = x.iter().map(|x| (x * 0.5).clamp(-0.25, 0.25)).collect();
    assert_eq!(got[..1000], expected[..1000]);
    assert!(got[..1000].contains(&0.25) && got[..1000].iter().any(|x| x.abs() < 0.25));
    assert_eq!(
        got[1001..].iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        [0.25f32, -0.25, -0.0].map(f32::to_bits)
    );
}

fn check<T: Element>(n: usize) {
    let (x, y) = (values::<T>(1, n), values::<T>(2, n));
    let outs = same_everywhere(|cpu| {
        let mut outs = [y.clone(), y.clone(), y.clone()];
        add_assign(cpu, &mut outs[0], &x);
        axpy(cpu, -0.7, &x, &mut outs[1]);
        fill(cpu, T::from_f32(0.5), &mut outs[2]);
        outs
    });
    let formulas: [fn(f64, f64) -> f64; 3] = [|x, y| x + y, |x, y| y - 0.7 * x, |_, _| 0.5];
    for (out, formula) in outs.iter().zip(formulas) {
        let want: Vec<f64> = f64s(&x).iter().zip(f64s(&y)).map(|(x, y)| formula(*x, y)).collect();
        assert_close("elements", out, &want, T::ROUNDING.max(2e-7));
    }
}

#[test]
fn elementwise_ops_match_their_formulas() {
    for n in [0, 1, 77, TASK_ELEMS + 3] {
        check::<f32>(n);
        check::<bf16>(n);
        check::<f16>(n);
    }
}

#[test]
fn casts_round_once() {
    let x = values::<f32>(1, TASK_ELEMS + 7);
    let (halves, back) = same_everywhere(|cpu| {
        let (mut halves, mut back) = (vec![bf16::ZERO; x.len()], x.clone());
        cast(cpu, &x, &mut halves);
        cast(cpu, &halves, &mut back);
        (halves, back)
    });
    assert!(halves.iter().zip(&x).all(|(h, x)| *h == bf16::from_f32(*x)));
    assert!(back.iter().zip(&halves).all(|(b, h)| *b == h.to_f32()));
}

#[test]
fn bias_and_its_gradient() {
    let (rows, dim) = (77, 35);
    let (x, bias) = (values::<bf16>(1, rows * dim), values::<bf16>(2, dim));
    let (y, written, added) = same_everywhere(|cpu| {
        let (mut y, mut scratch) = (x.clone(), vec![f32::NAN; bias_grad_scratch(rows, dim)]);
        bias_add(cpu, &mut y, &bias);
        let (mut written, mut added) = (vec![f32::NAN; dim], vec![1.0; dim]);
        bias_grad(cpu, &x, (&mut written, Store::Overwrite), &mut scratch);
        bias_grad(cpu, &x, (&mut added, Store::Add), &mut scratch);
        (y, written, added)
    });
    let (x, bias) = (f64s(&x), f64s(&bias));
    let want: Vec<f64> = x.iter().enumerate().map(|(i, x)| x + bias[i % dim]).collect();
    assert_close("biased", &y, &want, bf16::ROUNDING);
    let sums = sums(&x, [1, rows, dim]);
    assert_close("gradient", &written, &sums, 1e-6);
    assert_close("gradient, added", &added, &sums.iter().map(|s| s + 1.0).collect::<Vec<_>>(), 1e-6);
}
