//! Sums, means, maxima, softmax.

use oarlock_reference::reduce::reduced;
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{DType, Device, Par, Param, Result, Tensor};

use crate::common::{Array, Env, Node, array, case, f64s, formula_case};

/// Distinct values.
fn distinct(shape: &[usize]) -> Array {
    let n: usize = shape.iter().product();
    assert!(n <= 127);
    Array { shape: shape.to_vec(), data: (0..n).map(|i| (i * 37 % 127) as f64 / 32.0 - 1.5).collect() }
}

/// `f` of each row along `dim`.
fn along(shape: &[usize], dim: usize, x: &[f64], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let sizes = [shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product()];
    reduced(x, sizes, f)
}

fn sum_of(row: &[f64]) -> f64 {
    row.iter().sum()
}

fn mean_of(row: &[f64]) -> f64 {
    sum_of(row) / row.len() as f64
}

fn max_of(row: &[f64]) -> f64 {
    row.iter().copied().fold(f64::MIN, f64::max)
}

#[test]
fn over_each_dim_and_over_all() {
    let shape = [3, 7, 5];
    type Entry = (
        &'static str,
        [fn(&Tensor, usize) -> Result<Tensor>; 2],
        fn(&Tensor) -> Result<Tensor>,
        fn(&[f64]) -> f64,
    );
    let ops: [Entry; 3] = [
        ("sum", [|x, d| x.sum(d), |x, d| x.sum_keepdim(d)], |x| x.sum_all(), sum_of),
        ("mean", [|x, d| x.mean(d), |x, d| x.mean_keepdim(d)], |x| x.mean_all(), mean_of),
        ("max", [|x, d| x.max(d), |x, d| x.max_keepdim(d)], |x| x.max_all(), max_of),
    ];
    for (name, forms, all, f) in ops {
        for dim in 0..3 {
            for form in forms {
                case(
                    name,
                    [distinct(&shape)],
                    move |x| form(&x[0], dim),
                    move |x| along(&shape, dim, x[0], f),
                )
                .check();
            }
        }
        case(name, [distinct(&shape)], move |x| all(&x[0]), move |x| vec![f(x[0])]).check();
    }
}

#[test]
fn shapes_and_places() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32, 5.0, 5.0, -1.0, -2.0, -1.0], [2, 3], &device).unwrap();
    assert_eq!((x.sum(1).unwrap().sizes(), x.sum_keepdim(1).unwrap().sizes()), (&[2][..], &[2, 1][..]));
    assert!(x.max_all().unwrap().sizes().is_empty());
    assert_eq!(f64s(&x.argmax(1).unwrap()), [1.0, 0.0]);
    assert_eq!(f64s(&x.argmax(0).unwrap()), [0.0, 0.0, 0.0]);
    let text = x.sum(2).unwrap_err().to_string();
    assert_eq!(text, "sum: expected a tensor with a dim 2, got [2, 3]");
    let empty = Tensor::from_slice::<f32>(&[], [2, 0], &device).unwrap();
    assert_eq!(f64s(&empty.sum(1).unwrap()), [0.0, 0.0]);
    let text = empty.max(1).unwrap_err().to_string();
    assert_eq!(text, "max: expected at least one element along dim 1, got [2, 0]");
    assert!(empty.mean_all().is_err() && empty.softmax(-1).is_err() && empty.mean(0).unwrap().sizes() == [0]);
}

#[test]
fn softmaxes() {
    let all: [(&[usize], isize); 7] = [
        (&[1, 1], -1),
        (&[3, 7], -1),
        (&[2, 65], -1),
        (&[2, 3, 5], 1),
        (&[2, 3, 5], -3),
        (&[1, 4, 1], -2),
        (&[3, 70, 4], 1),
    ];
    for (sizes, dim) in all {
        let at = dim.rem_euclid(sizes.len() as isize) as usize;
        let outer = [sizes[..at].iter().product(), sizes[at], sizes[at + 1..].iter().product()];
        let log = move |x: &Node| x.reshape(&outer).permute([0, 2, 1]).log_softmax().permute([0, 2, 1]);
        let x = || [array(1, sizes)];
        let op = move |_: &Env, x: &[Tensor], _: &[Param]| x[0].softmax(dim);
        formula_case("softmax", x(), [], op, move |x, _| log(&x[0]).exp()).check();
        let op = move |_: &Env, x: &[Tensor], _: &[Param]| x[0].log_softmax(dim);
        formula_case("log_softmax", x(), [], op, move |x, _| log(&x[0])).check();
    }
    let x = Tensor::zeros([2, 0, 3], DType::F32, &Device::default()).unwrap();
    assert_eq!(x.softmax(-1).unwrap().sizes(), [2, 0, 3]);
    let text = x.softmax(1).unwrap_err().to_string();
    assert_eq!(text, "softmax: expected at least one element along dim 1, got [2, 0, 3]");
    let text = x.log_softmax(3).unwrap_err().to_string();
    assert_eq!(text, "log_softmax: expected a tensor with a dim 3, got [2, 0, 3]");
}
