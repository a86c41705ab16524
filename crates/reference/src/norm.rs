//! RMSNorm and LayerNorm of rows.

use crate::compare::{assert_close, tolerance};
use crate::formula::{Array, with_gradients};
use crate::number::{Number, f64s, values};

/// Rows and columns that every suite takes: of one element, odd, of many rows, of rows over several vectors and blocks.
pub const SHAPES: [(usize, usize); 7] = [(1, 1), (3, 7), (70, 64), (33, 513), (35, 96), (3, 1160), (2, 8216)];

/// Rows divided by the root of their mean square.
pub fn normalized(x: &Array, eps: f64) -> Array {
    x.mul(&x.mul(x).mean_of_rows().inverse_root(eps))
}

/// RMSNorm, with a weight to which an offset is added (1 in Gemma's).
pub fn rms_norm(x: &Array, weight: &Array, offset: f64, eps: f64) -> Array {
    normalized(x, eps).mul(&weight.map(|w| w + offset, |_| 1.0))
}

/// LayerNorm; without a bias where there is none.
pub fn layer_norm(x: &Array, weight: &Array, bias: Option<&Array>, eps: f64) -> Array {
    let y = normalized(&x.minus(&x.mean_of_rows()), eps).mul(weight);
    bias.map_or_else(|| y.clone(), |bias| y.plus(bias))
}

/// The epsilon of all cases.
pub const EPS: f32 = 1e-5;

/// Operands of a norm; gradients are added to `start`.
#[allow(missing_docs)]
pub struct Case<X, W, Y> {
    pub rows: usize,
    pub dim: usize,
    pub x: Vec<X>,
    pub weight: Vec<W>,
    pub bias: Vec<W>,
    pub dy: Vec<Y>,
    pub start: Vec<X>,
}

/// What the kernels of a norm give, where `added` is the gradient of the input with what was there before.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Results<X, Y> {
    pub y: Vec<Y>,
    pub dx: Vec<X>,
    pub added: Vec<X>,
    pub d_weight: Vec<f32>,
    pub d_bias: Vec<f32>,
}

/// What they should give, and the errors of output, input and parameters that sums in f32 may have.
pub struct Wanted {
    y: Vec<f64>,
    dx: Vec<f64>,
    added: Vec<f64>,
    /// The gradient of the weight.
    pub d_weight: Vec<f64>,
    d_bias: Vec<f64>,
    slack: [f64; 3],
}

impl<X: Number, W: Number, Y: Number> Case<X, W, Y> {
    /// Random ones.
    pub fn new(rows: usize, dim: usize) -> Case<X, W, Y> {
        let n = rows * dim;
        let (x, weight, bias) = (values(1, n), values(2, dim), values(3, dim));
        Case { rows, dim, x, weight, bias, dy: values(4, n), start: values(5, n) }
    }

    /// The same without a bias.
    pub fn without_bias(self) -> Case<X, W, Y> {
        Case { bias: vec![W::of(0.0); self.dim], ..self }
    }

    /// Of RMSNorm.
    pub fn rms_norm(&self, offset: f32) -> Wanted {
        self.wanted([2e-6, 2e-5, 1e-5], |[x, w, _]| rms_norm(x, w, f64::from(offset), f64::from(EPS)))
    }

    /// Of LayerNorm. A row of one element is nothing but roundings, times the root of epsilon.
    pub fn layer_norm(&self) -> Wanted {
        let slack = if self.dim == 1 { 1e-2 } else { 1e-4 };
        self.wanted([slack; 3], |[x, w, b]| layer_norm(x, w, Some(b), f64::from(EPS)))
    }

    fn wanted(&self, slack: [f64; 3], of: impl FnOnce(&[Array; 3]) -> Array) -> Wanted {
        let (rows, dim) = ([self.rows, self.dim], [self.dim]);
        let inputs = [(&rows[..], f64s(&self.x)), (&dim, f64s(&self.weight)), (&dim, f64s(&self.bias))];
        let (y, [dx, d_weight, d_bias]) = with_gradients(inputs, &f64s(&self.dy), of);
        let added = dx.iter().zip(f64s(&self.start)).map(|(dx, start)| dx + start).collect();
        Wanted { y, dx, added, d_weight, d_bias, slack }
    }
}

impl Wanted {
    /// Compares what kernels gave; no gradient of a bias where there is none.
    #[track_caller]
    pub fn check<X: Number, Y: Number>(&self, got: &Results<X, Y>) {
        let [y, dx, parameters] = self.slack;
        assert_close("y", &got.y, &self.y, tolerance::<Y>(y, 1.0));
        assert_close("dx", &got.dx, &self.dx, tolerance::<X>(dx, 1.0));
        assert_close("dx added", &got.added, &self.added, tolerance::<X>(dx, 2.0));
        assert_close("d_weight", &got.d_weight, &self.d_weight, parameters);
        if !got.d_bias.is_empty() {
            assert_close("d_bias", &got.d_bias, &self.d_bias, 1e-5);
        }
    }
}
