//! A step of a rule on a GPU. Nothing of it waits for the host: norms and lengths stay on the GPU.

use oarlock_cuda::Pieces;
use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry::{self, NORM_BLOCK};
use oarlock_kernels::optim::adafactor::{AdafactorArgs, Extent};
use oarlock_kernels::optim::muon::MuonArgs;
use oarlock_kernels::{DType, Float, Store};

use super::pieces::ElementKernel;
use super::{Step, is_matrix, muon_adam, muon_args};
use crate::cuda::{Form, FormError, Found, Kernels, Matrix, forms};
use crate::launch::ViewMut;
use crate::ops::optimizer::Rule;

/// The weights of a step and their rounded copy, where there is one.
struct Weights<'a, T> {
    master: &'a ViewMut<f32>,
    working: Option<&'a ViewMut<T>>,
}

impl Step {
    /// The step on a GPU.
    pub(super) fn form<T: Float>(
        &self,
        gpu: &Kernels<'_>,
        master: &ViewMut<f32>,
        working: Option<&ViewMut<T>>,
    ) -> Form {
        let weights = Weights { master, working };
        if self.n == 0 {
            return Ok(());
        }
        let args = &self.args;
        if let Some(kernel) = ElementKernel::of(&self.rule, args) {
            return self.elementwise(gpu, &kernel, &weights, [0, 1]);
        }
        match self.rule {
            Rule::Lamb { .. } => self.lamb(gpu, &weights),
            Rule::Adafactor(_) => self.adafactor(gpu, &weights),
            Rule::Muon { .. } => match *self.shape.sizes() {
                [rows, cols] if is_matrix(&self.shape, self.role) => {
                    let muon = muon_args(&self.rule, args, [rows, cols]).ok_or(FormError::NoForm)?;
                    self.muon(gpu, &weights, &muon, [rows, cols])
                }
                _ => {
                    let adam = muon_adam(&self.rule, args).ok_or(FormError::NoForm)?;
                    self.elementwise(gpu, &ElementKernel::adam(&adam), &weights, [1, 2])
                }
            },
            _ => Err(FormError::NoForm),
        }
    }

    /// A rule for each element by itself, with these of the step's states.
    fn elementwise<T: Float>(
        &self,
        gpu: &Kernels<'_>,
        kernel: &ElementKernel,
        weights: &Weights<'_, T>,
        states: [usize; 2],
    ) -> Form {
        let [first, second] = states.map(|state| self.state[state].as_ref());
        let state = |view: Option<&ViewMut<f32>>| view.map(|view| gpu.slice(view)).transpose();
        let working = weights.working.map(|working| gpu.slice(working)).transpose()?;
        let operands = [
            Some(gpu.slice(weights.master)?),
            state(first)?,
            state(second)?,
            Some(gpu.slice(&self.grad)?),
            working,
        ];
        let mut pieces = Pieces::new();
        if !pieces.push(self.n, operands) {
            return Err(FormError::NoForm);
        }
        kernel.run(gpu, T::DTYPE, &pieces)
    }

    /// A state that the rule has for this parameter.
    fn state(&self, index: usize) -> Found<&ViewMut<f32>> {
        self.state[index].as_ref().ok_or(FormError::NoForm)
    }

    fn n_blocks(&self) -> usize {
        self.n.div_ceil(NORM_BLOCK)
    }

    /// The squared norms of blocks of x.
    fn squares(&self, gpu: &Kernels<'_>, x: Slice<'_>, blocks: Slice<'_>) -> Form {
        let call = gpu.kernel("squared_norm", &[DType::F32])?.slice(x).slice(blocks);
        call.u64(self.n).run(geometry::squared_norm(self.n))
    }

    fn lamb<T: Float>(&self, gpu: &Kernels<'_>, weights: &Weights<'_, T>) -> Form {
        let Rule::Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff } =
            self.rule
        else {
            return Err(FormError::NoForm);
        };
        let (n, blocks) = (self.n, 8 * self.n_blocks());
        let memory = gpu.temporary(2 * blocks + 4)?;
        let [of_weights, of_direction] = [memory.part(0, blocks)?, memory.part(blocks, blocks)?];
        let length = memory.part(2 * blocks, 4)?;
        let (first, second) = (self.state(0)?, self.state(1)?);
        let (decay, eps, inside) = (self.args.weight_decay as f32, eps as f32, usize::from(eps_inside_sqrt));
        self.squares(gpu, gpu.slice(weights.master)?, of_weights)?;
        let call = gpu.kernel("lamb_moments", &[])?.view(weights.master).view(first).view(second);
        let call = call.view(&self.grad).slice(of_direction).f32(self.args.grad_scale).f32(decay);
        let betas = [beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(|beta| beta as f32);
        call.f32s(&betas).f32(eps).u32(inside).u64(n).run(geometry::squared_norm(n))?;
        let step = self.args.step as f64;
        let correction = match bias_correction {
            true => (1.0 - beta2.powf(step)).sqrt() / (1.0 - beta1.powf(step)),
            false => 1.0,
        };
        let call = gpu.kernel("lamb_length", &[])?.slice(of_weights).slice(of_direction).u64(self.n_blocks());
        let call = call.f32((self.args.lr * correction) as f32).f32(min_coeff as f32).f32(max_coeff as f32);
        call.slice(length).run(geometry::one_block())?;
        let call = gpu.kernel("lamb_apply", &[T::DTYPE])?.view(weights.master).view(first).view(second);
        let call = call.optional(weights.working).slice(length).f32(decay).f32(eps).u32(inside);
        call.u64(n).run(geometry::elements(n))
    }

    fn adafactor<T: Float>(&self, gpu: &Kernels<'_>, weights: &Weights<'_, T>) -> Form {
        let Rule::Adafactor(adafactor) = self.rule else { return Err(FormError::NoForm) };
        let AdafactorArgs { beta2_decay, eps1, eps2, d, relative } = adafactor;
        let Extent { batch, rows, cols, factored } = Extent::new(self.shape.sizes());
        let (n, blocks, count) = (self.n, 8 * self.n_blocks(), self.args.step as f64);
        let memory = gpu.temporary(2 * blocks + 4 + 4 * batch)?;
        let [of_weights, of_direction] = [memory.part(0, blocks)?, memory.part(blocks, blocks)?];
        let (alpha, means) = (memory.part(2 * blocks, 4)?, memory.part(2 * blocks + 4, 4 * batch)?);
        let (scale, weight) = (self.args.grad_scale, count.powf(beta2_decay) as f32);
        let floor = adafactor.floor() as f32;
        self.squares(gpu, gpu.slice(weights.master)?, of_weights)?;
        let (row_var, col_var) = match factored {
            true => (Some(self.state(0)?), self.state(1)?),
            false => (None, self.state(2)?),
        };
        if let Some(row_var) = row_var {
            let call =
                gpu.kernel("adafactor_rows", &[])?.view(&self.grad).view(row_var).f32(scale).f32(weight);
            call.u32(batch * rows).u32(cols).run(geometry::rows(batch * rows, cols))?;
            let call = gpu.kernel("adafactor_columns", &[])?.view(&self.grad).view(col_var).f32(scale);
            let call = call.f32(weight).u32(batch).u32(rows).u32(cols);
            call.run(geometry::columns(batch, cols))?;
            let call = gpu.kernel("adafactor_means", &[])?.view(row_var).slice(means).f32(eps1 as f32);
            call.u32(batch).u32(rows).run(geometry::rows(batch, rows))?;
        } else {
            let call = gpu.kernel("adafactor_variance", &[])?.view(col_var).view(&self.grad).f32(scale);
            call.f32(weight).u64(n).run(geometry::elements(n))?;
        }
        let call = gpu.kernel("adafactor_squares", &[])?.view(&self.grad).optional(row_var);
        let call = if factored { call.slice(means) } else { call.null() };
        let call = call.view(col_var).slice(of_direction).f32(scale).f32(floor).u32(rows).u32(cols);
        call.u64(n).run(geometry::squared_norm(n))?;
        let rate = adafactor.rate(self.args.lr, self.args.step) as f32;
        let call = gpu.kernel("adafactor_alpha", &[])?.slice(of_weights).slice(of_direction);
        let call = call
            .u64(self.n_blocks())
            .f32(rate)
            .f32(eps2 as f32)
            .f32(d as f32)
            .u32(usize::from(relative))
            .slice(alpha);
        call.u64(n).run(geometry::one_block())?;
        let call = gpu.kernel("adafactor_apply", &[T::DTYPE])?.view(weights.master).view(&self.grad);
        let call = call.optional(row_var);
        let call = if factored { call.slice(means) } else { call.null() };
        let call = call.view(col_var).slice(alpha).optional(weights.working).f32(scale).f32(floor);
        call.f32(self.args.keep()).u32(rows).u32(cols).u64(n).run(geometry::elements(n))
    }

    fn muon<T: Float>(
        &self,
        gpu: &Kernels<'_>,
        weights: &Weights<'_, T>,
        muon: &MuonArgs,
        [rows, cols]: [usize; 2],
    ) -> Form {
        let (n, side) = (self.n, rows.min(cols));
        let scratch = gpu.slice(self.scratch.as_ref().ok_or(FormError::NoForm)?)?;
        // The direction, another matrix of its size, and two of the smaller side.
        let matrix = |first: usize, elems: usize| forms::part(scratch, 4 * first..4 * (first + elems));
        let (x, y) = (matrix(0, n)?, matrix(n, n)?);
        let (gram, polynomial) = (matrix(2 * n, side * side)?, matrix(2 * n + side * side, side * side)?);
        let call = gpu.kernel("muon_momentum", &[])?.slice(x).view(self.state(0)?).view(&self.grad);
        let call = call.f32(self.args.grad_scale).f32(muon.momentum as f32).f32((1.0 - muon.momentum) as f32);
        call.u32(usize::from(muon.nesterov)).u64(n).run(geometry::elements(n))?;
        let memory = gpu.temporary(8 * (self.n_blocks() + 1))?;
        let (norm, blocks) = (memory.part(0, 8)?, memory.part(8, 8 * self.n_blocks())?);
        self.squares(gpu, x, blocks)?;
        let call = gpu.kernel("sum_f64", &[])?.slice(blocks).slice(norm).u64(self.n_blocks());
        call.run(geometry::one_block())?;
        let call = gpu.kernel("muon_divide", &[])?.slice(x).slice(norm).f32(muon.eps as f32).u64(n);
        call.run(geometry::elements(n))?;
        let blend = |x: Slice<'_>, y: Slice<'_>, [keep, step]: [f32; 2], n: usize| {
            let call = gpu.kernel("muon_blend", &[DType::F32])?.slice(x).slice(y).null().f32(keep).f32(step);
            call.u64(n).run(geometry::elements(n))
        };
        let multiply = |a: Matrix<'_>, b: Matrix<'_>, out: Slice<'_>| {
            gpu.multiply_slice((DType::F32, 1), [a, b], (out, DType::F32, Store::Overwrite), None)
        };
        let [a, b, c] = muon.ns_coefficients.map(|x| x as f32);
        let whole = Matrix::new(x, rows, cols);
        let [g, p] = [gram, polynomial].map(|matrix| Matrix::new(matrix, side, side));
        for _ in 0..muon.ns_steps {
            multiply(whole.t_if(rows > cols), whole.t_if(rows <= cols), gram)?;
            multiply(g, g, polynomial)?;
            blend(polynomial, gram, [c, b], side * side)?;
            let [left, right] = if rows > cols { [whole, p] } else { [p, whole] };
            multiply(left, right, y)?;
            blend(x, y, [a, 1.0], n)?;
        }
        let call =
            gpu.kernel("muon_blend", &[T::DTYPE])?.view(weights.master).slice(x).optional(weights.working);
        call.f32(self.args.keep()).f32(-muon.adjusted_lr as f32).u64(n).run(geometry::elements(n))
    }
}
