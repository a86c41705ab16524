//! The optimizers: a closed set of rules, and one step of a rule on a part of flat buffers.

use std::ops::Range;

use crate::arena::{ALIGN, Buffer};
use crate::cpu::Cpu;
use crate::cpu::optim::adafactor::{self, AdafactorArgs, Extent};
use crate::cpu::optim::adagrad::Adagrad;
use crate::cpu::optim::adam::Adam;
use crate::cpu::optim::lamb::{self, LambArgs};
use crate::cpu::optim::lion::Lion;
use crate::cpu::optim::muon::{self, MuonArgs};
use crate::cpu::optim::sgd::Sgd;
use crate::cpu::optim::{Buffers, run};
use crate::device::Device;
use crate::dtype::{DType, Element, Float};
use crate::error::{Error, Result};
use crate::flat::{FlatBuffer, WriteLease};
use crate::launch::{Launch, Mode, View, ViewMut};
use crate::ops::with_float;
use crate::shape::Shape;

pub use crate::cpu::optim::StepArgs;

/// The most states that a rule keeps.
const MAX_STATES: usize = 3;

/// How gradients change weights. The parameters have the names of `torch.optim` and DeepSpeed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `torch.optim.AdamW`: weight decay shrinks the weights (Loshchilov and Hutter 2019).
    AdamW {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the corrected second moment.
        eps: f64,
    },
    /// `torch.optim.Adam`: weight decay is a part of the gradient (Kingma and Ba 2015).
    Adam {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the root of the corrected second moment.
        eps: f64,
    },
    /// `torch.optim.SGD`.
    Sgd {
        /// What the momentum keeps of itself; 0 for none.
        momentum: f64,
        /// What of the gradient does not enter the momentum.
        dampening: f64,
        /// Look ahead (Nesterov).
        nesterov: bool,
    },
    /// `torch.optim.Adagrad` (Duchi, Hazan and Singer 2011).
    Adagrad {
        /// The learning rate is divided by 1 + this · steps before.
        lr_decay: f64,
        /// The sum of squares at the start.
        initial_accumulator_value: f64,
        /// Added to the root of the sum.
        eps: f64,
    },
    /// DeepSpeed's `FusedLion` (Chen et al. 2023). Where momentum and gradient are both zero nothing moves.
    Lion {
        /// The share of the momentum in the direction.
        beta1: f64,
        /// Decay of the momentum.
        beta2: f64,
    },
    /// DeepSpeed's `FusedLamb` (You et al. 2020).
    Lamb {
        /// Decay of the first moment.
        beta1: f64,
        /// Decay of the second moment.
        beta2: f64,
        /// Added to the second moment's root, or under it.
        eps: f64,
        /// Add `eps` under the root.
        eps_inside_sqrt: bool,
        /// Correct the moments for their start at zero.
        bias_correction: bool,
        /// The greatest ratio of norms.
        max_coeff: f64,
        /// The least ratio of norms.
        min_coeff: f64,
    },
    /// `torch.optim.Adafactor` (Shazeer and Stern 2018).
    Adafactor {
        /// The second moment takes up step^this of a new square.
        beta2_decay: f64,
        /// The least root of a second moment; `None`: the f32 epsilon.
        eps1: Option<f64>,
        /// The least size of a parameter that steps are relative to.
        eps2: f64,
        /// The root mean square to which a direction is clipped.
        d: f64,
    },
    /// `torch.optim.Muon` (Jordan et al. 2024) on hidden matrices, AdamW on everything else. The Newton–Schulz
    /// iteration runs in f32, where torch and DeepSpeed take 16 bits.
    Muon {
        /// Decay of the momentum.
        momentum: f64,
        /// Look ahead (Nesterov).
        nesterov: bool,
        /// The polynomial of the iteration.
        ns_coefficients: [f64; 3],
        /// Rounds of the iteration.
        ns_steps: usize,
        /// The least norm that the iteration divides by.
        eps: f64,
        /// How the learning rate follows the shape.
        adjust_lr: AdjustLr,
        /// AdamW's learning rate as a multiple of Muon's.
        adam_lr_ratio: f64,
        /// AdamW's decay of the first moment.
        adam_beta1: f64,
        /// AdamW's decay of the second moment.
        adam_beta2: f64,
        /// AdamW's epsilon.
        adam_eps: f64,
    },
}

/// How Muon's learning rate follows the shape of a matrix: torch's `adjust_lr_fn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdjustLr {
    /// `original`: times √max(1, rows / columns).
    Original,
    /// `match_rms_adamw`: times 0.2 · √max(rows, columns), so that AdamW's learning rates serve.
    MatchRmsAdamW,
}

/// What a step must be given at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Any run of elements, also over the borders of parameters.
    Elementwise,
    /// One whole parameter.
    WholeParameters,
}

/// What a rule must know of a parameter besides its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A weight of a hidden layer.
    Matrix,
    /// Anything else: embeddings, the head, norms, biases.
    Other,
}

/// A part of a flat buffer.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// The buffer.
    pub flat: &'a FlatBuffer,
    /// Its elements.
    pub range: Range<usize>,
}

/// What a step reads and writes. Each part that is written lies in a buffer of its own.
#[derive(Clone, Debug)]
pub struct UpdateParts<'a> {
    /// The working copy.
    pub weights: Part<'a>,
    /// Its dtype.
    pub dtype: DType,
    /// f32 master weights; `None` where the working copy is f32 and the master itself.
    pub master: Option<Part<'a>>,
    /// f32 gradients.
    pub grads: Part<'a>,
    /// The rule's f32 states, one for each of its names; all zero before the first step.
    pub state: &'a [Part<'a>],
}

impl Rule {
    /// The name of the rule.
    pub fn name(&self) -> &'static str {
        match self {
            Rule::AdamW { .. } => "adamw",
            Rule::Adam { .. } => "adam",
            Rule::Sgd { .. } => "sgd",
            Rule::Adagrad { .. } => "adagrad",
            Rule::Lion { .. } => "lion",
            Rule::Lamb { .. } => "lamb",
            Rule::Adafactor { .. } => "adafactor",
            Rule::Muon { .. } => "muon",
        }
    }

    /// What a step must be given at once.
    pub fn needs(&self) -> Needs {
        match self {
            Rule::Lamb { .. } | Rule::Adafactor { .. } | Rule::Muon { .. } => Needs::WholeParameters,
            _ => Needs::Elementwise,
        }
    }

    /// Whether it is of the same kind and keeps the same states, so that it differs in numbers only.
    pub fn is_like(&self, other: &Rule) -> bool {
        self.name() == other.name() && self.state_names() == other.state_names()
    }

    /// The states kept beside the f32 master weights, by torch's names.
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            Rule::AdamW { .. } | Rule::Adam { .. } | Rule::Lamb { .. } => &["exp_avg", "exp_avg_sq"],
            Rule::Sgd { momentum: 0.0, .. } => &[],
            Rule::Sgd { .. } => &["momentum_buffer"],
            Rule::Adagrad { .. } => &["sum"],
            Rule::Lion { .. } => &["exp_avg"],
            Rule::Adafactor { .. } => &["row_var", "col_var", "variance"],
            Rule::Muon { .. } => &["momentum_buffer", "exp_avg", "exp_avg_sq"],
        }
    }

    /// The shape of state `index` of a parameter, as torch has it; `None` where the parameter does without.
    pub fn state_shape(&self, index: usize, shape: &Shape, role: Role) -> Option<Shape> {
        let sizes = shape.sizes();
        let with = |dim: usize| {
            let mut sizes = sizes.to_vec();
            sizes[dim] = 1;
            Shape::new(&sizes).ok()
        };
        match self {
            Rule::Adafactor { .. } if sizes.len() < 2 => (index == 2).then_some(*shape),
            Rule::Adafactor { .. } => match index {
                0 => with(sizes.len() - 1),
                1 => with(sizes.len() - 2),
                _ => None,
            },
            Rule::Muon { .. } => {
                let used = if is_matrix(shape, role) { index == 0 } else { index == 1 || index == 2 };
                used.then_some(*shape)
            }
            _ => (index < self.state_names().len()).then_some(*shape),
        }
    }

    /// The elements of state `index` of a parameter; 0 where the parameter does without.
    pub fn state_len(&self, index: usize, shape: &Shape, role: Role) -> usize {
        self.state_shape(index, shape, role).map_or(0, |shape| shape.n_elems())
    }

    /// The decays of its moments, where [`Rule::with_betas`] sets them.
    pub fn betas(&self) -> Option<[f64; 2]> {
        match *self {
            Rule::AdamW { beta1, beta2, .. }
            | Rule::Adam { beta1, beta2, .. }
            | Rule::Lion { beta1, beta2 }
            | Rule::Lamb { beta1, beta2, .. } => Some([beta1, beta2]),
            Rule::Sgd { .. } | Rule::Adagrad { .. } | Rule::Adafactor { .. } | Rule::Muon { .. } => None,
        }
    }

    /// The rule with the decays that a schedule sets. A rule that has no such pair is left as it is, as by
    /// DeepSpeed's `OneCycle`.
    pub fn with_betas(mut self, betas: [f64; 2]) -> Rule {
        if let Rule::AdamW { beta1, beta2, .. }
        | Rule::Adam { beta1, beta2, .. }
        | Rule::Lion { beta1, beta2 }
        | Rule::Lamb { beta1, beta2, .. } = &mut self
        {
            [*beta1, *beta2] = betas;
        }
        self
    }
}

/// Memory that steps work in besides their parts: one piece, which serves every parameter that it is large enough for.
pub struct Workspace(Option<Buffer>);

impl Workspace {
    /// Of at least `bytes` bytes, borrowed from the device's pool.
    ///
    /// # Errors
    /// No memory.
    pub fn new(device: &Device, bytes: usize) -> Result<Workspace> {
        let buffer = (bytes > 0).then(|| device.arena().borrow(bytes, "optimizer's workspace"));
        buffer.transpose().map(Workspace)
    }

    /// The first bytes of it, for a launch.
    fn view(&mut self, launch: &mut Launch<'_>, bytes: usize) -> Result<Option<ViewMut<u8>>> {
        let got = self.0.as_ref().map_or(0, Buffer::len_bytes);
        match &mut self.0 {
            _ if bytes == 0 => Ok(None),
            Some(buffer) if bytes <= got => launch.buffer(buffer, bytes).map(Some),
            _ => Err(Error::Shape {
                op: launch.name,
                expected: format!("a workspace of {bytes} bytes"),
                got: format!("{got} bytes"),
            }),
        }
    }
}

/// The bytes of [`Workspace`] that a step of a rule on a parameter needs.
pub fn workspace_bytes(device: &Device, rule: &Rule, shape: &Shape, role: Role) -> usize {
    match rule {
        Rule::Lamb { .. } => 8 * lamb::scratch_len(shape.n_elems()),
        Rule::Adafactor { .. } => 8 * Extent::new(shape.sizes()).scratch_len(),
        Rule::Muon { .. } => match *shape.sizes() {
            [rows, cols] if role == Role::Matrix => muon_workspace_bytes(device, rows, cols),
            _ => 0,
        },
        _ => 0,
    }
}

/// The same for Muon on a matrix of these sizes.
pub fn muon_workspace_bytes(device: &Device, rows: usize, cols: usize) -> usize {
    muon_iterate_bytes(rows, cols) + muon::product_scratch_bytes(device.host(), rows, cols)
}

/// The first part of it, for the iteration's matrices; what follows is for their products.
fn muon_iterate_bytes(rows: usize, cols: usize) -> usize {
    (4 * muon::scratch_len(rows, cols)).next_multiple_of(ALIGN)
}

/// Whether Muon's own rule applies.
fn is_matrix(shape: &Shape, role: Role) -> bool {
    role == Role::Matrix && shape.sizes().len() == 2
}

/// One step: on any run of elements where the rule is [`Needs::Elementwise`] (`shape` and `role` then say nothing), or
/// on one whole parameter of this shape.
///
/// # Errors
/// Parts that do not fit the rule or their buffers, or that are in use elsewhere.
pub fn update(
    device: &Device,
    rule: &Rule,
    args: &StepArgs,
    shape: &Shape,
    role: Role,
    parts: &UpdateParts<'_>,
    workspace: &mut Workspace,
) -> Result<()> {
    check(rule, shape, role, parts)?;
    let n = parts.grads.range.len();
    let n_state: usize = parts.state.iter().map(|part| part.range.len()).sum();
    let bytes = 4 * n + 8 * (n + n_state) + parts.master.as_ref().map_or(0, |_| 2 * n);
    let mut launch = device.launch(rule.name(), 0, bytes as u64);
    let scratch = workspace.view(&mut launch, workspace_bytes(device, rule, shape, role))?;
    let grad = launch.read_flat::<f32>(&parts.grads.flat.read()?, &parts.grads.range)?;
    // Held until the launch is made: no part that is written lies in the buffer of another.
    let mut leases: [Option<WriteLease>; MAX_STATES] = [None, None, None];
    let mut state: [Option<ViewMut<f32>>; MAX_STATES] = [None, None, None];
    for ((lease, state), part) in leases.iter_mut().zip(&mut state).zip(parts.state) {
        if !part.range.is_empty() {
            let lease = lease.insert(part.flat.write()?);
            *state = Some(launch.write_flat(lease, &part.range, Mode::Update)?);
        }
    }
    let (mut working, range) = (parts.weights.flat.write()?, &parts.weights.range);
    let step = Step { rule: *rule, args: *args, shape: *shape, role, grad, state, scratch };
    match &parts.master {
        None => {
            let weights = launch.write_flat(&mut working, range, Mode::Update)?;
            step.launch::<f32>(launch, weights, None)
        }
        Some(master) => {
            let mut lease = master.flat.write()?;
            let weights = launch.write_flat(&mut lease, &master.range, Mode::Update)?;
            with_float!(parts.dtype, "optimizer", T => {
                let working = launch.write_flat::<T>(&mut working, range, Mode::Write)?;
                step.launch(launch, weights, Some(working))
            })
        }
    }
}

/// What a launch of a rule takes along, besides the weights.
struct Step {
    rule: Rule,
    args: StepArgs,
    shape: Shape,
    role: Role,
    grad: View<f32>,
    state: [Option<ViewMut<f32>>; MAX_STATES],
    scratch: Option<ViewMut<u8>>,
}

impl Step {
    fn launch<T: Float>(
        self,
        launch: Launch<'_>,
        weights: ViewMut<f32>,
        working: Option<ViewMut<T>>,
    ) -> Result<()> {
        launch.run(move |cpu| {
            let buffers = Buffers {
                weights: weights.slice(cpu),
                state: self.state.map(|state| state.map_or(&mut [][..], |state| state.slice(cpu))),
                grad: self.grad.slice(cpu),
                working: working.map(|working| working.slice(cpu)),
            };
            // No memory, too, lies where numbers may.
            let none: &mut [f64] = &mut [];
            let scratch = self.scratch.map_or(bytemuck::cast_slice_mut(none), |scratch| scratch.slice(cpu));
            dispatch(cpu, &self.rule, &self.args, (&self.shape, self.role), buffers, scratch);
            Ok(())
        })
    }
}

/// Runs the kernel of a rule, with the scratch memory that it needs.
fn dispatch<T: Float>(
    cpu: &Cpu,
    rule: &Rule,
    args: &StepArgs,
    (shape, role): (&Shape, Role),
    buffers: Buffers<'_, T>,
    scratch: &mut [u8],
) {
    match *rule {
        Rule::AdamW { beta1, beta2, eps } => run(cpu, Adam::<true>::new(beta1, beta2, eps, args), buffers),
        Rule::Adam { beta1, beta2, eps } => run(cpu, Adam::<false>::new(beta1, beta2, eps, args), buffers),
        Rule::Sgd { momentum, dampening, nesterov } => {
            run(cpu, Sgd::new(momentum, dampening, nesterov, args), buffers);
        }
        Rule::Adagrad { lr_decay, initial_accumulator_value, eps } => {
            run(cpu, Adagrad::new(lr_decay, initial_accumulator_value, eps, args), buffers);
        }
        Rule::Lion { beta1, beta2 } => run(cpu, Lion::new(beta1, beta2, args), buffers),
        Rule::Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff } => {
            let lamb = LambArgs { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff };
            lamb::step(cpu, &lamb, args, buffers, bytemuck::cast_slice_mut(scratch));
        }
        Rule::Adafactor { beta2_decay, eps1, eps2, d } => {
            let eps1 = eps1.unwrap_or(f64::from(f32::EPSILON));
            let adafactor = AdafactorArgs { beta2_decay, eps1, eps2, d };
            let extent = Extent::new(shape.sizes());
            adafactor::step(cpu, &adafactor, args, extent, buffers, bytemuck::cast_slice_mut(scratch));
        }
        Rule::Muon { .. } => muon_step(cpu, rule, args, (shape, role), buffers, scratch),
    }
}

fn muon_step<T: Float>(
    cpu: &Cpu,
    rule: &Rule,
    args: &StepArgs,
    (shape, role): (&Shape, Role),
    buffers: Buffers<'_, T>,
    scratch: &mut [u8],
) {
    let Rule::Muon {
        momentum,
        nesterov,
        ns_coefficients,
        ns_steps,
        eps,
        adjust_lr,
        adam_lr_ratio,
        adam_beta1,
        adam_beta2,
        adam_eps,
    } = *rule
    else {
        return;
    };
    if !is_matrix(shape, role) {
        let args = StepArgs { lr: args.lr * adam_lr_ratio, ..*args };
        let Buffers { weights, state: [_, first, second], grad, working } = buffers;
        let buffers = Buffers { weights, state: [first, second, &mut []], grad, working };
        run(cpu, Adam::<true>::new(adam_beta1, adam_beta2, adam_eps, &args), buffers);
        return;
    }
    let (rows, cols) = (shape.sizes()[0], shape.sizes()[1]);
    let ratio = match adjust_lr {
        AdjustLr::Original => (rows as f64 / cols as f64).max(1.0).sqrt(),
        AdjustLr::MatchRmsAdamW => 0.2 * (rows.max(cols) as f64).sqrt(),
    };
    let muon = MuonArgs { momentum, nesterov, ns_coefficients, ns_steps, eps, adjusted_lr: args.lr * ratio };
    let (iterate, products) = scratch.split_at_mut(muon_iterate_bytes(rows, cols));
    muon::step(cpu, &muon, args, (rows, cols), buffers, bytemuck::cast_slice_mut(iterate), products);
}

/// Whether the parts fit the rule, the shape and their buffers.
fn check(rule: &Rule, shape: &Shape, role: Role, parts: &UpdateParts<'_>) -> Result<()> {
    let wrong = |expected: String, got: String| Err(Error::Shape { op: rule.name(), expected, got });
    let whole = rule.needs() == Needs::WholeParameters;
    let n = if whole { shape.n_elems() } else { parts.grads.range.len() };
    let names = rule.state_names();
    if parts.state.len() != names.len() {
        return wrong(format!("the states {names:?}"), format!("{} states", parts.state.len()));
    }
    if parts.master.is_none() && parts.dtype != DType::F32 {
        let expected = "master weights, or an f32 working copy";
        return Err(Error::DType { op: rule.name(), expected, got: parts.dtype });
    }
    let mut all =
        vec![("weights", &parts.weights, n, parts.dtype), ("gradients", &parts.grads, n, f32::DTYPE)];
    all.extend(parts.master.iter().map(|master| ("master weights", master, n, f32::DTYPE)));
    all.extend(names.iter().zip(parts.state).enumerate().map(|(index, (name, part))| {
        let len = if whole { rule.state_len(index, shape, role) } else { n };
        (*name, part, len, f32::DTYPE)
    }));
    for (name, part, len, dtype) in all {
        if part.range.len() != len {
            return wrong(format!("{len} elements of {name}"), format!("elements {:?}", part.range));
        }
        let held = part.flat.len_bytes() / dtype.size();
        if part.range.end > held {
            return wrong(format!("a part of the {held} elements of {name}"), format!("{:?}", part.range));
        }
    }
    Ok(())
}
