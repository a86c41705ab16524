//! The operators between tensors, numbers and results.

use oarlock_tensor::{DType, Device, Result, Tensor};

use crate::common::{array, case};

#[test]
fn chains_of_operators() {
    let inputs = || [array(1, &[3, 5]), array(2, &[5]), array(3, &[3, 1])];
    let op = |x: &[Tensor]| {
        let (a, b, c) = (&x[0], &x[1], &x[2]);
        let sum = ((a * b + c)? - 1.5)?;
        let scaled = (2.0 * &sum)?;
        ((-scaled)? * b)? + (1.0 - a) * c - (a / 4)?
    };
    let reference = |x: &[&[f64]]| {
        let at = |i: usize| (x[0][i], x[1][i % 5], x[2][i / 5]);
        let f = |(a, b, c): (f64, f64, f64)| -2.0 * (a * b + c - 1.5) * b + (1.0 - a) * c - a / 4.0;
        (0..15).map(|i| f(at(i))).collect()
    };
    case("a chain", inputs(), op, reference).check();
}

#[test]
fn every_pair_of_types_has_every_operator() {
    let device = Device::default();
    let of = |x: f32| Tensor::full([2], x, DType::F32, &device);
    let (x, y) = (of(6.0).unwrap(), of(2.0).unwrap());
    let check = |z: Result<Tensor>, want: f32| assert_eq!(z.unwrap().to_vec::<f32>().unwrap(), [want; 2]);
    check(&x + &y, 8.0);
    check(&x - y.clone(), 4.0);
    check(x.clone() * &y, 12.0);
    check(x.clone() / y.clone(), 3.0);
    check(of(6.0) - &y, 4.0);
    check(of(6.0) / y.clone(), 3.0);
    check(&x - of(2.0), 4.0);
    check(x.clone() * of(2.0), 12.0);
    check(&x + 1.5, 7.5);
    check(x.clone() - 1, 5.0);
    check(1.5 - &x, -4.5);
    check(3 / y.clone(), 1.5);
    check(12.0 / &x, 2.0);
    check(-&x, -6.0);
    check(-x.clone(), -6.0);
    assert!((of(6.0) + &Tensor::zeros([3], DType::F32, &device).unwrap()).is_err());
    let ids = Tensor::arange(0, 4, 1, DType::I32, &device).unwrap();
    assert_eq!((&ids * 2 + &ids).unwrap().to_vec::<i32>().unwrap(), [0, 3, 6, 9]);
    assert_eq!((10 - &ids).unwrap().to_vec::<i32>().unwrap(), [10, 9, 8, 7]);
}

#[test]
fn numbers_divide_and_are_divided() {
    let op = |x: &[Tensor]| x[0].div(3.0)? + 2.0 / (x[0].abs()? + 1)?;
    let reference = |x: &[&[f64]]| x[0].iter().map(|x| x / 3.0 + 2.0 / (x.abs() + 1.0)).collect();
    case("quotients with numbers", [array(1, &[3, 5])], op, reference).check();
    let op = |x: &[Tensor]| oarlock_tensor::ops::pow(2.0, &x[0]);
    case("a power of 2", [array(1, &[3, 5])], op, |x| x[0].iter().map(|x| x.exp2()).collect()).check();
}
