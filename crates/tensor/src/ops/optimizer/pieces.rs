//! One step of a rule on many pieces of flat buffers: on a GPU up to 64 of them in one launch.

use oarlock_cuda::{Pieces, geometry};
use oarlock_kernels::optim::adagrad::Adagrad;
use oarlock_kernels::optim::adam::Adam;
use oarlock_kernels::optim::lion::Lion;
use oarlock_kernels::optim::sgd::Sgd;
use oarlock_kernels::{DType, Error, Result};

use super::{Needs, Part, Role, Rule, StepArgs, UpdateParts, Workspace, check, update};
use crate::cuda::{Form, FormError, Kernels};
use crate::device::Device;
use crate::flat::{FlatBuffer, Lease, WriteLease};
use crate::launch::{Launch, Mode, Stretch, View};
use crate::ops::with_float;
use crate::shape::Shape;

/// One step on each of these pieces, for a rule that is [`Needs::Elementwise`]: the same as [`update`] of one after the other.
/// No two of them have an element in common.
///
/// # Errors
/// As [`update`], and another rule.
pub fn update_all(device: &Device, rule: &Rule, args: &StepArgs, pieces: &[UpdateParts<'_>]) -> Result<()> {
    if rule.needs() != Needs::Elementwise {
        return Err(Error::Usage(format!("a step of {} on pieces of parameters", rule.name())));
    }
    let kernel = if device.is_cuda() { ElementKernel::of(rule, args) } else { None };
    let Some(kernel) = kernel else {
        let mut none = Workspace::new(device, 0)?;
        return pieces.iter().try_for_each(|parts| {
            let shape = Shape::new(&[parts.grads.range.len()])?;
            update(device, rule, args, &shape, Role::Other, parts, &mut none)
        });
    };
    let filled: Vec<&UpdateParts> = pieces.iter().filter(|parts| !parts.grads.range.is_empty()).collect();
    // A launch is for one kind of working copy.
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let of_dtype: Vec<&UpdateParts> =
            filled.iter().filter(|parts| working_dtype(parts) == dtype).copied().collect();
        of_dtype.chunks(Pieces::MOST).try_for_each(|some| launch(device, rule, &kernel, dtype, some))?;
    }
    Ok(())
}

/// The dtype of the kernel: of a working copy beside master weights, or f32.
fn working_dtype(parts: &UpdateParts<'_>) -> DType {
    if parts.master.is_some() { parts.dtype } else { DType::F32 }
}

/// The leases of a launch that writes several parts of a buffer.
#[derive(Default)]
struct Leases(Vec<(FlatBuffer, WriteLease)>);

impl Leases {
    /// Takes that of a buffer, where it has none yet.
    fn take(&mut self, flat: &FlatBuffer) -> Result<()> {
        if self.0.iter().all(|(held, _)| !held.same(flat)) {
            self.0.push((flat.clone(), flat.write()?));
        }
        Ok(())
    }

    fn of(&self, flat: &FlatBuffer) -> Result<&WriteLease> {
        let held = self.0.iter().find(|(held, _)| held.same(flat));
        // `take` has been called for all of them.
        held.map(|(_, lease)| lease).ok_or_else(|| Error::Usage("a buffer without a lease".to_string()))
    }
}

/// What a launch has declared of a piece.
struct Declared {
    n: usize,
    weights: Stretch,
    states: [Option<Stretch>; 2],
    grad: View<f32>,
    working: Option<Stretch>,
}

fn launch(
    device: &Device,
    rule: &Rule,
    kernel: &ElementKernel,
    dtype: DType,
    pieces: &[&UpdateParts<'_>],
) -> Result<()> {
    let (mut leases, mut bytes) = (Leases::default(), 0);
    for parts in pieces {
        let n = parts.grads.range.len();
        check(rule, &Shape::new(&[n])?, Role::Other, parts)?;
        let written = parts.state.iter().chain(&parts.master).filter(|part| !part.range.is_empty());
        written.chain([&parts.weights]).try_for_each(|part| leases.take(part.flat))?;
        bytes += 4 * n + 8 * n * (1 + parts.state.len()) + parts.master.as_ref().map_or(0, |_| 2 * n);
    }
    let grads: Vec<Lease> = pieces.iter().map(|parts| parts.grads.flat.read()).collect::<Result<_>>()?;
    let mut launch = device.launch(rule.name(), 0, bytes as u64);
    let mut declared = Vec::with_capacity(pieces.len());
    for (parts, grad) in pieces.iter().zip(&grads) {
        let working = match &parts.master {
            None => None,
            Some(_) => {
                let lease = leases.of(parts.weights.flat)?;
                let range = &parts.weights.range;
                Some(with_float!(dtype, "optimizer", T => launch.stretch::<T>(lease, range, Mode::Write))?)
            }
        };
        let mut states = [None; 2];
        for (state, part) in states.iter_mut().zip(parts.state).filter(|(_, part)| !part.range.is_empty()) {
            *state = Some(f32_stretch(&mut launch, &leases, part)?);
        }
        declared.push(Declared {
            n: parts.grads.range.len(),
            weights: f32_stretch(&mut launch, &leases, parts.master.as_ref().unwrap_or(&parts.weights))?,
            states,
            grad: launch.read_flat::<f32>(grad, &parts.grads.range)?,
            working,
        });
    }
    launch.cuda(|gpu| {
        let mut table = Pieces::new();
        for Declared { n, weights, states, grad, working } in &declared {
            let slice = |stretch: Option<&Stretch>| stretch.map(|stretch| gpu.slice(stretch)).transpose();
            let [first, second] = [slice(states[0].as_ref())?, slice(states[1].as_ref())?];
            let operands =
                [slice(Some(weights))?, first, second, Some(gpu.slice(grad)?), slice(working.as_ref())?];
            if !table.push(*n, operands) {
                return Err(FormError::NoForm);
            }
        }
        kernel.run(gpu, dtype, &table)
    })?;
    let name = rule.name();
    launch
        .run(move |_| -> Result<()> { Err(Error::Usage(format!("{name}: too many elements for a launch"))) })
}

fn f32_stretch<'d>(launch: &mut Launch<'d>, leases: &'d Leases, part: &Part<'_>) -> Result<Stretch> {
    launch.stretch::<f32>(leases.of(part.flat)?, &part.range, Mode::Update)
}

/// The kernel of a rule for each element by itself, with its numbers in a step.
pub(super) struct ElementKernel {
    op: &'static str,
    scalars: Vec<f32>,
    /// Switches that stand before and behind the scalars.
    switches: [Option<bool>; 2],
}

impl ElementKernel {
    /// None of a rule that has no such kernel. The first two states are its own.
    pub fn of(rule: &Rule, args: &StepArgs) -> Option<ElementKernel> {
        let kernel =
            |op, scalars: &[f32], switches| ElementKernel { op, scalars: scalars.to_vec(), switches };
        Some(match *rule {
            Rule::AdamW { beta1, beta2, eps } => {
                ElementKernel::adam(&Adam::<true>::new(beta1, beta2, eps, args))
            }
            Rule::Adam { beta1, beta2, eps } => {
                ElementKernel::adam(&Adam::<false>::new(beta1, beta2, eps, args))
            }
            Rule::Sgd { momentum, dampening, nesterov } => {
                let (scalars, nesterov) = Sgd::new(momentum, dampening, nesterov, args).scalars();
                kernel("sgd", &scalars, [None, Some(nesterov)])
            }
            Rule::Adagrad { lr_decay, initial_accumulator_value, eps } => {
                let scalars = Adagrad::new(lr_decay, initial_accumulator_value, eps, args).scalars();
                kernel("adagrad", &scalars, [None; 2])
            }
            Rule::Lion { beta1, beta2 } => {
                kernel("lion", &Lion::new(beta1, beta2, args).scalars(), [None; 2])
            }
            _ => return None,
        })
    }

    /// That of Adam or AdamW.
    pub fn adam<const DECOUPLED: bool>(adam: &Adam<DECOUPLED>) -> ElementKernel {
        let scalars = adam.scalars().to_vec();
        ElementKernel { op: "adam", scalars, switches: [Some(DECOUPLED), None] }
    }

    /// Launches it.
    pub fn run(&self, gpu: &Kernels<'_>, dtype: DType, pieces: &Pieces<'_>) -> Form {
        let call = gpu.kernel(self.op, &[dtype])?.pieces(pieces);
        let call = match self.switches[0] {
            Some(on) => call.u32(usize::from(on)),
            None => call,
        };
        let call = call.f32s(&self.scalars);
        let call = match self.switches[1] {
            Some(on) => call.u32(usize::from(on)),
            None => call,
        };
        call.run(geometry::pieces(pieces))
    }
}
