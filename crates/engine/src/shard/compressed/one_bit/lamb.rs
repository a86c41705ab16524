//! 1-bit LAMB (Li et al. 2021, <https://arxiv.org/abs/2104.06069>): LAMB before the freeze; then the first moments of all
//! parameters are exchanged as one item, each scaled to the same size, and the frozen ratio of norms follows a second moment
//! that goes on.

use oarlock_tensor::ops::one_bit::Pass;
use oarlock_tensor::ops::optimizer::{OneBitKind, Part};
use oarlock_tensor::ops::{transfer, update};
use oarlock_tensor::{DType, FlatBuffer};

use super::schedule::Stage;
use super::state::{OneBitSteps, ParamSpan, Place, Slot, Step, held, param};
use crate::shard::layout::BLOCK;
use crate::shard::step::ParamGroup;
use crate::{Error, Result};

/// The numbers of a parameter, in the order of its state; a factor and a scale of 0 are not set yet.
struct Numbers {
    /// The mean of the ratios before the freeze.
    coefficient: f64,
    /// The last factor on it.
    factor: f64,
    /// What the first moment is multiplied with on the way.
    scale: f64,
}

impl OneBitSteps {
    pub(super) fn lamb(&mut self, step: &Step, stage: Stage) -> Result<()> {
        match stage {
            Stage::Sums => self.lamb_with_sums(step),
            _ => self.lamb_with_signs(step),
        }
    }

    fn lamb_with_sums(&self, step: &Step) -> Result<()> {
        let OneBitKind::Lamb { max_coeff, min_coeff, coeff_beta, .. } = self.kind else { return Ok(()) };
        for &place in &step.places {
            let (rule, ParamGroup { lr, weight_decay, .. }) = (step.rule(place)?, step.numbers_of(place)?);
            step.run(Pass::Momentum { beta1: rule.beta1 }, place, &[Slot::M, Slot::G])?;
            step.run(Pass::Variance { beta2: rule.beta2 }, place, &[Slot::V, Slot::G])?;
            if self.schedule.is_last_sum() {
                let (from, to) = (step.slot(place, &Slot::V)?, step.slot(place, &Slot::Fresh)?);
                transfer::copy(&step.core.device, DType::F32, &from.part(), &to.part())?;
            }
            let direction = Pass::LambDirection { eps: rule.eps, decay: *weight_decay };
            let norms = step.run(direction, place, &[Slot::G, Slot::W, Slot::M, Slot::V])?;
            let [of_weights, of_direction] = [&norms[0], &norms[1]].map(|sums| update::tree_sum(sums).sqrt());
            let coefficient = match of_weights != 0.0 && of_direction != 0.0 {
                true => (of_weights / of_direction).min(max_coeff).max(min_coeff),
                false => 1.0,
            };
            if coefficient != 1.0 {
                let mut numbers = read(step, place)?;
                numbers.coefficient = coeff_beta * numbers.coefficient + (1.0 - coeff_beta) * coefficient;
                write(step, place, &numbers)?;
            }
            step.run(Pass::Along { length: lr * coefficient }, place, &[Slot::W, Slot::G])?;
        }
        Ok(())
    }

    fn lamb_with_signs(&mut self, step: &Step) -> Result<()> {
        let OneBitKind::Lamb { factor_max, factor_min, factor_threshold, .. } = self.kind else {
            return Ok(());
        };
        let mut numbers = step.places.iter().map(|place| read(step, *place)).collect::<Result<Vec<_>>>()?;
        if numbers.first().is_some_and(|numbers| numbers.scale == 0.0) {
            self.set_scales(step, &mut numbers)?;
        }
        for (&place, Numbers { scale, .. }) in step.places.iter().zip(&numbers) {
            let momentum = Pass::LambMomentum { beta1: step.rule(place)?.beta1, scale: *scale };
            step.run(momentum, place, &[Slot::M, Slot::G])?;
        }
        let moments = step.places.iter().map(|place| step.slot(*place, &Slot::M));
        let moments = moments.collect::<Result<Vec<_>>>()?;
        if step.core.mesh().shard().world_size() > 1 {
            self.exchange(step)?.mean(&[moments.iter().map(ParamSpan::part).collect()])?;
            for (place, moment) in step.places.iter().zip(&moments) {
                self.mask(step, *place, moment)?;
            }
        }
        for (&place, numbers) in step.places.iter().zip(&mut numbers) {
            let (rule, ParamGroup { lr, weight_decay, .. }) = (step.rule(place)?, step.numbers_of(place)?);
            let frozen = Pass::LambFrozen {
                beta1: rule.beta1,
                beta2: rule.beta2,
                eps: rule.eps,
                decay: *weight_decay,
                scale: numbers.scale,
            };
            let told = step.run(frozen, place, &[Slot::M, Slot::G, Slot::Fresh, Slot::V, Slot::W])?;
            let mut factor = told[2].iter().copied().fold(f64::MIN, f64::max);
            if *weight_decay > 0.0 {
                let ratio = (update::tree_sum(&told[0]) / update::tree_sum(&told[1])).sqrt().min(1.0);
                factor = factor * ratio + (1.0 - ratio);
            }
            let last = if numbers.factor == 0.0 { 1.0 } else { numbers.factor };
            factor = factor.min(factor_max).max(factor_min);
            factor = factor.min(last * (1.0 + factor_threshold)).max(last * (1.0 - factor_threshold));
            numbers.factor = factor;
            write(step, place, numbers)?;
            let length = lr * numbers.coefficient * factor;
            step.run(Pass::Along { length }, place, &[Slot::W, Slot::G])?;
        }
        Ok(())
    }

    /// At the freeze: scales that make the first moments of all parameters equally large.
    fn set_scales(&self, step: &Step, numbers: &mut [Numbers]) -> Result<()> {
        let mut sizes = Vec::new();
        for place in &step.places {
            let moment = step.slot(*place, &Slot::M)?;
            let n_blocks = moment.range.len().div_ceil(BLOCK);
            let sums = FlatBuffer::borrowed(&step.core.device, 8 * n_blocks.max(1), "norms of moments")?;
            let to = Part { flat: &sums, range: 0..n_blocks };
            update::squared_norms(&step.core.device, &moment.part(), &to)?;
            let squares = transfer::read_with::<f64, _>(&sums, 0..n_blocks, update::tree_sum)?;
            sizes.push((squares / moment.range.len().max(1) as f64).sqrt());
        }
        let mean = sizes.iter().sum::<f64>() / sizes.len().max(1) as f64;
        for (numbers, size) in numbers.iter_mut().zip(sizes) {
            // A moment that is all zero has no size to be made equal.
            numbers.scale = if size > 0.0 { mean / size } else { 1.0 };
        }
        Ok(())
    }
}

fn column(step: &Step, (group, index): Place) -> Result<ParamSpan> {
    let column = step.core.groups[group].state.moments.get(3).map(|(column, _)| column);
    held(column, index, param(step.core, (group, index)).range())
}

fn read(step: &Step, place: Place) -> Result<Numbers> {
    let held = column(step, place)?;
    let values = transfer::read_with::<f32, _>(&held.flat, held.range, <[f32]>::to_vec)?;
    let [coefficient, factor, scale] = values[..] else {
        return Err(Error::Usage("1-bit LAMB keeps three numbers of each parameter".to_owned()));
    };
    Ok(Numbers { coefficient: coefficient.into(), factor: factor.into(), scale: scale.into() })
}

fn write(step: &Step, place: Place, numbers: &Numbers) -> Result<()> {
    let held = column(step, place)?;
    let values = [numbers.coefficient, numbers.factor, numbers.scale].map(|number| number as f32);
    Ok(transfer::write_with::<f32, _>(&held.flat, held.range, |to| to.copy_from_slice(&values))?)
}
