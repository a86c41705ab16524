//! AdEMAMix (Pagliardini, Ablin and Grangier 2024), as bitsandbytes has it: AdamW with a second, slow mean of gradients. A rule
//! without kernels of its own.

use super::custom::{CustomRule, Update};
use super::rule::Rule;

/// The numbers of [`AdEmaMixArgs::rule`], by their names in bitsandbytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdEmaMixArgs {
    /// Decays of the fast mean, of the mean square and of the slow mean.
    pub betas: [f64; 3],
    /// What the slow mean weighs beside the fast one.
    pub alpha: f64,
    /// Added to the root of the corrected mean square.
    pub eps: f64,
    /// The steps in which `alpha` grows from 0.
    pub t_alpha: Option<u64>,
    /// The steps in which the decay of the slow mean grows from that of the fast one.
    pub t_beta3: Option<u64>,
}

impl AdEmaMixArgs {
    /// The rule with these numbers.
    pub fn rule(self) -> Rule {
        Rule::custom(AdEmaMix(self))
    }

    /// `alpha` and the decay of the slow mean in this step.
    fn at(&self, step: u64) -> (f64, f64) {
        let [beta1, _, beta3] = self.betas;
        let share = |steps: u64| step as f64 / steps as f64;
        let alpha = self.t_alpha.map_or(self.alpha, |steps| self.alpha * share(steps).min(1.0));
        let slow = self.t_beta3.map_or(beta3, |steps| {
            // ln β₁ ln β₃ / ((1 - s) ln β₃ + s ln β₁), in a form that has a value where β₁ is 0.
            let (ln1, ln3) = (libm::log(beta1), libm::log(beta3));
            let grown = libm::exp(ln3 / ((1.0 - share(steps)) * (ln3 / ln1) + share(steps)));
            if step < steps { grown.min(beta3) } else { beta3 }
        });
        (alpha, slow)
    }
}

#[derive(Clone, Debug)]
struct AdEmaMix(AdEmaMixArgs);

impl CustomRule<3> for AdEmaMix {
    fn name(&self) -> &'static str {
        "ademamix"
    }

    fn states(&self) -> [&'static str; 3] {
        ["exp_avg", "exp_avg_slow", "exp_avg_sq"]
    }

    fn update(&self, update: Update<'_, 3>) {
        let Update { weights, grad, states: [fast, slow, squares], step, lr, weight_decay, .. } = update;
        let ([beta1, beta2, _], (alpha, beta3)) = (self.0.betas, self.0.at(step));
        let power = i32::try_from(step).unwrap_or(i32::MAX);
        let corrected = (1.0 / (1.0 - beta1.powi(power))) as f32;
        let root = (1.0 / (1.0 - beta2.powi(power)).sqrt()) as f32;
        let (alpha, eps, keep, lr) =
            (alpha as f32, self.0.eps as f32, (1.0 - lr * weight_decay) as f32, lr as f32);
        let decays = [beta1, beta2, beta3].map(|beta| (beta as f32, (1.0 - beta) as f32));
        let [(old1, new1), (old2, new2), (old3, new3)] = decays;
        for ((((weight, m), slow), v), g) in weights.iter_mut().zip(fast).zip(slow).zip(squares).zip(grad) {
            *m = old1 * *m + new1 * g;
            *slow = old3 * *slow + new3 * g;
            *v = old2 * *v + new2 * g * g;
            let step = (*m * corrected + alpha * *slow) / (v.sqrt() * root + eps);
            *weight = keep * *weight - lr * step;
        }
    }

    fn betas(&self) -> Option<[f64; 2]> {
        let [beta1, beta2, _] = self.0.betas;
        Some([beta1, beta2])
    }

    fn with_betas(mut self, [beta1, beta2]: [f64; 2]) -> AdEmaMix {
        (self.0.betas[0], self.0.betas[1]) = (beta1, beta2);
        self
    }
}
