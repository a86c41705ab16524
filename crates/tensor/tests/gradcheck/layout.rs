//! Ops that move elements: orders, parts, joins, rows, choices.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Tensor, ops};

use crate::common::{array, case, f64s};

/// The elements of `x` that stand where `at` says, for each of `n` results.
fn pick(n: usize, at: impl Fn(usize) -> usize + 'static) -> impl Fn(&[&[f64]]) -> Vec<f64> + 'static {
    move |x| (0..n).map(|i| x[0][at(i)]).collect()
}

#[test]
fn orders() {
    let x = || [array(1, &[2, 3, 5])];
    // Result [5, 2, 3].
    let at = |i: usize| (i / 3 % 2 * 3 + i % 3) * 5 + i / 6;
    case("permute", x(), |x| x[0].permute([2, 0, 1]), pick(30, at)).check();
    let at = |i: usize| (i / 15 * 3 + i % 3) * 5 + i / 3 % 5;
    case("transpose", x(), |x| x[0].transpose(1, 2), pick(30, at)).check();
    case(
        "reshape",
        x(),
        |x| x[0].relu()?.reshape([5, 6])?.square(),
        |x| x[0].iter().map(|x| x.max(0.0).powi(2)).collect(),
    )
    .check();
    case("squeeze and unsqueeze", x(), |x| x[0].unsqueeze(1)?.unsqueeze(4)?.squeeze(1), pick(30, |i| i))
        .check();
    case("expand", [array(1, &[3, 1])], |x| x[0].expand([2, 3, 4]), pick(24, |i| i / 4 % 3)).check();
    case("expand a scalar", [array(1, &[])], |x| x[0].expand([2, 3]), pick(6, |_| 0)).check();
    case("heads", x(), |x| ops::merge_heads(&ops::split_heads(&x[0], 5)?), pick(30, |i| i)).check();
}

#[test]
fn parts_and_joins() {
    let x = || [array(1, &[2, 6, 5])];
    case("narrow first", x(), |x| x[0].narrow(0, 1..2), pick(30, |i| 30 + i)).check();
    case("narrow middle", x(), |x| x[0].narrow(1, 2..5), pick(30, |i| i / 15 * 30 + 10 + i % 15)).check();
    case("narrow last", x(), |x| x[0].narrow(2, 4..5), pick(12, |i| i * 5 + 4)).check();
    let halves = |x: &[Tensor]| {
        let parts = ops::split(&x[0], [1, 2, 3], 1)?;
        ops::concat(&[&parts[2], &parts[0], &parts[1]], 1)
    };
    let at = |i: usize| i / 30 * 30 + (i % 30 + 15) % 30;
    case("split and concat", x(), halves, pick(60, at)).check();
    // Parts that overlap add up.
    let overlap = |x: &[Tensor]| x[0].narrow(2, 0..3)?.mul(&x[0].narrow(2, 2..5)?);
    let reference =
        |x: &[&[f64]]| (0..36).map(|i| x[0][i / 3 * 5 + i % 3] * x[0][i / 3 * 5 + i % 3 + 2]).collect();
    case("narrow twice", x(), overlap, reference).check();
    let pair = || [array(1, &[3, 4]), array(2, &[3, 4])];
    for dim in 0..3 {
        let reference = move |x: &[&[f64]]| {
            let inner = 12 / [1, 3, 12][dim];
            (0..24).map(|i| x[i / inner % 2][i / (2 * inner) * inner + i % inner]).collect()
        };
        case("stack", pair(), move |x| ops::stack(&[&x[0], &x[1]], dim), reference).check();
    }
    let same = |x: &[Tensor]| ops::concat(&[&x[0], &x[0]], 0);
    case("concat with itself", x(), same, pick(120, |i| i % 60)).check();
}

#[test]
fn rows_by_index() {
    let ids = [2i32, 0, 2, 2, 1, 3];
    let op = move |x: &[Tensor]| x[0].index_select(0, &Tensor::from_slice(&ids, [3, 2], x[0].device())?);
    case("index_select", [array(1, &[4, 3, 5])], op, pick(90, move |i| ids[i / 15] as usize * 15 + i % 15))
        .check();
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32, 2.0], [2, 1], &device).unwrap();
    let select = |id: i32| x.index_select(0, &Tensor::from_slice(&[0, id], [2], &device).unwrap());
    assert_eq!(f64s(&select(1).unwrap()), [1.0, 2.0]);
    for id in [-1, 2, i32::MIN] {
        let text = select(id).unwrap_err().to_string();
        assert_eq!(text, format!("index_select: index {id} at position 1 is outside 0..2"));
    }
}

#[test]
fn choices_by_a_mask() {
    let mask = [1i32, 0, 0, -3, 1, 0];
    let on = move |x: &Tensor, shape: &[usize]| Tensor::from_slice(&mask, shape, x.device());
    let fill = move |x: &[Tensor]| x[0].masked_fill(&on(&x[0], &[2, 3])?, -7.0);
    let filled = move |x: &[&[f64]]| (0..12).map(|i| if mask[i % 6] != 0 { -7.0 } else { x[0][i] }).collect();
    case("masked_fill", [array(1, &[2, 2, 3])], fill, filled).check();
    let choose = move |x: &[Tensor]| ops::where_cond(&on(&x[0], &[3, 2, 1])?, &x[0], &x[1]);
    let chosen = move |x: &[&[f64]]| (0..24).map(|i| x[usize::from(mask[i / 4] == 0)][i]).collect();
    case("where_cond", [array(1, &[3, 2, 4]), array(2, &[3, 2, 4])], choose, chosen).check();
}

#[test]
fn integers_move_as_well() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1, 2, 3, 4, 5, 6], [2, 3], &device).unwrap();
    assert_eq!(f64s(&x.transpose(0, 1).unwrap()), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(f64s(&x.narrow(1, 1..3).unwrap()), [2.0, 3.0, 5.0, 6.0]);
    assert_eq!(f64s(&ops::concat(&[&x, &x], 1).unwrap())[2..5], [3.0, 1.0, 2.0]);
    assert_eq!(f64s(&x.reshape([6]).unwrap().expand([1, 6]).unwrap()), f64s(&x));
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32; 6], [2, 3], &device).unwrap();
    let y = Tensor::from_slice(&[1i32; 2], [2], &device).unwrap();
    let texts = [
        (x.permute([0, 0]), "permute: [0, 0] does not name each of the 2 dims once"),
        (x.transpose(0, 2), "transpose: expected a tensor with a dim 2, got [2, 3]"),
        (x.squeeze(1), "squeeze: expected size 1 at dim 1, got [2, 3]"),
        (x.unsqueeze(3), "unsqueeze: expected at least 3 dims, got [2, 3]"),
        (x.expand([3, 3]), "expand: expected a shape that broadcasts with [3, 3], got [2, 3]"),
        (x.expand([3]), "expand: expected a shape that broadcasts to [3], got [2, 3]"),
        (x.narrow(1, 2..4), "narrow: expected 2..4 inside dim 1, got [2, 3]"),
        (
            ops::split(&x, [1, 1], 1).map(|_| x.clone()),
            "split: expected a size of [1, 1] together at dim 1, got [2, 3]",
        ),
        (ops::concat::<Tensor>(&[], 0), "concat: no tensor was given"),
        (ops::concat(&[&x, &y], 0), "concat: expected f32, as the other input, got i32"),
        (
            ops::concat(&[&x, &x.transpose(0, 1).unwrap()], 0),
            "concat: expected [2, 3] but for dim 0, got [3, 2]",
        ),
        (ops::stack(&[&x, &x.reshape([6]).unwrap()], 0), "stack: expected [2, 3], got [6]"),
        (x.index_select(0, &x), "index_select: expected i32 indices, got f32"),
        (x.masked_fill(&x, 0.0), "masked_fill: expected an i32 mask, got f32"),
        (x.masked_fill(&y, 0.0), "masked_fill: expected a shape that broadcasts with [2, 3], got [2]"),
        (x.reshape([4]), "reshape: expected 4 elements for [4], got [2, 3]"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
}
