//! RMSprop (Tieleman and Hinton 2012), as `torch.optim.RMSprop`: a rule without kernels of its own.

use super::custom::{CustomRule, Update};
use super::rule::Rule;

/// The numbers of [`RmsPropArgs::rule`], by their names in `torch.optim`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsPropArgs {
    /// Decay of the mean square of gradients.
    pub alpha: f64,
    /// Added to its root.
    pub eps: f64,
    /// What the momentum keeps of itself; 0 for none.
    pub momentum: f64,
    /// Take the square of the mean gradient off the mean square.
    pub centered: bool,
}

impl Default for RmsPropArgs {
    fn default() -> RmsPropArgs {
        RmsPropArgs { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false }
    }
}

impl RmsPropArgs {
    /// The rule with these numbers. It keeps as many states as they need.
    pub fn rule(self) -> Rule {
        match usize::from(self.centered) + usize::from(self.momentum > 0.0) {
            0 => Rule::custom(RmsProp::<1>(self)),
            1 => Rule::custom(RmsProp::<2>(self)),
            _ => Rule::custom(RmsProp::<3>(self)),
        }
    }
}

/// The rule with `N` states.
#[derive(Clone, Debug)]
struct RmsProp<const N: usize>(RmsPropArgs);

impl<const N: usize> CustomRule<N> for RmsProp<N> {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn states(&self) -> [&'static str; N] {
        let second = if self.0.centered { "grad_avg" } else { "momentum_buffer" };
        let names = ["square_avg", second, "momentum_buffer"];
        std::array::from_fn(|index| names[index])
    }

    fn update(&self, update: Update<'_, N>) {
        let RmsPropArgs { alpha, eps, momentum, centered } = self.0;
        let Update { weights, grad, states, lr, weight_decay, .. } = update;
        let (alpha, fresh, eps) = (alpha as f32, (1.0 - alpha) as f32, eps as f32);
        let (lr, weight_decay, momentum) = (lr as f32, weight_decay as f32, momentum as f32);
        let mut states = states.into_iter();
        let Some(squares) = states.next() else { return };
        let mut means = if centered { states.next() } else { None };
        let mut buffers = states.next();
        for (at, ((weight, square), g)) in weights.iter_mut().zip(squares).zip(grad).enumerate() {
            let g = g + weight_decay * *weight;
            *square = *square * alpha + fresh * g * g;
            let mut centered = *square;
            if let Some(means) = &mut means {
                means[at] += fresh * (g - means[at]);
                centered -= means[at] * means[at];
            }
            let mut step = g / (centered.sqrt() + eps);
            if let Some(buffers) = &mut buffers {
                buffers[at] = buffers[at] * momentum + step;
                step = buffers[at];
            }
            *weight -= lr * step;
        }
    }
}
