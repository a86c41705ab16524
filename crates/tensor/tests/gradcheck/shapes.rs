//! Ops that arrange and repeat elements: dims from both ends, repetition, margins, triangles, diagonals, running sums.

use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Device, Par, Result, Tensor, ops};

use crate::common::{array, case, f64s};

/// The place of element `i` along each dim.
pub fn coordinates(shape: &[usize], mut i: usize) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    for d in (0..shape.len()).rev() {
        (at[d], i) = (i % shape[d], i / shape[d]);
    }
    at
}

/// The element at a place.
pub fn element(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |i, (size, at)| i * size + at)
}

/// An op against the element of its input that each element of its output is; `None` is `fill`.
#[track_caller]
fn moves(
    name: &'static str,
    (from, to): (&'static [usize], &'static [usize]),
    fill: f64,
    op: impl Fn(&Tensor) -> Result<Tensor> + 'static,
    source: impl Fn(&[usize]) -> Option<Vec<usize>> + 'static,
) {
    let op = move |x: &[Tensor]| {
        let y = op(&x[0])?;
        assert_eq!(y.sizes(), to, "{name}");
        Ok(y)
    };
    let reference = move |x: &[&[f64]]| {
        let of = |i| source(&coordinates(to, i)).map_or(fill, |at| x[0][element(from, &at)]);
        (0..to.iter().product()).map(of).collect()
    };
    case(name, [array(1, from)], op, reference).check();
}

#[test]
fn dims_count_from_both_ends() {
    let x: &[usize] = &[2, 3, 5];
    moves("permute", (x, &[5, 2, 3]), 0.0, |x| x.permute((-1, 0, 1)), |y| Some(vec![y[1], y[2], y[0]]));
    moves("transpose", (x, &[2, 5, 3]), 0.0, |x| x.transpose(-1, -2), |y| Some(vec![y[0], y[2], y[1]]));
    moves("movedim", (x, &[3, 5, 2]), 0.0, |x| x.movedim(0, -1), |y| Some(vec![y[2], y[0], y[1]]));
    moves("t", (&[3, 5], &[5, 3]), 0.0, |x| x.t(), |y| Some(vec![y[1], y[0]]));
    moves("no transpose", (x, x), 0.0, |x| x.permute([0, 1, -1]), |y| Some(y.to_vec()));
    moves("reshape", (x, &[2, 15]), 0.0, |x| x.reshape((2, -1)), |y| Some(vec![y[0], y[1] / 5, y[1] % 5]));
    moves("flatten", (x, &[6, 5]), 0.0, |x| x.flatten(0, -2), |y| Some(vec![y[0] / 3, y[0] % 3, y[1]]));
    let parts = |x: &Tensor| x.unflatten(-2, [3, -1])?.unsqueeze(-1);
    moves("unflatten", (x, &[2, 3, 1, 5, 1]), 0.0, parts, |y| Some(vec![y[0], y[1], y[3]]));
    let squeezed = |x: &Tensor| x.unsqueeze(0)?.unsqueeze(-2)?.squeeze(-2)?.unsqueeze(-1)?.squeeze_all();
    moves("squeeze", (x, x), 0.0, squeezed, |y| Some(y.to_vec()));
}

#[test]
fn repetition() {
    moves("expand", (&[3, 1], &[2, 3, 4]), 0.0, |x| x.expand((2, -1, 4)), |y| Some(vec![y[1], 0]));
    moves("repeat", (&[2, 3], &[2, 4, 9]), 0.0, |x| x.repeat((2, 2, 3)), |y| Some(vec![y[1] % 2, y[2] % 3]));
    moves("repeat never", (&[2, 3], &[0, 3]), 0.0, |x| x.repeat([0, 1]), |y| Some(y.to_vec()));
    let twice = |x: &Tensor| x.repeat_interleave(2, -2);
    moves("repeat_interleave", (&[2, 3, 2], &[2, 6, 2]), 0.0, twice, |y| Some(vec![y[0], y[1] / 2, y[2]]));
    let grid = |x: &Tensor| Ok(ops::meshgrid(&[x, &x.narrow(0, 0..2)?])?.remove(0));
    moves("meshgrid", (&[3], &[3, 2]), 0.0, grid, |y| Some(vec![y[0]]));
    let columns = |x: &Tensor| Ok(ops::meshgrid(&[&x.narrow(0, 0..2)?, x])?.remove(1));
    moves("meshgrid", (&[3], &[2, 3]), 0.0, columns, |y| Some(vec![y[1]]));
}

#[test]
fn margins() {
    let at = |y: &[usize], before: [usize; 2]| {
        let at: Option<Vec<usize>> = y.iter().zip(before).map(|(y, before)| y.checked_sub(before)).collect();
        at.filter(|at| at[0] < 2 && at[1] < 3)
    };
    let x: &[usize] = &[2, 3];
    moves("pad", (x, &[2, 6]), 0.0, |x| x.pad([1, 2], 0.0), move |y| at(y, [0, 1]));
    moves("pad", (x, &[5, 4]), 0.5, |x| x.pad([0, 1, 2, 1], 0.5), move |y| at(y, [2, 0]));
    let cut = |x: &Tensor| x.pad([1, -1, -1, 2], -2.0);
    moves("pad", (x, &[3, 3]), -2.0, cut, |y| {
        Some(vec![y[0] + 1, y[1].checked_sub(1)?]).filter(|at| at[0] < 2)
    });
    moves("pad less", (x, &[2, 1]), 0.0, |x| x.pad([-1, -1], 9.0), |y| Some(vec![y[0], y[1] + 1]));
    moves("pad nothing", (&[0, 2], &[2, 2]), 1.0, |x| x.pad([0, 0, 1, 1], 1.0), |_| None);
}

#[test]
fn triangles_and_diagonals() {
    let x: &[usize] = &[2, 3, 4];
    for k in [-3isize, -1, 0, 1, 2, 5, isize::MAX, isize::MIN] {
        let above = move |y: &[usize]| (y[2] as isize - y[1] as isize) > k;
        moves("tril", (x, x), 0.0, move |x| x.tril(k), move |y| (!above(y)).then(|| y.to_vec()));
        let below = move |y: &[usize]| (y[2] as isize - y[1] as isize) < k;
        moves("triu", (x, x), 0.0, move |x| x.triu(k), move |y| (!below(y)).then(|| y.to_vec()));
    }
    moves("diagonal", (x, &[2, 3]), 0.0, |x| x.diagonal(0, 1, 2), |y| Some(vec![y[0], y[1], y[1]]));
    moves("diagonal", (x, &[3, 2]), 0.0, |x| x.diagonal(-1, -1, 0), |y| Some(vec![y[1], y[0], y[1] + 1]));
    moves("no diagonal", (x, &[2, 0]), 0.0, |x| x.diagonal(4, 1, 2), |y| Some(y.to_vec()));
    moves("diag", (&[3, 4], &[2]), 0.0, |x| x.diag(2), |y| Some(vec![y[0], y[0] + 2]));
    let on = |row: usize, y: &[usize]| (y[0] == y[1] + row).then(|| vec![y[1]]);
    moves("diag", (&[3], &[3, 3]), 0.0, |x| x.diag(0), move |y| on(0, y));
    moves("diag", (&[2], &[4, 4]), 0.0, |x| x.diag(-2), move |y| on(2, y));
}

#[test]
fn turned_dims() {
    let x: &[usize] = &[2, 3, 5];
    moves("flip", (x, x), 0.0, |x| x.flip([-1]), |y| Some(vec![y[0], y[1], 4 - y[2]]));
    moves("flip", (x, x), 0.0, |x| x.flip([0, 1]), |y| Some(vec![1 - y[0], 2 - y[1], y[2]]));
    moves("roll", (x, x), 0.0, |x| x.roll([-7], [-1]), |y| Some(vec![y[0], y[1], (y[2] + 2) % 5]));
    moves(
        "roll",
        (x, x),
        0.0,
        |x| x.roll((1, 4), (0, 1)),
        |y| Some(vec![(y[0] + 1) % 2, (y[1] + 2) % 3, y[2]]),
    );
    moves("roll nothing", (&[0, 2], &[0, 2]), 0.0, |x| x.roll([1], [0]), |y| Some(y.to_vec()));
}

#[test]
fn running_sums() {
    let shape: &[usize] = &[3, 4, 5];
    for dim in 0..3 {
        let reference = move |x: &[&[f64]]| {
            let sum = |i: usize| {
                let mut at = coordinates(shape, i);
                let n = at[dim];
                (0..=n)
                    .map(|k| {
                        at[dim] = k;
                        x[0][element(shape, &at)]
                    })
                    .sum()
            };
            (0..60).map(sum).collect()
        };
        case("cumsum", [array(1, shape)], move |x| x[0].cumsum(dim as i32 - 3), reference).check();
    }
    let device = Device::cpu(Isa::detect(), Par::solo());
    let ints = Tensor::from_slice(&[1, 0, 1, 1, i32::MAX, 1], [2, 3], &device).unwrap();
    assert_eq!(f64s(&ints.cumsum(-1).unwrap())[..5], [1.0, 1.0, 2.0, 1.0, f64::from(i32::MAX)]);
    assert_eq!(f64s(&ints.narrow(1, 0..2).unwrap().cumsum(0).unwrap())[2..], [2.0, f64::from(i32::MAX)]);
    assert_eq!(f64s(&ints.pad([1, 0], -7.9).unwrap().flip([1]).unwrap())[3..4], [-7.0]);
}

#[test]
fn sizes_are_read() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32; 30], [2, 3, 5], &device).unwrap();
    let [batch, seq, dim] = x.dims().unwrap();
    assert_eq!((batch, seq, dim, x.size(-1).unwrap(), x.n_dims()), (2, 3, 5, 5, 3));
    assert_eq!(x.dims::<2>().unwrap_err().to_string(), "dims: expected 2 dims, got [2, 3, 5]");
    assert_eq!(x.reshape((batch, -1)).unwrap().sizes(), [2, 15]);
    assert_eq!(Tensor::from_slice(&[1f32], [], &device).unwrap().flatten(0, -1).unwrap().sizes(), [1]);
    let sizes = |parts: Vec<Tensor>| parts.iter().map(|part| part.sizes()[1]).collect::<Vec<_>>();
    let row = Tensor::from_slice(&[1f32; 7], [1, 7], &device).unwrap();
    let none = Tensor::from_slice(&[0f32; 0], [3, 0], &device).unwrap();
    assert_eq!(sizes(row.chunk(3, -1).unwrap()), [3, 3, 1]);
    assert_eq!(sizes(row.chunk(5, -1).unwrap()), [2, 2, 2, 1]);
    assert_eq!(sizes(none.chunk(2, 1).unwrap()), [0, 0]);
    assert_eq!(sizes(row.split(4, -1).unwrap()), [4, 3]);
    assert_eq!(sizes(row.split([1, 6], -1).unwrap()), [1, 6]);
    assert_eq!(sizes(none.split(4, 1).unwrap()), [0]);
    let rows = x.unbind(1).unwrap();
    assert_eq!((rows.len(), rows[2].sizes()), (3, &[2, 5][..]));
    assert_eq!(Tensor::stack(&rows, -2).unwrap().sizes(), [2, 3, 5]);
    assert_eq!(Tensor::cat(&rows, -1).unwrap().sizes(), [2, 15]);
}

#[test]
fn misuse_is_named() {
    let device = Device::cpu(Isa::detect(), Par::solo());
    let x = Tensor::from_slice(&[1f32; 6], [2, 3], &device).unwrap();
    let first = |parts: Result<Vec<Tensor>>| parts.map(|parts| parts[0].clone());
    let texts = [
        (x.transpose(0, -3), "transpose: expected a tensor with a dim -3, got [2, 3]"),
        (x.permute([0, -2]), "permute: [0, -2] does not name each of the 2 dims once"),
        (x.unsqueeze(-4), "unsqueeze: expected at least 3 dims, got [2, 3]"),
        (
            x.reshape((4, -1)),
            "reshape: expected sizes [4, -1] that 6 elements fill, with at most one -1, got [2, 3]",
        ),
        (
            x.reshape((-1, -1)),
            "reshape: expected sizes [-1, -1] that 6 elements fill, with at most one -1, got [2, 3]",
        ),
        (
            x.reshape([-2, 3]),
            "reshape: expected sizes [-2, 3] that 6 elements fill, with at most one -1, got [2, 3]",
        ),
        (x.flatten(1, 0), "flatten: expected a first dim 1 up to the last dim 0, got [2, 3]"),
        (x.unflatten(1, [2, 2]), "unflatten: expected 4 elements at dim 1, got [2, 3]"),
        (
            x.expand((-1, 2, 3)),
            "expand: expected sizes [-1, 2, 3] in which only -1 is negative and stands for a dim of x, got [2, 3]",
        ),
        (x.repeat([2]), "repeat: expected a count of [2] for each dim, at least 0, got [2, 3]"),
        (x.select(1, 3), "select: expected an index inside dim 1 instead of 3, got [2, 3]"),
        (first(x.split(0, 1)), "split: expected parts of 0 elements, at least 1, at dim 1, got [2, 3]"),
        (first(x.chunk(0, 1)), "chunk: at least one part is needed"),
        (ops::stack::<Tensor>(&[], 0), "stack: no tensor was given"),
        (x.pad([1], 0.0), "pad: expected two widths for each of the last dims instead of [1], got [2, 3]"),
        (x.pad([-2, -2], 0.0), "pad: expected at least [2, 2] elements to cut off dim 1, got [2, 3]"),
        (x.diagonal(0, 1, -1), "diagonal: expected two different dims instead of 1 twice, got [2, 3]"),
        (x.unsqueeze(0).and_then(|x| x.diag(0)), "diag: expected one or two dims, got [1, 2, 3]"),
        (x.unsqueeze(0).and_then(|x| x.t()), "t: expected at most two dims, got [1, 2, 3]"),
        (x.flatten(0, -1).and_then(|x| x.tril(0)), "tril: expected at least two dims, got [6]"),
        (x.roll([1], [0, 1]), "roll: [1] is not one shift for each of the dims [0, 1]"),
        (x.cumsum(2), "cumsum: expected a tensor with a dim 2, got [2, 3]"),
        (first(ops::meshgrid(&[&x])), "meshgrid: expected vectors or scalars, got [2, 3]"),
    ];
    for (result, want) in texts {
        assert_eq!(result.unwrap_err().to_string(), want);
    }
    for huge in
        [x.repeat([usize::MAX, 2]), x.repeat_interleave(usize::MAX, 0), x.pad([isize::MAX, isize::MAX], 0.0)]
    {
        assert!(huge.is_err());
    }
}
