//! Preferences: which of two answers is better (DPO, IPO, ORPO, SimPO and others). Every pair weighs the same.

use std::sync::Arc;

use oarlock_config::config::{PreferenceArgs, PreferenceLoss};
use oarlock_engine::{Accelerator, Checkpointed, Result, nn};
use oarlock_tensor::Tensor;

use super::answers::{Answers, Reference, mean_of, of_reference};
use super::definition::Objective;
use super::inputs::Inputs;
use super::language_model::{LanguageModel, Unrecorded};
use super::metric::{ObjectiveLoss, Sum, Totals};
use super::preference_loss::{PairLosses, Pairs, first_loss};
use crate::data::{Batch, CHOSEN, REJECTED};

const METRICS: [&str; 9] = [
    "rewards/chosen",
    "rewards/rejected",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
    "logits/chosen",
    "logits/rejected",
    // Of ORPO.
    "sft_loss",
    "odds_ratio_loss",
];

/// A loss of pairs of answers.
pub struct Preference {
    args: PreferenceArgs,
    reference: Reference,
    /// The rewards of earlier steps, summed, and their number: what the classifier of `pref_bco_weight` takes off.
    rewards: Arc<Checkpointed<(f64, f64)>>,
}

impl Preference {
    /// A loss and the model that it compares with.
    pub fn new(args: PreferenceArgs, reference: Reference) -> Preference {
        Preference { args, reference, rewards: Arc::new(Checkpointed::new((0.0, 0.0))) }
    }
}

impl Objective for Preference {
    fn weight(&self, batch: &Batch) -> f64 {
        batch.fields.spans(REJECTED).len() as f64
    }

    fn loss(&self, model: &dyn LanguageModel, inputs: &Inputs) -> nn::Result<ObjectiveLoss> {
        let (args, n) = (&self.args, inputs.fields.spans(REJECTED).len());
        let reference = &of_reference(inputs)?;
        let found = model.log_probs(inputs)?;
        let (chosen, rejected) = (Answers::of(inputs, CHOSEN), Answers::of(inputs, REJECTED));
        let whole = |answers: &Answers<'_>, values: &Tensor| match args.loss.takes_means() {
            true => answers.means(values),
            false => answers.sums(values, |_, _| 1.0),
        };
        let own = |answers: &Answers<'_>, others: &Answers<'_>| match args.ld_alpha {
            // What the longer answer has beyond the shorter one counts less.
            Some(alpha) if !args.loss.takes_means() => {
                answers.sums(
                    &found.of_labels,
                    |answer, place| {
                        if place >= others.lens()[answer] { alpha } else { 1.0 }
                    },
                )
            }
            _ => whole(answers, &found.of_labels),
        };
        let own = [own(&chosen, &rejected)?, own(&rejected, &chosen)?];
        // The reference is not desensitized, in TRL as in LLaMA-Factory.
        let theirs = [whole(&chosen, reference)?, whole(&rejected, reference)?];
        let pairs = Pairs {
            chosen: &own[0],
            rejected: &own[1],
            reference_chosen: &theirs[0],
            reference_rejected: &theirs[1],
        };
        let baseline = {
            let (sum, count) = *self.rewards.lock();
            if count > 0.0 { (sum / count) as f32 } else { 0.0 }
        };
        let PairLosses { losses, chosen_rewards, rejected_rewards, odds } = pairs.losses(args, baseline)?;
        let negative_means = chosen.means(&found.of_labels)?.neg()?;
        let losses = match args.ftx > 0.0 {
            true => losses.add(&negative_means.scale(args.ftx)?)?,
            false => losses,
        };
        let loss = match n {
            // A rank without a pair takes part with a loss of 0.
            0 => found.of_labels.sum_all()?.scale(0.0)?,
            _ => losses.sum_all()?,
        };
        let [chosen_rewards, rejected_rewards] = [chosen_rewards.detach(), rejected_rewards.detach()];
        let is_right = chosen_rewards.gt(&rejected_rewards)?.cast(oarlock_tensor::DType::F32)?;
        let mut metrics = vec![
            mean_of(&chosen_rewards, n)?,
            mean_of(&rejected_rewards, n)?,
            mean_of(&is_right, n)?,
            mean_of(&own[0], n)?,
            mean_of(&own[1], n)?,
            chosen.mean_logit(&found)?,
            rejected.mean_logit(&found)?,
        ];
        if let Some(odds) = &odds {
            metrics.extend([mean_of(&negative_means, n)?, mean_of(odds, n)?]);
        }
        Ok(ObjectiveLoss { sum: Sum::from(&loss), loss, weight: n as f64, metrics })
    }

    fn prepare(&self, model: &dyn Unrecorded, inputs: &mut Inputs) -> Result<()> {
        inputs.reference = Some(self.reference.log_probs(model, inputs)?);
        Ok(())
    }

    fn metrics(&self, _evaluates: bool) -> &'static [&'static str] {
        match self.args.loss {
            PreferenceLoss::Orpo => &METRICS,
            _ => &METRICS[..7],
        }
    }

    fn register(&self, accelerator: &Accelerator) {
        if self.args.bco_weight > 0.0 {
            accelerator.register_for_checkpointing(self.rewards.clone());
        }
    }

    fn after_step(&self, totals: &Totals) {
        let mut rewards = self.rewards.lock();
        for metric in &totals.metrics[..2] {
            rewards.0 += metric.sum;
            rewards.1 += metric.weight;
        }
    }

    fn first_loss(&self) -> Option<f64> {
        first_loss(&self.args)
    }
}
