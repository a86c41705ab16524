//! Softmax of rows and its logarithm.

use crate::compare::{assert_close, tolerance};
use crate::formula::{Array, value};
use crate::number::{Number, f64s, scaled, values};

/// Rows and columns that every suite takes.
pub const SHAPES: [(usize, usize); 8] =
    [(9, 33), (2, 600), (1, 4200), (1, 1), (3, 7), (65, 64), (5, 1001), (3, 70)];

/// The softmax of the last dim.
pub fn softmax(x: &Array) -> Array {
    x.log_softmax().exp()
}

/// The gradient of the input of a softmax, by what it gave.
fn backward(y: &[f64], dy: &[f64], dim: usize) -> Vec<f64> {
    let row = |(y, dy): (&[f64], &[f64])| {
        let dot: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
        y.iter().zip(dy).map(|(y, dy)| y * (dy - dot)).collect::<Vec<_>>()
    };
    y.chunks(dim).zip(dy.chunks(dim)).flat_map(row).collect()
}

/// The same of its logarithm.
fn log_backward(y: &[f64], dy: &[f64], dim: usize) -> Vec<f64> {
    let row = |(y, dy): (&[f64], &[f64])| {
        let sum: f64 = dy.iter().sum();
        y.iter().zip(dy).map(|(y, dy)| dy - y.exp() * sum).collect::<Vec<_>>()
    };
    y.chunks(dim).zip(dy.chunks(dim)).flat_map(row).collect()
}

/// Operands; gradients are added to `start`.
#[allow(missing_docs)]
pub struct Case<T> {
    pub rows: usize,
    pub dim: usize,
    pub x: Vec<T>,
    pub dy: Vec<T>,
    pub start: Vec<T>,
}

/// The output, the gradient of the input and that added to `start`, of the softmax and of its logarithm.
pub type Results<T> = [Vec<T>; 6];

impl<T: Number> Case<T> {
    /// Random ones.
    pub fn new(rows: usize, dim: usize) -> Case<T> {
        let n = rows * dim;
        Case { rows, dim, x: scaled(1, n, 3.0, 0.0), dy: values(2, n), start: values(3, n) }
    }

    /// Compares what kernels gave. Their backward passes begin from the rounded outputs.
    #[track_caller]
    pub fn check(&self, got: &Results<T>) {
        let (sizes, x, dy) = ([self.rows, self.dim], f64s(&self.x), f64s(&self.dy));
        let tolerance = tolerance::<T>(1e-5, 2.0);
        let start = f64s(&self.start);
        let check = |what: &str, got: &[Vec<T>], y: Vec<f64>, dx: Vec<f64>| {
            assert_close(what, &got[0], &y, tolerance);
            assert_close(&format!("the gradient of {what}"), &got[1], &dx, tolerance);
            let added: Vec<f64> = dx.iter().zip(&start).map(|(dx, start)| dx + start).collect();
            assert_close(&format!("the gradient of {what}, added"), &got[2], &added, tolerance);
        };
        let y = value([(&sizes, x.clone())], |[x]| softmax(x));
        check("softmax", &got[..3], y, backward(&f64s(&got[0]), &dy, self.dim));
        let y = value([(&sizes, x)], |[x]| x.log_softmax());
        check("log_softmax", &got[3..], y, log_backward(&f64s(&got[3]), &dy, self.dim));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formula::with_gradients;

    #[test]
    fn gradients_by_what_a_softmax_gave_are_those_of_the_formula() {
        let (x, dy) = (f64s(&values::<f32>(1, 15)), f64s(&values::<f32>(2, 15)));
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        let (y, [dx]) = with_gradients([(&[3, 5], x.clone())], &dy, |[x]| softmax(x));
        assert!(near(&dx, &backward(&y, &dy, 5)));
        let (y, [dx]) = with_gradients([(&[3, 5], x)], &dy, |[x]| x.log_softmax());
        assert!(near(&dx, &log_backward(&y, &dy, 5)));
    }
}
