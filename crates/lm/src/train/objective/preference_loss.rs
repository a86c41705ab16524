//! The losses of pairs of answers, from the log-probabilities of their answers: one number for each pair.

use oarlock_tensor::Tensor;

use oarlock_config::config::{PreferenceArgs, PreferenceLoss};
use oarlock_engine::nn::Result;

/// The log-probabilities of the answers of pairs, `[N]` each: sums or means over their tokens, as
/// [`PreferenceLoss::takes_means`] says.
pub struct Pairs<'t> {
    /// Of the chosen answers, by the model that is trained.
    pub chosen: &'t Tensor,
    /// Of the rejected answers.
    pub rejected: &'t Tensor,
    /// Of the chosen answers, by the reference.
    pub reference_chosen: &'t Tensor,
    /// Of the rejected answers.
    pub reference_rejected: &'t Tensor,
}

/// What pairs came to.
pub struct PairLosses {
    /// The loss of each pair, without `pref_ftx`.
    pub losses: Tensor,
    /// The reward of each chosen answer, on the tape.
    pub chosen_rewards: Tensor,
    /// The reward of each rejected answer.
    pub rejected_rewards: Tensor,
    /// ORPO's part of the odds alone.
    pub odds: Option<Tensor>,
}

impl Pairs<'_> {
    /// The losses and rewards. `baseline` is the mean of earlier rewards, which the classifier of `pref_bco_weight` takes
    /// off.
    ///
    /// # Errors
    /// Shapes that differ.
    pub fn losses(&self, args: &PreferenceArgs, baseline: f32) -> Result<PairLosses> {
        let beta = args.beta;
        let rewards = |own: &Tensor, reference: &Tensor| match args.loss.has_reference() {
            true => own.sub(reference)?.scale(beta),
            false => own.scale(beta),
        };
        let chosen_rewards = rewards(self.chosen, self.reference_chosen)?;
        let rejected_rewards = rewards(self.rejected, self.reference_rejected)?;
        let margins = || chosen_rewards.sub(&rejected_rewards);
        let mut odds = None;
        let mut losses = match args.loss {
            PreferenceLoss::Sigmoid => {
                let (margins, wrong) = (margins()?, args.label_smoothing);
                let losses = margins.logsigmoid()?.scale(wrong - 1.0)?;
                match wrong > 0.0 {
                    true => losses.sub(&margins.neg()?.logsigmoid()?.scale(wrong)?)?,
                    false => losses,
                }
            }
            PreferenceLoss::Hinge => margins()?.neg()?.add_scalar(1.0)?.relu()?,
            PreferenceLoss::Ipo => margins()?.scale(1.0 / beta)?.add_scalar(-0.5 / beta)?.square()?,
            PreferenceLoss::Orpo => {
                let ratios = log_odds(self.chosen)?.sub(&log_odds(self.rejected)?)?;
                let of_odds = ratios.logsigmoid()?.neg()?;
                let losses = of_odds.scale(beta)?.sub(self.chosen)?;
                odds = Some(of_odds);
                losses
            }
            PreferenceLoss::Simpo => margins()?.add_scalar(-args.simpo_gamma)?.logsigmoid()?.neg()?,
        };
        if args.bco_weight > 0.0 {
            let good = chosen_rewards.add_scalar(-baseline)?.logsigmoid()?;
            let bad = rejected_rewards.neg()?.add_scalar(baseline)?.logsigmoid()?;
            let classifier = good.add(&bad)?.scale(-args.bco_weight)?;
            losses = losses.add(&classifier)?.scale(1.0 / (1.0 + args.bco_weight))?;
        }
        Ok(PairLosses { losses, chosen_rewards, rejected_rewards, odds })
    }
}

/// What the loss of a pair is while the model still is its reference; `None` where that is not known beforehand.
pub fn first_loss(args: &PreferenceArgs) -> Option<f64> {
    if args.ftx > 0.0 || args.ld_alpha.is_some() || args.reference.model.is_some() {
        return None;
    }
    let first = match args.loss {
        PreferenceLoss::Sigmoid => std::f64::consts::LN_2,
        PreferenceLoss::Hinge => 1.0,
        PreferenceLoss::Ipo => (0.5 / f64::from(args.beta)).powi(2),
        PreferenceLoss::Orpo | PreferenceLoss::Simpo => return None,
    };
    let weight = f64::from(args.bco_weight);
    Some((first + weight * 2.0 * std::f64::consts::LN_2) / (1.0 + weight))
}

/// The logarithm of p / (1 - p) for x = ln p, exact also where p is near 1.
fn log_odds(x: &Tensor) -> Result<Tensor> {
    // ln(1 - p) = ln(-(e^x - 1)); x is kept off 0, where it would be -∞.
    x.sub(&x.clamp(f32::MIN, -1e-6)?.expm1()?.neg()?.log()?)
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::cpu::Isa;
    use oarlock_tensor::{Device, Par};

    use super::*;

    fn device() -> Device {
        Device::cpu(Isa::detect(), Par::solo())
    }

    /// Loss and rewards of one pair, and the gradients of both log-probabilities.
    fn pair(
        args: &PreferenceArgs,
        own: [f32; 2],
        reference: [f32; 2],
        baseline: f32,
    ) -> ([f32; 3], [f32; 2]) {
        let device = device();
        let scalar = |x: f32| Tensor::from_slice(&[x], [1], &device).unwrap();
        let inputs = own.map(|x| scalar(x).with_grad());
        let reference = reference.map(scalar);
        let pairs = Pairs {
            chosen: &inputs[0],
            rejected: &inputs[1],
            reference_chosen: &reference[0],
            reference_rejected: &reference[1],
        };
        let found = pairs.losses(args, baseline).unwrap();
        let loss = found.losses.sum_all().unwrap();
        let numbers = [&loss, &found.chosen_rewards, &found.rejected_rewards]
            .map(|tensor| tensor.detach().sum_all().unwrap().item::<f32>().unwrap());
        let gradients = loss.backward().unwrap();
        let gradients =
            [0, 1].map(|i| gradients.of(&inputs[i]).unwrap().sum_all().unwrap().item::<f32>().unwrap());
        (numbers, gradients)
    }

    fn with(loss: PreferenceLoss) -> PreferenceArgs {
        PreferenceArgs { loss, ..PreferenceArgs::default() }
    }

    #[test]
    fn losses_are_those_worked_out_by_hand() {
        let (own, reference) = ([-10.0, -14.0], [-11.0, -13.0]);
        let of = |args: &PreferenceArgs| pair(args, own, reference, 0.0).0;
        let near = |found: f32, expected: f32| {
            assert!((found - expected).abs() < 2e-5 * expected.abs().max(1.0), "{found} {expected}")
        };
        let sigmoid = of(&with(PreferenceLoss::Sigmoid));
        near(sigmoid[0], 0.598_139);
        near(sigmoid[1], 0.1);
        near(sigmoid[2], -0.1);
        let smoothed = PreferenceArgs { label_smoothing: 0.1, ..with(PreferenceLoss::Sigmoid) };
        near(of(&smoothed)[0], 0.618_139);
        near(of(&with(PreferenceLoss::Hinge))[0], 0.8);
        // Means over 5 and 7 tokens.
        let ipo =
            pair(&with(PreferenceLoss::Ipo), [-10.0 / 5.0, -14.0 / 7.0], [-11.0 / 5.0, -13.0 / 7.0], 0.0).0;
        near(ipo[0], 21.688_98);
        near(pair(&with(PreferenceLoss::Simpo), [-2.0, -2.0], [0.0, 0.0], 0.0).0[0], 0.974_077);
        near(pair(&with(PreferenceLoss::Orpo), [-1.0, -2.0], [0.0, 0.0], 0.0).0[0], 1.023_818);
        // -ln σ(0.2) and the classifier: -ln σ(0.1 - 0.05) - ln σ(0.1 + 0.05), weighed half as much.
        let bco = PreferenceArgs { bco_weight: 0.5, ..with(PreferenceLoss::Sigmoid) };
        let softplus = |x: f32| (1.0 + x.exp()).ln();
        let expected = (softplus(-0.2) + 0.5 * (softplus(-0.05) + softplus(-0.15))) / 1.5;
        near(pair(&bco, own, reference, 0.05).0[0], expected);
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let all = [
            with(PreferenceLoss::Sigmoid),
            PreferenceArgs { label_smoothing: 0.2, bco_weight: 0.7, ..with(PreferenceLoss::Sigmoid) },
            with(PreferenceLoss::Hinge),
            with(PreferenceLoss::Ipo),
            with(PreferenceLoss::Orpo),
            PreferenceArgs { beta: 2.0, ..with(PreferenceLoss::Simpo) },
        ];
        let (own, reference) = ([-1.3f32, -2.1], [-1.5f32, -1.9]);
        for args in &all {
            let (_, gradients) = pair(args, own, reference, 0.02);
            for i in 0..2 {
                let shifted = |by: f32| {
                    let mut own = own;
                    own[i] += by;
                    pair(args, own, reference, 0.02).0[0]
                };
                let slope = (shifted(0.01) - shifted(-0.01)) / 0.02;
                assert!(
                    (slope - gradients[i]).abs() < 2e-3 * slope.abs().max(1.0),
                    "{args:?}: {slope} {}",
                    gradients[i]
                );
            }
        }
    }

    #[test]
    fn a_model_that_is_its_reference_has_the_loss_that_is_announced() {
        for args in [
            with(PreferenceLoss::Sigmoid),
            PreferenceArgs { label_smoothing: 0.3, bco_weight: 0.5, ..with(PreferenceLoss::Sigmoid) },
            with(PreferenceLoss::Hinge),
            with(PreferenceLoss::Ipo),
        ] {
            let same = [-3.0, -4.5];
            let (found, expected) = (pair(&args, same, same, 0.0).0[0], first_loss(&args).unwrap());
            assert!(
                (f64::from(found) - expected).abs() < 1e-5 * expected.max(1.0),
                "{args:?}: {found} {expected}"
            );
        }
        assert_eq!(first_loss(&with(PreferenceLoss::Orpo)), None);
        assert_eq!(first_loss(&PreferenceArgs { ftx: 0.1, ..PreferenceArgs::default() }), None);
    }

    #[test]
    fn orpo_stays_finite_for_answers_that_are_certain() {
        for own in [[0.0, -1.0], [-1e-9, -0.0], [-1e-7, -40.0]] {
            let (found, gradients) = pair(&with(PreferenceLoss::Orpo), own, [0.0, 0.0], 0.0);
            assert!(
                found[0].is_finite() && gradients.iter().all(|g| g.is_finite()),
                "{own:?}: {found:?} {gradients:?}"
            );
        }
    }
}
