//! Adafactor, as `torch.optim.Adafactor` and as that of transformers: the second moment of a matrix is kept as the means of
//! its rows and columns.

use super::{Buffers, Elementwise, StepArgs, lerp, run, states};
use crate::Cpu;
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::pieces::{TASK_ELEMS, cut, for_pieces, task_rows};
use crate::sums::{NORM_BLOCK, squared_norm, squares, tree_sum, tree_sum_f32};

/// Columns whose sums a task forms at once, a multiple of a cache line.
const COLUMNS: usize = 128;

/// The parameters of Adafactor, by torch's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdafactorArgs {
    /// The exponent of the step by which the weight of a new second moment falls.
    pub beta2_decay: f64,
    /// The least mean of a second moment. The least estimate is its square in torch, and the same in transformers.
    pub eps1: f64,
    /// The least size of a parameter that a step can be relative to.
    pub eps2: f64,
    /// The root mean square of a direction from which on it is shortened.
    pub d: f64,
    /// Whether a step is relative to the size of the parameter and no longer than 1/√t of it, as torch's; transformers
    /// takes the learning rate as it is (`scale_parameter` and `relative_step` are off).
    pub relative: bool,
}

impl AdafactorArgs {
    /// The defaults of `torch.optim.Adafactor`.
    pub const TORCH: AdafactorArgs =
        AdafactorArgs { beta2_decay: -0.8, eps1: f32::EPSILON as f64, eps2: 1e-3, d: 1.0, relative: true };

    /// What the trainer of transformers makes of `optim: adafactor`.
    pub const TRANSFORMERS: AdafactorArgs =
        AdafactorArgs { beta2_decay: -0.8, eps1: 1e-30, eps2: 1e-3, d: 1.0, relative: false };

    /// The least estimate of a second moment.
    pub fn floor(&self) -> f64 {
        if self.relative { self.eps1 * self.eps1 } else { self.eps1 }
    }

    /// The learning rate of a step, apart from the size of the parameter.
    pub fn rate(&self, lr: f64, step: u64) -> f64 {
        if self.relative { lr.min(1.0 / (step as f64).sqrt()) } else { lr }
    }
}

/// A parameter as Adafactor sees it: matrices of `rows` x `cols`, or one row that is not factored.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The number of matrices.
    pub batch: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub cols: usize,
    /// Whether the second moment is kept as the means of rows and columns.
    pub factored: bool,
}

impl Extent {
    /// The last two sizes make the matrix.
    pub fn new(sizes: &[usize]) -> Extent {
        match *sizes {
            [ref batch @ .., rows, cols] => {
                Extent { batch: batch.iter().product(), rows, cols, factored: true }
            }
            _ => Extent { batch: 1, rows: 1, cols: sizes.iter().product(), factored: false },
        }
    }

    fn n_elems(&self) -> usize {
        self.batch * self.rows * self.cols
    }

    /// The f64 elements of scratch that a step needs.
    pub fn scratch_len(&self) -> usize {
        self.n_elems().div_ceil(NORM_BLOCK)
    }
}

/// The estimated second moment: of an element, its row's factor times its column's.
#[derive(Clone, Copy)]
struct Estimate<'a> {
    extent: Extent,
    /// The means of the rows' squares; empty where not factored.
    row_var: &'a [f32],
    /// The mean of `row_var` in each matrix.
    row_means: &'a [f32],
    /// The means of the columns' squares, or all second moments.
    col_var: &'a [f32],
    grad_scale: f32,
    /// The least estimate.
    floor: f32,
}

impl Estimate<'_> {
    /// Calls `f(elements of the piece, factor of the row, column variances)` for each row's part of a piece.
    #[inline(always)]
    fn for_rows(&self, start: usize, len: usize, mut f: impl FnMut(std::ops::Range<usize>, f32, &[f32])) {
        let Extent { rows, cols, .. } = self.extent;
        let mut at = 0;
        while at < len {
            let (row, col) = ((start + at) / cols, (start + at) % cols);
            let n = (cols - col).min(len - at).min(NORM_BLOCK);
            let factor = self.row_var.get(row).map_or(1.0, |var| var / self.row_means[row / rows]);
            f(at..at + n, factor, &self.col_var[row / rows * cols + col..][..n]);
            at += n;
        }
    }

    #[inline(always)]
    fn direction(&self, factor: f32, col_var: f32, grad: f32) -> f32 {
        grad * self.grad_scale / (factor * col_var).max(self.floor).sqrt()
    }
}

/// A vector's second moments.
#[derive(Clone, Copy)]
struct Variance {
    grad_scale: f32,
    weight: f32,
}

impl Elementwise for Variance {
    #[inline(always)]
    fn strip(self, _: &mut [f32], first: &mut [f32], _: &mut [f32], grad: &[f32]) {
        for (variance, g) in first.iter_mut().zip(grad) {
            let g = g * self.grad_scale;
            *variance = lerp(*variance, g * g, self.weight);
        }
    }
}

instances! {
    /// One step on one whole parameter.
    pub fn step[T: Float](
        cpu: &Cpu,
        adafactor: &AdafactorArgs,
        args: &StepArgs,
        extent: Extent,
        buffers: Buffers<'_, T>,
        scratch: &mut [f64],
    ) {
        let Buffers { weights, state: [row_var, col_var, variance, ..], grad, mut working } = buffers;
        let n = extent.n_elems();
        assert!([weights.len(), grad.len()] == [n; 2], "adafactor: lengths");
        assert!(working.as_ref().is_none_or(|w| w.len() == n), "adafactor: working copy");
        if n == 0 {
            return;
        }
        let count = args.step as f64;
        let weight = libm::pow(count, adafactor.beta2_decay) as f32;
        let (grad_scale, scratch) = (args.grad_scale, &mut scratch[..extent.scratch_len()]);
        squared_norm(cpu, weights, scratch);
        let size = (tree_sum(scratch) / n as f64).sqrt();
        let mut row_means = Vec::new();
        let col_var: &[f32] = if extent.factored {
            row_variances(cpu, extent, grad, grad_scale, weight, row_var);
            column_variances(cpu, extent, grad, grad_scale, weight, col_var);
            let mean = |var: &[f32]| (tree_sum_f32(var) / var.len() as f64) as f32;
            row_means.extend(row_var.chunks(extent.rows).map(|var| mean(var).max(adafactor.eps1 as f32)));
            col_var
        } else {
            let of_vector = Buffers::<f32> { weights, state: states([variance]), grad, working: None };
            run(cpu, Variance { grad_scale, weight }, of_vector);
            variance
        };
        let estimate = Estimate {
            extent,
            row_var,
            row_means: &row_means,
            col_var,
            grad_scale,
            floor: adafactor.floor() as f32,
        };
        let n_pieces = n.div_ceil(TASK_ELEMS);
        cpu.par.chunks_mut(&mut scratch[..n_pieces], 1, |i, sum| {
            let piece = i * TASK_ELEMS..((i + 1) * TASK_ELEMS).min(n);
            sum[0] = squared_length(cpu.isa, &estimate, piece.start, &grad[piece]);
        });
        let length = (tree_sum(&scratch[..n_pieces]) / n as f64).sqrt();
        let size = if adafactor.relative { adafactor.eps2.max(size) } else { 1.0 };
        let alpha = size * adafactor.rate(args.lr, args.step);
        let alpha = (alpha / (length / adafactor.d).max(1.0)) as f32;
        let outputs = (cut(weights, TASK_ELEMS), working.as_mut().map(|w| cut(w, TASK_ELEMS)));
        for_pieces(&cpu.par, n_pieces, outputs, |i, (weights, working)| {
            let from = i * TASK_ELEMS;
            let grad = &grad[from..from + weights.len()];
            apply(cpu.isa, &estimate, from, args.keep(), alpha, grad, weights, working);
        });
    }
}

/// Each row's mean square, blended into `row_var`.
fn row_variances(cpu: &Cpu, extent: Extent, grad: &[f32], grad_scale: f32, weight: f32, row_var: &mut [f32]) {
    let cols = extent.cols;
    let task = task_rows(cols);
    cpu.par.chunks_mut(row_var, task, |i, row_var| {
        row_task(cpu.isa, &grad[i * task * cols..], cols, grad_scale, weight, row_var);
    });
}

multiversion! {
    fn row_task(grad: &[f32], cols: usize, grad_scale: f32, weight: f32, row_var: &mut [f32]) {
        let scale = f64::from(grad_scale) * f64::from(grad_scale) / cols as f64;
        for (var, grad) in row_var.iter_mut().zip(grad.chunks_exact(cols)) {
            let mut sum = 0.0;
            for block in grad.chunks(NORM_BLOCK) {
                sum += squares(block);
            }
            *var = lerp(*var, (sum * scale) as f32, weight);
        }
    }
}

/// Each column's mean square, blended into `col_var`: rows are added from the first to the last.
fn column_variances(
    cpu: &Cpu,
    extent: Extent,
    grad: &[f32],
    grad_scale: f32,
    weight: f32,
    col_var: &mut [f32],
) {
    let Extent { rows, cols, .. } = extent;
    for (grad, col_var) in grad.chunks_exact(rows * cols).zip(col_var.chunks_exact_mut(cols)) {
        cpu.par.chunks_mut(col_var, COLUMNS, |i, col_var| {
            column_task(cpu.isa, &grad[i * COLUMNS..], rows, cols, grad_scale, weight, col_var);
        });
    }
}

multiversion! {
    fn column_task(
        grad: &[f32], rows: usize, cols: usize, grad_scale: f32, weight: f32, col_var: &mut [f32],
    ) {
        let scale = f64::from(grad_scale) * f64::from(grad_scale) / rows as f64;
        let mut sums = [0f64; COLUMNS];
        let sums = &mut sums[..col_var.len()];
        for row in 0..rows {
            for (sum, g) in sums.iter_mut().zip(&grad[row * cols..]) {
                let g = f64::from(*g);
                *sum += g * g;
            }
        }
        for (var, sum) in col_var.iter_mut().zip(sums) {
            *var = lerp(*var, (*sum * scale) as f32, weight);
        }
    }
}

multiversion! {
    /// The sum of squares of the direction over a piece that begins with element `start`.
    fn squared_length(estimate: &Estimate<'_>, start: usize, grad: &[f32]) -> f64 {
        let mut direction = [0.0; NORM_BLOCK];
        let mut sum = 0.0;
        estimate.for_rows(start, grad.len(), |part, factor, col_var| {
            let direction = &mut direction[..part.len()];
            for ((u, g), var) in direction.iter_mut().zip(&grad[part]).zip(col_var) {
                *u = estimate.direction(factor, *var, *g);
            }
            sum += squares(direction);
        });
        sum
    }
}

multiversion! {
    fn apply[T: Float](
        estimate: &Estimate<'_>, start: usize, keep: f32, alpha: f32, grad: &[f32], weights: &mut [f32],
        working: Option<&mut [T]>,
    ) {
        estimate.for_rows(start, grad.len(), |part, factor, col_var| {
            for ((weight, g), var) in weights[part.clone()].iter_mut().zip(&grad[part]).zip(col_var) {
                *weight = *weight * keep - alpha * estimate.direction(factor, *var, *g);
            }
        });
        if let Some(working) = working {
            for (rounded, weight) in working.iter_mut().zip(weights) {
                *rounded = T::from_f32(*weight);
            }
        }
    }
}
