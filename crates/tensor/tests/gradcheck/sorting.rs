//! Sorting and the largest elements.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Tensor};

use crate::common::{Array, case, f64s};
use crate::shapes::{coordinates, element};

const SHAPE: [usize; 3] = [3, 7, 5];

/// Distinct values.
fn distinct() -> [Array; 1] {
    let data = (0..105).map(|i| f64::from(i * 37 % 127) / 32.0 - 1.5).collect();
    [Array { shape: SHAPE.to_vec(), data }]
}

/// The first `k` elements along a dim in order.
fn ordered(x: &[f64], dim: usize, k: usize, descending: bool) -> Vec<f64> {
    let mut sizes = SHAPE;
    sizes[dim] = k;
    let of = |i: usize| {
        let mut at = coordinates(&sizes, i);
        let rank = at[dim];
        let mut column: Vec<f64> = (0..SHAPE[dim])
            .map(|j| {
                at[dim] = j;
                x[element(&SHAPE, &at)]
            })
            .collect();
        column.sort_by(|a, b| if descending { b.total_cmp(a) } else { a.total_cmp(b) });
        column[rank]
    };
    (0..sizes.iter().product()).map(of).collect()
}

#[test]
fn along_each_dim() {
    for (dim, descending) in (0..3).flat_map(|dim| [(dim, false), (dim, true)]) {
        let back = dim as isize - 3;
        let sort = move |x: &[Tensor]| Ok(x[0].sort(back, descending)?.0);
        case("sort", distinct(), sort, move |x| ordered(x[0], dim, SHAPE[dim], descending)).check();
        let topk = move |x: &[Tensor]| Ok(x[0].topk(2, back, descending)?.0);
        case("topk", distinct(), topk, move |x| ordered(x[0], dim, 2, descending)).check();
        let argsort = move |x: &[Tensor]| x[0].gather(dim, &x[0].argsort(back, descending)?);
        case("argsort", distinct(), argsort, move |x| ordered(x[0], dim, SHAPE[dim], descending)).check();
    }
}

/// What torch's `sort(stable=True)` gives for these.
#[test]
fn equal_elements_keep_their_order_and_nan_is_the_largest() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let data = [3.0, f32::NAN, 1.0, 3.0, -0.0, 0.0, f32::NAN, f32::NEG_INFINITY];
    let x = Tensor::from_slice(&data, [8], &device).unwrap();
    let places = |descending| f64s(&x.argsort(0, descending).unwrap());
    assert_eq!(places(false), [7.0, 4.0, 5.0, 2.0, 0.0, 3.0, 1.0, 6.0]);
    assert_eq!(places(true), [1.0, 6.0, 0.0, 3.0, 2.0, 4.0, 5.0, 7.0]);
    let (largest, at) = x.topk(3, 0, true).unwrap();
    assert!(f64s(&largest)[0].is_nan() && f64s(&largest)[2] == 3.0);
    assert_eq!(f64s(&at), [1.0, 6.0, 0.0]);
    assert_eq!(f64s(&x.topk(2, 0, false).unwrap().1), [7.0, 4.0]);
    let ints = Tensor::from_slice(&[2, -7, 2, i32::MIN], [2, 2], &device).unwrap();
    let (sorted, at) = ints.sort(1, true).unwrap();
    assert_eq!(
        (f64s(&sorted), f64s(&at)),
        (vec![2.0, -7.0, 2.0, f64::from(i32::MIN)], vec![0.0, 1.0, 0.0, 1.0])
    );
    assert_eq!(f64s(&ints.sort(0, false).unwrap().1), [0.0, 1.0, 1.0, 0.0]);
    let text = ints.topk(3, 0, true).unwrap_err().to_string();
    assert_eq!(text, "topk: expected at least 3 elements along dim 0, got [2, 2]");
    assert_eq!(x.topk(0, 0, true).unwrap().0.sizes(), [0]);
    let none = Tensor::from_slice(&[0f32; 0], [3, 0], &device).unwrap();
    assert_eq!(none.sort(-1, false).unwrap().1.sizes(), [3, 0]);
}
