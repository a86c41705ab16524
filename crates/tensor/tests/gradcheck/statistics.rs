//! Reductions over several dims, extremes, products, variances, norms, logarithms of sums.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::cpu::difference::largest_magnitude;
use oarlock_tensor::{DType, Device, Par, Result, Tape, Tensor};

use crate::common::{Array, array, case, f64s};

const SHAPE: [usize; 4] = [2, 3, 2, 4];

/// `f` of the elements that a reduction over these dims joins, in the order of the result.
fn over(dims: &[usize], x: &[f64], f: fn(&[f64]) -> f64) -> Vec<f64> {
    let mut groups: Vec<(Vec<usize>, Vec<f64>)> = Vec::new();
    for (i, x) in x.iter().enumerate() {
        let (mut rest, mut key) = (i, Vec::new());
        for d in (0..SHAPE.len()).rev() {
            if !dims.contains(&d) {
                key.insert(0, rest % SHAPE[d]);
            }
            rest /= SHAPE[d];
        }
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, members)) => members.push(*x),
            None => groups.push((key, vec![*x])),
        }
    }
    groups.sort_by(|a, b| a.0.cmp(&b.0));
    groups.into_iter().map(|(_, members)| f(&members)).collect()
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

#[test]
fn over_one_and_several_dims() {
    type Entry = (&'static str, fn(&Tensor, &[i32]) -> Result<Tensor>, fn(&[f64]) -> f64);
    let ops: [Entry; 9] = [
        ("sum", |x, d| x.sum(d), |x| x.iter().sum()),
        ("mean", |x, d| x.mean(d), mean),
        (
            "var",
            |x, d| x.var(d, 1),
            |x| {
                let m = mean(x);
                x.iter().map(|x| (x - m).powi(2)).sum::<f64>() / (x.len() - 1) as f64
            },
        ),
        (
            "std",
            |x, d| x.std(d, 0),
            |x| {
                let m = mean(x);
                (x.iter().map(|x| (x - m).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
            },
        ),
        ("logsumexp", |x, d| x.logsumexp(d), |x| x.iter().map(|x| x.exp()).sum::<f64>().ln()),
        ("norm 1", |x, d| x.norm(1.0, d), |x| x.iter().map(|x| x.abs()).sum()),
        ("norm 2", |x, d| x.norm(2.0, d), |x| x.iter().map(|x| x * x).sum::<f64>().sqrt()),
        ("norm inf", |x, d| x.norm(f32::INFINITY, d), |x| largest_magnitude(x.iter().copied()).unwrap()),
        ("sum_keepdim", |x, d| x.sum_keepdim(d)?.mul(1), |x| x.iter().sum()),
    ];
    let n = SHAPE.iter().product::<usize>();
    for (name, op, f) in ops {
        let all: [&'static [i32]; 4] = [&[1], &[-1, 0], &[1, 2], &[0, 1, 2, 3]];
        for dims in all {
            let places: Vec<usize> = dims.iter().map(|d| d.rem_euclid(4) as usize).collect();
            // Distinct absolute values, so that each maximum has one place.
            let data =
                (0..n).map(|i| ((i * 37 % 97) as f64 + 3.0) / 64.0 * if i % 3 == 0 { -1.0 } else { 1.0 });
            let x = Array { shape: SHAPE.to_vec(), data: data.collect() };
            case(name, [x], move |x| op(&x[0], dims), move |x| over(&places, x[0], f)).check();
        }
    }
}

#[test]
fn products_and_least_elements() {
    let along = |x: &[f64], f: fn(&[f64]) -> f64| over(&[1], x, f);
    let product = |x: &[f64]| x.iter().product::<f64>();
    case("prod", [array(1, &SHAPE)], |x| x[0].prod(1), move |x| along(x[0], product)).check();
    case("prod_keepdim", [array(1, &SHAPE)], |x| x[0].prod_keepdim(-3), move |x| along(x[0], product))
        .check();
    let distinct =
        Array { shape: SHAPE.to_vec(), data: (0..48).map(|i| (i * 37 % 127) as f64 / 32.0 - 1.5).collect() };
    let least = |x: &[f64]| x.iter().copied().fold(f64::MAX, f64::min);
    case("min", [distinct.clone()], |x| x[0].min(1), move |x| along(x[0], least)).check();
    case("min_all", [distinct], |x| x[0].min_all(), move |x| vec![least(x[0])]).check();
    // One factor is 0, and then two.
    let device = Device::default();
    for (data, want) in [([2.0f32, 0.0, 3.0], [0.0, 6.0, 0.0]), ([2.0, 0.0, 0.0], [0.0, 0.0, 0.0])] {
        let tape = Tape::new();
        let x = tape.leaf(&Tensor::from_slice(&data, [3], &device).unwrap());
        let gradients = tape.backward(&x.prod(0).unwrap(), 1.0).unwrap();
        assert_eq!(f64s(gradients.of(&x).unwrap()), want);
    }
}

#[test]
fn edges_of_reductions() {
    for device in [Device::cpu, Device::strict, Device::staging] {
        let device = device(Isa::detect(), Par::threads(2).unwrap());
        let tape = Tape::new();
        let zeros = tape.leaf(&Tensor::zeros([2, 3], DType::F32, &device).unwrap());
        let y = (zeros.norm(2.0, 1).unwrap() + zeros.std(1, 1).unwrap()).unwrap();
        let gradients = tape.backward(&y, 1.0).unwrap();
        assert_eq!(f64s(gradients.of(&zeros).unwrap()), [0.0; 6]);
        let infinite = Tensor::full([2], f32::NEG_INFINITY, DType::F32, &device).unwrap();
        assert_eq!(infinite.logsumexp(0).unwrap().item::<f32>().unwrap(), f32::NEG_INFINITY);
        let large = Tensor::full([2], 1000, DType::F32, &device).unwrap();
        assert!((large.logsumexp(..).unwrap().item::<f64>().unwrap() - 1000.0 - 2f64.ln()).abs() < 1e-3);
        let ints = Tensor::from_slice(&[4, -7, 9, 4, -7, 1], [2, 3], &device).unwrap();
        let vec = |x: Result<Tensor>| x.unwrap().to_vec::<i32>().unwrap();
        assert_eq!(
            (vec(ints.max(1)), vec(ints.min(0)), vec(ints.argmin(-1))),
            (vec![9, 4], vec![4, -7, 1], vec![1, 1])
        );
        assert_eq!(
            (vec(ints.sum([0, 1])), vec(ints.sum(0)), vec(ints.sum(-1))),
            (vec![4], vec![8, -14, 10], vec![6, -2])
        );
        let too_large = Tensor::full([3], i32::MAX, DType::I32, &device).unwrap();
        let text = too_large.sum(0).and_then(|y| y.to_vec::<i32>()).unwrap_err().to_string();
        assert!(text.contains("6442450941 is outside of the range of i32"), "{text}");
    }
    let device = Device::default();
    let x = Tensor::ones([2, 3], DType::F32, &device).unwrap();
    let texts = [
        (x.sum([0, -2]), "sum: [0, -2] names a dim twice"),
        (x.mean(-3), "mean: expected a tensor with a dim -3, got [2, 3]"),
        (x.var(1, 3), "var: a correction of 3 needs more than 3 elements"),
        (x.norm(3.0, 1), "norm: p is 1, 2 or infinity, and got 3"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    assert_eq!(x.var_keepdim([0, 1], 1).unwrap().sizes(), [1, 1]);
    assert_eq!(x.norm_keepdim(2.0, 1).unwrap().sizes(), [2, 1]);
    assert_eq!(x.sum(..).unwrap().item::<f32>().unwrap(), 6.0);
}
