//! Every function of one element, and its slope, against f64.

use half::{bf16, f16};
use oarlock_cuda::functions::Unary;
use oarlock_cuda::geometry;
use oarlock_reference::compare::tolerance;
use oarlock_reference::function::{Activation as Reference, erf};

use crate::emulator::{Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, assert_close, f64s, values};

/// A function, its parameters, where it begins to be defined, and what it is.
type Case = (Unary, f32, f32, f64, fn(f64) -> f64);

const ALL: [Case; 40] = [
    (Unary::Affine, 1.5, -0.5, -9.0, |x| 1.5 * x - 0.5),
    (Unary::Exp, 0.0, 0.0, -9.0, f64::exp),
    (Unary::Log, 0.0, 0.0, 0.1, f64::ln),
    (Unary::Sqrt, 0.0, 0.0, 0.1, f64::sqrt),
    (Unary::Square, 0.0, 0.0, -9.0, |x| x * x),
    (Unary::Pow, 2.5, 0.0, 0.1, |x| x.powf(2.5)),
    (Unary::Abs, 0.0, 0.0, -9.0, f64::abs),
    (Unary::Clamp, -0.5, 1.0, -9.0, |x| x.clamp(-0.5, 1.0)),
    (Unary::DividedBy, 3.0, 0.0, -9.0, |x| x / 3.0),
    (Unary::Over, 3.0, 0.0, 0.1, |x| 3.0 / x),
    (Unary::Rsqrt, 0.0, 0.0, 0.1, |x| 1.0 / x.sqrt()),
    (Unary::Root, 0.0, 0.0, 0.1, f64::sqrt),
    (Unary::Exp2, 0.0, 0.0, -9.0, f64::exp2),
    (Unary::Expm1, 0.0, 0.0, -9.0, f64::exp_m1),
    (Unary::Log2, 0.0, 0.0, 0.1, f64::log2),
    (Unary::Log1p, 0.0, 0.0, 0.0, f64::ln_1p),
    (Unary::Sin, 0.0, 0.0, -9.0, f64::sin),
    (Unary::Cos, 0.0, 0.0, -9.0, f64::cos),
    (Unary::Erf, 0.0, 0.0, -9.0, erf),
    (Unary::Floor, 0.0, 0.0, -9.0, f64::floor),
    (Unary::Ceil, 0.0, 0.0, -9.0, f64::ceil),
    (Unary::Round, 0.0, 0.0, -9.0, f64::round_ties_even),
    (Unary::Trunc, 0.0, 0.0, -9.0, f64::trunc),
    (Unary::Sign, 0.0, 0.0, -9.0, f64::signum),
    (Unary::LeakyRelu, 0.1, 0.0, -9.0, |x| if x > 0.0 { x } else { f64::from(0.1f32) * x }),
    (Unary::Elu, 0.5, 0.0, -9.0, |x| if x > 0.0 { x } else { 0.5 * x.exp_m1() }),
    (Unary::Softplus, 2.0, 3.0, -9.0, |x| if 2.0 * x > 3.0 { x } else { (2.0 * x).exp().ln_1p() / 2.0 }),
    (Unary::Hardtanh, -1.0, 1.0, -9.0, |x| x.clamp(-1.0, 1.0)),
    (Unary::Selu, 0.0, 0.0, -9.0, |x| 1.050700987 * if x > 0.0 { x } else { 1.673263242 * x.exp_m1() }),
    (Unary::Mish, 0.0, 0.0, -9.0, |x| x * x.exp().ln_1p().tanh()),
    (Unary::Hardsigmoid, 0.0, 0.0, -9.0, |x| (x / 6.0 + 0.5).clamp(0.0, 1.0)),
    (Unary::Hardswish, 0.0, 0.0, -9.0, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
    (Unary::LogSigmoid, 0.0, 0.0, -9.0, |x| -(-x).exp().ln_1p()),
    (Unary::Softsign, 0.0, 0.0, -9.0, |x| x / (1.0 + x.abs())),
    (Unary::Silu, 0.0, 0.0, -9.0, |x| Reference::Silu.value(x)),
    (Unary::Gelu, 0.0, 0.0, -9.0, |x| Reference::Gelu.value(x)),
    (Unary::GeluTanh, 0.0, 0.0, -9.0, |x| Reference::GeluTanh.value(x)),
    (Unary::Relu, 0.0, 0.0, -9.0, |x| Reference::Relu.value(x)),
    (Unary::Tanh, 0.0, 0.0, -9.0, |x| Reference::Tanh.value(x)),
    (Unary::Sigmoid, 0.0, 0.0, -9.0, |x| Reference::Sigmoid.value(x)),
];

fn unary<T: Float>(library: &Library, (f, a, b, least, value): Case, n: usize) {
    // Away from integers and halves, where some functions leap.
    let away = |x: f64| if ((2.0 * x).round() - 2.0 * x).abs() < 0.03 { x + 0.07 } else { x };
    let xs: Vec<T> = values::<T>(1, n).iter().map(|x| T::of(away(x.f64().max(least)))).collect();
    let (dys, start) = (values::<T>(2, n), values::<T>(3, n));
    let (y, dx) = in_every_order(library, |gpu| {
        let (x, dy, dx, y) = (gpu.buffer(&xs), gpu.buffer(&dys), gpu.buffer(&start), gpu.fresh::<T>(n));
        let (grid, n, f) = (geometry::elements(n), n as u64, f as u32);
        gpu.run("unary_forward", &[T::ELEMENT], grid, args![f, a, b, x, y, n]);
        gpu.run("unary_backward", &[T::ELEMENT], grid, args![f, a, b, x, dy, dx, 1u32, n]);
        (y.read(), dx.read())
    });
    let what = format!("{f:?} of {}", T::ELEMENT);
    let x = f64s(&xs);
    assert_close(&what, &y, &x.iter().map(|x| value(*x)).collect::<Vec<_>>(), tolerance::<T>(3e-6, 1.0));
    let h = 1e-6;
    let slope = |x: f64| (value(x + h) - value(x - h)) / (2.0 * h);
    let want: Vec<f64> = (0..n).map(|i| start[i].f64() + dys[i].f64() * slope(x[i])).collect();
    assert_close(&format!("the slope of {what}"), &dx, &want, tolerance::<T>(1e-5, 2.0));
}

/// Every kernel of the family.
pub fn check(library: &Library) {
    for case in ALL {
        unary::<f32>(library, case, 150);
    }
    unary::<bf16>(library, ALL[1], 77);
    unary::<f16>(library, ALL[35], 77);
}

#[test]
fn functions_match_the_reference() {
    on_emulator(check);
}
