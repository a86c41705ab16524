//! KTO: whether single answers are wanted (KTO, Ethayarajh et al. 2024). Every answer weighs the same.

use std::cell::Cell;

use oarlock_config::config::KtoArgs;
use oarlock_engine::{Accelerator, Result, nn};
use oarlock_tensor::{DType, Tensor};

use super::answers::{Answers, Reference, constant, log_probs, mean_of, of_reference};
use super::definition::Objective;
use super::inputs::Inputs;
use super::language_model::{LanguageModel, Unrecorded};
use super::metric::{ObjectiveLoss, Sum};
use crate::data::{ANSWERS, Batch, CHOSEN, Fields, MISMATCHED, REJECTED};

const METRICS: [&str; 7] = [
    "rewards/chosen",
    "rewards/rejected",
    "logps/chosen",
    "logps/rejected",
    "logits/chosen",
    "logits/rejected",
    "kl",
];

/// The loss of unpaired preferences.
pub struct Kto {
    args: KtoArgs,
    reference: Reference,
    /// How far the model is from its reference: the estimate of this step, over all micro-batches and ranks.
    kl: Cell<f64>,
}

impl Kto {
    /// A loss and the model that it compares with.
    pub fn new(args: KtoArgs, reference: Reference) -> Kto {
        Kto { args, reference, kl: Cell::new(0.0) }
    }
}

/// 1 - σ(±β·(Δ - kl)) for log-ratios Δ `[N]`: + for wanted answers, - for unwanted ones.
fn kto_losses(ratios: &Tensor, kl: f32, beta: f32, sign: f32) -> nn::Result<Tensor> {
    ratios.add_scalar(-kl)?.scale(-sign * beta)?.sigmoid()
}

/// The answers of a batch, wanted or not.
fn n_answers(fields: &Fields) -> usize {
    fields.spans(CHOSEN).len() + fields.spans(REJECTED).len()
}

impl Objective for Kto {
    fn weight(&self, batch: &Batch) -> f64 {
        n_answers(&batch.fields) as f64
    }

    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        let (args, n, kl) = (&self.args, n_answers(&inputs.fields), self.kl.get());
        let (device, reference) = (inputs.ids.device(), &of_reference(inputs)?);
        let found = model.log_probs(inputs)?;
        let mut loss = found.of_labels.sum_all()?.scale(0.0)?;
        let (mut rewards, mut log_probs, mut logits) = (Vec::new(), Vec::new(), Vec::new());
        for (field, sign, weight) in
            [(CHOSEN, 1.0, args.chosen_weight), (REJECTED, -1.0, args.rejected_weight)]
        {
            let answers = Answers::new(inputs, inputs.fields.spans(field).to_vec());
            if answers.n() == 0 {
                let nothing = || constant(0.0, 0, device);
                rewards.push(nothing()?);
                log_probs.push(nothing()?);
                logits.push(nothing()?);
                continue;
            }
            let own = answers.sums(&found.of_labels, |_, _| 1.0)?;
            let ratios = own.sub(&answers.sums(reference, |_, _| 1.0)?)?;
            let losses = kto_losses(&ratios, kl as f32, args.beta, sign)?.scale(weight)?;
            loss = loss.add(&losses.sum_all()?)?;
            if sign > 0.0 && args.ftx > 0.0 {
                loss = loss.sub(&answers.means(&found.of_labels)?.sum_all()?.scale(args.ftx)?)?;
            }
            rewards.push(mean_of(&ratios.detach().scale(args.beta)?, answers.n())?);
            log_probs.push(mean_of(&own, answers.n())?);
            logits.push(answers.mean_logit(&found)?);
        }
        let metrics = rewards.into_iter().chain(log_probs).chain(logits).chain([constant(kl, n, device)?]);
        let metrics = metrics.collect();
        Ok(ObjectiveLoss { sum: Sum::from(&loss), loss, weight: n as f64, metrics })
    }

    /// Estimates how far the model is from its reference, on prompts with the answers of others.
    fn before_step(
        &self,
        accelerator: &Accelerator,
        model: &dyn Unrecorded,
        batches: &[Batch],
    ) -> Result<()> {
        let mut sums = [0.0, 0.0];
        for batch in batches.iter().filter_map(|batch| batch.fields.batch(MISMATCHED)) {
            let inputs = Inputs::new(batch, accelerator.device())?;
            let ratios = log_probs(model, &inputs)?.sub(&self.reference.log_probs(model, &inputs)?)?;
            sums[0] += f64::from(ratios.cast(DType::F32)?.sum_all()?.item::<f32>()?);
            sums[1] += batch.fields.spans(ANSWERS).len() as f64;
        }
        accelerator.reduce_sum(&mut sums)?;
        self.kl.set((sums[0] / sums[1].max(1.0)).max(0.0));
        Ok(())
    }

    fn prepare(&self, model: &dyn Unrecorded, inputs: &mut Inputs) -> Result<()> {
        inputs.reference = Some(self.reference.log_probs(model, inputs)?);
        Ok(())
    }

    fn metrics(&self, _evaluates: bool) -> &'static [&'static str] {
        &METRICS
    }
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::cpu::Isa;
    use oarlock_tensor::{Device, Par};

    use super::*;

    #[test]
    fn losses_are_those_worked_out_by_hand() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let loss = |ratio: f32, sign: f32| {
            let ratios = Tensor::from_slice(&[ratio], [1], &device).unwrap();
            kto_losses(&ratios, 0.5, 0.1, sign).unwrap().sum_all().unwrap().item::<f32>().unwrap()
        };
        assert!((loss(1.0, 1.0) - 0.487_503).abs() < 1e-6, "{}", loss(1.0, 1.0));
        assert!((loss(-1.0, -1.0) - 0.462_570).abs() < 1e-6, "{}", loss(-1.0, -1.0));
    }
}
