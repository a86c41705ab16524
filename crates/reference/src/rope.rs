//! Rotary positions.

use crate::formula::{Array, value};

/// Sizes of heads, and how many pairs of their channels are turned: all or some, in whole vectors or not.
pub const SHAPES: [[usize; 2]; 6] = [[2, 1], [10, 3], [14, 5], [32, 8], [64, 32], [96, 20]];

/// Which channels of a head are pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pairs {
    /// Channel `j` and channel `j + half`.
    Halves,
    /// Channels `2 j` and `2 j + 1`.
    Neighbors,
}

impl Pairs {
    /// The channels of pair `j`.
    fn channels(self, j: usize, half: usize) -> [usize; 2] {
        match self {
            Pairs::Halves => [j, j + half],
            Pairs::Neighbors => [2 * j, 2 * j + 1],
        }
    }
}

/// Heads `[.., D]` whose first `2 half` channels are turned in pairs, pair `j` of head `i` by `angle(i, j)`.
pub fn rotated(x: &Array, pairs: Pairs, half: usize, angle: impl Fn(usize, usize) -> f64) -> Array {
    let (n, dim) = (x.values.len(), x.sizes[x.sizes.len() - 1]);
    let (mut cos, mut sin, mut other) = (vec![1.0; n], vec![0.0; n], (0..n).collect::<Vec<_>>());
    for (head, j) in (0..n / dim).flat_map(|head| (0..half).map(move |j| (head, j))) {
        let [a, b] = pairs.channels(j, half).map(|channel| head * dim + channel);
        let (s, c) = angle(head, j).sin_cos();
        (cos[a], cos[b], sin[a], sin[b], other[a], other[b]) = (c, c, -s, s, b, a);
    }
    let [cos, sin] = [cos, sin].map(|table| x.beside(&x.sizes, table));
    x.mul(&cos).plus(&x.pick(&x.sizes, other).mul(&sin))
}

/// The angle of a pair at a position: `position · theta^(-j / half)`.
pub fn angle(position: usize, j: usize, half: usize, theta: f64) -> f64 {
    position as f64 * theta.powf(-(j as f64) / half as f64)
}

/// Rows of heads whose pairs are turned by the angles of the rows, `angles[position · half + j]`.
pub fn of_rows(
    x: Vec<f64>,
    [heads, head_dim]: [usize; 2],
    (pairs, half): (Pairs, usize),
    angles: &[f64],
    position: impl Fn(usize) -> usize,
) -> Vec<f64> {
    let sizes = [x.len() / head_dim, head_dim];
    value([(&sizes, x)], |[x]| rotated(x, pairs, half, |head, j| angles[position(head / heads) * half + j]))
}
