//! The optimizers: one step of a rule on a part of flat buffers.

mod ad_ema_mix;
mod custom;
mod eight_bit;
mod element_kernel;
mod form;
mod pieces;
mod rms_prop;
mod rule;

use std::ops::Range;

use oarlock_kernels::optim::adafactor::{self, Extent};
use oarlock_kernels::optim::adagrad::Adagrad;
use oarlock_kernels::optim::adam::Adam;
use oarlock_kernels::optim::eight_bit as packed;
use oarlock_kernels::optim::lamb::{self, LambArgs};
use oarlock_kernels::optim::lion::Lion;
use oarlock_kernels::optim::low_rank::{self, Subspace};
use oarlock_kernels::optim::muon::{self, MuonArgs};
use oarlock_kernels::optim::sgd::Sgd;
use oarlock_kernels::optim::{self, Buffers, MAX_STATES, states};
use oarlock_kernels::{Cpu, DType, Element, Error, Float, Result};

use crate::arena::{ALIGN, Buffer};
use crate::device::Device;
use crate::flat::{FlatBuffer, WriteLease};
use crate::launch::{Launch, Mode, View, ViewMut};
use crate::ops::with_float;
use crate::shape::Shape;

pub use self::ad_ema_mix::AdEmaMixArgs;
pub use self::custom::{Custom, CustomRule, Update};
pub use self::eight_bit::EightBit;
use self::form::Kind;
pub use self::pieces::{Target, muon_workspace_bytes, update_all, workspace_bytes_of_all};
pub use self::rms_prop::RmsPropArgs;
pub use self::rule::{
    AdafactorArgs, AdjustLr, LowRankArgs, Method, Needs, OneBit, OneBitKind, Role, Rule, Sides,
};
use self::rule::{is_matrix, sides};
pub use oarlock_kernels::optim::StepArgs;

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

    fn len_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, Buffer::len_bytes)
    }

    /// The first bytes of it, for a launch.
    fn view(&mut self, launch: &mut Launch<'_>, bytes: usize) -> Result<Option<ViewMut<u8>>> {
        let got = self.len_bytes();
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
        // Its gradient, scaled.
        Rule::Custom(rule) if rule.needs() == Needs::WholeParameters => 4 * shape.n_elems(),
        Rule::Lamb { .. } => 8 * lamb::scratch_len(shape.n_elems()),
        Rule::Adafactor(_) => 8 * Extent::new(shape.sizes()).scratch_len(),
        Rule::Muon { .. } => sides(shape, role).map_or(0, |sides| muon_bytes(device, sides)),
        Rule::LowRank(low) if is_matrix(shape, role) => {
            let space = Subspace::new(low, shape.sizes()[0], shape.sizes()[1]);
            low_rank_bytes(low, &space) + space.product_scratch_bytes(device.host())
        }
        _ => 0,
    }
}

/// The first part of the workspace of a step in a subspace; what follows is for its products.
fn low_rank_bytes(low: &LowRankArgs, space: &Subspace) -> usize {
    (4 * space.scratch_len(low)).next_multiple_of(ALIGN)
}

/// The same for Muon on a matrix of so many rows and columns.
fn muon_bytes(device: &Device, sides: [usize; 2]) -> usize {
    muon_iterate_bytes(sides) + muon::product_scratch_bytes(device.host(), sides[0], sides[1])
}

/// The first part of it, for the iteration's matrices; what follows is for their products.
fn muon_iterate_bytes([rows, cols]: [usize; 2]) -> usize {
    (4 * muon::scratch_len(rows, cols)).next_multiple_of(ALIGN)
}

/// One step: on any run of elements where the rule is [`Needs::Elementwise`] (`shape` and `role` then say nothing), on blocks
/// of one parameter of this shape, or on all of it.
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
    let rule = rule.on(shape, role);
    check(rule, shape, role, parts)?;
    let kind = Kind::of(rule, shape, role).filter(|_| device.is_cuda() && !parts.grads.range.is_empty());
    if let Some(kind) = kind {
        let target = Target { shape: *shape, role, parts: parts.clone() };
        return pieces::launch(device, (rule, args, kind), &[&target], workspace);
    }
    let n = parts.grads.range.len();
    let n_state: usize = parts.state.iter().map(|part| part.range.len()).sum();
    let bytes = 4 * n + 8 * (n + n_state) + parts.master.as_ref().map_or(0, |_| 2 * n);
    let mut launch = device.launch(rule.name(), 0, bytes as u64);
    let scratch = workspace.view(&mut launch, workspace_bytes(device, rule, shape, role))?;
    let grad_lease = parts.grads.flat.read()?;
    let grad = launch.read_flat::<f32>(&grad_lease, &parts.grads.range)?;
    // MemoryStats until the launch is made: no part that is written lies in the buffer of another.
    let mut leases: [Option<WriteLease>; MAX_STATES] = [const { None }; MAX_STATES];
    let mut state: [Option<ViewMut<f32>>; MAX_STATES] = [const { None }; MAX_STATES];
    for ((lease, state), part) in leases.iter_mut().zip(&mut state).zip(parts.state) {
        if !part.range.is_empty() {
            let lease = lease.insert(part.flat.write()?);
            *state = Some(launch.write_flat(lease, &part.range, Mode::Update)?);
        }
    }
    let (mut working, range) = (parts.weights.flat.write()?, &parts.weights.range);
    let step = Step { rule: rule.clone(), args: *args, shape: *shape, role, grad, state, scratch };
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
        Rule::AdamW { beta1, beta2, eps } => {
            optim::step(cpu, Adam::<true>::new(beta1, beta2, eps, args), buffers)
        }
        Rule::Adam { beta1, beta2, eps } => {
            optim::step(cpu, Adam::<false>::new(beta1, beta2, eps, args), buffers)
        }
        Rule::Sgd { momentum, dampening, nesterov } => {
            optim::step(cpu, Sgd::new(momentum, dampening, nesterov, args), buffers);
        }
        Rule::Adagrad { lr_decay, initial_accumulator_value, eps } => {
            optim::step(cpu, Adagrad::new(lr_decay, initial_accumulator_value, eps, args), buffers);
        }
        Rule::Lion { beta1, beta2 } => optim::step(cpu, Lion::new(beta1, beta2, args), buffers),
        Rule::Lamb { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff } => {
            let lamb = LambArgs { beta1, beta2, eps, eps_inside_sqrt, bias_correction, max_coeff, min_coeff };
            lamb::step(cpu, &lamb, args, buffers, bytemuck::cast_slice_mut(scratch));
        }
        Rule::Adafactor(ref adafactor) => {
            let extent = Extent::new(shape.sizes());
            adafactor::step(cpu, adafactor, args, extent, buffers, bytemuck::cast_slice_mut(scratch));
        }
        Rule::Muon { .. } => muon_step(cpu, rule, args, (shape, role), buffers, scratch),
        Rule::LowRank(ref low) if is_matrix(shape, role) => {
            let sizes = (shape.sizes()[0], shape.sizes()[1]);
            let (own, products) =
                scratch.split_at_mut(low_rank_bytes(low, &Subspace::new(low, sizes.0, sizes.1)));
            low_rank::step(cpu, low, args, sizes, buffers, bytemuck::cast_slice_mut(own), products);
        }
        Rule::LowRank(ref low) => low_rank::whole_step(cpu, low, args, buffers),
        Rule::EightBit(ref eight_bit) => eight_bit_step(cpu, eight_bit, args, buffers),
        Rule::Custom(ref rule) => custom_step(cpu, rule, args, shape, buffers, scratch),
        // `check` has refused it.
        Rule::OneBit(_) => {}
    }
}

/// The arguments of Muon for a matrix of these sizes.
fn muon_args(rule: &Rule, args: &StepArgs, [rows, cols]: [usize; 2]) -> Option<MuonArgs> {
    let Rule::Muon { momentum, nesterov, ns_coefficients, ns_steps, eps, adjust_lr, .. } = *rule else {
        return None;
    };
    let ratio = match adjust_lr {
        AdjustLr::Original => (rows as f64 / cols as f64).max(1.0).sqrt(),
        AdjustLr::MatchRmsAdamW => 0.2 * (rows.max(cols) as f64).sqrt(),
    };
    Some(MuonArgs { momentum, nesterov, ns_coefficients, ns_steps, eps, adjusted_lr: args.lr * ratio })
}

/// AdamW's step of Muon on what is not a hidden matrix.
fn muon_adam(rule: &Rule, args: &StepArgs) -> Option<Adam<true>> {
    let Rule::Muon { adam_lr_ratio, adam_beta1, adam_beta2, adam_eps, .. } = *rule else { return None };
    let args = StepArgs { lr: args.lr * adam_lr_ratio, ..*args };
    Some(Adam::new(adam_beta1, adam_beta2, adam_eps, &args))
}

fn muon_step<T: Float>(
    cpu: &Cpu,
    rule: &Rule,
    args: &StepArgs,
    (shape, role): (&Shape, Role),
    buffers: Buffers<'_, T>,
    scratch: &mut [u8],
) {
    let Some([rows, cols]) = sides(shape, role) else {
        let Buffers { weights, state: [_, first, second, ..], grad, working } = buffers;
        let buffers = Buffers { weights, state: states([first, second]), grad, working };
        if let Some(adam) = muon_adam(rule, args) {
            optim::step(cpu, adam, buffers);
        }
        return;
    };
    let (iterate, products) = scratch.split_at_mut(muon_iterate_bytes([rows, cols]));
    if let Some(muon) = muon_args(rule, args, [rows, cols]) {
        muon::step(cpu, &muon, args, (rows, cols), buffers, bytemuck::cast_slice_mut(iterate), products);
    }
}

fn custom_step<T: Float>(
    cpu: &Cpu,
    rule: &Custom,
    args: &StepArgs,
    shape: &Shape,
    buffers: Buffers<'_, T>,
    scratch: &mut [u8],
) {
    match rule.needs() {
        Needs::Elementwise | Needs::Blocks => {
            optim::custom::elementwise(cpu, args.grad_scale, buffers, &|weights, states, grad| {
                rule.update(args, &[grad.len()], weights, states, grad);
            })
        }
        Needs::WholeParameters => {
            let scaled = bytemuck::cast_slice_mut(scratch);
            optim::custom::whole(cpu, args.grad_scale, buffers, scaled, &|weights, states, grad| {
                rule.update(args, shape.sizes(), weights, states, grad);
            });
        }
    }
}

fn eight_bit_step<T: Float>(cpu: &Cpu, eight_bit: &EightBit, args: &StepArgs, buffers: Buffers<'_, T>) {
    let signs = eight_bit.signs();
    match *eight_bit.rule() {
        Rule::AdamW { beta1, beta2, eps } => {
            packed::step(cpu, Adam::<true>::new(beta1, beta2, eps, args), signs, buffers);
        }
        Rule::Lion { beta1, beta2 } => packed::step(cpu, Lion::new(beta1, beta2, args), signs, buffers),
        Rule::Custom(ref rule) => {
            packed::custom(cpu, args.grad_scale, signs, buffers, &|weights, states, grad| {
                rule.update(args, &[grad.len()], weights, states, grad);
            });
        }
        // `Rule::in_8_bits` makes no others.
        _ => {}
    }
}

/// Whether the parts fit the rule, the shape and their buffers.
fn check(rule: &Rule, shape: &Shape, role: Role, parts: &UpdateParts<'_>) -> Result<()> {
    if matches!(rule, Rule::OneBit(_)) {
        return Err(Error::Usage(format!("a step of {} needs all ranks; an engine takes it", rule.name())));
    }
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
        let len = match rule.needs() {
            _ if matches!(rule, Rule::EightBit(_)) => packed::words(n),
            Needs::Elementwise | Needs::Blocks => n,
            Needs::WholeParameters => rule.state_len(index, shape, role),
        };
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
