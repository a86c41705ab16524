//! Reductions, orders, indices and slices.

use oarlock_reference::sort::places;
use oarlock_tensor::ops;
use oarlock_tensor::{Result, Tensor};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::{Call, Case};
use crate::commands::gpu_check::place::ints;
use oarlock_reference::formula::Array;

pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let x = [b, s, i];
    let case = |name: &str, op: fn(&Tensor) -> Result<Tensor>, formula: fn(&Array) -> Array| {
        Case::new(name, [&x], [], move |call| op(&call.inputs[0]), move |x| formula(&x.inputs[0]))
    };
    // Indices of the middle dim, each several times.
    type Indexed = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let indexed = |name: &str, op: Indexed, formula: fn(&Array, &[usize]) -> Array| {
        let op = move |call: &Call<'_>| {
            let index = call.tape.input(&call.place.ints(&[b, s + 3, i], s)?);
            op(&call.inputs[0], &index)
        };
        Case::new(name, [&x], [], op, move |x| formula(&x.inputs[0], &ints(b * (s + 3) * i, s)))
    };
    vec![
        indexed(
            "gather",
            |x, index| ops::gather(x, 1, index),
            |x, index| {
                let [b, s, i] = dims(x);
                x.pick(&[b, s + 3, i], (0..index.len()).map(|at| place(at, s + 3, x, index)).collect())
            },
        ),
        indexed(
            "scatter_add",
            |x, index| ops::scatter_add(x, 1, &ops::narrow(index, 1, 0..x.sizes()[1])?, x),
            |x, index| {
                let [b, s, i] = dims(x);
                let at = |at: usize| at / (s * i) * (s + 3) * i + at % (s * i);
                x.plus(&x.sum_by(&x.sizes, (0..b * s * i).map(|to| place(at(to), s + 3, x, index)).collect()))
            },
        ),
        indexed(
            "scatter",
            |x, index| ops::scatter(x, 1, &ops::narrow(index, 1, 0..x.sizes()[1])?, &ops::square(x)?),
            |x, index| {
                let [_, s, i] = dims(x);
                let at = |at: usize| at / (s * i) * (s + 3) * i + at % (s * i);
                // Of several for one place the last one stays.
                let mut last = vec![None; x.values.len()];
                let to = |from: usize| (from / (s * i) * s + index[at(from)]) * i + from % i;
                (0..x.values.len()).for_each(|from| last[to(from)] = Some(from));
                let kept = last.iter().map(|from| f64::from(u8::from(from.is_none()))).collect();
                let kept = x.beside(&x.sizes, kept);
                let from = last.iter().enumerate().map(|(at, from)| from.unwrap_or(at)).collect();
                let written = x.map(|x| x * x, |x| 2.0 * x).pick(&x.sizes, from);
                x.mul(&kept).plus(&written.minus(&written.mul(&kept)))
            },
        ),
        indexed(
            "index_select",
            |x, index| ops::index_select(x, 1, &ops::select(&ops::select(index, 0, 0)?, 1, 0)?),
            |x, index| {
                let [_, s, i] = dims(x);
                x.select(1, &(0..s + 3).map(|at| index[at * i]).collect::<Vec<_>>())
            },
        ),
        case("sum of the last dim", |x| ops::sum(x, -1), |x| without(&x.sum(2), 2)),
        case(
            "mean of a middle dim",
            |x| ops::mean(x, 1),
            |x| without(&x.sum(1).times(1.0 / x.sizes[1] as f64), 1),
        ),
        case("max", |x| ops::max(x, -1), |x| without(&ordered(x, 2, 1), 2)).exactly(),
        case("sum of all", ops::sum_all, Array::sum_all),
        case(
            "cumsum",
            |x| ops::cumsum(x, 1),
            |x| {
                let [b, s, _] = dims(x);
                let at = |at: usize| f64::from(u8::from(at % s <= at / s % s));
                x.beside(&[b, s, s], (0..b * s * s).map(at).collect()).product(x)
            },
        ),
        case("sort", |x| Ok(ops::sort(x, 1, true)?.0), |x| ordered(x, 1, x.sizes[1])).exactly(),
        case("topk", |x| Ok(ops::topk(x, 5, -1, true)?.0), |x| ordered(x, 2, 5)).exactly(),
        case("flip", |x| ops::flip(x, [1]), |x| x.select(1, &(0..x.sizes[1]).rev().collect::<Vec<_>>()))
            .exactly(),
        case(
            "tril",
            |x| ops::tril(x, 1),
            |x| {
                let [_, s, i] = dims(x);
                let kept = |at: usize| f64::from(u8::from(at % i <= at / i + 1));
                x.mul(&x.beside(&[s, i], (0..s * i).map(kept).collect()))
            },
        )
        .exactly(),
        case(
            "masked_fill",
            |x| ops::masked_fill(x, &ops::gt(x, 0.5)?, -1.0),
            |x| x.map(|x| if x > 0.5 { -1.0 } else { x }, |x| f64::from(u8::from(x <= 0.5))),
        )
        .exactly(),
        case(
            "pad",
            |x| ops::pad(x, [1, 2], 0.0),
            |x| {
                let [b, s, i] = dims(x);
                let to = (0..b * s * i).map(|at| at / i * (i + 3) + 1 + at % i).collect();
                x.sum_by(&[b, s, i + 3], to)
            },
        )
        .exactly(),
        case(
            "diagonals, one above the other",
            |x| {
                let (upper, own) = (ops::diagonal(x, 1, 1, 2)?, ops::diagonal(x, 0, 1, 2)?);
                ops::add(&upper, &ops::narrow(&own, 1, 0..upper.sizes()[1])?)
            },
            |x| {
                let [b, s, i] = dims(x);
                let n = s.min(i - 1);
                let of = |k: usize| {
                    x.pick(&[b, n], (0..b * n).map(|at| (at / n * s + at % n) * i + at % n + k).collect())
                };
                of(1).plus(&of(0))
            },
        ),
        case("transpose", |x| ops::transpose(x, 1, 2), |x| x.permute([0, 2, 1])).exactly(),
        case(
            "narrow and concat",
            |x| {
                let half = x.sizes()[2] / 2;
                let (left, right) = (ops::narrow(x, 2, 0..half)?, ops::narrow(x, 2, half..2 * half)?);
                ops::concat(&[right, left], 2)
            },
            |x| {
                let half = x.sizes[2] / 2;
                x.select(2, &(half..2 * half).chain(0..half).collect::<Vec<_>>())
            },
        )
        .exactly(),
    ]
}

fn dims(x: &Array) -> [usize; 3] {
    let [a, b, c] = x.sizes[..] else { panic!("three dims, not {:?}", x.sizes) };
    [a, b, c]
}

/// The element of x that an index names: `index` has so many in the middle dim, and x's own dims otherwise.
fn place(at: usize, n: usize, x: &Array, index: &[usize]) -> usize {
    let [_, s, i] = dims(x);
    (at / (n * i) * s + index[at]) * i + at % i
}

/// Without a dim of one element.
fn without(x: &Array, dim: usize) -> Array {
    let mut sizes = x.sizes.clone();
    sizes.remove(dim);
    x.reshape(&sizes)
}

/// The first `k` of a dim from the largest element on, where equal ones stay in their order.
fn ordered(x: &Array, dim: usize, k: usize) -> Array {
    let inner = x.sizes[dim + 1..].iter().product::<usize>();
    let (n, outer) = (x.sizes[dim], x.sizes[..dim].iter().product::<usize>());
    let mut sizes = x.sizes.clone();
    sizes[dim] = k;
    let along = places(&x.values, [outer, n, inner], k, true).into_iter().enumerate();
    let from = along.map(|(to, at)| (to / (k * inner) * n + at) * inner + to % inner).collect();
    x.pick(&sizes, from)
}
