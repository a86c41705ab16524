//! Slices in brackets: indices, ranges, steps, new dims.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::ops::{Ellipsis, IntoItems, Item, NewAxis, Step};
use oarlock_tensor::{Device, Par, Tensor};

use crate::common::{array, case, f64s};

const SHAPE: [usize; 3] = [3, 4, 5];

/// A slice of a tensor of [`SHAPE`] against the indices that each dim keeps.
#[track_caller]
fn check(items: impl IntoItems, sizes: &'static [usize], kept: [Vec<usize>; 3]) {
    let items = items.items();
    let op = move |x: &[Tensor]| {
        let y = x[0].i(&items[..])?;
        assert_eq!(y.sizes(), sizes, "{items:?}");
        Ok(y)
    };
    let reference = move |x: &[&[f64]]| {
        let mut y = Vec::new();
        for (i, j) in kept[0].iter().flat_map(|i| kept[1].iter().map(move |j| (i, j))) {
            y.extend(kept[2].iter().map(|k| x[0][(i * 4 + j) * 5 + k]));
        }
        y
    };
    case("slice", [array(1, &SHAPE)], op, reference).check();
}

fn all(n: usize) -> Vec<usize> {
    (0..n).collect()
}

#[test]
#[allow(clippy::reversed_empty_ranges, reason = "bounds below 0 count from the end")]
fn indices_ranges_and_steps() {
    check((.., 1..3, -1), &[3, 2], [all(3), vec![1, 2], vec![4]]);
    check(0, &[4, 5], [vec![0], all(4), all(5)]);
    check(-2.., &[2, 4, 5], [vec![1, 2], all(4), all(5)]);
    check((1, 2, 3), &[], [vec![1], vec![2], vec![3]]);
    check((1usize, .., ..=1), &[4, 2], [vec![1], all(4), vec![0, 1]]);
    check((..-1, ..=-2, 1..=-1), &[2, 3, 4], [vec![0, 1], all(3), vec![1, 2, 3, 4]]);
    check((Step(.., 2), Step(1.., 2), Step(..-1, 3)), &[2, 2, 2], [vec![0, 2], vec![1, 3], vec![0, 3]]);
    check((Ellipsis, 0), &[3, 4], [all(3), all(4), vec![0]]);
    check((0, Ellipsis), &[4, 5], [vec![0], all(4), all(5)]);
    check((2, Ellipsis, Step(4.., 9)), &[4, 1], [vec![2], all(4), vec![4]]);
    check((NewAxis, .., NewAxis, 1), &[1, 3, 1, 5], [all(3), vec![1], all(5)]);
    check((.., NewAxis, Ellipsis, NewAxis, -5), &[3, 1, 4, 1], [all(3), all(4), vec![0]]);
    check((.., .., ..), &[3, 4, 5], [all(3), all(4), all(5)]);
    // Bounds beyond the ends are cut, as in torch.
    check((-9..9, 3..1, 2..100), &[3, 0, 3], [all(3), vec![], vec![2, 3, 4]]);
    check((9.., 9..), &[0, 0, 5], [vec![], vec![], all(5)]);
}

#[test]
fn slices_of_one_tensor_add_their_gradients() {
    let op = |x: &[Tensor]| {
        let (even, odd) = (x[0].i((.., Step(.., 2)))?, x[0].i((.., Step(1.., 2)))?);
        even.mul(&odd)?.mul(&x[0].i((.., Step(..-1, 2)))?)
    };
    let reference = |x: &[&[f64]]| {
        let at = |i: usize| x[0][i / 3 * 6 + i % 3 * 2];
        (0..9).map(|i| at(i).powi(2) * x[0][i / 3 * 6 + i % 3 * 2 + 1]).collect()
    };
    case("slices", [array(1, &[3, 6])], op, reference).check();
}

#[test]
fn large_slices_have_the_same_bits_on_any_number_of_threads() {
    let (rows, columns) = (300, 401);
    let data: Vec<i32> = (0..rows * columns).collect();
    for par in [Par::solo(), Par::threads(7).unwrap()] {
        let device = Device::cpu(Isa::detect(), par);
        let x = Tensor::from_slice(&data, [rows as usize, columns as usize], &device).unwrap();
        let y = x.i((Step(1.., 2), Step(..-1, 3))).unwrap();
        let want = (0..150 * 134).map(|i| f64::from((1 + i / 134 * 2) * columns + i % 134 * 3));
        assert!(f64s(&y).into_iter().eq(want));
    }
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32; 6], [2, 3], &device).unwrap();
    let too_many =
        "i: expected at least 3 dims for the indices, which may leave out dims at one place, got [2, 3]";
    let texts = [
        (x.i((0, 0, 0)), too_many),
        (x.i((.., .., .., NewAxis)), too_many),
        (
            x.i((Ellipsis, Ellipsis)),
            "i: expected at least 0 dims for the indices, which may leave out dims at one place, got [2, 3]",
        ),
        (x.i((.., 3)), "i: expected an index inside dim 1 instead of 3, got [2, 3]"),
        (x.i(-3), "i: expected an index inside dim 0 instead of -3, got [2, 3]"),
        (x.i(Step(.., 0)), "i: a step is at least 1"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    assert_eq!(x.i(&[Item::At(1), Item::At(2)][..]).unwrap().sizes(), [0usize; 0]);
}
