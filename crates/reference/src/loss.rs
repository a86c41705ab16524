//! Losses of rows of logits.

use crate::compare::assert_close;
use crate::formula::{Array, with_gradients};
use crate::number::{Number, f64s, scaled};

/// The label of a row that has no loss.
pub const IGNORED: i32 = -100;

/// Rows and tokens that every suite takes: one token, more than a vector, more than a block.
pub const SHAPES: [[usize; 2]; 8] = [[1, 1], [1, 2], [5, 3], [5, 7], [5, 33], [9, 33], [3, 301], [3, 2500]];

/// What a token's cross-entropy is multiplied by. It has no gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weighting {
    /// By nothing.
    None,
    /// By the probability of the label.
    ByProbability,
    /// By `(H / 3)^alpha`, where H is the entropy of the likeliest tokens among themselves.
    ByEntropy {
        /// The power.
        alpha: f64,
        /// How many tokens.
        n_likeliest: usize,
    },
}

/// Logits that cannot pass a cap: `cap · tanh(x / cap)`.
pub fn soft_cap(x: &Array, cap: Option<f64>) -> Array {
    cap.map_or_else(
        || x.clone(),
        |cap| x.map(move |x| cap * (x / cap).tanh(), move |x| 1.0 - (x / cap).tanh().powi(2)),
    )
}

/// Cross-entropy of rows `[N, C]` of log-probabilities, with weights of classes and smoothed labels; 0 without a label.
pub fn row_losses(log_probs: &Array, labels: &[i32], classes: Option<&[f64]>, smoothing: f64) -> Array {
    let (n, dim) = (labels.len(), log_probs.sizes[log_probs.sizes.len() - 1]);
    let weight = |class: usize| classes.map_or(1.0, |classes| classes[class]);
    let label = |row: usize| usize::try_from(labels[row]).ok();
    let of_label = log_probs.pick(&[n], (0..n).map(|row| row * dim + label(row).unwrap_or(0)).collect());
    let share = |row: usize| label(row).map_or(0.0, |label| -(1.0 - smoothing) * weight(label));
    let loss = of_label.mul(&log_probs.beside(&[n], (0..n).map(share).collect()));
    if smoothing == 0.0 {
        return loss;
    }
    let weights = log_probs.beside(&[dim], (0..dim).map(weight).collect());
    let of_all = log_probs.reshape(&[n, dim]).mul(&weights).sum(1).reshape(&[n]);
    let share = |row: usize| label(row).map_or(0.0, |_| -smoothing / dim as f64);
    loss.plus(&of_all.mul(&log_probs.beside(&[n], (0..n).map(share).collect())))
}

/// Losses of tokens by rows `[N, V]` of logits, which were capped if they are.
pub fn token_losses(logits: &Array, labels: &[i32], smoothing: f64, weighting: Weighting) -> Array {
    let log_probs = logits.log_softmax();
    let losses = row_losses(&log_probs, labels, None, smoothing);
    let weights = match weighting {
        Weighting::None => return losses,
        Weighting::ByProbability => losses.values.iter().map(|loss| (-loss).exp()).collect(),
        Weighting::ByEntropy { alpha, n_likeliest } => {
            let of_row = |logits: &[f64]| {
                let mut likeliest = logits.to_vec();
                likeliest.sort_by(|a, b| b.total_cmp(a));
                likeliest.truncate(n_likeliest);
                let sum: f64 = likeliest.iter().map(|x| (x - likeliest[0]).exp()).sum();
                let log_probs = likeliest.iter().map(|x| x - likeliest[0] - sum.ln());
                (log_probs.map(|log| -log.exp() * log).sum::<f64>() / 3.0).powf(alpha)
            };
            logits.values.chunks(logits.values.len() / labels.len().max(1)).map(of_row).collect()
        }
    };
    losses.mul(&losses.beside(&[labels.len()], weights))
}

/// Rows of logits, whose cap has been applied, with labels of which some are ignored, and factors of gradients.
#[allow(missing_docs)]
pub struct Case<T> {
    pub rows: usize,
    pub vocab: usize,
    pub logits: Vec<T>,
    pub labels: Vec<i32>,
    pub scales: Vec<f32>,
    pub cap: Option<f32>,
    smoothing: f64,
    weighting: Weighting,
    /// The losses, and the gradients of the logits before the cap where each row has the factor 1.
    want: [Vec<f64>; 2],
}

impl<T: Number> Case<T> {
    /// Random logits, up to twice `size`.
    pub fn new(
        [rows, vocab]: [usize; 2],
        size: f64,
        cap: Option<f32>,
        smoothing: f32,
        weighting: Weighting,
    ) -> Case<T> {
        let capped = |x: f64| cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh());
        let logits = scaled::<f32>(1, rows * vocab, size, 0.0);
        let is_ignored = |row: usize| row % 4 == 3 || (rows > 2 && row == rows / 2);
        let label = |row: usize| if is_ignored(row) { IGNORED } else { (row * 31 % vocab) as i32 };
        let mut case = Case {
            rows,
            vocab,
            logits: logits.into_iter().map(|x| T::of(capped(x.f64()))).collect(),
            labels: (0..rows).map(label).collect(),
            scales: (0..rows).map(|row| 0.37 + row as f32 / 64.0).collect(),
            cap,
            smoothing: f64::from(smoothing),
            weighting,
            want: Default::default(),
        };
        case.want = case.wanted(case.smoothing, weighting);
        case
    }

    fn wanted(&self, smoothing: f64, weighting: Weighting) -> [Vec<f64>; 2] {
        let inputs = [(&[self.rows, self.vocab][..], f64s(&self.logits))];
        let losses = |[x]: &[Array; 1]| token_losses(x, &self.labels, smoothing, weighting);
        let (losses, [mut grad]) = with_gradients(inputs, &vec![1.0; self.rows], losses);
        for (grad, x) in grad.iter_mut().zip(&self.logits) {
            *grad *= self.cap.map_or(1.0, |cap| 1.0 - (x.f64() / f64::from(cap)).powi(2));
        }
        [losses, grad]
    }

    /// How many rows have a label.
    pub fn n_targets(&self) -> usize {
        self.labels.iter().filter(|label| **label != IGNORED).count()
    }

    /// The sum of all losses.
    pub fn total(&self) -> f64 {
        self.want[0].iter().sum()
    }

    /// Compares losses of rows.
    #[track_caller]
    pub fn check_losses(&self, losses: &[f32]) {
        let is_plain = (self.smoothing, self.weighting) == (0.0, Weighting::None);
        assert_close(&self.what("losses"), losses, &self.want[0], if is_plain { 1e-6 } else { 2e-6 });
    }

    /// Compares log-probabilities of labels, 0 of rows without one.
    #[track_caller]
    pub fn check_log_probs(&self, log_probs: &[f32]) {
        let [losses, _] = self.wanted(0.0, Weighting::None);
        let want: Vec<f64> = losses.into_iter().map(|loss| -loss).collect();
        assert_close(&self.what("log-probabilities"), log_probs, &want, 2e-6);
    }

    /// Compares gradients, of which each row has this factor, or its own. Most are small, so that half a rounding beside 1 is
    /// enough.
    #[track_caller]
    pub fn check_gradient<D: Number>(&self, gradient: &[D], scale: Option<f32>) {
        let of_row = |row: usize| f64::from(scale.unwrap_or(self.scales[row]));
        let want: Vec<f64> =
            self.want[1].iter().enumerate().map(|(i, grad)| grad * of_row(i / self.vocab)).collect();
        assert_close(&self.what("gradient"), gradient, &want, f64::max(1e-6, 0.5 * D::ROUNDING));
    }

    fn what(&self, what: &str) -> String {
        format!("{what} of {:?}, smoothed by {}, cap {:?}", self.weighting, self.smoothing, self.cap)
    }
}
