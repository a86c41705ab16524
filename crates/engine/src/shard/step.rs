//! The optimizer's step: one pass over what this rank updates, piece by piece. It runs on the model's device, or on the CPU
//! beside a GPU whose optimizer state is offloaded. What lies elsewhere comes and goes meanwhile (`staging`).

use std::collections::BTreeMap;

use oarlock_tensor::ops::optimizer::{self, Part, Rule, StepArgs, Target, UpdateParts, Workspace};
use oarlock_tensor::{DType, Device};

use crate::shard::column::Store;
use crate::shard::group::Group;
use crate::shard::layout::runs;
use crate::shard::operands::{Operand, Piece, Staged};
use crate::shard::passes::Core;
use crate::shard::state::MASTER;
use crate::{Error, Result};

/// The hyperparameters of a group of parameters in a step: an entry of torch's `param_groups`.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamGroup {
    /// How gradients change weights: the same kind of rule in all groups of an optimizer, each with its own hyperparameters.
    pub rule: Rule,
    /// The learning rate.
    pub lr: f64,
    /// Weight decay; 0 for none.
    pub weight_decay: f64,
}

impl ParamGroup {
    /// What of its hyperparameters is none that training takes, as torch looks at them.
    pub fn check(&self) -> std::result::Result<(), String> {
        let is_rate = |number: f64| number.is_finite() && number >= 0.0;
        if !is_rate(self.lr) {
            return Err(format!("the learning rate {}; it is a number of at least 0", self.lr));
        }
        if !is_rate(self.weight_decay) {
            return Err(format!("the weight decay {}; it is a number of at least 0", self.weight_decay));
        }
        let states = self.rule.state_names();
        let is_wrong = |(index, name): &(usize, &&str)| {
            name.is_empty() || **name == MASTER || states[..*index].contains(*name)
        };
        if self.rule.name().is_empty() {
            return Err("a rule without a name, by which checkpoints know it".to_owned());
        }
        if states.iter().enumerate().any(|at| is_wrong(&at)) {
            return Err(format!(
                "the rule {}, which keeps the states {states:?}; each has a name of its own, and none is \"\" or \
                 \"{MASTER}\" (the weights)",
                self.rule.name()
            ));
        }
        match self.rule.betas() {
            Some(betas) if !betas.iter().all(|beta| (0.0..1.0).contains(beta)) => {
                Err(format!("invalid betas ({:?}, {:?}): each must be in [0, 1)", betas[0], betas[1]))
            }
            _ => Ok(()),
        }
    }
}

/// What a step does to each piece.
struct Updates<'a> {
    core: &'a Core,
    hyperparameters: &'a [ParamGroup],
    grad_scale: f32,
    workspace: Workspace,
}

impl Core {
    /// One step on what this rank updates, with the hyperparameters of each parameter group; `step` is its number for parameter
    /// `.1` of group `.0`, or `None` where the step leaves it out. Waits for whoever holds the state constant.
    pub fn update(
        &self,
        hyperparameters: &[ParamGroup],
        grad_scale: f32,
        step: &dyn Fn(usize, usize) -> Option<u64>,
    ) -> Result<()> {
        let offload = self.options.offload_optimizer.as_ref().or(self.options.offload_params.as_ref());
        let most = offload.map_or(usize::MAX, |offload| offload.sub_group_elems);
        let (is_resident, elsewhere): (Vec<_>, Vec<_>) = self
            .pieces(most, step)
            .partition(|piece| self.operands(piece).iter().all(|operand| self.is_resident(&operand.store)));
        let bytes = self.workspace_bytes(hyperparameters, is_resident.iter().chain(&elsewhere));
        let workspace = Workspace::new(&self.updater, bytes)?;
        let mut updates = Updates { core: self, hyperparameters, grad_scale, workspace };
        if self.updater.is_cuda() {
            updates.update_together(&is_resident)?;
        } else {
            for piece in &is_resident {
                self.groups[piece.group].state.gate.wait();
                updates.update(piece, &Vec::new())?;
            }
        }
        match offload {
            Some(offload) if !elsewhere.is_empty() => {
                let mut update = |piece: &Piece, staged: &Staged| updates.update(piece, staged);
                self.update_staged(&mut update, &elsewhere, offload.buffers)
            }
            _ => Ok(()),
        }
    }

    /// What a step works in besides its pieces: one memory for all, since those of many sizes would fit into none of each other's.
    fn workspace_bytes<'a>(
        &self,
        hyperparameters: &[ParamGroup],
        pieces: impl Iterator<Item = &'a Piece> + Clone,
    ) -> usize {
        let of_group = |(group, hyperparameters): (usize, &ParamGroup)| {
            let params = pieces.clone().filter_map(|piece| {
                let held = &self.groups[piece.group];
                let param = &held.layout.params()[piece.param];
                (param.param_group == group).then(|| (param.place.shape, held.roles[piece.param]))
            });
            optimizer::workspace_bytes_of_all(&self.updater, &hyperparameters.rule, params)
        };
        hyperparameters.iter().enumerate().map(of_group).max().unwrap_or(0)
    }

    /// What this rank updates, in pieces of at most `most` elements where the rule allows.
    fn pieces<'a>(
        &'a self,
        most: usize,
        step: &'a dyn Fn(usize, usize) -> Option<u64>,
    ) -> impl Iterator<Item = Piece> + 'a {
        let trained = self.groups.iter().enumerate().filter(|(_, group)| group.trainable);
        trained.flat_map(move |(group, held)| {
            let pieces =
                held.layout.pieces(held.state.updated.clone(), most, move |param| step(group, param));
            pieces.filter_map(move |(param, flat)| {
                Some(Piece { group, param, flat, step: step(group, param)? })
            })
        })
    }

    /// Rounds the master weights of a group into its working copies.
    pub fn refresh_working_copy(&self, device: &Device, group: &Group) -> Result<()> {
        let Some(master) = &group.state.master else { return Ok(()) };
        let mut values = Vec::new();
        for flat in runs(group.state.updated.clone(), CHUNK) {
            values.resize(flat.len(), 0.0f32);
            master.read(master.at(0, &flat).start, &mut values)?;
            group.state.weights.write(device, group.state.weights.at(0, &flat).start, &values)?;
        }
        Ok(())
    }
}

impl Updates<'_> {
    /// Updates pieces that are resident, those with the same hyperparameters at once.
    fn update_together(&mut self, pieces: &[Piece]) -> Result<()> {
        let core = self.core;
        let key = |piece: &Piece| {
            let param = &core.groups[piece.group].layout.params()[piece.param];
            (param.param_group, piece.step)
        };
        let mut alike: BTreeMap<_, Vec<(&Piece, Vec<Operand>)>> = BTreeMap::new();
        for piece in pieces {
            core.groups[piece.group].state.gate.wait();
            alike.entry(key(piece)).or_default().push((piece, core.operands(piece)));
        }
        for ((param_group, step), pieces) in &alike {
            let parts = pieces.iter().map(|(_, operands)| operands.iter().map(at_rest).collect());
            let parts: Vec<Vec<Part<'_>>> = parts.collect::<Option<_>>().unwrap_or_default();
            let targets = parts.iter().zip(pieces).filter_map(|(parts, (piece, _))| {
                let group = &core.groups[piece.group];
                let weights = (group.params.dtype(), group.state.master.is_some());
                let (shape, role) =
                    (group.layout.params()[piece.param].place.shape, group.roles[piece.param]);
                Some(Target { shape, role, parts: of_operands((parts, weights))? })
            });
            let targets: Vec<Target<'_>> = targets.collect();
            let ParamGroup { rule, lr, weight_decay } = &self.hyperparameters[*param_group];
            let args =
                StepArgs { step: *step, lr: *lr, weight_decay: *weight_decay, grad_scale: self.grad_scale };
            optimizer::update_all(&core.updater, rule, &args, &targets, &mut self.workspace)?;
        }
        Ok(())
    }

    /// Updates a piece; `staged` are its operands that are not resident, in their order.
    fn update(&mut self, piece: &Piece, staged: &Staged) -> Result<()> {
        let core = self.core;
        let group = &core.groups[piece.group];
        let operands = core.operands(piece);
        let Some(Operand { store: Store::Memory(grads), .. }) = operands.first() else { return Ok(()) };
        let mut staged = staged.iter();
        let mut parts = operands.iter().map(|operand| match &operand.store {
            Store::Memory(flat) if core.is_resident(&operand.store) => {
                Ok(Part { flat, range: operand.range.clone() })
            }
            // Nothing of any buffer.
            _ if operand.range.is_empty() => Ok(Part { flat: grads, range: 0..0 }),
            _ => {
                let missing = || Error::Usage("a piece of offloaded state was not read".to_string());
                Ok(Part { flat: staged.next().ok_or_else(missing)?, range: 0..operand.range.len() })
            }
        });
        let (Some(grads), Some(weights)) = (parts.next().transpose()?, parts.next().transpose()?) else {
            return Ok(());
        };
        let master = if group.state.master.is_some() { parts.next().transpose()? } else { None };
        let state = parts.collect::<Result<Vec<_>>>()?;
        let parts = UpdateParts { weights, dtype: group.params.dtype(), master, grads, state: &state };
        let param = &group.layout.params()[piece.param];
        let ParamGroup { rule, lr, weight_decay } = &self.hyperparameters[param.param_group];
        let args =
            StepArgs { step: piece.step, lr: *lr, weight_decay: *weight_decay, grad_scale: self.grad_scale };
        let (shape, role) = (&param.place.shape, group.roles[piece.param]);
        Ok(optimizer::update(&core.updater, rule, &args, shape, role, &parts, &mut self.workspace)?)
    }
}

/// An operand that is in memory.
fn at_rest(operand: &Operand) -> Option<Part<'_>> {
    match &operand.store {
        Store::Memory(flat) => Some(Part { flat, range: operand.range.clone() }),
        Store::File { .. } => None,
    }
}

/// Operands in the order of [`Core::operands`], for weights of a dtype, with or without master weights; none where there are no
/// gradients.
fn of_operands<'a>(
    (parts, (dtype, has_master)): (&'a Vec<Part<'a>>, (DType, bool)),
) -> Option<UpdateParts<'a>> {
    let [grads, weights, rest @ ..] = parts.as_slice() else { return None };
    let (master, state) = match (has_master, rest) {
        (true, [master, state @ ..]) => (Some(master.clone()), state),
        (_, state) => (None, state),
    };
    Some(UpdateParts { weights: weights.clone(), dtype, master, grads: grads.clone(), state })
}

/// Elements that are moved at once when state is filled in.
pub(super) const CHUNK: usize = 1 << 20;
