//! Functions of one and two elements, dropout, casts.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par, Result, Tape, Tensor, bf16, ops};

use crate::common::{Array, Case, array, case, f64s, positive, tensor};

fn unary(name: &'static str, x: Array, op: fn(&Tensor) -> Result<Tensor>, f: fn(f64) -> f64) {
    case(name, [x], move |x| op(&x[0]), move |x| x[0].iter().map(|x| f(*x)).collect()).check();
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The normal distribution function by Simpson's rule on the density.
fn normal_cdf(x: f64) -> f64 {
    let density = |t: f64| (-t * t / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let (n, mut sum) = (200, 0.0);
    let h = x / f64::from(n);
    for i in (0..n).step_by(2) {
        let t = f64::from(i) * h;
        sum += density(t) + 4.0 * density(t + h) + density(t + 2.0 * h);
    }
    0.5 + sum * h / 3.0
}

#[test]
fn functions_of_one_element() {
    let x = || array(1, &[3, 5, 7]);
    let p = || positive(2, &[3, 5, 7]);
    unary("neg", x(), |x| x.neg(), |x| -x);
    unary("scale", x(), |x| x.scale(-1.5), |x| -1.5 * x);
    unary("add_scalar", x(), |x| x.add_scalar(0.75), |x| x + 0.75);
    unary("exp", x(), |x| x.exp(), f64::exp);
    unary("log", p(), |x| x.log(), f64::ln);
    unary("sqrt", p(), |x| x.sqrt(), f64::sqrt);
    unary("square", x(), |x| x.square(), |x| x * x);
    unary("powf", p(), |x| x.powf(1.75), |x| x.powf(1.75));
    unary("powf of a negative", x(), |x| x.powf(3.0), |x| x.powi(3));
    unary("abs", x(), |x| x.abs(), f64::abs);
    unary("maximum", x(), |x| x.maximum(0.3), |x| x.max(0.3));
    unary("minimum", x(), |x| x.minimum(0.3), |x| x.min(0.3));
    unary("clamp", x(), |x| x.clamp(-0.7, 0.3), |x| x.clamp(-0.7, 0.3));
    unary("silu", x(), |x| x.silu(), |x| x * sigmoid(x));
    unary("gelu", x(), |x| x.gelu(), |x| x * normal_cdf(x));
    let gelu_tanh = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        0.5 * x * (1.0 + inner.tanh())
    };
    unary("gelu_tanh", x(), |x| x.gelu_tanh(), gelu_tanh);
    unary("relu", x(), |x| x.relu(), |x| x.max(0.0));
    unary("tanh", x(), |x| x.tanh(), f64::tanh);
    unary("sigmoid", x(), |x| x.sigmoid(), sigmoid);
}

#[test]
fn kinks_and_edges() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let slopes = |x: &[f32], op: fn(&Tensor) -> Result<Tensor>| {
        let tape = Tape::new();
        let x = tape.leaf(&Tensor::from_slice(x, [x.len()], &device).unwrap());
        let y = op(&x).unwrap();
        let gradients = tape.backward(&y, 1.0).unwrap();
        (f64s(&y), f64s(gradients.of(&x).unwrap()))
    };
    assert_eq!(slopes(&[0.0, -0.0], |x| x.abs()), (vec![0.0, 0.0], vec![0.0, 0.0]));
    assert_eq!(slopes(&[0.0, 1.0], |x| x.clamp(0.0, 1.0)), (vec![0.0, 1.0], vec![1.0, 1.0]));
    assert_eq!(slopes(&[0.0], |x| x.relu()), (vec![0.0], vec![0.0]));
    assert_eq!(slopes(&[0.0, 3.0], |x| x.powf(0.0)), (vec![1.0, 1.0], vec![0.0, 0.0]));
    assert_eq!(slopes(&[0.0, f32::INFINITY], |x| x.log()).0, [f64::NEG_INFINITY, f64::INFINITY]);
    assert!(slopes(&[f32::NAN], |x| x.clamp(0.0, 1.0)).0[0].is_nan());
}

/// The element of an operand of shape `from` that stands at element `i` of shape `to`.
fn spread(from: &[usize], to: &[usize], i: usize) -> usize {
    let (mut rest, mut step, mut at) = (i, 1, 0);
    for d in (0..to.len()).rev() {
        let here = rest % to[d];
        rest /= to[d];
        if let Some(d) = (d + from.len()).checked_sub(to.len()) {
            at += if from[d] == 1 { 0 } else { here * step };
            step *= from[d];
        }
    }
    at
}

#[test]
fn functions_of_two_elements_with_broadcasting() {
    let shapes: [(&[usize], &[usize], &[usize]); 9] = [
        (&[2, 3, 5], &[2, 3, 5], &[2, 3, 5]),
        (&[2, 3, 5], &[5], &[2, 3, 5]),
        (&[2, 3, 5], &[3, 5], &[2, 3, 5]),
        (&[3, 5], &[2, 3, 5], &[2, 3, 5]),
        (&[2, 3, 5], &[], &[2, 3, 5]),
        (&[2, 3, 5], &[2, 3, 1], &[2, 3, 5]),
        (&[2, 1, 5], &[3, 1], &[2, 3, 5]),
        (&[4, 2, 3, 5], &[2, 1, 5], &[4, 2, 3, 5]),
        (&[1, 5], &[1], &[1, 5]),
    ];
    type Entry = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>, fn(f64, f64) -> f64);
    let ops: [Entry; 4] = [
        ("add", |a, b| a.add(b), |a, b| a + b),
        ("sub", |a, b| a.sub(b), |a, b| a - b),
        ("mul", |a, b| a.mul(b), |a, b| a * b),
        ("div", |a, b| a.div(b), |a, b| a / b),
    ];
    for (a, b, to) in shapes {
        for (name, op, f) in ops {
            let mut divisor = array(2, b);
            divisor.data.iter_mut().for_each(|x| *x += 0.5f64.copysign(*x));
            let reference = move |x: &[&[f64]]| {
                (0..to.iter().product()).map(|i| f(x[0][spread(a, to, i)], x[1][spread(b, to, i)])).collect()
            };
            case(name, [array(1, a), divisor], move |x| op(&x[0], &x[1]), reference).check();
        }
    }
}

#[test]
fn an_input_used_on_both_sides() {
    case("x · x", [array(1, &[3, 5])], |x| x[0].mul(&x[0]), |x| x[0].iter().map(|x| x * x).collect()).check();
    case("x + x", [array(1, &[3, 5])], |x| x[0].add(&x[0]), |x| x[0].iter().map(|x| x + x).collect()).check();
    let deep = |x: &[Tensor]| x[0].relu()?.scale(2.0)?.add(&x[0])?.mul(&x[0].relu()?);
    let reference = |x: &[&[f64]]| x[0].iter().map(|x| (2.0 * x.max(0.0) + x) * x.max(0.0)).collect();
    case("a chain of recipes", [array(1, &[4, 9])], deep, reference).check();
}

#[test]
fn dropout_is_addressed_and_scaled() {
    let (p, n) = (0.25, 40 * 257);
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let ones = Array { shape: vec![40, 257], data: vec![1.0; n] };
        let device = Device::cpu(Isa::detect(), Par::threads(2).unwrap());
        let mask = f64s(&tensor(&ones, dtype, &device).dropout(p, 5, 6).unwrap());
        let kept = mask.iter().filter(|x| **x != 0.0).count() as f64 / n as f64;
        assert!((kept - 0.75).abs() < 0.02, "{kept}");
        assert!(mask.iter().all(|x| *x == 0.0 || (x - 4.0 / 3.0).abs() < 0.01));
        let other = f64s(&tensor(&ones, dtype, &device).dropout(p, 5, 7).unwrap());
        assert_ne!(mask, other);
    }
    let kept = |i: usize| {
        let stream = oarlock_tensor::ops::update::Stream { seed: 5, stream: 6 };
        if stream.bits(i as u64) < 3 << 30 { 4.0 / 3.0 } else { 0.0 }
    };
    let reference = move |x: &[&[f64]]| x[0].iter().enumerate().map(|(i, x)| x * kept(i)).collect();
    case("dropout", [array(1, &[7, 11])], move |x| x[0].dropout(0.25, 5, 6), reference).check();
    // After an activation nothing is kept: both are made again for the product.
    let op = |x: &[Tensor]| x[0].silu()?.dropout(0.25, 5, 6)?.square();
    let reference = move |x: &[&[f64]]| {
        x[0].iter().enumerate().map(|(i, x)| (x * sigmoid(*x) * kept(i)).powi(2)).collect()
    };
    case("dropout after silu", [array(1, &[7, 11])], op, reference).check();
}

#[test]
fn casts() {
    for (from, to) in [(DType::F32, DType::BF16), (DType::BF16, DType::F32), (DType::F16, DType::F16)] {
        let op = move |x: &[Tensor]| x[0].square()?.cast(to)?.square();
        let reference = |x: &[&[f64]]| x[0].iter().map(|x| x.powi(4)).collect();
        let short = if from == DType::F32 { to } else { from };
        let slack = if short == DType::BF16 && from == DType::F32 { 1024.0 } else { 1.0 };
        Case { slack, ..case("cast", [array(1, &[5, 7])], op, reference) }.check_dtypes(&[from]);
    }
}

#[test]
fn integers_have_no_arithmetic() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let ints = Tensor::from_slice(&[1, 2], [2], &device).unwrap();
    let errors = [
        ints.relu(),
        ints.add(&ints),
        ints.softmax(),
        ints.sum(0),
        ints.cast(DType::F32),
        ints.dropout(0.5, 1, 1),
    ];
    for error in errors {
        assert!(error.unwrap_err().to_string().contains("expected a float tensor, got i32"));
    }
    let text = ops::dropout(&ints, 1.0, 1, 1).unwrap_err().to_string();
    assert_eq!(text, "dropout: the probability is 1; it is at least 0 and below 1");
}

#[test]
fn a_sum_of_two_dtypes_is_in_the_wider_and_each_gets_its_gradient_in_its_own() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let tape = Tape::new();
    let wide = tape.leaf(&Tensor::from_slice(&[1.0f32 + 1.0 / 1024.0, 2.0], [2], &device).unwrap());
    let short =
        tape.leaf(&Tensor::from_slice(&[3.0f32, 0.5], [2], &device).unwrap().cast(DType::BF16).unwrap());
    let half = Tensor::from_slice(&[1.0f32, 1.0], [2], &device).unwrap().cast(DType::F16).unwrap();
    let y = wide.mul(&short).unwrap().add(&half).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [4.0 + 3.0 / 1024.0, 2.0]);
    assert_eq!(short.add(&half).unwrap().dtype(), DType::F32);
    let gradients = tape.backward(&y.sum_all().unwrap(), 1.0).unwrap();
    assert_eq!(gradients.of(&wide).unwrap().to_vec::<f32>().unwrap(), [3.0, 0.5]);
    assert_eq!(gradients.of(&short).unwrap().to_vec::<bf16>().unwrap(), [1.0, 2.0].map(bf16::from_f32));
    let ints = Tensor::from_slice(&[1, 2], [2], &device).unwrap();
    assert!(wide.add(&ints).is_err());
}
