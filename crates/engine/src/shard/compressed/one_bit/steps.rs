//! The steps of the 1-bit optimizers (DeepSpeed's `OneBitAdam`, `ZeroOneAdam`, `OneBitLamb`): passes over the elements, and
//! between them the exchange of signs. Each rank has the whole state. A parameter without a gradient takes part with zeros.

use std::collections::HashMap;

use oarlock_tensor::ops::one_bit::{Pass, pass};
use oarlock_tensor::ops::optimizer::{OneBit, OneBitKind, Part, Rule};
use oarlock_tensor::ops::{transfer, update};
use oarlock_tensor::{DType, FlatBuffer};

use super::exchange::Exchange;
use super::schedule::{Schedule, Stage};
use crate::shard::column::{Column, Store};
use crate::shard::passes::Core;
use crate::shard::placement::Placements;
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
    local: Vec<Option<Local>>,
    /// The sum of their learning rates since the ranks last met, for each of the optimizer's groups.
    pub(super) lrs: Vec<f64>,
    /// What first moments are multiplied with, by the names of their parameters.
    pub(super) masks: HashMap<String, FlatBuffer>,
}

/// Local steps of a group, which each rank takes by itself.
#[derive(Clone)]
struct Local {
    /// What they have added up since the ranks last met.
    sums: FlatBuffer,
    /// The weights with which the ranks last met. Taking the sums away from the weights would leave roundings, by which the
    /// ranks differ.
    met: FlatBuffer,
}

impl OneBitSteps {
    /// For an engine with such a rule; `None` with any other.
    pub fn of(rule: &Rule, core: &Core, in_stages: bool) -> Result<Option<OneBitSteps>> {
        let Rule::OneBit(OneBit { kind, .. }) = rule else { return Ok(None) };
        if in_stages {
            return Err(Error::Usage(format!(
                "{} does not train a model in pipeline stages: its exchanges are of all parameters",
                rule.name()
            )));
        }
        if core.options.placements != Placements::WHOLE {
            return Err(Error::Usage(format!(
                "{} is not compatible with ZeRO or FSDP: each rank has errors of its own for the whole model; train with \
                 stage 0 (Placements::WHOLE)",
                rule.name()
            )));
        }
        Ok(Some(OneBitSteps {
            kind: *kind,
            schedule: Schedule::after(*kind, 0),
            exchange: None,
            local: core.groups.iter().map(|_| None).collect(),
            lrs: Vec::new(),
            masks: HashMap::new(),
        }))
    }

    /// Whether the ranks sum the gradients of the coming step.
    pub fn sums_gradients(&self) -> bool {
        self.schedule.stage() == Stage::Sums
    }

    /// After a load: errors and what local steps have added up begin at zero.
    pub fn resume(&mut self, n_steps: u64) -> Result<()> {
        self.schedule = Schedule::after(self.kind, n_steps);
        self.lrs.clear();
        for Local { sums, .. } in self.local.iter().flatten() {
            transfer::write_with::<f32, _>(sums, 0..sums.len_bytes() / 4, |sums| sums.fill(0.0))?;
        }
        self.exchange.as_ref().map_or(Ok(()), Exchange::forget_errors)
    }

    /// From now on the first moment of a parameter is multiplied with this behind each exchange.
    pub fn set_mask(&mut self, core: &Core, name: &str, mask: &[f32]) -> Result<()> {
        let places = places(core);
        let find = |place: &&Place| param(core, **place).name == name;
        let Some(place) = places.iter().find(find) else {
            return Err(Error::Usage(format!(
                "exp_avg_mask of \"{name}\", which is not a trained parameter"
            )));
        };
        let n_elems = param(core, *place).range().len();
        if mask.len() != n_elems {
            let got = mask.len();
            return Err(Error::Usage(format!(
                "exp_avg_mask of \"{name}\": {got} elements for {n_elems}; give one for each"
            )));
        }
        let flat = FlatBuffer::pooled(&core.device, 4 * n_elems, "mask of a moment")?;
        transfer::write_with::<f32, _>(&flat, 0..n_elems, |to| to.copy_from_slice(mask))?;
        self.masks.insert(name.to_owned(), flat);
        Ok(())
    }

    /// One step with the gradients times `grad_scale`: with their sums over ranks, or where signs are exchanged with this
    /// rank's own, which stand for the sums of as many like them.
    pub fn step(&mut self, core: &Core, hyperparameters: &[ParamGroup], grad_scale: f32) -> Result<()> {
        let step = Step { core, hyperparameters, places: places(core) };
        for group in core.groups.iter().filter(|group| group.trainable) {
            group.state.gate.wait();
        }
        let stage = self.schedule.stage();
        let n_ranks = core.mesh().shard().world_size() as f32;
        let scale = if stage == Stage::Sums { grad_scale } else { grad_scale * n_ranks };
        for place in &step.places {
            let grads = step.grads(*place)?;
            if scale != 1.0 {
                update::scale_clamp(&core.device, &grads.flat, grads.range.clone(), scale, f32::INFINITY)?;
            }
        }
        match self.kind {
            OneBitKind::Adam { .. } => self.adam(&step, stage)?,
            OneBitKind::ZeroOneAdam { .. } => self.zero_one_adam(&step, stage)?,
            OneBitKind::Lamb { .. } => self.lamb(&step, stage)?,
        }
        self.schedule.advance();
        step.refresh()
    }

    /// 1-bit Adam: after the freeze the second moment stays, and ranks exchange their first moments.
    fn adam(&mut self, step: &Step, stage: Stage) -> Result<()> {
        for place in &step.places {
            step.run(Pass::Momentum { beta1: step.rule(*place)?.beta1 }, *place, &[Slot::M, Slot::G])?;
            if stage == Stage::Sums {
                step.run(Pass::Variance { beta2: step.rule(*place)?.beta2 }, *place, &[Slot::V, Slot::G])?;
            }
        }
        if stage == Stage::Signs {
            self.mean(step, Slot::M)?;
        }
        step.adam_steps()
    }

    /// 0/1 Adam: the second moment is updated more and more seldom, ranks exchange gradients in between, and after the freeze
    /// the sums of several local steps.
    fn zero_one_adam(&mut self, step: &Step, stage: Stage) -> Result<()> {
        if self.schedule.is_first_frozen()
            && let Some(exchange) = &self.exchange
        {
            // They were those of gradients.
            exchange.forget_errors()?;
        }
        if stage == Stage::Signs {
            self.mean(step, Slot::G)?;
        }
        for place in &step.places {
            if stage == Stage::Sums {
                step.run(Pass::Variance { beta2: step.rule(*place)?.beta2 }, *place, &[Slot::V, Slot::G])?;
            }
            step.run(Pass::Momentum { beta1: step.rule(*place)?.beta1 }, *place, &[Slot::M, Slot::G])?;
        }
        let Stage::Local { meets } = stage else { return step.adam_steps() };
        let have_met = self.lrs.iter().all(|sum| *sum == 0.0);
        self.lrs.resize(step.hyperparameters.len(), 0.0);
        self.lrs.iter_mut().zip(step.hyperparameters).for_each(|(sum, group)| *sum += group.lr);
        for place in &step.places {
            let [sum, met] = self.local(step.core, *place)?;
            if have_met {
                let weights = step.slot(*place, &Slot::W)?;
                transfer::copy(&step.core.device, DType::F32, &weights.part(), &met.part())?;
            }
            let (rule, ParamGroup { lr, weight_decay, .. }) = (step.rule(*place)?, step.numbers_of(*place)?);
            let local = Pass::LocalStep { lr: *lr, eps: rule.eps, decay: *weight_decay };
            step.run(local, *place, &[Slot::W, Slot::Other(&sum), Slot::M, Slot::V])?;
        }
        if meets { self.meet(step) } else { Ok(()) }
    }

    /// Ends local steps before their time, so that all ranks have the same weights.
    pub fn end_local_steps(&mut self, core: &Core, hyperparameters: &[ParamGroup]) -> Result<()> {
        if self.lrs.iter().all(|sum| *sum == 0.0) {
            return Ok(());
        }
        let step = Step { core, hyperparameters, places: places(core) };
        self.meet(&step)?;
        step.refresh()
    }

    /// The ranks take the mean of their local steps.
    fn meet(&mut self, step: &Step) -> Result<()> {
        let mut sums = Vec::new();
        for place in &step.places {
            let [sum, met] = self.local(step.core, *place)?;
            let weights = step.slot(*place, &Slot::W)?;
            transfer::copy(&step.core.device, DType::F32, &met.part(), &weights.part())?;
            let eps = step.rule(*place)?.eps;
            step.run(Pass::SumMoments { eps }, *place, &[Slot::Other(&sum), Slot::V])?;
            sums.push(sum);
        }
        if step.core.mesh().shard().world_size() > 1 {
            let values: Vec<Vec<Part>> = sums.iter().map(|sum| vec![sum.part()]).collect();
            self.exchange(step)?.mean(&values)?;
            for (place, sum) in step.places.iter().zip(&sums) {
                self.mask(step, *place, sum)?;
            }
        }
        for (place, sum) in step.places.iter().zip(&sums) {
            let lrs = self.lrs.get(param(step.core, *place).param_group).copied().unwrap_or(0.0);
            let mean = Pass::TakeMean { eps: step.rule(*place)?.eps, lrs };
            step.run(mean, *place, &[Slot::W, Slot::Other(sum), Slot::M, Slot::V])?;
        }
        self.lrs.fill(0.0);
        Ok(())
    }

    /// One kind of values of each parameter becomes its mean over the ranks, and is masked.
    fn mean(&mut self, step: &Step, slot: Slot) -> Result<()> {
        if step.core.mesh().shard().world_size() == 1 {
            return Ok(());
        }
        let all = step.places.iter().map(|place| step.slot(*place, &slot)).collect::<Result<Vec<_>>>()?;
        let values: Vec<Vec<Part>> = all.iter().map(|held| vec![held.part()]).collect();
        self.exchange(step)?.mean(&values)?;
        step.places.iter().zip(&all).try_for_each(|(place, held)| self.mask(step, *place, held))
    }

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

fn places(core: &Core) -> Vec<Place> {
    let trained = core.groups.iter().enumerate().filter(|(_, group)| group.trainable);
    let of_group = |(at, group): (usize, &crate::shard::group::Group)| {
        (0..group.layout.params().len()).map(move |index| (at, index)).collect::<Vec<_>>()
    };
    let mut places: Vec<Place> = trained.flat_map(of_group).collect();
    places.sort_by_key(|place| param(core, *place).param_group);
    places
}
