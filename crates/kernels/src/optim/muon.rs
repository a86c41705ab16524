//! Muon, as `torch.optim.Muon`: momentum, made orthogonal by a Newton–Schulz iteration.
//!
//! The iteration runs in f32, where torch rounds to bf16. Its products depend on the code path in the last bits, as
//! every matrix product does, and never on the number of threads.

use super::{Buffers, Elementwise, StepArgs, lerp, run, states};
use crate::dtype::{DType, Float};
use crate::gemm::{MatMut, MatRef, gemm, gemm_scratch_bytes};
use crate::instances::instances;
use crate::sums::{NORM_BLOCK, squared_norm, tree_sum};
use crate::{Cpu, Store};

/// The parameters of Muon, by torch's names, and the adjusted learning rate.
#[derive(Clone, Copy, Debug)]
pub struct MuonArgs {
    /// The decay of the momentum.
    pub momentum: f64,
    /// Whether the direction looks one step ahead.
    pub nesterov: bool,
    /// The coefficients `a`, `b` and `c` of the iteration.
    pub ns_coefficients: [f64; 3],
    /// The number of iterations.
    pub ns_steps: usize,
    /// The least norm that the direction is divided by.
    pub eps: f64,
    /// The learning rate for a parameter of this shape.
    pub adjusted_lr: f64,
}

/// The momentum's next value, and the direction in the place of the weights.
#[derive(Clone, Copy)]
struct Momentum {
    grad_scale: f32,
    momentum: f32,
    take: f32,
    nesterov: bool,
}

impl Elementwise for Momentum {
    #[inline(always)]
    fn strip(self, direction: &mut [f32], first: &mut [f32], _: &mut [f32], grad: &[f32]) {
        for ((u, buffer), g) in direction.iter_mut().zip(first).zip(grad) {
            let g = g * self.grad_scale;
            *buffer = lerp(*buffer, g, self.take);
            *u = if self.nesterov { lerp(g, *buffer, self.momentum) } else { *buffer };
        }
    }
}

/// `x / by`.
#[derive(Clone, Copy)]
struct Divide {
    by: f32,
}

impl Elementwise for Divide {
    #[inline(always)]
    fn strip(self, x: &mut [f32], _: &mut [f32], _: &mut [f32], _: &[f32]) {
        x.iter_mut().for_each(|x| *x /= self.by);
    }
}

/// `x * keep + step * y`, where `y` stands in the place of the gradient.
#[derive(Clone, Copy)]
struct Blend {
    keep: f32,
    step: f32,
}

impl Elementwise for Blend {
    #[inline(always)]
    fn strip(self, x: &mut [f32], _: &mut [f32], _: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x = *x * self.keep + self.step * y;
        }
    }
}

/// Runs a rule without state on `x`.
fn on<R: Elementwise>(cpu: &Cpu, rule: R, x: &mut [f32], y: &[f32]) {
    run::<R, f32>(cpu, rule, Buffers { weights: x, state: states([]), grad: y, working: None });
}

/// The f32 elements of scratch that a step on a matrix needs.
pub fn scratch_len(rows: usize, cols: usize) -> usize {
    let side = rows.min(cols);
    2 * rows * cols + 2 * side * side
}

/// The bytes of scratch of its products.
pub fn product_scratch_bytes(cpu: &Cpu, rows: usize, cols: usize) -> usize {
    let side = rows.min(cols);
    let bytes = |m, n, k| gemm_scratch_bytes(cpu, m, n, k, DType::F32);
    bytes(side, side, rows.max(cols)).max(bytes(side, side, side)).max(bytes(rows, cols, side))
}

instances! {
    /// One step on one matrix.
    pub fn step[T: Float](
        cpu: &Cpu,
        muon: &MuonArgs,
        args: &StepArgs,
        sizes: (usize, usize),
        buffers: Buffers<'_, T>,
        scratch: &mut [f32],
        product_scratch: &mut [u8],
    ) {
        let (rows, cols) = sizes;
        let Buffers { weights, state: [buffer, ..], grad, working } = buffers;
        let (direction, rest) = scratch.split_at_mut(rows * cols);
        let momentum = Momentum {
            grad_scale: args.grad_scale,
            momentum: muon.momentum as f32,
            take: (1.0 - muon.momentum) as f32,
            nesterov: muon.nesterov,
        };
        let into = Buffers::<f32> { weights: direction, state: states([buffer]), grad, working: None };
        run(cpu, momentum, into);
        orthogonalize(cpu, muon, direction, (rows, cols), rest, product_scratch);
        let blend = Blend { keep: args.keep(), step: -muon.adjusted_lr as f32 };
        run(cpu, blend, Buffers { weights, state: states([]), grad: direction, working });
    }
}

/// Brings the singular values of `x` near one: `x = a x + (b g + c g g) x`, where `g = x xᵀ`, some times over. The
/// smaller of the two Gram matrices serves, which for a tall `x` is `xᵀ x`, multiplied from the right.
fn orthogonalize(
    cpu: &Cpu,
    muon: &MuonArgs,
    x: &mut [f32],
    (rows, cols): (usize, usize),
    scratch: &mut [f32],
    product_scratch: &mut [u8],
) {
    let side = rows.min(cols);
    let [a, b, c] = muon.ns_coefficients.map(|x| x as f32);
    let mut blocks = vec![0.0; x.len().div_ceil(NORM_BLOCK)];
    squared_norm(cpu, x, &mut blocks);
    let norm = tree_sum(&blocks).sqrt().max(muon.eps) as f32;
    // The rule reads no gradient; any slice of the length will do.
    let (y, rest) = scratch.split_at_mut(rows * cols);
    on(cpu, Divide { by: norm }, x, y);
    let (gram, rest) = rest.split_at_mut(side * side);
    let polynomial = &mut rest[..side * side];
    for _ in 0..muon.ns_steps {
        let whole = MatRef::new(x, rows, cols);
        let (left, right) = if rows > cols { (whole.t(), whole) } else { (whole, whole.t()) };
        gemm(cpu, left, right, MatMut::new(gram, side, side), Store::Overwrite, product_scratch);
        let g = MatRef::new(gram, side, side);
        gemm(cpu, g, g, MatMut::new(polynomial, side, side), Store::Overwrite, product_scratch);
        on(cpu, Blend { keep: c, step: b }, polynomial, gram);
        let p = MatRef::new(polynomial, side, side);
        let (left, right) = if rows > cols { (whole, p) } else { (p, whole) };
        gemm(cpu, left, right, MatMut::new(y, rows, cols), Store::Overwrite, product_scratch);
        on(cpu, Blend { keep: a, step: 1.0 }, x, y);
    }
}
