//! Steps of optimizers in f64, by the formulas of their papers and of torch.

use crate::compare::assert_close;
use crate::formula::{multiply, transposed};
use crate::number::{Number, f64s, magnitudes, values};

/// An optimizer with its settings.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Rule {
    AdamW { beta1: f64, beta2: f64, eps: f64 },
    Adam { beta1: f64, beta2: f64, eps: f64 },
    Sgd { momentum: f64, dampening: f64, nesterov: bool },
    Adagrad { lr_decay: f64, initial_accumulator_value: f64, eps: f64 },
    Lion { beta1: f64, beta2: f64 },
    Lamb(Lamb),
    Adafactor(Adafactor),
    Muon(Muon),
}

/// The settings of Lamb.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Lamb {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub eps_inside_sqrt: bool,
    pub bias_correction: bool,
    pub max_coeff: f64,
    pub min_coeff: f64,
}

/// The settings of a step of Adafactor.
#[derive(Clone, Copy, Debug)]
pub struct Adafactor {
    /// The share of the new second moment.
    pub share: f64,
    /// The least mean of a second moment, and the least size of a parameter that a step is relative to.
    pub eps: [f64; 2],
    /// The least estimate of a second moment.
    pub floor: f64,
    /// The root mean square of a direction from which on it is shortened.
    pub d: f64,
    /// Whether steps are relative to the size of the parameter.
    pub relative: bool,
    /// The learning rate, apart from that size.
    pub rate: f64,
}

/// The settings of Muon.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Muon {
    pub momentum: f64,
    pub nesterov: bool,
    pub ns_coefficients: [f64; 3],
    pub ns_steps: usize,
    pub eps: f64,
    /// What the learning rate is multiplied by for the sizes of the matrix.
    pub adjusted: f64,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Args {
    pub step: u64,
    pub lr: f64,
    pub weight_decay: f64,
    pub grad_scale: f64,
}

/// A vector, a matrix or several with the states of its optimizer, which begin as zeros where they are empty.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Weight {
    pub sizes: Vec<usize>,
    pub values: Vec<f64>,
    pub states: [Vec<f64>; 3],
}

impl Weight {
    /// One without states.
    pub fn new(sizes: Vec<usize>, values: Vec<f64>) -> Weight {
        Weight { sizes, values, states: Default::default() }
    }

    /// A state of so many elements.
    fn state(&mut self, i: usize, n: usize) -> &mut Vec<f64> {
        self.states[i].resize(n, 0.0);
        &mut self.states[i]
    }
}

/// A weight with states and a gradient in f32, before a step.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct Case {
    pub sizes: Vec<usize>,
    pub weights: Vec<f32>,
    pub states: [Vec<f32>; 3],
    pub grad: Vec<f32>,
}

impl Case {
    /// Random ones. States are second moments, which are not negative, but for a momentum in the first place.
    pub fn new(sizes: &[usize], state_lens: [usize; 3], has_momentum: bool) -> Case {
        let n = sizes.iter().product();
        let first = if has_momentum { values } else { magnitudes };
        let [a, b, c] = state_lens;
        let states = [first(3, a), magnitudes(4, b), magnitudes(5, c)];
        Case { sizes: sizes.to_vec(), weights: values(1, n), states, grad: values(2, n) }
    }

    /// Compares weights and states behind a step, and the working copy, which is the rounded weight. What the direction
    /// was multiplied by.
    #[track_caller]
    pub fn check<T: Number>(
        &self,
        (rule, args): (&Rule, &Args),
        weights: &[f32],
        states: [&[f32]; 3],
        working: &[T],
        tolerance: f64,
    ) -> f64 {
        let mut want = Weight::new(self.sizes.clone(), f64s(&self.weights));
        want.states = self.states.each_ref().map(|state| f64s(state));
        let rate = step(rule, args, &mut want, &f64s(&self.grad));
        assert_close(&format!("weights by {rule:?}"), weights, &want.values, tolerance);
        for (i, (got, want)) in states.into_iter().zip(&want.states).enumerate() {
            assert_close(&format!("state {i} of {rule:?}"), got, want, tolerance);
        }
        assert_eq!(working, weights.iter().map(|w| T::of(f64::from(*w))).collect::<Vec<_>>(), "{rule:?}");
        rate
    }
}

/// `old` moved to `new` by `part`.
fn blend(old: &mut [f64], new: impl Iterator<Item = f64>, part: f64) {
    old.iter_mut().zip(new).for_each(|(old, new)| *old += part * (new - *old));
}

fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The root of the mean square.
fn size(x: &[f64]) -> f64 {
    norm(x) / (x.len() as f64).sqrt()
}

/// A step; what the direction was multiplied by.
pub fn step(rule: &Rule, args: &Args, weight: &mut Weight, grad: &[f64]) -> f64 {
    let n = grad.len();
    let (is_vector, [batch, rows, cols]) = match weight.sizes[..] {
        [ref batch @ .., rows, cols] => (false, [batch.iter().product(), rows, cols]),
        _ => (true, [1, 1, n]),
    };
    let (lr, decay, count) = (args.lr, args.weight_decay, args.step as f64);
    let mut grad: Vec<f64> = grad.iter().map(|g| g * args.grad_scale).collect();
    let is_decoupled = !matches!(rule, Rule::Adam { .. } | Rule::Sgd { .. } | Rule::Adagrad { .. });
    if !is_decoupled {
        grad.iter_mut().zip(&weight.values).for_each(|(g, w)| *g += decay * w);
    }
    // What the weights move by, and how far.
    let (direction, rate): (Vec<f64>, f64) = match *rule {
        Rule::AdamW { beta1, beta2, eps } | Rule::Adam { beta1, beta2, eps } => {
            let corrections = [beta1, beta2].map(|beta| 1.0 - beta.powf(count));
            let of = |(m, v): (&f64, &f64)| m / corrections[0] / ((v / corrections[1]).sqrt() + eps);
            moments(weight, &grad, beta1, beta2);
            (weight.states[0].iter().zip(&weight.states[1]).map(of).collect(), lr)
        }
        Rule::Sgd { momentum: 0.0, .. } => (grad, lr),
        Rule::Sgd { momentum, dampening, nesterov } => {
            let take = if args.step == 1 { 1.0 } else { 1.0 - dampening };
            let buffer = weight.state(0, n);
            buffer.iter_mut().zip(&grad).for_each(|(m, g)| *m = momentum * *m + take * g);
            let ahead = |(g, m): (&f64, &f64)| if nesterov { g + momentum * m } else { *m };
            (grad.iter().zip(&*buffer).map(ahead).collect(), lr)
        }
        Rule::Adagrad { lr_decay, initial_accumulator_value, eps } => {
            let sum = weight.state(0, n);
            let start = if args.step == 1 { initial_accumulator_value } else { 0.0 };
            sum.iter_mut().zip(&grad).for_each(|(sum, g)| *sum += start + g * g);
            let rate = lr / (1.0 + (count - 1.0) * lr_decay);
            (grad.iter().zip(&*sum).map(|(g, sum)| g / (sum.sqrt() + eps)).collect(), rate)
        }
        Rule::Lion { beta1, beta2 } => {
            let m = weight.state(0, n);
            let sign = |(m, g): (&f64, &f64)| match beta1 * m + (1.0 - beta1) * g {
                0.0 => 0.0,
                blend => blend.signum(),
            };
            let direction = m.iter().zip(&grad).map(sign).collect();
            blend(m, grad.iter().copied(), 1.0 - beta2);
            (direction, lr)
        }
        Rule::Lamb(Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff }) => {
            moments(weight, &grad, beta1, beta2);
            let root = |v: f64| if eps_inside_sqrt { (v + eps).sqrt() } else { v.sqrt() + eps };
            let adam = weight.states[0].iter().zip(&weight.states[1]).map(|(m, v)| m / root(*v));
            let direction: Vec<f64> = adam.zip(&weight.values).map(|(u, w)| u + decay * w).collect();
            let norms = [&weight.values, &direction].map(|x| norm(x));
            let ratio =
                if norms.contains(&0.0) { 1.0 } else { (norms[0] / norms[1]).min(max_coeff).max(min_coeff) };
            let corrections =
                [beta1, beta2].map(|beta| if bias_correction { 1.0 - beta.powf(count) } else { 1.0 });
            (direction, lr * ratio * corrections[1].sqrt() / corrections[0])
        }
        Rule::Adafactor(Adafactor { share, eps, floor, d, relative, rate }) => {
            let square = |i: usize| grad[i].powi(2);
            let variances: Vec<f64> = if is_vector {
                let of_all = weight.state(2, n);
                blend(of_all, (0..n).map(square), share);
                of_all.clone()
            } else {
                let of_row = |row| (0..cols).map(|col| square(row * cols + col)).sum::<f64>() / cols as f64;
                blend(weight.state(0, batch * rows), (0..batch * rows).map(of_row), share);
                let of_col = |i: usize| {
                    let at = |row| (i / cols * rows + row) * cols + i % cols;
                    (0..rows).map(|row| square(at(row))).sum::<f64>() / rows as f64
                };
                blend(weight.state(1, batch * cols), (0..batch * cols).map(of_col), share);
                let [of_rows, of_cols, _] = &weight.states;
                let mean = |rows_of: &[f64]| (rows_of.iter().sum::<f64>() / rows as f64).max(eps[0]);
                let means: Vec<f64> = of_rows.chunks(rows).map(mean).collect();
                let of = |i: usize| {
                    let (row, matrix) = (i / cols, i / cols / rows);
                    of_rows[row] * of_cols[matrix * cols + i % cols] / means[matrix]
                };
                (0..n).map(of).collect()
            };
            let unit = |(g, variance): (&f64, &f64)| g / variance.max(floor).sqrt();
            let direction: Vec<f64> = grad.iter().zip(&variances).map(unit).collect();
            let of_size = if relative { eps[1].max(size(&weight.values)) } else { 1.0 };
            let clipped = (size(&direction) / d).max(1.0);
            (direction, of_size * rate / clipped)
        }
        Rule::Muon(Muon { momentum, nesterov, ns_coefficients, ns_steps, eps, adjusted }) => {
            let buffer = weight.state(0, n);
            blend(buffer, grad.iter().copied(), 1.0 - momentum);
            let ahead = |(g, m): (&f64, &f64)| if nesterov { g + momentum * (m - g) } else { *m };
            let x: Vec<f64> = grad.iter().zip(&*buffer).map(ahead).collect();
            (orthogonal(x, [rows, cols], ns_coefficients, ns_steps, eps), lr * adjusted)
        }
    };
    let is_in_direction = matches!(rule, Rule::Lamb(_));
    let keep = if is_decoupled && !is_in_direction { 1.0 - lr * decay } else { 1.0 };
    weight.values.iter_mut().zip(&direction).for_each(|(w, u)| *w = keep * *w - rate * u);
    rate
}

/// The running means of gradients and of their squares.
fn moments(weight: &mut Weight, grad: &[f64], beta1: f64, beta2: f64) {
    blend(weight.state(0, grad.len()), grad.iter().copied(), 1.0 - beta1);
    blend(weight.state(1, grad.len()), grad.iter().map(|g| g * g), 1.0 - beta2);
}

/// Newton and Schulz's iteration on a matrix that is not taller than wide, or on its transpose.
fn orthogonal(mut x: Vec<f64>, sizes: [usize; 2], [a, b, c]: [f64; 3], n_steps: usize, eps: f64) -> Vec<f64> {
    let is_tall = sizes[0] > sizes[1];
    let [m, n] = if is_tall { [sizes[1], sizes[0]] } else { sizes };
    if is_tall {
        x = transposed(&x, sizes);
    }
    let by = norm(&x).max(eps);
    x.iter_mut().for_each(|x| *x /= by);
    for _ in 0..n_steps {
        let square = multiply(&x, &transposed(&x, [m, n]), [m, n, m]);
        let fourth = multiply(&square, &square, [m, m, m]);
        let both: Vec<f64> = square.iter().zip(&fourth).map(|(s, f)| b * s + c * f).collect();
        let moved = multiply(&both, &x, [m, m, n]);
        x.iter_mut().zip(&moved).for_each(|(x, y)| *x = a * *x + y);
    }
    if is_tall { transposed(&x, [m, n]) } else { x }
}
