//! Choosing the next token: repetition penalty, temperature, top-k, top-p, in the order in which transformers applies them.

use std::cmp::Ordering;

use oarlock_tensor::cpu::random::Stream;

use oarlock_engine::{Error, Result};

/// Separates the sampler's random numbers from those of other users of the same seed.
const STREAM: u64 = 0x5a3c_9d17_00b4_e6f1;

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest tokens; 0 for all.
    pub top_k: usize,
    /// Only the likeliest tokens that together have this probability; 1 for all.
    pub top_p: f32,
    /// Above 1 makes tokens of the text so far less likely.
    pub repetition_penalty: f32,
    /// The same seed gives the same text.
    pub seed: u64,
}

impl Default for Sampling {
    /// [`Sampling::GREEDY`], as in transformers.
    fn default() -> Sampling {
        Sampling::GREEDY
    }
}

impl Sampling {
    /// Always the likeliest token.
    pub const GREEDY: Sampling =
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 0 };

    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::Usage(what));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse(format!("temperature is {}; expected 0 (greedy) or more", self.temperature));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse(format!(
                "top_p is {}; expected more than 0 and at most 1 (all tokens)",
                self.top_p
            ));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return refuse(format!(
                "repetition_penalty is {}; expected more than 0 (1 for none)",
                self.repetition_penalty
            ));
        }
        Ok(())
    }
}

/// Refuses logits of which none is the largest.
pub(super) fn check_logits(logits: &[f32]) -> Result<()> {
    match logits.iter().find(|x| x.is_nan() || **x == f32::INFINITY) {
        Some(bad) => Err(Error::Model(format!(
            "the model gives a logit of {bad}: its weights are damaged or overflow this dtype"
        ))),
        None => Ok(()),
    }
}

pub(super) struct Sampler {
    settings: Sampling,
    scores: Vec<f32>,
    /// Tokens that may be drawn, the likeliest first.
    candidates: Vec<u32>,
}

impl Sampler {
    pub(super) fn new(settings: Sampling) -> Result<Sampler> {
        settings.check()?;
        Ok(Sampler { settings, scores: Vec::new(), candidates: Vec::new() })
    }

    /// The token after `text`, whose length addresses the random number.
    pub(super) fn next(&mut self, logits: &[f32], text: &[u32]) -> Result<u32> {
        check_logits(logits)?;
        self.scores.clear();
        self.scores.extend_from_slice(logits);
        self.penalize(text);
        match self.settings.temperature {
            0.0 => Ok(self.likeliest()),
            temperature => {
                let likeliest = self.likeliest();
                self.scores.iter_mut().for_each(|score| *score /= temperature);
                // Near 0 a temperature takes the scores beyond f32, and only the likeliest is left.
                if !self.scores[likeliest as usize].is_finite() {
                    return Ok(likeliest);
                }
                self.rank();
                Ok(self.draw(uniform(self.settings.seed, text.len())))
            }
        }
    }

    fn penalize(&mut self, text: &[u32]) {
        let penalty = self.settings.repetition_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut ids = text.to_vec();
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            if let Some(score) = self.scores.get_mut(id as usize) {
                *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
            }
        }
    }

    /// Of equals the first.
    fn likeliest(&self) -> u32 {
        let better = |best: usize, id: usize| if self.scores[id] > self.scores[best] { id } else { best };
        (0..self.scores.len()).reduce(better).unwrap_or(0) as u32
    }

    /// Sorts the `top_k` likeliest tokens, and those that are as likely as the last of them.
    fn rank(&mut self) {
        let scores = &self.scores;
        let order = |a: &u32, b: &u32| -> Ordering {
            scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b))
        };
        self.candidates.clear();
        self.candidates.extend(0..scores.len() as u32);
        let k = self.settings.top_k;
        if k > 0 && k < scores.len() {
            let (_, last, _) = self.candidates.select_nth_unstable_by(k - 1, order);
            let least = scores[*last as usize];
            self.candidates.retain(|&id| scores[id as usize] >= least);
        }
        self.candidates.sort_unstable_by(order);
    }

    /// Draws from the ranked tokens whose likelier ones have less than `top_p` together; `u` is in `[0, 1)`.
    fn draw(&self, u: f64) -> u32 {
        let score = |id: u32| f64::from(self.scores[id as usize]);
        let Some(&first) = self.candidates.first() else { return 0 };
        let weights: Vec<f64> =
            self.candidates.iter().map(|&id| libm::exp(score(id) - score(first))).collect();
        let goal = f64::from(self.settings.top_p) * weights.iter().sum::<f64>();
        let mut kept = 0.0;
        let mut n_kept = 0;
        for weight in &weights {
            if n_kept > 0 && kept >= goal {
                break;
            }
            kept += weight;
            n_kept += 1;
        }
        let mut below = 0.0;
        for (&id, weight) in self.candidates[..n_kept].iter().zip(&weights) {
            below += weight;
            if u * kept < below {
                return id;
            }
        }
        self.candidates[n_kept - 1]
    }
}

/// The random number of a position.
fn uniform(seed: u64, position: usize) -> f64 {
    f64::from(Stream { seed, stream: STREAM }.uniform(position as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [1.0, 3.0, -1.0, 2.0, 3.0];

    fn sampler(settings: Sampling) -> Sampler {
        Sampler::new(settings).unwrap()
    }

    fn sampled() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::GREEDY }
    }

    /// The tokens that can be drawn, with their shares of evenly spread numbers.
    fn shares(settings: Sampling) -> Vec<(u32, f64)> {
        let mut s = sampler(settings);
        s.next(&LOGITS, &[]).unwrap();
        let mut counts = [0.0; 5];
        (0..10_000).for_each(|i| counts[s.draw(f64::from(i) / 10_000.0) as usize] += 1e-4);
        (0..5).map(|id| (id, counts[id as usize])).filter(|(_, share)| *share > 0.0).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(sampler(Sampling::GREEDY).next(&LOGITS, &[4]).unwrap(), 1);
    }

    #[test]
    fn a_temperature_near_zero_takes_the_likeliest() {
        for temperature in [1e-38, 1e-45] {
            let mut sampler = sampler(Sampling { temperature, ..sampled() });
            assert_eq!(sampler.next(&LOGITS.map(|x| x * 100.0), &[4]).unwrap(), 1, "{temperature}");
        }
    }

    #[test]
    fn a_penalty_makes_seen_tokens_less_likely_whatever_their_sign() {
        let mut s = sampler(Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY });
        assert_eq!(s.next(&LOGITS, &[1, 1, 4, 2]).unwrap(), 3);
        assert_eq!(s.scores, [1.0, 1.5, -2.0, 2.0, 1.5]);
    }

    #[test]
    fn shares_are_the_softmax() {
        let total: f64 = LOGITS.iter().map(|x| f64::from(*x / 0.5).exp()).sum();
        for (id, share) in shares(Sampling { temperature: 0.5, ..sampled() }) {
            let expected = f64::from(LOGITS[id as usize] / 0.5).exp() / total;
            assert!((share - expected).abs() < 2e-4, "{id}: {share} {expected}");
        }
    }

    #[test]
    fn top_k_keeps_ties_and_top_p_the_smallest_set_that_reaches_it() {
        let ids = |s: Sampling| shares(s).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(Sampling { top_k: 1, ..sampled() }), [1, 4]);
        assert_eq!(ids(Sampling { top_k: 3, ..sampled() }), [1, 3, 4]);
        assert_eq!(ids(Sampling { top_k: 99, ..sampled() }), [0, 1, 2, 3, 4]);
        // The probabilities are .40 .40 .15 .05 .01.
        assert_eq!(ids(Sampling { top_p: 0.01, ..sampled() }), [1]);
        assert_eq!(ids(Sampling { top_p: 0.79, ..sampled() }), [1, 4]);
        assert_eq!(ids(Sampling { top_p: 0.9, ..sampled() }), [1, 3, 4]);
        assert_eq!(ids(Sampling { top_k: 2, top_p: 0.5, ..sampled() }), [1]);
        assert_eq!(ids(Sampling { top_k: 2, top_p: 0.51, ..sampled() }), [1, 4]);
    }

    #[test]
    fn a_seed_gives_the_same_tokens_and_another_seed_others() {
        let draw = |seed| {
            let mut s = sampler(Sampling { seed, ..sampled() });
            (0..32).map(|n| s.next(&LOGITS, &vec![0; n]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn settings_and_logits_that_make_no_sense_are_refused() {
        for settings in [
            Sampling { temperature: -1.0, ..sampled() },
            Sampling { temperature: f32::NAN, ..sampled() },
            Sampling { top_p: 0.0, ..sampled() },
            Sampling { top_p: 1.1, ..sampled() },
            Sampling { repetition_penalty: 0.0, ..sampled() },
        ] {
            assert!(Sampler::new(settings).is_err(), "{settings:?}");
        }
        assert!(sampler(sampled()).next(&[0.0, f32::NAN], &[]).is_err());
    }
}
