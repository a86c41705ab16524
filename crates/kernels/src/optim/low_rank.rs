//! AdamW in a subspace of the gradient: GaLore (Zhao et al. 2024), whose steps are taken back from it, and APOLLO (Zhu et
//! al. 2025), which learns from it how much of the gradient to take. The formulas are those of galore_torch 1.0 and
//! apollo_torch 1.0.3, whose AdamW is that of older versions of transformers.

use super::{Buffers, Elementwise, StepArgs, run};
use crate::decompose::singular::{Search, largest};
use crate::dtype::{DType, Float};
use crate::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes};
use crate::instances::instances;
use crate::pieces::{cut, for_pieces, task_rows};
use crate::random::{Stream, fill_normal};
use crate::sums::tree_sum;
use crate::{Cpu, Store};

/// Added to a norm that is divided by.
const NORM_EPS: f32 = 1e-8;

/// How much a norm may grow from one step to the next.
const GROWTH: f32 = 1.01;

/// What both have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankArgs {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// The dim of the subspace; at most the smaller dim of the matrix.
    pub rank: usize,
    /// The steps for which a subspace is kept.
    pub interval: u64,
    /// What a step counts: its factor in GaLore, the square of that in APOLLO.
    pub scale: f64,
    /// Which dims of the gradient the subspace is of.
    pub sides: Sides,
    /// What becomes of a step in the subspace.
    pub method: Method,
}

/// What becomes of a step in the subspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// It is taken back to the whole space.
    GaLore,
    /// Its size says what the gradient is multiplied with.
    Apollo {
        /// The subspace is a random one, not that of the largest singular values of the gradient.
        is_random: bool,
        /// One factor for the matrix, instead of one for each row or column.
        by_tensor: bool,
        /// Multiplies with the scale before the growth of the norm is limited, instead of after it.
        scale_front: bool,
    },
}

/// The side that the vectors of a subspace multiply the gradient from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// That of the smaller dim: `std`.
    Smaller,
    /// That of the larger dim: `reverse_std`.
    Larger,
    /// Vectors of a number for each row.
    Left,
    /// Vectors of a number for each column.
    Right,
    /// Both.
    Both,
}

/// A gradient and its subspace in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Subspace {
    rows: usize,
    cols: usize,
    rank: usize,
    has_left: bool,
    has_right: bool,
}

impl Subspace {
    /// That of a matrix of these sizes.
    pub fn new(low: &LowRankArgs, rows: usize, cols: usize) -> Subspace {
        let is_tall = rows >= cols;
        let has_right = match low.sides {
            Sides::Smaller => is_tall,
            Sides::Larger => !is_tall,
            Sides::Right | Sides::Both => true,
            Sides::Left => false,
        };
        let has_left = !has_right || low.sides == Sides::Both;
        Subspace { rows, cols, rank: low.rank.min(rows).min(cols), has_left, has_right }
    }

    /// Rows and columns of the gradient in the subspace.
    pub fn sizes(&self) -> [usize; 2] {
        [
            if self.has_left { self.rank } else { self.rows },
            if self.has_right { self.rank } else { self.cols },
        ]
    }

    /// The numbers of its vectors.
    pub fn n_vectors(&self) -> usize {
        self.n_left() + self.rank * if self.has_right { self.cols } else { 0 }
    }

    fn n_left(&self) -> usize {
        self.rank * if self.has_left { self.rows } else { 0 }
    }

    fn n_low(&self) -> usize {
        self.sizes().iter().product()
    }

    /// What is multiplied from both sides is first so large.
    fn n_between(&self) -> usize {
        if self.has_left && self.has_right { self.rank * self.cols } else { 0 }
    }

    fn left<'v>(&self, vectors: &'v [f32]) -> MatRef<'v, f32> {
        MatRef::new(&vectors[..self.n_left()], self.rank, self.rows)
    }

    fn right<'v>(&self, vectors: &'v [f32]) -> MatRef<'v, f32> {
        MatRef::new(&vectors[self.n_left()..], self.rank, self.cols)
    }

    /// The f32 elements of scratch that a step needs.
    pub fn scratch_len(&self, low: &LowRankArgs) -> usize {
        let more = match low.method {
            Method::GaLore => self.rows * self.cols,
            Method::Apollo { is_random: true, .. } => self.n_vectors(),
            Method::Apollo { .. } => 0,
        };
        2 * self.n_low() + self.n_between() + more
    }

    /// The bytes of scratch of its products.
    pub fn product_scratch_bytes(&self, cpu: &Cpu) -> usize {
        let Subspace { rows, cols, rank, .. } = *self;
        let bytes = |m, n, k| gemm_scratch_bytes(cpu, m, n, k, DType::F32);
        let to = bytes(rows, rank, cols).max(bytes(rank, cols, rows)).max(bytes(rank, rank, cols));
        to.max(bytes(rows, cols, rank)).max(bytes(rank, cols, rank))
    }

    /// The gradient in the subspace.
    fn project(
        &self,
        cpu: &Cpu,
        grad: &[f32],
        vectors: &[f32],
        between: &mut [f32],
        low: &mut [f32],
        scratch: &mut [u8],
    ) {
        let Subspace { rows, cols, rank, .. } = *self;
        let [low_rows, low_cols] = self.sizes();
        let (grad, out) = (MatRef::new(grad, rows, cols), MatMut::new(low, low_rows, low_cols));
        match (self.has_left, self.has_right) {
            (true, true) => {
                let between_mut = MatMut::new(between, rank, cols);
                gemm(cpu, self.left(vectors), grad, between_mut, Store::Overwrite, scratch);
                let between = MatRef::new(between, rank, cols);
                gemm(cpu, between, self.right(vectors).t(), out, Store::Overwrite, scratch);
            }
            (true, false) => gemm(cpu, self.left(vectors), grad, out, Store::Overwrite, scratch),
            _ => gemm(cpu, grad, self.right(vectors).t(), out, Store::Overwrite, scratch),
        }
    }

    /// What a step in the subspace is in the whole space.
    fn back(
        &self,
        cpu: &Cpu,
        low: &[f32],
        vectors: &[f32],
        between: &mut [f32],
        out: &mut [f32],
        scratch: &mut [u8],
    ) {
        let Subspace { rows, cols, rank, .. } = *self;
        let [low_rows, low_cols] = self.sizes();
        let (low, out) = (MatRef::new(low, low_rows, low_cols), MatMut::new(out, rows, cols));
        match (self.has_left, self.has_right) {
            (true, true) => {
                let between_mut = MatMut::new(between, rank, cols);
                gemm(cpu, low, self.right(vectors), between_mut, Store::Overwrite, scratch);
                let between = MatRef::new(between, rank, cols);
                gemm(cpu, self.left(vectors).t(), between, out, Store::Overwrite, scratch);
            }
            (true, false) => gemm(cpu, self.left(vectors).t(), low, out, Store::Overwrite, scratch),
            _ => gemm(cpu, low, self.right(vectors), out, Store::Overwrite, scratch),
        }
    }

    /// The singular vectors of a gradient that span it.
    fn find(&self, cpu: &Cpu, grad: &[f32], vectors: &mut [f32]) {
        let found = largest(cpu, grad, [self.rows, self.cols], self.rank, Search::Exact);
        let (left, right) = vectors.split_at_mut(self.n_left());
        for (out, found) in left.iter_mut().zip(&found.left).chain(right.iter_mut().zip(&found.right)) {
            *out = *found as f32;
        }
    }

    /// Normal numbers of variance 1 / rank. Matrices of the same sizes have the same ones.
    fn draw(&self, cpu: &Cpu, period: u64, vectors: &mut [f32]) {
        let stream = Stream { seed: (self.rows as u64) << 32 | self.cols as u64, stream: period };
        fill_normal(cpu, stream, 0, 0.0, 1.0 / (self.rank as f32).sqrt(), vectors);
    }
}

/// AdamW as transformers had it before torch's: epsilon is added to a root that is not corrected, and the weights shrink
/// after the step.
#[derive(Clone, Copy, Debug)]
struct OlderAdamW {
    grad_scale: f32,
    betas: [f32; 2],
    takes: [f32; 2],
    eps: f32,
    step: f32,
    keep: f32,
}

impl OlderAdamW {
    fn new(low: &LowRankArgs, args: &StepArgs) -> OlderAdamW {
        let betas = [low.beta1, low.beta2];
        OlderAdamW {
            grad_scale: args.grad_scale,
            betas: betas.map(|beta| beta as f32),
            takes: betas.map(|beta| (1.0 - beta) as f32),
            eps: low.eps as f32,
            step: corrected_lr(low, args) as f32,
            keep: args.keep(),
        }
    }

    /// The moments' next values, and the direction.
    #[inline(always)]
    fn direction(&self, first: &mut f32, second: &mut f32, grad: f32) -> f32 {
        *first = *first * self.betas[0] + self.takes[0] * grad;
        *second = *second * self.betas[1] + self.takes[1] * grad * grad;
        *first / (second.sqrt() + self.eps)
    }
}

impl Elementwise for OlderAdamW {
    #[inline(always)]
    fn strip(self, weights: &mut [f32], first: &mut [f32], second: &mut [f32], grad: &[f32]) {
        for (((weight, first), second), g) in weights.iter_mut().zip(first).zip(second).zip(grad) {
            let direction = self.direction(first, second, g * self.grad_scale);
            *weight = (*weight - self.step * direction) * self.keep;
        }
    }
}

fn corrected_lr(low: &LowRankArgs, args: &StepArgs) -> f64 {
    let n = args.step as f64;
    args.lr * (1.0 - libm::pow(low.beta2, n)).sqrt() / (1.0 - libm::pow(low.beta1, n))
}

instances! {
    /// One step on a parameter that has no subspace.
    pub fn whole_step[T: Float](cpu: &Cpu, low: &LowRankArgs, args: &StepArgs, buffers: Buffers<'_, T>) {
        run(cpu, OlderAdamW::new(low, args), buffers);
    }
}

instances! {
    /// One step on one matrix. Its states are both moments in the subspace, the vectors of the subspace unless they are
    /// random, and for APOLLO the norm of the last step.
    pub fn step[T: Float](
        cpu: &Cpu,
        low: &LowRankArgs,
        args: &StepArgs,
        sizes: (usize, usize),
        buffers: Buffers<'_, T>,
        scratch: &mut [f32],
        product_scratch: &mut [u8],
    ) {
        let space = Subspace::new(low, sizes.0, sizes.1);
        let Buffers { weights, state: [first, second, kept, norm, ..], grad, working } = buffers;
        let (low_grad, rest) = scratch.split_at_mut(space.n_low());
        let (direction, rest) = rest.split_at_mut(space.n_low());
        let (between, rest) = rest.split_at_mut(space.n_between());
        let (period, is_first) = ((args.step - 1) / low.interval, (args.step - 1).is_multiple_of(low.interval));
        let (vectors, rest) = match low.method {
            Method::Apollo { is_random: true, .. } => {
                let (vectors, rest) = rest.split_at_mut(space.n_vectors());
                space.draw(cpu, period, vectors);
                (&*vectors, rest)
            }
            _ => {
                if is_first {
                    space.find(cpu, grad, kept);
                }
                (&*kept, rest)
            }
        };
        space.project(cpu, grad, vectors, between, low_grad, product_scratch);
        low_grad.iter_mut().for_each(|g| *g *= args.grad_scale);
        let adam = OlderAdamW::new(low, args);
        for (((out, first), second), g) in direction.iter_mut().zip(first).zip(second).zip(&*low_grad) {
            *out = adam.direction(first, second, *g);
        }
        match low.method {
            Method::GaLore => {
                let whole = &mut rest[..sizes.0 * sizes.1];
                space.back(cpu, direction, vectors, between, whole, product_scratch);
                let (step, cols) = (adam.step * low.scale as f32, space.cols);
                apply(cpu, cols, weights, working, |row, weights| {
                    for (weight, u) in weights.iter_mut().zip(&whole[row * cols..]) {
                        *weight = (*weight - step * u) * adam.keep;
                    }
                });
            }
            Method::Apollo { by_tensor, scale_front, .. } => {
                let factors = factors(&space, direction, low_grad, by_tensor);
                let front = if scale_front { (low.scale as f32).sqrt() } else { 1.0 };
                let length = front * args.grad_scale * scaled_length(cpu, &space, &factors, grad);
                let limiter = match args.step {
                    1 => 1.0,
                    _ => (length / (norm[0] + NORM_EPS)).max(GROWTH) / GROWTH,
                };
                norm[0] = length / limiter;
                let by = adam.step * args.grad_scale * (low.scale as f32).sqrt() / limiter;
                apply(cpu, space.cols, weights, working, |row, weights| {
                    let grad = &grad[row * space.cols..];
                    for (col, (weight, g)) in weights.iter_mut().zip(grad).enumerate() {
                        *weight = (*weight - by * factors.of(row, col) * g) * adam.keep;
                    }
                });
            }
        }
    }
}

/// Changes the weights row by row, and writes what they are rounded to.
fn apply<T: Float>(
    cpu: &Cpu,
    cols: usize,
    weights: &mut [f32],
    working: Option<&mut [T]>,
    change: impl Fn(usize, &mut [f32]) + Sync + Send,
) {
    let rows = task_rows(cols);
    let n_tasks = weights.len().div_ceil(rows * cols.max(1));
    let all = (cut(weights, rows * cols), working.map(|working| cut(working, rows * cols)));
    for_pieces(&cpu.par, n_tasks, all, |task, (weights, working)| {
        for (row, weights) in weights.chunks_exact_mut(cols).enumerate() {
            change(task * rows + row, weights);
        }
        if let Some(working) = working {
            working.iter_mut().zip(weights).for_each(|(rounded, weight)| *rounded = T::from_f32(*weight));
        }
    });
}

/// What a gradient is multiplied with.
enum Factors {
    ByRow(Vec<f32>),
    ByColumn(Vec<f32>),
    Same(f32),
}

impl Factors {
    #[inline(always)]
    fn of(&self, row: usize, col: usize) -> f32 {
        match self {
            Factors::ByRow(factors) => factors[row],
            Factors::ByColumn(factors) => factors[col],
            Factors::Same(factor) => *factor,
        }
    }
}

/// The length of a step in the subspace, in lengths of its gradient.
fn factors(space: &Subspace, direction: &[f32], low_grad: &[f32], by_tensor: bool) -> Factors {
    let length = |x: &mut dyn Iterator<Item = &f32>| {
        x.map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt() as f32
    };
    let ratio = |step: f32, grad: f32| step / (grad + NORM_EPS);
    let [rows, cols] = space.sizes();
    if by_tensor {
        return Factors::Same(ratio(length(&mut direction.iter()), length(&mut low_grad.iter())));
    }
    if space.has_left {
        let column = |x: &[f32], col: usize| length(&mut x.iter().skip(col).step_by(cols));
        return Factors::ByColumn(
            (0..cols).map(|c| ratio(column(direction, c), column(low_grad, c))).collect(),
        );
    }
    let row = |x: &[f32], row: usize| length(&mut x[row * cols..][..cols].iter());
    Factors::ByRow((0..rows).map(|r| ratio(row(direction, r), row(low_grad, r))).collect())
}

/// The length of the gradient times its factors.
fn scaled_length(cpu: &Cpu, space: &Subspace, factors: &Factors, grad: &[f32]) -> f32 {
    let mut squares = vec![0.0; space.rows];
    let rows = task_rows(space.cols);
    cpu.par.chunks_mut(&mut squares, rows, |task, out| {
        let first = task * rows;
        let rows = grad[first * space.cols..].chunks_exact(space.cols);
        for (row, (out, grad)) in out.iter_mut().zip(rows).enumerate() {
            let scaled = grad.iter().enumerate().map(|(col, g)| f64::from(factors.of(first + row, col) * g));
            *out = scaled.map(|x| x * x).sum();
        }
    });
    tree_sum(&squares).sqrt() as f32
}
