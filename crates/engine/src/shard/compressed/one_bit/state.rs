//! What 1-bit optimizers keep besides moments, and the parameters and buffers that their steps work on.

use std::collections::HashMap;

use oarlock_tensor::FlatBuffer;
use oarlock_tensor::ops::one_bit::{Pass, pass};
use oarlock_tensor::ops::optimizer::{OneBit, OneBitKind, Part, Rule};

use super::exchange::Exchange;
use super::schedule::Schedule;
use crate::shard::column::{Column, Store};
use crate::shard::passes::Core;
use crate::shard::step::ParamGroup;
use crate::{Error, Result};

/// A parameter, by its group and its number there.
pub(super) type Place = (usize, usize);

/// What an engine with a 1-bit optimizer keeps besides moments. None of it is in checkpoints: errors begin at zero after
/// a load, as in DeepSpeed.
pub struct OneBitSteps {
    pub(super) kind: OneBitKind,
    pub(super) schedule: Schedule,
    /// Made with the first exchange.
    pub(super) exchange: Option<Exchange>,
    /// Of the local steps of 0/1 Adam, for each group; made when first needed.
    pub(super) local: Vec<Option<Local>>,
    /// The sum of their learning rates since the ranks last met, for each of the optimizer's groups.
    pub(super) lrs: Vec<f64>,
    /// What first moments are multiplied with, by the names of their parameters.
    pub(super) masks: HashMap<String, FlatBuffer>,
}

/// Local steps of a group, which each rank takes by itself.
#[derive(Clone)]
pub(super) struct Local {
    /// What they have added up since the ranks last met.
    pub(super) sums: FlatBuffer,
    /// The weights with which the ranks last met. Taking the sums away from the weights would leave roundings, by which the
    /// ranks differ.
    pub(super) met: FlatBuffer,
}

impl OneBitSteps {
    pub(super) fn mask(&self, step: &Step, place: Place, values: &ParamSpan) -> Result<()> {
        let Some(flat) = self.masks.get(&param(step.core, place).name) else { return Ok(()) };
        let mask = Part { flat, range: 0..values.range.len() };
        pass(&step.core.device, Pass::Mask, &[values.part(), mask])?;
        Ok(())
    }

    /// The exchange of one item for each parameter; with LAMB all parameters are one item.
    pub(super) fn exchange(&mut self, step: &Step) -> Result<&Exchange> {
        if self.exchange.is_none() {
            let each = step.places.iter().map(|place| param(step.core, *place).range().len());
            let items: Vec<usize> = match self.kind {
                OneBitKind::Lamb { .. } => vec![each.sum()],
                _ => each.collect(),
            };
            self.exchange = Some(Exchange::new(step.core.mesh().shard(), &step.core.device, &items)?);
        }
        self.exchange.as_ref().ok_or_else(|| Error::Usage("an exchange that was not made".to_owned()))
    }

    /// What a parameter's local steps have added up, and its weights where the ranks last met.
    pub(super) fn local(&mut self, core: &Core, place: Place) -> Result<[ParamSpan; 2]> {
        let range = param(core, place).range();
        let Local { sums, met } = match &mut self.local[place.0] {
            Some(local) => local.clone(),
            none => {
                let bytes = 4 * core.groups[place.0].layout.n_elems();
                let memory = || FlatBuffer::pooled(&core.device, bytes, "sums of local steps");
                none.insert(Local { sums: memory()?, met: memory()? }).clone()
            }
        };
        Ok([ParamSpan { flat: sums, range: range.clone() }, ParamSpan { flat: met, range }])
    }
}

/// The elements of one parameter in one of its buffers.
#[derive(Clone)]
pub(super) struct ParamSpan {
    pub(super) flat: FlatBuffer,
    pub(super) range: std::ops::Range<usize>,
}

impl ParamSpan {
    pub(super) fn part(&self) -> Part<'_> {
        Part { flat: &self.flat, range: self.range.clone() }
    }
}

/// Which of a parameter's buffers.
#[derive(Clone, Copy)]
pub(super) enum Slot<'a> {
    /// f32 weights.
    W,
    /// First moment.
    M,
    /// Second moment.
    V,
    /// 1-bit LAMB's second moment that goes on.
    Fresh,
    /// Gradients.
    G,
    Other(&'a ParamSpan),
}

/// What a step works on.
pub(super) struct Step<'a> {
    pub(super) core: &'a Core,
    pub(super) hyperparameters: &'a [ParamGroup],
    /// The trained parameters, those of the first of the optimizer's groups first.
    pub(super) places: Vec<Place>,
}

impl Step<'_> {
    pub(super) fn grads(&self, place: Place) -> Result<ParamSpan> {
        let flat = self.core.groups[place.0].params.grads();
        let flat = flat.ok_or_else(|| Error::Usage("a trained parameter without gradients".to_owned()))?;
        Ok(ParamSpan { flat, range: param(self.core, place).range() })
    }

    pub(super) fn slot(&self, place: Place, slot: &Slot) -> Result<ParamSpan> {
        let state = &self.core.groups[place.0].state;
        let moment = |index: usize| state.moments.get(index).map(|(column, _)| column);
        let column = match slot {
            Slot::G => return self.grads(place),
            Slot::Other(held) => return Ok((*held).clone()),
            Slot::W => Some(state.master()),
            Slot::M => moment(0),
            Slot::V => moment(1),
            Slot::Fresh => moment(2),
        };
        held(column, place.1, param(self.core, place).range())
    }

    /// Runs a pass over these buffers of a parameter.
    pub(super) fn run(&self, of: Pass, place: Place, slots: &[Slot]) -> Result<Vec<Vec<f64>>> {
        let held = slots.iter().map(|slot| self.slot(place, slot)).collect::<Result<Vec<_>>>()?;
        let parts: Vec<Part> = held.iter().map(ParamSpan::part).collect();
        Ok(pass(&self.core.device, of, &parts)?)
    }

    pub(super) fn numbers_of(&self, place: Place) -> Result<&ParamGroup> {
        let group = param(self.core, place).param_group;
        self.hyperparameters
            .get(group)
            .ok_or_else(|| Error::Usage(format!("a step without hyperparameters for group {group}")))
    }

    pub(super) fn rule(&self, place: Place) -> Result<OneBit> {
        match self.numbers_of(place)?.rule {
            Rule::OneBit(rule) => Ok(rule),
            ref other => Err(Error::Usage(format!("a step of {} in a 1-bit optimizer", other.name()))),
        }
    }

    pub(super) fn adam_steps(&self) -> Result<()> {
        for place in &self.places {
            let ParamGroup { lr, weight_decay, .. } = self.numbers_of(*place)?;
            let step = Pass::Step { lr: *lr, eps: self.rule(*place)?.eps, decay: *weight_decay };
            self.run(step, *place, &[Slot::W, Slot::M, Slot::V])?;
        }
        Ok(())
    }

    /// The working copies follow the master weights.
    pub(super) fn refresh(&self) -> Result<()> {
        let trained = self.core.groups.iter().filter(|group| group.trainable);
        trained.into_iter().try_for_each(|group| self.core.refresh_working_copy(&self.core.device, group))
    }
}

/// The elements of a parameter in a column.
pub(super) fn held(
    column: Option<&Column>,
    index: usize,
    range: std::ops::Range<usize>,
) -> Result<ParamSpan> {
    match column.map(|column| (&column.store, column)) {
        Some((Store::Memory(flat), column)) => {
            Ok(ParamSpan { flat: flat.clone(), range: column.at(index, &range) })
        }
        _ => Err(Error::Usage(
            "1-bit optimizers need their state in memory: it cannot be offloaded".to_owned(),
        )),
    }
}

pub(super) fn param(core: &Core, (group, index): Place) -> &crate::shard::layout::LayoutParam {
    &core.groups[group].layout.params()[index]
}

pub(super) fn places(core: &Core) -> Vec<Place> {
    let trained = core.groups.iter().enumerate().filter(|(_, group)| group.trainable);
    let of_group = |(at, group): (usize, &crate::shard::group::Group)| {
        (0..group.layout.params().len()).map(move |index| (at, index)).collect::<Vec<_>>()
    };
    let mut places: Vec<Place> = trained.flat_map(of_group).collect();
    places.sort_by_key(|place| param(core, *place).param_group);
    places
}
