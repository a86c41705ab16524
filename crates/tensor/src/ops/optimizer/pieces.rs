//! One step of a rule on many parameters, or pieces of some: on a GPU up to 64 of them in each launch.

use std::collections::BTreeMap;

use oarlock_cuda::Pieces;
use oarlock_kernels::{DType, Error, Result};

use super::form::{Batch, Declared, Kind};
use super::rule::sides;
use super::{
    Part, Role, Rule, StepArgs, UpdateParts, Workspace, check, muon_bytes, muon_iterate_bytes, update,
    workspace_bytes,
};
use crate::device::Device;
use crate::flat::{FlatBuffer, Lease, WriteLease};
use crate::launch::{Launch, Mode, Stretch};
use crate::ops::with_float;
use crate::shape::Shape;

/// What a step changes: a parameter, or a piece of some where the rule allows that.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// The shape of the parameter. It says nothing where the rule is [`Needs::Elementwise`](super::Needs::Elementwise).
    pub shape: Shape,
    /// What the parameter is; the same holds.
    pub role: Role,
    /// What is read and written.
    pub parts: UpdateParts<'a>,
}

/// What the workspace of Muon on a GPU may take so that hidden matrices of one shape go through its iteration together.
const TOGETHER_BYTES: usize = 256 << 20;

/// One step on each of these: the same as [`update`] of one after the other, for which the workspace is large enough. No two of
/// them have an element in common.
///
/// # Errors
/// As [`update`].
pub fn update_all(
    device: &Device,
    rule: &Rule,
    args: &StepArgs,
    targets: &[Target<'_>],
    workspace: &mut Workspace,
) -> Result<()> {
    if !device.is_cuda() {
        return targets.iter().try_for_each(|Target { shape, role, parts }| {
            update(device, rule, args, shape, *role, parts, workspace)
        });
    }
    // A launch is for one kind of working copy, and for what the rule treats alike.
    let mut alike: Vec<(DType, Kind, Vec<&Target>)> = Vec::new();
    for target in targets {
        let Target { shape, role, parts } = target;
        let Some(kind) = Kind::of(rule, shape, *role) else {
            update(device, rule, args, shape, *role, parts, workspace)?;
            continue;
        };
        check(rule, shape, *role, parts)?;
        if parts.grads.range.is_empty() {
            continue;
        }
        let dtype = working_dtype(parts);
        match alike.iter_mut().find(|(other, same, _)| *other == dtype && *same == kind) {
            Some((.., targets)) => targets.push(target),
            None => alike.push((dtype, kind, vec![target])),
        }
    }
    for (_, kind, targets) in &alike {
        let most = kind.workspace_bytes().map_or(Pieces::MOST, |bytes| workspace.len_bytes() / bytes);
        for some in targets.chunks(most.clamp(1, Pieces::MOST)) {
            launch(device, (rule, args, *kind), some, workspace)?;
        }
    }
    Ok(())
}

/// The bytes of [`Workspace`] for a step of [`update_all`] on parameters of these shapes: those of the largest, or more where
/// that saves launches.
pub fn workspace_bytes_of_all(
    device: &Device,
    rule: &Rule,
    params: impl IntoIterator<Item = (Shape, Role)>,
) -> usize {
    let params = params.into_iter();
    match rule {
        Rule::Muon { .. } => {
            muon_workspace_bytes(device, params.filter_map(|(shape, role)| sides(&shape, role)))
        }
        _ => params.map(|(shape, role)| workspace_bytes(device, rule, &shape, role)).max().unwrap_or(0),
    }
}

/// The same for Muon on hidden matrices of so many rows and columns.
pub fn muon_workspace_bytes(device: &Device, matrices: impl IntoIterator<Item = [usize; 2]>) -> usize {
    let (mut largest, mut alike) = (0, BTreeMap::new());
    for sides in matrices {
        largest = largest.max(muon_bytes(device, sides));
        *alike.entry(sides).or_insert(0) += muon_iterate_bytes(sides);
    }
    let together = alike.into_values().filter(|_| device.is_gpu()).map(|bytes| bytes.min(TOGETHER_BYTES));
    together.max().map_or(largest, |together| largest.max(together))
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

/// The step on parameters of one kind with working copies of one dtype, which have been checked; at least one.
pub(super) fn launch(
    device: &Device,
    (rule, args, kind): (&Rule, &StepArgs, Kind),
    targets: &[&Target<'_>],
    workspace: &mut Workspace,
) -> Result<()> {
    let dtype = targets.first().map_or(DType::F32, |target| working_dtype(&target.parts));
    let (mut leases, mut bytes) = (Leases::default(), 0);
    for Target { parts, .. } in targets {
        let n = parts.grads.range.len();
        let n_state: usize = parts.state.iter().map(|part| part.range.len()).sum();
        let written = parts.state.iter().chain(&parts.master).filter(|part| !part.range.is_empty());
        written.chain([&parts.weights]).try_for_each(|part| leases.take(part.flat))?;
        bytes += 4 * n + 8 * (n + n_state) + parts.master.as_ref().map_or(0, |_| 2 * n);
    }
    let read = |target: &&Target<'_>| target.parts.grads.flat.read();
    let grads: Vec<Lease> = targets.iter().map(read).collect::<Result<_>>()?;
    let mut launch = device.launch(rule.name(), 0, bytes as u64);
    let scratch = workspace.view(&mut launch, kind.workspace_bytes().unwrap_or(0) * targets.len())?;
    let mut declared = Vec::with_capacity(targets.len());
    for (Target { shape, parts, .. }, grad) in targets.iter().zip(&grads) {
        let working = match &parts.master {
            None => None,
            Some(_) => {
                let lease = leases.of(parts.weights.flat)?;
                let range = &parts.weights.range;
                Some(with_float!(dtype, "optimizer", T => launch.stretch::<T>(lease, range, Mode::Write))?)
            }
        };
        let mut states = [None; 3];
        for (state, part) in states.iter_mut().zip(parts.state).filter(|(_, part)| !part.range.is_empty()) {
            *state = Some(f32_stretch(&mut launch, &leases, part)?);
        }
        declared.push(Declared {
            n: parts.grads.range.len(),
            shape: *shape,
            weights: f32_stretch(&mut launch, &leases, parts.master.as_ref().unwrap_or(&parts.weights))?,
            states,
            grad: launch.read_flat::<f32>(grad, &parts.grads.range)?,
            working,
        });
    }
    launch.cuda(|gpu| Batch::new(*gpu, (rule, args), dtype, &declared).run(kind, scratch.as_ref()))?;
    let name = rule.name();
    launch
        .run(move |_| -> Result<()> { Err(Error::Usage(format!("{name}: too many elements for a launch"))) })
}

fn f32_stretch<'d>(launch: &mut Launch<'d>, leases: &'d Leases, part: &Part<'_>) -> Result<Stretch> {
    launch.stretch::<f32>(leases.of(part.flat)?, &part.range, Mode::Update)
}
