//! Functions of one and two elements, dropout, casts.

use oarlock_reference::formula::value;
use oarlock_reference::function::{Activation, erf, sigmoid};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par, Result, Tape, Tensor, bf16, ops};

use crate::common::{Array, Case, array, case, f64s, positive, tensor};

fn unary(name: &'static str, x: Array, op: fn(&Tensor) -> Result<Tensor>, f: fn(f64) -> f64) {
    case(name, [x], move |x| op(&x[0]), move |x| x[0].iter().map(|x| f(*x)).collect()).check();
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
    unary("silu", x(), |x| x.silu(), |x| Activation::Silu.value(x));
    unary("gelu", x(), |x| x.gelu(), |x| Activation::Gelu.value(x));
    unary("gelu_tanh", x(), |x| x.gelu_tanh(), |x| Activation::GeluTanh.value(x));
    unary("relu", x(), |x| x.relu(), |x| Activation::Relu.value(x));
    unary("tanh", x(), |x| x.tanh(), |x| Activation::Tanh.value(x));
    unary("sigmoid", x(), |x| x.sigmoid(), |x| Activation::Sigmoid.value(x));
    unary("leaky_relu", x(), |x| x.leaky_relu(0.01), |x| if x > 0.0 { x } else { 0.01 * x });
    unary("elu", x(), |x| x.elu(1.5), |x| if x > 0.0 { x } else { 1.5 * x.exp_m1() });
    unary("softplus", x(), |x| x.softplus(2.0, 20.0), |x| (2.0 * x).exp().ln_1p() / 2.0);
    unary("hardtanh", x(), |x| x.hardtanh(-0.7, 0.3), |x| x.clamp(-0.7, 0.3));
    // Beyond both kinks, and with no value at one.
    unary("relu6", x(), |x| x.scale(3.7)?.relu6(), |x| (3.7 * x).clamp(0.0, 6.0));
    unary("hardsigmoid", x(), |x| x.scale(2.1)?.hardsigmoid(), |x| (0.35 * x + 0.5).clamp(0.0, 1.0));
    unary("hardswish", x(), |x| x.scale(2.1)?.hardswish(), |x| 2.1 * x * (0.35 * x + 0.5).clamp(0.0, 1.0));
    let selu = |x: f64| 1.0507009873554805 * if x > 0.0 { x } else { 1.6732632423543772 * x.exp_m1() };
    unary("selu", x(), |x| x.selu(), selu);
    unary("mish", x(), |x| x.mish(), |x| x * x.exp().ln_1p().tanh());
    unary("logsigmoid", x(), |x| x.logsigmoid(), |x| -(-x).exp().ln_1p());
    unary("softsign", x(), |x| x.softsign(), |x| x / (1.0 + x.abs()));
    unary("reciprocal", p(), |x| x.add_scalar(0.5)?.reciprocal(), |x| 1.0 / (x + 0.5));
    unary("rsqrt", p(), |x| x.add_scalar(0.5)?.rsqrt(), |x| 1.0 / (x + 0.5).sqrt());
    unary("exp2", x(), |x| x.exp2(), f64::exp2);
    unary("expm1", x(), |x| x.expm1(), f64::exp_m1);
    unary("log2", p(), |x| x.log2(), f64::log2);
    unary("log1p", p(), |x| x.log1p(), f64::ln_1p);
    unary("sin", x(), |x| x.sin(), f64::sin);
    unary("cos", x(), |x| x.cos(), f64::cos);
    unary("erf", x(), |x| x.erf(), erf);
}

#[test]
fn gated_halves() {
    let reference = |x: &[&[f64]]| {
        (0..36).map(|i| x[0][i / 12 * 24 + i % 12] * sigmoid(x[0][i / 12 * 24 + 12 + i % 12])).collect()
    };
    case("glu", [array(1, &[3, 6, 4])], |x| x[0].glu(-2), reference).check();
    let device = Device::default();
    let text = Tensor::zeros([2, 3], DType::F32, &device).unwrap().glu(1).unwrap_err().to_string();
    assert_eq!(text, "glu: expected an even size at dim 1, got [2, 3]");
}

#[test]
fn roundings_have_the_gradient_0() {
    // Away from integers and halves.
    let x = || {
        let mut x = array(1, &[3, 5, 7]);
        x.data.iter_mut().for_each(|x| *x = (*x * 4.0).round() / 4.0 + 0.125);
        x
    };
    unary("floor", x(), |x| x.floor(), f64::floor);
    unary("ceil", x(), |x| x.ceil(), f64::ceil);
    unary("round", x(), |x| x.round(), f64::round);
    unary("trunc", x(), |x| x.trunc(), f64::trunc);
    unary("sign", x(), |x| x.sign(), f64::signum);
    let device = Device::default();
    let halves = Tensor::from_slice(&[0.5f32, 1.5, -0.5, f32::NAN, 0.0], [5], &device).unwrap();
    assert_eq!(f64s(&halves.round().unwrap())[..3], [0.0, 2.0, 0.0]);
    assert_eq!(f64s(&halves.sign().unwrap()), [1.0, 1.0, -1.0, 0.0, 0.0]);
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
    assert_eq!(slopes(&[0.0, 0.5, 1.0], |x| x.hardtanh(0.0, 1.0)).1, [0.0, 1.0, 0.0]);
    assert_eq!(slopes(&[0.0], |x| x.leaky_relu(0.25)).1, [0.25]);
    assert_eq!(slopes(&[100.0], |x| x.softplus(1.0, 20.0)), (vec![100.0], vec![1.0]));
    assert_eq!(slopes(&[2.0, 2.0], |x| x.maximum(2.0)).1, [1.0, 1.0]);
    assert_eq!(slopes(&[-3.0, 3.0], |x| x.hardsigmoid()), (vec![0.0, 1.0], vec![0.0, 0.0]));
    assert_eq!(slopes(&[-3.0, 3.0], |x| x.hardswish()), (vec![0.0, 3.0], vec![0.0, 1.0]));
    assert_eq!(slopes(&[0.0, 6.0], |x| x.relu6()), (vec![0.0, 6.0], vec![0.0, 0.0]));
    // Where exponentials overflow.
    assert_eq!(slopes(&[-200.0, 200.0], |x| x.mish()).0, [0.0, 200.0]);
    assert_eq!(slopes(&[-200.0, 200.0], |x| x.logsigmoid()), (vec![-200.0, 0.0], vec![1.0, 0.0]));
    for op in [Tensor::mish, Tensor::hardsigmoid, Tensor::hardswish, Tensor::logsigmoid, Tensor::softsign] {
        assert!(slopes(&[f32::NAN], op).0[0].is_nan());
    }
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
    let ops: [Entry; 9] = [
        ("add", |a, b| a.add(b), |a, b| a + b),
        ("sub", |a, b| a.sub(b), |a, b| a - b),
        ("mul", |a, b| a.mul(b), |a, b| a * b),
        ("div", |a, b| a.div(b), |a, b| a / b),
        ("maximum", |a, b| a.maximum(b), f64::max),
        ("minimum", |a, b| a.minimum(b), f64::min),
        ("pow", |a, b| a.abs()?.pow(b), |a, b| a.abs().powf(b)),
        ("floor_divide", |a, b| ((a + b)? * 0.0)? + a.floor_divide(b)?, |a, b| (a / b).floor()),
        ("remainder", |a, b| a.remainder(b), |a, b| a - b * (a / b).floor()),
    ];
    for (a, b, to) in shapes {
        for (name, op, f) in ops {
            let mut divisor = array(2, b);
            divisor.data.iter_mut().for_each(|x| *x += 0.5f64.copysign(*x));
            // No multiple of a divisor, where quotients jump.
            let mut dividend = array(1, a);
            dividend.data.iter_mut().for_each(|x| *x -= (1.0 / 128.0f64).copysign(*x));
            let spread = |x: &[f64], from: &[usize]| value([(from, x.to_vec())], |[x]| x.to(to));
            let reference = move |x: &[&[f64]]| {
                spread(x[0], a).iter().zip(spread(x[1], b)).map(|(x, y)| f(*x, y)).collect()
            };
            let case = case(name, [dividend, divisor], move |x| op(&x[0], &x[1]), reference);
            // The terms of a spread exponent's gradient have both signs, and their sum may be small beside them.
            if name == "pow" { case.check_sums() } else { case.check() }
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
fn equal_operands_share_the_gradient_of_the_larger() {
    let device = Device::default();
    let tape = Tape::new();
    let leaf = |x: &[f32]| tape.leaf(&Tensor::from_slice(x, [x.len()], &device).unwrap());
    let (a, b) = (leaf(&[1.0, 2.0, f32::NAN]), leaf(&[1.0, 1.0, 5.0]));
    let y = a.maximum(&b).unwrap();
    assert!(f64s(&y)[2].is_nan());
    let gradients = tape.backward(&y, 1.0).unwrap();
    assert_eq!(f64s(gradients.of(&a).unwrap()), [0.5, 1.0, 1.0]);
    assert_eq!(f64s(gradients.of(&b).unwrap()), [0.5, 0.0, 1.0]);
    let (a, b) = (leaf(&[0.0, 0.0, 2.0]), leaf(&[2.0, 0.0, 0.0]));
    let y = a.pow(&b).unwrap();
    let gradients = tape.backward(&y, 1.0).unwrap();
    assert_eq!((f64s(&y), f64s(gradients.of(&a).unwrap())), (vec![0.0, 1.0, 1.0], vec![0.0, 0.0, 0.0]));
    let logarithm = 2f32.ln();
    assert_eq!(f64s(gradients.of(&b).unwrap()), [0.0, 0.0, f64::from(logarithm)]);
}

#[test]
fn integers_have_arithmetic_of_their_own() {
    for device in [Device::cpu, Device::strict, Device::staging] {
        let device = device(Isa::detect(), Par::threads(2).unwrap());
        let ints = |x: &[i32]| Tensor::from_slice(x, [x.len()], &device).unwrap();
        let (a, b) = (ints(&[7, -7, i32::MAX]), ints(&[2, 2, 1]));
        let check = |y: Result<Tensor>, want: [i32; 3]| assert_eq!(y.unwrap().to_vec::<i32>().unwrap(), want);
        check(a.add(&b), [9, -5, i32::MIN]);
        check(a.sub(1), [6, -8, i32::MAX - 1]);
        check(a.mul(&b), [14, -14, i32::MAX]);
        check(a.floor_divide(&b), [3, -4, i32::MAX]);
        check(a.remainder(&b), [1, 1, 0]);
        check(a.maximum(0), [7, 0, i32::MAX]);
        check(a.minimum(&b), [2, -7, 1]);
        check(a.neg(), [-7, 7, -i32::MAX]);
        check(a.abs(), [7, 7, i32::MAX]);
        check(a.sign(), [1, -1, 1]);
        check(a.clamp(-1.0, 3.0), [3, -1, 3]);
        check(b.square(), [4, 4, 1]);
        check(ops::sub(10, &b), [8, 8, 9]);
        let quotient = a.div(&b).unwrap();
        assert_eq!((quotient.dtype(), quotient.to_vec::<f32>().unwrap()[1]), (DType::F32, -3.5));
        let text = a.floor_divide(0).and_then(|y| y.to_vec::<i32>()).unwrap_err().to_string();
        assert!(text.ends_with("a division of integers by 0"), "{text}");
        let text = a.add(0.5).unwrap_err().to_string();
        assert_eq!(text, "add: expected an integer within the range of i32 for a tensor of i32, got 0.5");
    }
}

#[test]
fn integers_have_no_functions_of_floats() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let ints = Tensor::from_slice(&[1, 2], [2], &device).unwrap();
    let errors = [ints.relu(), ints.exp(), ints.softmax(-1), ints.mean(0), ints.dropout(0.5, 1, 1)];
    for error in errors {
        assert!(error.unwrap_err().to_string().contains("expected a float tensor, got i32"));
    }
    let text = ops::dropout(&ints, 1.0, 1, 1).unwrap_err().to_string();
    assert_eq!(text, "dropout: the probability is 1; it is at least 0 and below 1");
    let text = ops::add(1, 2).unwrap_err().to_string();
    assert_eq!(text, "add: expected at least one tensor, got two numbers");
}

#[test]
fn casts_of_integers() {
    for device in [Device::cpu, Device::strict, Device::staging] {
        let device = device(Isa::detect(), Par::threads(2).unwrap());
        let floats = Tensor::from_slice(&[1.9f32, -1.9, f32::NAN, 1e20, -1e20], [5], &device).unwrap();
        let ints = floats.cast(DType::I32).unwrap();
        assert_eq!(ints.to_vec::<i32>().unwrap(), [1, -1, 0, i32::MAX, i32::MIN]);
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let back = ints.cast(dtype).unwrap();
            assert_eq!((back.dtype(), &back.to_vec::<f64>().unwrap()[..3]), (dtype, &[1.0, -1.0, 0.0][..]));
        }
        let large: Vec<i32> = (0..100_003).collect();
        let x = Tensor::from_slice(&large, [large.len()], &device).unwrap().cast(DType::F32).unwrap();
        assert!(x.to_vec::<f32>().unwrap().iter().zip(&large).all(|(x, i)| *x == *i as f32));
        assert_eq!(x.cast(DType::I32).unwrap().to_vec::<i32>().unwrap(), large);
    }
}

#[test]
fn reads_convert_where_they_lose_nothing() {
    let device = Device::default();
    let x = Tensor::from_slice(&[0.1f32, -2.0], [2], &device).unwrap();
    let short = x.cast(DType::BF16).unwrap();
    assert_eq!(short.to_vec::<f32>().unwrap(), short.to_f32_vec().unwrap());
    assert_eq!(x.to_vec::<f64>().unwrap(), [f64::from(0.1f32), -2.0]);
    assert_eq!(x.to_vec::<bf16>().unwrap(), short.to_vec::<bf16>().unwrap());
    let ints = Tensor::from_slice(&[3, (1 << 24) + 1], [2], &device).unwrap();
    assert_eq!(ints.to_vec::<f64>().unwrap(), [3.0, 16_777_217.0]);
    assert_eq!(ints.to_vec::<i64>().unwrap(), [3, 16_777_217]);
    let text = ints.to_vec::<f32>().unwrap_err().to_string();
    assert_eq!(text, "to_vec: 16777217 is not exact in f32; read it as i32 or f64");
    assert_eq!(x.to_vec::<i32>().unwrap_err().to_string(), "to_vec: expected i32, got f32");
    assert_eq!(ints.sum_all().unwrap().item::<i32>().unwrap(), (1 << 24) + 4);
    assert_eq!(x.sum_all().unwrap().item::<f64>().unwrap(), f64::from(0.1f32 - 2.0));
    assert_eq!(x.item::<f32>().unwrap_err().to_string(), "item: expected one element, got [2]");
    assert_eq!(Tensor::from_slice(&[200, 0], [2], &device).unwrap().to_vec::<u8>().unwrap(), [200, 0]);
    let text = ints.to_vec::<u8>().unwrap_err().to_string();
    assert_eq!(text, "to_vec: 16777217 is not exact in u8; read it as i32 or f64");
}

#[test]
fn tensors_are_made_from_every_type_of_numbers() {
    for device in [Device::cpu, Device::strict, Device::staging] {
        let device = device(Isa::detect(), Par::threads(2).unwrap());
        let wide = Tensor::from_slice(&[7i64, -1], [2], &device).unwrap();
        assert_eq!((wide.dtype(), wide.to_vec::<i64>().unwrap()), (DType::I32, vec![7, -1]));
        let text = Tensor::from_slice(&[0, 1i64 << 31], [2], &device).unwrap_err().to_string();
        assert_eq!(
            text,
            "from_slice: 2147483648 at index 1 is outside the range of i32, which tensors keep i64 in"
        );
        let bytes = Tensor::from_slice(&[0u8, 255, 3], [3], &device).unwrap();
        assert_eq!(bytes.to_vec::<i32>().unwrap(), [0, 255, 3]);
        // Literals are f64.
        let doubles = Tensor::from_slice(&[0.1, f64::INFINITY, f64::NAN], [3], &device).unwrap();
        assert_eq!(doubles.dtype(), DType::F32);
        let back = doubles.to_vec::<f64>().unwrap();
        assert!(back[0] == f64::from(0.1f32) && back[1] == f64::INFINITY && back[2].is_nan());
        let text = Tensor::from_slice(&[1e300], [1], &device).unwrap_err().to_string();
        assert_eq!(
            text,
            "from_slice: 1e300 at index 0 is outside the range of f32, which tensors keep f64 in"
        );

        let mask = Tensor::from_slice(&[true, false, true], [3], &device).unwrap();
        assert_eq!((mask.dtype(), mask.to_vec::<i32>().unwrap()), (DType::I32, vec![1, 0, 1]));
        assert_eq!(bytes.masked_fill(&mask, true).unwrap().to_vec::<u8>().unwrap(), [1, 255, 1]);
        assert_eq!(bytes.gt(0).unwrap().to_vec::<bool>().unwrap(), [false, true, true]);
        // As a mask is read, also one with other numbers than 1.
        assert_eq!(bytes.to_vec::<bool>().unwrap(), [false, true, true]);
        assert!(bytes.ge(0).unwrap().all(..).unwrap().item::<bool>().unwrap());
        assert_eq!(doubles.to_vec::<bool>().unwrap_err().to_string(), "to_vec: expected bool, got f32");
        assert!(Tensor::from_slice::<bool>(&[], [0], &device).unwrap().to_vec::<bool>().unwrap().is_empty());
    }
}

#[test]
fn numbers_beside_tensors_may_be_of_every_type() {
    let device = Device::default();
    let n = 3usize;
    let x = Tensor::arange(0, n, 1u8, DType::I32, &device).unwrap();
    assert_eq!(x.eq(2i64).unwrap().to_vec::<bool>().unwrap(), [false, false, true]);
    assert_eq!(x.add(true).unwrap().to_vec::<i32>().unwrap(), [1, 2, 3]);
    assert_eq!(x.full_like(1u64 << 20).unwrap().to_vec::<i64>().unwrap(), [1 << 20; 3]);
    let ones = Tensor::full([2], bf16::from_f32(1.0), DType::BF16, &device).unwrap();
    assert_eq!(ones.mul(0.5f64).unwrap().to_vec::<f64>().unwrap(), [0.5; 2]);
    let text = x.add(1i64 << 40).unwrap_err().to_string();
    assert_eq!(
        text,
        "add: expected an integer within the range of i32 for a tensor of i32, got 1099511627776"
    );
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
