//! Steps of optimizers in f64, by the formulas of their papers and of torch.

use oarlock_tensor::ops::optimizer::{AdafactorArgs, AdjustLr, Rule, StepArgs};

use super::formula::{multiply, transposed};

/// A matrix or vector with the states of its optimizer, which begin as zeros or empty.
pub(super) struct Weight {
    sizes: Vec<usize>,
    pub values: Vec<f64>,
    pub states: [Vec<f64>; 3],
}

impl Weight {
    pub fn new(sizes: Vec<usize>, values: Vec<f64>) -> Weight {
        Weight { sizes, values, states: Default::default() }
    }

    /// A state of so many elements.
    fn state(&mut self, i: usize, n: usize) -> &mut Vec<f64> {
        self.states[i].resize(n, 0.0);
        &mut self.states[i]
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

/// A step of a hidden weight.
pub(super) fn step(rule: &Rule, args: &StepArgs, weight: &mut Weight, mut grad: Vec<f64>) {
    let n = grad.len();
    let (is_vector, [rows, cols]) = match weight.sizes[..] {
        [rows, cols] => (false, [rows, cols]),
        _ => (true, [1, n]),
    };
    let (lr, decay, count) = (args.lr, args.weight_decay, args.step as f64);
    grad.iter_mut().for_each(|g| *g *= f64::from(args.grad_scale));
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
            let sign = |(m, g): (&f64, &f64)| (beta1 * m + (1.0 - beta1) * g).signum();
            let direction = m.iter().zip(&grad).map(sign).collect();
            blend(m, grad.iter().copied(), 1.0 - beta2);
            (direction, lr)
        }
        Rule::Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff } => {
            moments(weight, &grad, beta1, beta2);
            let root = |v: f64| if eps_inside_sqrt { (v + eps).sqrt() } else { v.sqrt() + eps };
            let adam = weight.states[0].iter().zip(&weight.states[1]).map(|(m, v)| m / root(*v));
            let direction: Vec<f64> = adam.zip(&weight.values).map(|(u, w)| u + decay * w).collect();
            let ratio = (norm(&weight.values) / norm(&direction)).min(max_coeff).max(min_coeff);
            let corrections =
                [beta1, beta2].map(|beta| if bias_correction { 1.0 - beta.powf(count) } else { 1.0 });
            (direction, lr * ratio * corrections[1].sqrt() / corrections[0])
        }
        Rule::Adafactor(adafactor) => {
            let AdafactorArgs { beta2_decay, eps1, eps2, d, relative } = adafactor;
            let part = count.powf(beta2_decay);
            let square = |row: usize, col: usize| grad[row * cols + col].powi(2);
            let variances: Vec<f64> = if is_vector {
                let of_all = weight.state(2, n);
                blend(of_all, (0..n).map(|col| square(0, col)), part);
                of_all.clone()
            } else {
                let of_row = |row| (0..cols).map(|col| square(row, col)).sum::<f64>() / cols as f64;
                blend(weight.state(0, rows), (0..rows).map(of_row), part);
                let of_col = |col| (0..rows).map(|row| square(row, col)).sum::<f64>() / rows as f64;
                blend(weight.state(1, cols), (0..cols).map(of_col), part);
                let [of_rows, of_cols, _] = &weight.states;
                let mean = (of_rows.iter().sum::<f64>() / rows as f64).max(eps1);
                (0..n).map(|i| of_rows[i / cols] * of_cols[i % cols] / mean).collect()
            };
            let unit = |(g, variance): (&f64, &f64)| g / variance.max(adafactor.floor()).sqrt();
            let direction: Vec<f64> = grad.iter().zip(&variances).map(unit).collect();
            let of_size = if relative { eps2.max(size(&weight.values)) } else { 1.0 };
            let rate = of_size * adafactor.rate(lr, args.step);
            let clipped = (size(&direction) / d).max(1.0);
            (direction, rate / clipped)
        }
        Rule::Muon { momentum, nesterov, ns_coefficients, ns_steps, eps, adjust_lr, .. } => {
            let buffer = weight.state(0, n);
            blend(buffer, grad.iter().copied(), 1.0 - momentum);
            let ahead = |(g, m): (&f64, &f64)| if nesterov { g + momentum * (m - g) } else { *m };
            let x: Vec<f64> = grad.iter().zip(&*buffer).map(ahead).collect();
            let adjusted = match adjust_lr {
                AdjustLr::Original => (rows as f64 / cols as f64).max(1.0).sqrt(),
                AdjustLr::MatchRmsAdamW => 0.2 * (rows.max(cols) as f64).sqrt(),
            };
            (orthogonal(x, [rows, cols], ns_coefficients, ns_steps, eps), lr * adjusted)
        }
        Rule::LowRank(_) | Rule::OneBit(_) | Rule::EightBit(_) | Rule::Custom(_) => {
            unreachable!("they have no form for a GPU")
        }
    };
    let is_in_direction = matches!(rule, Rule::Lamb { .. });
    let keep = if is_decoupled && !is_in_direction { 1.0 - lr * decay } else { 1.0 };
    weight.values.iter_mut().zip(&direction).for_each(|(w, u)| *w = keep * *w - rate * u);
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
