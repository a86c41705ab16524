//! A step of a rule on a GPU, on up to 64 parameters or pieces of some in each launch. Nothing of it waits for the host: norms
//! and lengths stay on the GPU.

use oarlock_cuda::Pieces;
use oarlock_cuda::adafactor::Matrices;
use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry::{self, NORM_BLOCK};
use oarlock_kernels::optim::adafactor::{AdafactorArgs, Extent};
use oarlock_kernels::optim::muon::MuonArgs;
use oarlock_kernels::{DType, Store};

use super::element_kernel::ElementKernel;
use super::rule::sides;
use super::{Role, Rule, StepArgs, muon_adam, muon_args, muon_iterate_bytes};
use crate::cuda::{Form, FormError, Found, Kernels, Matrix, Temporary, forms};
use crate::launch::{Stretch, View, ViewMut};
use crate::shape::Shape;

/// What a launch can treat alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each element by itself.
    Elements,
    /// What is no hidden matrix, by the rule of Muon.
    OtherThanMatrices,
    /// Parameters of all shapes, each with norms of its own.
    Parameters,
    /// Hidden matrices of so many rows and columns, by the rule of Muon.
    Matrices([usize; 2]),
}

impl Kind {
    /// That of a parameter; none where the rule has no form for a GPU.
    pub fn of(rule: &Rule, shape: &Shape, role: Role) -> Option<Kind> {
        match rule {
            Rule::AdamW { .. } | Rule::Adam { .. } | Rule::Sgd { .. } => Some(Kind::Elements),
            Rule::Adagrad { .. } | Rule::Lion { .. } => Some(Kind::Elements),
            Rule::Lamb { .. } | Rule::Adafactor(_) => Some(Kind::Parameters),
            Rule::Muon { .. } => Some(sides(shape, role).map_or(Kind::OtherThanMatrices, Kind::Matrices)),
            Rule::LowRank(_) | Rule::OneBit(_) | Rule::EightBit(_) | Rule::Custom(_) => None,
        }
    }

    /// What a parameter needs of the workspace on a GPU.
    pub fn workspace_bytes(&self) -> Option<usize> {
        match *self {
            Kind::Matrices(sides) => Some(muon_iterate_bytes(sides).max(1)),
            _ => None,
        }
    }
}

/// What a step has declared of a parameter or a piece.
pub(super) struct Declared {
    pub n: usize,
    pub shape: Shape,
    pub weights: Stretch,
    pub states: [Option<Stretch>; 3],
    pub grad: View<f32>,
    pub working: Option<Stretch>,
}

impl Declared {
    fn n_blocks(&self) -> usize {
        self.n.div_ceil(NORM_BLOCK)
    }

    /// As Adafactor sees it.
    fn matrices(&self) -> Found<Matrices> {
        let Extent { batch, rows, cols, .. } = Extent::new(self.shape.sizes());
        Matrices::new([batch, rows, cols]).ok_or(FormError::NoForm)
    }
}

/// A step on some parameters, which are of one kind.
pub(super) struct Batch<'l> {
    gpu: Kernels<'l>,
    rule: &'l Rule,
    args: &'l StepArgs,
    /// That of the working copies.
    dtype: DType,
    params: &'l [Declared],
}

/// Memory in which the launches of a step leave each other something of each parameter.
struct Scratch {
    memory: Temporary,
    starts: Vec<usize>,
}

impl Scratch {
    /// That of a parameter.
    fn of(&self, param: usize) -> Found<Slice<'_>> {
        self.memory.part(self.starts[param], self.starts[param + 1] - self.starts[param])
    }
}

impl<'l> Batch<'l> {
    pub fn new(
        gpu: Kernels<'l>,
        (rule, args): (&'l Rule, &'l StepArgs),
        dtype: DType,
        params: &'l [Declared],
    ) -> Batch<'l> {
        Batch { gpu, rule, args, dtype, params }
    }

    /// The step, with the workspace of the kind.
    pub fn run(&self, kind: Kind, workspace: Option<&ViewMut<u8>>) -> Form {
        let known = |kernel: Option<ElementKernel>| kernel.ok_or(FormError::NoForm);
        match kind {
            Kind::Elements => self.elements(&known(ElementKernel::of(self.rule, self.args))?, [0, 1]),
            Kind::OtherThanMatrices => {
                let adam = muon_adam(self.rule, self.args);
                self.elements(&known(adam.as_ref().map(ElementKernel::adam))?, [1, 2])
            }
            Kind::Parameters => match *self.rule {
                Rule::Adafactor(adafactor) => self.adafactor(adafactor),
                _ => self.lamb(),
            },
            Kind::Matrices(sides) => {
                let muon = muon_args(self.rule, self.args, sides).ok_or(FormError::NoForm)?;
                self.muon(&muon, sides, workspace.ok_or(FormError::NoForm)?)
            }
        }
    }

    fn weights(&self, param: &Declared) -> Found<Slice<'l>> {
        self.gpu.slice(&param.weights)
    }

    fn grad(&self, param: &Declared) -> Found<Slice<'l>> {
        self.gpu.slice(&param.grad)
    }

    fn working(&self, param: &Declared) -> Found<Option<Slice<'l>>> {
        param.working.as_ref().map(|working| self.gpu.slice(working)).transpose()
    }

    /// A state; none where the rule has none for this parameter.
    fn state(&self, param: &Declared, index: usize) -> Found<Option<Slice<'l>>> {
        param.states[index].as_ref().map(|state| self.gpu.slice(state)).transpose()
    }

    /// So many bytes for each parameter.
    fn scratch(&self, bytes: impl Fn(&Declared) -> Found<usize>) -> Found<Scratch> {
        let mut starts = vec![0];
        for param in self.params {
            starts.push(starts[starts.len() - 1] + bytes(param)?.next_multiple_of(16));
        }
        Ok(Scratch { memory: self.gpu.temporary(starts[starts.len() - 1])?, starts })
    }

    /// A table of the parameters that `add` puts into it.
    fn table<'t>(
        &self,
        add: impl Fn(&mut Pieces<'t>, usize, &'l Declared) -> Found<bool>,
    ) -> Found<Pieces<'t>> {
        let mut table = Pieces::new();
        for (index, param) in self.params.iter().enumerate() {
            if !add(&mut table, index, param)? {
                return Err(FormError::NoForm);
            }
        }
        Ok(table)
    }

    /// A rule for each element by itself, with these of the states.
    fn elements(&self, kernel: &ElementKernel, [first, second]: [usize; 2]) -> Form {
        let table = self.table(|table, _, param| {
            let states = [self.state(param, first)?, self.state(param, second)?];
            let (weights, grad) = (Some(self.weights(param)?), Some(self.grad(param)?));
            Ok(table.push(param.n, [weights, states[0], states[1], grad, self.working(param)?]))
        })?;
        kernel.run(&self.gpu, self.dtype, &table)
    }

    fn lamb(&self) -> Form {
        let Rule::Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff } =
            *self.rule
        else {
            return Err(FormError::NoForm);
        };
        // A length, and the squared norms of weights and direction.
        let scratch = self.scratch(|param| Ok(8 * (1 + 2 * param.n_blocks())))?;
        let (decay, eps, inside) = (self.args.weight_decay as f32, eps as f32, usize::from(eps_inside_sqrt));
        let moments = self.table(|table, index, param| {
            let states = [self.state(param, 0)?, self.state(param, 1)?];
            let (weights, grad) = (Some(self.weights(param)?), Some(self.grad(param)?));
            Ok(table.push(param.n, [weights, states[0], states[1], grad, Some(scratch.of(index)?)]))
        })?;
        let betas = [beta1, 1.0 - beta1, beta2, 1.0 - beta2].map(|beta| beta as f32);
        let call = self.gpu.kernel("lamb_moments", &[])?.pieces(&moments).f32(self.args.grad_scale);
        call.f32(decay).f32s(&betas).f32(eps).u32(inside).run(geometry::pieces(&moments))?;
        let step = self.args.step as f64;
        let correction = match bias_correction {
            true => (1.0 - libm::pow(beta2, step)).sqrt() / (1.0 - libm::pow(beta1, step)),
            false => 1.0,
        };
        let lengths = self.table(|table, index, param| {
            Ok(table.push_tasks(1, param.n, [None, None, None, None, Some(scratch.of(index)?)]))
        })?;
        let call = self.gpu.kernel("lamb_length", &[])?.pieces(&lengths);
        let call = call.f32((self.args.lr * correction) as f32).f32(min_coeff as f32).f32(max_coeff as f32);
        call.run(geometry::pieces(&lengths))?;
        let apply = self.table(|table, index, param| {
            let states = [self.state(param, 0)?, self.state(param, 1)?];
            let (weights, working) = (Some(self.weights(param)?), self.working(param)?);
            Ok(table.push(param.n, [weights, states[0], states[1], working, Some(scratch.of(index)?)]))
        })?;
        let call = self.gpu.kernel("lamb_apply", &[self.dtype])?.pieces(&apply);
        call.f32(decay).f32(eps).u32(inside).run(geometry::pieces(&apply))
    }

    fn adafactor(&self, adafactor: AdafactorArgs) -> Form {
        let AdafactorArgs { beta2_decay, eps1, eps2, d, relative } = adafactor;
        let (scale, floor) = (self.args.grad_scale, adafactor.floor() as f32);
        let weight = libm::pow(self.args.step as f64, beta2_decay) as f32;
        let scratch = self.scratch(|param| Ok(param.matrices()?.scratch_bytes()))?;
        let rows_of = |param: &Declared| self.state(param, 0);
        // A vector keeps its second moments in the last state.
        let columns_of = |param: &Declared| match self.state(param, 1)? {
            None => self.state(param, 2),
            columns => Ok(columns),
        };
        let launch = |op, numbers: &[f32], table: &Pieces<'_>| {
            let call = self.gpu.kernel(op, &[])?.pieces(table).f32s(numbers);
            call.run(geometry::pieces(table))
        };
        let rows = self.table(|table, _, param| {
            let (of, Some(row_var)) = (param.matrices()?, rows_of(param)?) else { return Ok(true) };
            let operands = [Some(self.grad(param)?), Some(row_var), None, None];
            Ok(table.push_matrix(of.row_tasks(), param.n, operands, of.sides()))
        })?;
        if !rows.is_empty() {
            launch("adafactor_rows", &[scale, weight], &rows)?;
        }
        let columns = self.table(|table, index, param| {
            let (of, scratch) = (param.matrices()?, scratch.of(index)?);
            let operands = [Some(self.grad(param)?), Some(scratch), None, None];
            Ok(table.push_matrix(of.column_tasks(), param.n, operands, of.sides()))
        })?;
        launch("adafactor_columns", &[], &columns)?;
        let moments = self.table(|table, index, param| {
            let of = param.matrices()?;
            let operands = [Some(scratch.of(index)?), columns_of(param)?, None, None];
            Ok(table.push_matrix(of.moment_tasks(), param.n, operands, of.sides()))
        })?;
        launch("adafactor_moments", &[scale, weight], &moments)?;
        let factors = self.table(|table, index, param| {
            let of = param.matrices()?;
            let operands = [rows_of(param)?, Some(scratch.of(index)?), None, None];
            Ok(table.push_matrix(of.factor_tasks(), param.n, operands, of.sides()))
        })?;
        launch("adafactor_factors", &[eps1 as f32], &factors)?;
        let squares = self.table(|table, index, param| {
            let weights = relative.then(|| self.weights(param)).transpose()?;
            let operands = [Some(self.grad(param)?), columns_of(param)?, Some(scratch.of(index)?), weights];
            Ok(table.push_matrix(param.n_blocks(), param.n, operands, param.matrices()?.sides()))
        })?;
        launch("adafactor_squares", &[scale, floor], &squares)?;
        let lengths = self.table(|table, index, param| {
            let operands = [Some(scratch.of(index)?), None, None, None];
            Ok(table.push_matrix(1, param.n, operands, param.matrices()?.sides()))
        })?;
        let rate = adafactor.rate(self.args.lr, self.args.step) as f32;
        let call = self.gpu.kernel("adafactor_alpha", &[])?.pieces(&lengths);
        let call = call.f32s(&[rate, eps2 as f32, d as f32]).u32(usize::from(relative));
        call.run(geometry::pieces(&lengths))?;
        let apply = self.table(|table, index, param| {
            let (weights, grad) = (Some(self.weights(param)?), Some(self.grad(param)?));
            let columns = columns_of(param)?;
            let operands = [weights, grad, columns, Some(scratch.of(index)?), self.working(param)?];
            Ok(table.push(param.n, operands))
        })?;
        let call = self.gpu.kernel("adafactor_apply", &[self.dtype])?.pieces(&apply);
        call.f32s(&[scale, floor, self.args.keep()]).run(geometry::pieces(&apply))
    }

    /// On matrices of one shape, whose directions lie one after the other.
    fn muon(&self, muon: &MuonArgs, [rows, cols]: [usize; 2], workspace: &ViewMut<u8>) -> Form {
        let (gpu, batch, n, side) = (self.gpu, self.params.len(), rows * cols, rows.min(cols));
        let workspace = gpu.slice(workspace)?;
        // The directions, as many matrices of their size, and twice as many of the smaller side.
        let [whole, square] = [batch * n, batch * side * side];
        let part = |first: usize, elems: usize| forms::part(workspace, 4 * first..4 * (first + elems));
        let (x, y) = (part(0, whole)?, part(whole, whole)?);
        let (gram, polynomial) = (part(2 * whole, square)?, part(2 * whole + square, square)?);
        let direction = |index: usize| part(index * n, n);
        let run = |op, dtypes: &[DType], table: &Pieces<'_>, numbers: &[f32]| {
            gpu.kernel(op, dtypes)?.pieces(table).f32s(numbers).run(geometry::pieces(table))
        };
        let momentum = self.table(|table, index, param| {
            let operands = [Some(direction(index)?), self.state(param, 0)?, Some(self.grad(param)?)];
            Ok(table.push(n, [operands[0], operands[1], operands[2], None, None]))
        })?;
        let call = gpu.kernel("muon_momentum", &[])?.pieces(&momentum).f32(self.args.grad_scale);
        let call = call.f32(muon.momentum as f32).f32((1.0 - muon.momentum) as f32);
        call.u32(usize::from(muon.nesterov)).run(geometry::pieces(&momentum))?;
        // The norm, and the squared norms of tiles.
        let scratch = self.scratch(|param| Ok(8 * (1 + param.n_blocks())))?;
        let norm = |index: usize| forms::part(scratch.of(index)?, 0..4);
        let blocks = |index: usize| forms::part(scratch.of(index)?, 8..8 * (1 + n.div_ceil(NORM_BLOCK)));
        let squares = self.table(|table, index, _| {
            Ok(table.push(n, [Some(direction(index)?), Some(blocks(index)?), None, None, None]))
        })?;
        run("squared_norms", &[], &squares, &[])?;
        let norms = self.table(|table, index, _| {
            Ok(table.push_tasks(1, n, [Some(blocks(index)?), Some(norm(index)?), None, None, None]))
        })?;
        run("muon_norm", &[], &norms, &[muon.eps as f32])?;
        let divide = self.table(|table, index, _| {
            Ok(table.push(n, [Some(direction(index)?), Some(norm(index)?), None, None, None]))
        })?;
        run("muon_divide", &[], &divide, &[])?;
        let blend = |x: Slice<'l>, y: Slice<'l>, numbers: [f32; 2], elems: usize| {
            let mut table = Pieces::new();
            if !table.push(elems, [Some(x), None, None, Some(y), None]) {
                return Err(FormError::NoForm);
            }
            run("muon_blend", &[DType::F32], &table, &numbers)
        };
        let multiply = |operands: [Matrix<'_>; 2], out: Slice<'_>| {
            gpu.multiply_slice((DType::F32, batch), operands, (out, DType::F32, Store::Overwrite), None)
        };
        let [a, b, c] = muon.ns_coefficients.map(|x| x as f32);
        let all = Matrix::new(x, rows, cols);
        let [g, p] = [gram, polynomial].map(|matrix| Matrix::new(matrix, side, side));
        for _ in 0..muon.ns_steps {
            multiply([all.t_if(rows > cols), all.t_if(rows <= cols)], gram)?;
            multiply([g, g], polynomial)?;
            blend(polynomial, gram, [c, b], square)?;
            multiply(if rows > cols { [all, p] } else { [p, all] }, y)?;
            blend(x, y, [a, 1.0], whole)?;
        }
        let apply = self.table(|table, index, param| {
            let (weights, working) = (Some(self.weights(param)?), self.working(param)?);
            Ok(table.push(n, [weights, None, None, Some(direction(index)?), working]))
        })?;
        run("muon_blend", &[self.dtype], &apply, &[self.args.keep(), -muon.adjusted_lr as f32])
    }
}
