//! Gated units: an activation of one input times another.

use crate::compare::{assert_close, tolerance};
use crate::formula::with_gradients;
use crate::function::Activation;
use crate::number::{Number, f64s, scaled, values};

/// Numbers of elements that every suite takes.
pub const SIZES: [usize; 3] = [1, 77, 1001];

/// Gates, what they are multiplied by, and the gradient of the product.
#[allow(missing_docs)]
pub struct Case<T> {
    pub act: Activation,
    pub gate: Vec<T>,
    pub up: Vec<T>,
    pub dy: Vec<T>,
}

impl<T: Number> Case<T> {
    /// Random ones. No gate is 0, where ReLU has no slope.
    pub fn new(act: Activation, n: usize) -> Case<T> {
        Case { act, gate: scaled(1, n, 3.0, 0.01), up: values(2, n), dy: values(3, n) }
    }

    /// Compares the product and the gradients of both.
    #[track_caller]
    pub fn check(&self, [y, d_gate, d_up]: [&[T]; 3]) {
        let (n, act) = ([self.gate.len()], self.act);
        let inputs = [(&n[..], f64s(&self.gate)), (&n, f64s(&self.up))];
        let (want, grads) = with_gradients(inputs, &f64s(&self.dy), |[gate, up]| act.gated(gate, up));
        assert_close(&format!("{act:?}"), y, &want, tolerance::<T>(1e-6, 1.0));
        let slack = if act == Activation::Silu { 1e-6 } else { 2e-6 };
        assert_close(&format!("{act:?}, gate"), d_gate, &grads[0], tolerance::<T>(slack, 1.0));
        assert_close(&format!("{act:?}, up"), d_up, &grads[1], tolerance::<T>(1e-6, 1.0));
    }
}
