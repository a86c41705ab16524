//! A custom rule for tests: it needs whole parameters, and one of its states has another shape than they.

use oarlock_tensor::Shape;

use oarlock_tensor::ops::optimizer::{CustomRule, Needs, Update};

/// Gradients of matrices are divided by the root mean square of their row, which is kept.
#[derive(Clone, Debug)]
pub struct Rows;

impl CustomRule<2> for Rows {
    fn name(&self) -> &'static str {
        "rows"
    }

    fn states(&self) -> [&'static str; 2] {
        ["momentum_buffer", "row_var"]
    }

    fn update(&self, update: Update<'_, 2>) {
        let Update { weights, grad, states: [buffer, row_var], sizes, lr, weight_decay, .. } = update;
        let n_cols = sizes.last().copied().unwrap_or(1);
        let rows = weights.chunks_mut(n_cols).zip(buffer.chunks_mut(n_cols)).zip(grad.chunks(n_cols));
        for (row, ((weights, buffer), grad)) in rows.enumerate() {
            let mut root = 1.0;
            if let Some(var) = row_var.get_mut(row) {
                *var = 0.9 * *var + 0.1 * grad.iter().map(|g| g * g).sum::<f32>() / n_cols as f32;
                root = var.sqrt() + 1e-6;
            }
            for ((w, b), g) in weights.iter_mut().zip(buffer).zip(grad) {
                *b = 0.9 * *b + g / root;
                *w -= lr as f32 * (*b + weight_decay as f32 * *w);
            }
        }
    }

    fn needs(&self) -> Needs {
        Needs::WholeParameters
    }

    fn state_shape(&self, index: usize, shape: &Shape) -> Option<Shape> {
        match (index, shape.sizes()) {
            (1, &[rows, _]) => Shape::new(&[rows, 1]).ok(),
            (1, _) => None,
            _ => Some(*shape),
        }
    }
}
