//! Functions of one element and their slopes against their formulas.

use oarlock_kernels::Store;
use oarlock_kernels::pieces::TASK_ELEMS;
use oarlock_kernels::unary::{Unary, backward, forward};

use crate::everywhere::{assert_close, f64s, same_everywhere, sum, values};

type Formula = fn(f64) -> f64;

#[test]
fn functions_and_slopes_match_their_formulas() {
    let cases: [(Unary, Formula, Formula); 29] = [
        (Unary::Affine { scale: -1.5, offset: 0.25 }, |x| 0.25 - 1.5 * x, |_| -1.5),
        (Unary::Exp, f64::exp, f64::exp),
        (Unary::Log, f64::ln, |x| 1.0 / x),
        (Unary::Sqrt, f64::sqrt, |x| 0.5 / x.sqrt()),
        (Unary::Square, |x| x * x, |x| 2.0 * x),
        (Unary::Pow(1.5), |x| x.powf(1.5), |x| 1.5 * x.sqrt()),
        (Unary::Abs, f64::abs, f64::signum),
        (
            Unary::Clamp { low: 0.5, high: 1.0 },
            |x| x.clamp(0.5, 1.0),
            |x| f64::from((0.5..=1.0).contains(&x)),
        ),
        (Unary::DividedBy(-3.0), |x| x / -3.0, |_| -1.0 / 3.0),
        (Unary::Over(0.5), |x| 0.5 / x, |x| -0.5 / (x * x)),
        (Unary::Rsqrt, |x| 1.0 / x.sqrt(), |x| -0.5 * x.powf(-1.5)),
        (Unary::Root, f64::sqrt, |x| 0.5 / x.sqrt()),
        (Unary::Exp2, f64::exp2, |x| x.exp2() * std::f64::consts::LN_2),
        (Unary::Expm1, f64::exp_m1, f64::exp),
        (Unary::Log2, f64::log2, |x| 1.0 / (x * std::f64::consts::LN_2)),
        (Unary::Log1p, f64::ln_1p, |x| 1.0 / (1.0 + x)),
        (Unary::Sin, f64::sin, f64::cos),
        (Unary::Cos, f64::cos, |x| -x.sin()),
        (Unary::Floor, f64::floor, |_| 0.0),
        (Unary::Ceil, f64::ceil, |_| 0.0),
        (Unary::Round, f64::round_ties_even, |_| 0.0),
        (Unary::Trunc, f64::trunc, |_| 0.0),
        (Unary::Sign, f64::signum, |_| 0.0),
        (
            Unary::Softplus { beta: 2.0, threshold: 20.0 },
            |x| (2.0 * x).exp().ln_1p() / 2.0,
            |x| 1.0 / (1.0 + (-2.0 * x).exp()),
        ),
        (Unary::Hardtanh { low: 0.5, high: 1.0 }, |x| x.clamp(0.5, 1.0), |x| f64::from(x > 0.5 && x < 1.0)),
        (Unary::LeakyRelu(0.1), |x| x, |_| 1.0),
        (
            Unary::Mish,
            |x| x * x.exp().ln_1p().tanh(),
            |x| {
                let gate = x.exp().ln_1p().tanh();
                gate + x * (1.0 - gate * gate) / (1.0 + (-x).exp())
            },
        ),
        (Unary::LogSigmoid, |x| -(-x).exp().ln_1p(), |x| 1.0 / (1.0 + x.exp())),
        (Unary::Softsign, |x| x / (1.0 + x), |x| 1.0 / (1.0 + x).powi(2)),
    ];
    let n = TASK_ELEMS + 77;
    // Away from 0, where slopes are large.
    let x: Vec<f32> = values::<f32>(1, n).into_iter().map(|x| x.abs() + 0.1).collect();
    let dy = values::<f32>(2, n);
    for (f, value, slope) in cases {
        let (y, dx, added) = same_everywhere(|cpu| {
            let (mut y, mut dx, mut added) = (x.clone(), x.clone(), x.clone());
            forward(cpu, f, &x, &mut y);
            backward(cpu, f, Store::Overwrite, &x, &dy, &mut dx);
            backward(cpu, f, Store::Add, &x, &dy, &mut added);
            (y, dx, added)
        });
        let (x, dy) = (f64s(&x), f64s(&dy));
        let want: Vec<f64> = x.iter().zip(&dy).map(|(x, dy)| slope(*x) * dy).collect();
        let what = format!("{f:?}");
        assert_close(&what, &y, &x.iter().map(|x| value(*x)).collect::<Vec<_>>(), 5e-7);
        assert_close(&format!("the slope of {what}"), &dx, &want, 5e-7);
        assert_close(&format!("the slope of {what}, added"), &added, &sum(&want, &x), 5e-7);
    }
}

#[test]
fn logarithms_at_the_edges() {
    let log = |x: f32| {
        let y = same_everywhere(|cpu| {
            let mut y = [0.0];
            forward(cpu, Unary::Log, &[x], &mut y);
            y[0].to_bits()
        });
        f32::from_bits(y)
    };
    assert_eq!((log(0.0), log(f32::INFINITY)), (f32::NEG_INFINITY, f32::INFINITY));
    assert!(log(-1.0).is_nan() && log(f32::NAN).is_nan() && log(f32::NEG_INFINITY).is_nan());
    for x in [1e-45f32, 1e-40, f32::MIN_POSITIVE, f32::MAX] {
        assert!((f64::from(log(x)) / f64::from(x).ln() - 1.0).abs() < 3e-7, "{x}");
    }
}
