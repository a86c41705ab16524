//! Sums over a row in a fixed order: element `i` goes to lane `i % LANES`, and a halving tree joins the lanes.

use crate::dtype::Float;

/// Four vectors of AVX-512, so that additions of the same lane do not wait for each other.
pub(crate) const LANES: usize = 64;

/// One partial result per lane.
pub(crate) type Lanes = [f32; LANES];

/// Joins the lanes with `join` in a halving tree.
#[inline(always)]
pub(crate) fn halve(mut lanes: Lanes, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for j in 0..width {
            lanes[j] = join(lanes[j], lanes[j + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of the lanes.
#[inline(always)]
pub(crate) fn sum(lanes: Lanes) -> f32 {
    halve(lanes, |a, b| a + b)
}

/// `sum of f(x)` over a row, in lanes.
#[inline(always)]
pub(crate) fn sum_map<T: Float>(x: &[T], f: impl Fn(f32) -> f32) -> f32 {
    let mut acc = [0.0; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for x in body {
        for j in 0..LANES {
            acc[j] += f(x[j].to_f32());
        }
    }
    for (acc, x) in acc.iter_mut().zip(tail) {
        *acc += f(x.to_f32());
    }
    sum(acc)
}

/// `sum of f(x, y)` over two rows, in lanes.
#[inline(always)]
pub(crate) fn sum_map2<T: Float, U: Float>(x: &[T], y: &[U], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut acc = [0.0; LANES];
    let ((xs, x_tail), (ys, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in xs.iter().zip(ys) {
        for j in 0..LANES {
            acc[j] += f(x[j].to_f32(), y[j].to_f32());
        }
    }
    for ((acc, x), y) in acc.iter_mut().zip(x_tail).zip(y_tail) {
        *acc += f(x.to_f32(), y.to_f32());
    }
    sum(acc)
}

/// `sum of f(x, y, z)` over three rows, in lanes.
#[inline(always)]
pub(crate) fn sum_map3<T: Float, U: Float, V: Float>(
    x: &[T],
    y: &[U],
    z: &[V],
    f: impl Fn(f32, f32, f32) -> f32,
) -> f32 {
    let mut acc = [0.0; LANES];
    let (xs, x_tail) = x.as_chunks::<LANES>();
    let (ys, y_tail) = y.as_chunks::<LANES>();
    let (zs, z_tail) = z.as_chunks::<LANES>();
    for ((x, y), z) in xs.iter().zip(ys).zip(zs) {
        for j in 0..LANES {
            acc[j] += f(x[j].to_f32(), y[j].to_f32(), z[j].to_f32());
        }
    }
    for (((acc, x), y), z) in acc.iter_mut().zip(x_tail).zip(y_tail).zip(z_tail) {
        *acc += f(x.to_f32(), y.to_f32(), z.to_f32());
    }
    sum(acc)
}

/// The largest element of a row; minus infinity for an empty one, and NaN never wins.
#[inline(always)]
pub(crate) fn max<T: Float>(x: &[T]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut acc = [f32::NEG_INFINITY; LANES];
    let (body, tail) = x.as_chunks::<LANES>();
    for x in body {
        for j in 0..LANES {
            acc[j] = larger(acc[j], x[j].to_f32());
        }
    }
    for (acc, x) in acc.iter_mut().zip(tail) {
        *acc = larger(*acc, x.to_f32());
    }
    halve(acc, larger)
}
