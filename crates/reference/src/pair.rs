//! Functions of two elements.

use crate::compare::{assert_close, assert_within};
use crate::function::slope;
use crate::number::{Number, f64s, scaled, values};

/// A loss of an element and its target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PairLoss {
    /// Squared errors.
    Squared,
    /// Absolute errors.
    Absolute,
    /// Squared below `beta` and absolute beyond, times a factor.
    Smooth {
        /// Where it changes.
        beta: f64,
        /// The factor.
        factor: f64,
    },
    /// Binary cross-entropy, with logarithms of at least -100.
    Binary,
    /// Kullback-Leibler divergence from probabilities to log-probabilities.
    KlProbs,
    /// The same, where both are log-probabilities.
    KlLogProbs,
}

impl PairLoss {
    /// The loss.
    pub fn value(self, x: f64, t: f64) -> f64 {
        match self {
            PairLoss::Squared => (x - t).powi(2),
            PairLoss::Absolute => (x - t).abs(),
            PairLoss::Smooth { beta, factor } => {
                let distance = (x - t).abs();
                factor
                    * if distance < beta { 0.5 * distance * distance / beta } else { distance - 0.5 * beta }
            }
            PairLoss::Binary => {
                let log = |x: f64| x.ln().max(-100.0);
                -t * log(x) - (1.0 - t) * log(1.0 - x)
            }
            PairLoss::KlProbs if t <= 0.0 => 0.0,
            PairLoss::KlProbs => t * (t.ln() - x),
            PairLoss::KlLogProbs if t == f64::NEG_INFINITY => 0.0,
            PairLoss::KlLogProbs => t.exp() * (t - x),
        }
    }

    /// The derivatives for the element and for its target.
    pub fn slopes(self, x: f64, t: f64) -> [f64; 2] {
        [slope(|x| self.value(x, t), x), slope(|t| self.value(x, t), t)]
    }
}

/// Elements and targets of a loss, inside of where it is defined.
#[allow(missing_docs)]
pub struct Case<T> {
    pub loss: PairLoss,
    pub x: Vec<T>,
    pub target: Vec<T>,
}

impl<T: Number> Case<T> {
    /// Random ones.
    pub fn new(loss: PairLoss, n: usize) -> Case<T> {
        let probs = |seed| scaled(seed, n, 0.2, 0.5);
        let logs = |seed| scaled(seed, n, 1.0, -2.5);
        let (x, target) = match loss {
            PairLoss::Binary => (probs(1), probs(2)),
            PairLoss::KlProbs => (logs(1), probs(2)),
            PairLoss::KlLogProbs => (logs(1), logs(2)),
            _ => (values(1, n), values(2, n)),
        };
        Case { loss, x, target }
    }

    fn pairs(&self) -> impl Iterator<Item = (f64, f64)> {
        f64s(&self.x).into_iter().zip(f64s(&self.target))
    }

    /// Compares the sum of all losses, which is one of f64.
    #[track_caller]
    pub fn check_sum(&self, sum: f64) {
        let want: f64 = self.pairs().map(|(x, t)| self.loss.value(x, t)).sum();
        assert!((sum - want).abs() <= 1e-12 * want.abs(), "{:?}: {sum}, want {want}", self.loss);
    }

    /// Compares the loss of each element.
    #[track_caller]
    pub fn check_each(&self, each: &[T]) {
        let want: Vec<f64> = self.pairs().map(|(x, t)| self.loss.value(x, t)).collect();
        assert_close(&format!("{:?}", self.loss), each, &want, f64::max(T::ROUNDING, 1e-7));
    }

    /// Compares the gradients of elements and of targets, times `scale`. At a kink there is none.
    #[track_caller]
    pub fn check_gradients(&self, gradients: [&[T]; 2], scale: f64) {
        let beta = if let PairLoss::Smooth { beta, .. } = self.loss { beta } else { 0.0 };
        let has_kinks = matches!(self.loss, PairLoss::Absolute | PairLoss::Smooth { .. });
        let is_smooth = |(x, t): (f64, f64)| {
            let distance = (x - t).abs();
            !has_kinks || (distance > 2e-5 && (distance - beta).abs() > 2e-5)
        };
        let pairs: Vec<_> = self.pairs().collect();
        for (which, (gradient, name)) in gradients.into_iter().zip(["elements", "targets"]).enumerate() {
            let want: Vec<f64> = pairs.iter().map(|(x, t)| scale * self.loss.slopes(*x, *t)[which]).collect();
            let bound = f64::max(T::ROUNDING, 1e-6);
            let allowed =
                |i: usize| if is_smooth(pairs[i]) { bound * (1.0 + want[i].abs()) } else { f64::MAX };
            assert_within(&format!("{:?}, gradient of {name}", self.loss), gradient, &want, allowed);
        }
    }
}
