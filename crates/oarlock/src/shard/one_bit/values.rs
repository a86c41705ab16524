//! The values of a parameter that a step works on.

use std::ops::Range;

use oarlock_tensor::FlatBuffer;
use oarlock_tensor::ops::one_bit::{Pass, pass};
use oarlock_tensor::ops::optimizer::{OneBit, Part, Rule};

use crate::error::{Error, Result};
use crate::shard::column::{Column, Store};
use crate::shard::group::Group;
use crate::shard::layout::LayoutParam;
use crate::shard::passes::Core;
use crate::shard::step::ParamGroup;

/// A parameter, by its group and its number there.
pub(super) type Place = (usize, usize);

/// The elements of one parameter in one of its buffers.
#[derive(Clone)]
pub(super) struct Held {
    pub flat: FlatBuffer,
    pub range: Range<usize>,
}

impl Held {
    pub fn part(&self) -> Part<'_> {
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
    Other(&'a Held),
}

/// What a step works on.
pub(super) struct Step<'a> {
    pub core: &'a Core,
    pub numbers: &'a [ParamGroup],
    /// The trained parameters, those of the first of the optimizer's groups first.
    pub places: Vec<Place>,
}

impl Step<'_> {
    pub fn grads(&self, place: Place) -> Result<Held> {
        let flat = self.core.groups[place.0].params.grads();
        let flat = flat.ok_or_else(|| Error::Usage("a trained parameter without gradients".to_owned()))?;
        Ok(Held { flat, range: param(self.core, place).range() })
    }

    pub fn slot(&self, place: Place, slot: &Slot) -> Result<Held> {
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
    pub fn run(&self, of: Pass, place: Place, slots: &[Slot]) -> Result<Vec<Vec<f64>>> {
        let held = slots.iter().map(|slot| self.slot(place, slot)).collect::<Result<Vec<_>>>()?;
        let parts: Vec<Part> = held.iter().map(Held::part).collect();
        Ok(pass(&self.core.device, of, &parts)?)
    }

    pub fn numbers_of(&self, place: Place) -> Result<&ParamGroup> {
        let group = param(self.core, place).param_group;
        self.numbers
            .get(group)
            .ok_or_else(|| Error::Usage(format!("a step without numbers for group {group}")))
    }

    pub fn rule(&self, place: Place) -> Result<OneBit> {
        match self.numbers_of(place)?.rule {
            Rule::OneBit(rule) => Ok(rule),
            ref other => Err(Error::Usage(format!("a step of {} in a 1-bit optimizer", other.name()))),
        }
    }

    pub fn adam_steps(&self) -> Result<()> {
        for place in &self.places {
            let ParamGroup { lr, weight_decay, .. } = self.numbers_of(*place)?;
            let step = Pass::Step { lr: *lr, eps: self.rule(*place)?.eps, decay: *weight_decay };
            self.run(step, *place, &[Slot::W, Slot::M, Slot::V])?;
        }
        Ok(())
    }

    /// The working copies follow the master weights.
    pub fn refresh(&self) -> Result<()> {
        let trained = self.core.groups.iter().filter(|group| group.trainable);
        trained.into_iter().try_for_each(|group| self.core.refresh_working_copy(&self.core.device, group))
    }
}

/// The elements of a parameter in a column.
pub(super) fn held(column: Option<&Column>, index: usize, range: Range<usize>) -> Result<Held> {
    match column.map(|column| (&column.store, column)) {
        Some((Store::Memory(flat), column)) => {
            Ok(Held { flat: flat.clone(), range: column.at(index, &range) })
        }
        _ => Err(Error::Usage(
            "1-bit optimizers need their state in memory: it cannot be offloaded".to_owned(),
        )),
    }
}

pub(super) fn param(core: &Core, (group, index): Place) -> &LayoutParam {
    &core.groups[group].layout.params()[index]
}

pub(super) fn places(core: &Core) -> Vec<Place> {
    let trained = core.groups.iter().enumerate().filter(|(_, group)| group.trainable);
    let of_group = |(at, group): (usize, &Group)| {
        (0..group.layout.params().len()).map(move |index| (at, index)).collect::<Vec<_>>()
    };
    let mut places: Vec<Place> = trained.flat_map(of_group).collect();
    places.sort_by_key(|place| param(core, *place).param_group);
    places
}
