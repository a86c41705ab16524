//! The steps of the 1-bit optimizers (DeepSpeed's `OneBitAdam`, `ZeroOneAdam`, `OneBitLamb`): passes over the elements, and
//! between them the exchange of signs. Each rank has the whole state. A parameter without a gradient takes part with zeros.

use std::collections::HashMap;

use oarlock_tensor::ops::one_bit::Pass;
use oarlock_tensor::ops::optimizer::{OneBit, OneBitKind, Part, Rule};
use oarlock_tensor::ops::{transfer, update};
use oarlock_tensor::{DType, FlatBuffer};

use super::exchange::Exchange;
use super::schedule::{Schedule, Stage};
use super::state::{Local, OneBitSteps, Place, Slot, Step, param, places};
use crate::shard::passes::Core;
use crate::shard::placement::Placements;
use crate::shard::step::ParamGroup;
use crate::{Error, Result};

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
}
