//! Choosing the next token: bias, penalties, constraints, temperature, top-k, top-p, min-p, in the order in which
//! transformers applies them; the penalties of OpenAI's API stand behind that of transformers, as in vLLM.

use std::cmp::Ordering;

use oarlock_tensor::cpu::random::Stream;

use oarlock_engine::{Error, Result};

use super::constraint::TokenSet;
use super::refusal::Refusal;

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
    /// Only tokens with at least this share of the probability of the likeliest; 0 for all.
    pub min_p: f32,
    /// Above 1 makes tokens of the text so far less likely, those of the prompt too.
    pub repetition_penalty: f32,
    /// Taken from the logit of each token that the answer has; 0 for none.
    pub presence_penalty: f32,
    /// Taken from the logit of a token for each time that the answer has it; 0 for none.
    pub frequency_penalty: f32,
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
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    fn check(&self) -> std::result::Result<(), Refusal> {
        let refuse = |name: &str, value: f32, expected: &str| {
            Err(Refusal::Sampling(format!("{name} is {value}; expected {expected}")))
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", self.temperature, "0 (greedy) or more");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", self.top_p, "more than 0 and at most 1 (all tokens)");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", self.min_p, "0 (all tokens) to 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return refuse("repetition_penalty", self.repetition_penalty, "more than 0 (1 for none)");
        }
        let penalties =
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)];
        match penalties.into_iter().find(|(_, penalty)| !penalty.is_finite()) {
            Some((name, penalty)) => refuse(name, penalty, "a number (0 for none)"),
            None => Ok(()),
        }
    }
}

/// Refuses logits of which none is the largest.
pub(super) fn check_logits(logits: &[f32]) -> Result<()> {
    let is_bad = |x: f32| x.is_nan() || x == f32::INFINITY;
    // Most often there is none, which a loop without a branch sees.
    if !logits.iter().fold(false, |any, &x| any | is_bad(x)) {
        return Ok(());
    }
    match logits.iter().find(|x| is_bad(**x)) {
        Some(bad) => Err(Error::Model(format!(
            "the model gives a logit of {bad}: its weights are damaged or overflow this dtype"
        ))),
        None => Ok(()),
    }
}

/// Chooses the tokens of one answer.
#[derive(Debug)]
pub(super) struct Sampler {
    settings: Sampling,
    /// What is added to the logits of some tokens.
    bias: Vec<(u32, f32)>,
    /// Tokens that may be drawn, with their scores. The first ones are the likeliest, in their order; the others are in none.
    candidates: Vec<(f32, u32)>,
    /// How likely the first ones are, by the likeliest.
    weights: Vec<f64>,
    /// What all of them have together.
    total: f64,
}

/// A text so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text<'a> {
    /// The prompt and the answer; their number addresses the random number.
    pub(super) ids: &'a [u32],
    /// Tokens of the prompt.
    pub(super) n_prompt: usize,
}

impl Sampler {
    /// With these settings, and with what is added to the logits of some tokens.
    pub(super) fn new(settings: Sampling, bias: Vec<(u32, f32)>) -> std::result::Result<Sampler, Refusal> {
        settings.check()?;
        if let Some((id, bias)) = bias.iter().find(|(_, bias)| !bias.is_finite()) {
            return Err(Refusal::Sampling(format!(
                "the logit bias of token {id} is {bias}; expected a number"
            )));
        }
        Ok(Sampler { settings, bias, candidates: Vec::new(), weights: Vec::new(), total: 0.0 })
    }

    /// The token after `text`, of those that are allowed. The logits become the scores that it is chosen by.
    pub(super) fn next(
        &mut self,
        logits: &mut [f32],
        text: Text<'_>,
        allowed: Option<&TokenSet>,
    ) -> Result<u32> {
        check_logits(logits)?;
        self.penalize(logits, text);
        if let Some(allowed) = allowed {
            forbid(logits, allowed)?;
        }
        let likeliest = likeliest(logits);
        if self.settings.temperature == 0.0 {
            return Ok(likeliest);
        }
        logits.iter_mut().for_each(|score| *score /= self.settings.temperature);
        // Near 0 a temperature takes the scores beyond f32, and only the likeliest is left.
        if !logits[likeliest as usize].is_finite() {
            return Ok(likeliest);
        }
        self.rank(logits);
        Ok(self.draw(uniform(self.settings.seed, text.ids.len())))
    }

    fn penalize(&self, scores: &mut [f32], text: Text<'_>) {
        let mut change = |id: u32, f: &dyn Fn(f32) -> f32| {
            if let Some(score) = scores.get_mut(id as usize) {
                *score = f(*score);
            }
        };
        for &(id, bias) in &self.bias {
            change(id, &|score| score + bias);
        }
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.settings;
        if repetition_penalty != 1.0 {
            for (id, _) in counts(text.ids) {
                change(id, &|score| match score < 0.0 {
                    true => score * repetition_penalty,
                    false => score / repetition_penalty,
                });
            }
        }
        if presence_penalty != 0.0 || frequency_penalty != 0.0 {
            for (id, n) in counts(text.ids.get(text.n_prompt..).unwrap_or_default()) {
                change(id, &|score| score - frequency_penalty * n as f32 - presence_penalty);
            }
        }
    }

    /// Finds the `top_k` likeliest tokens, and those that are as likely as the last of them.
    fn rank(&mut self, scores: &[f32]) {
        let possible = scores.iter().zip(0..).filter(|(score, _)| **score > f32::NEG_INFINITY);
        self.candidates.clear();
        self.candidates.extend(possible.map(|(&score, id)| (score, id)));
        let k = self.settings.top_k;
        if k > 0 && k < self.candidates.len() {
            let (_, &mut (least, _), _) = self.candidates.select_nth_unstable_by(k - 1, likelier);
            self.candidates.retain(|(score, _)| *score >= least);
        }
        self.weights.clear();
        self.sort_more();
        let weights = self.candidates.iter().map(|&(score, _)| self.weight(score));
        self.total = weights.sum();
    }

    /// How likely a token is by the likeliest.
    fn weight(&self, score: f32) -> f64 {
        let first = self.candidates.first().map_or(0.0, |(score, _)| f64::from(*score));
        libm::exp(f64::from(score) - first)
    }

    /// Sorts some more of the tokens that are in no order; whether there were any. Few tokens have nearly all of the
    /// probability, so most are never sorted.
    fn sort_more(&mut self) -> bool {
        let n_sorted = self.weights.len();
        let rest = &mut self.candidates[n_sorted..];
        let n = rest.len().min((3 * n_sorted).max(64));
        if n < rest.len() {
            rest.select_nth_unstable_by(n, likelier);
        }
        rest[..n].sort_unstable_by(likelier);
        for at in n_sorted..n_sorted + n {
            self.weights.push(self.weight(self.candidates[at].0));
        }
        n > 0
    }

    /// Draws from the tokens whose likelier ones have less than `top_p` together, and which have `min_p` of the likeliest; `u`
    /// is in `[0, 1)`.
    fn draw(&mut self, u: f64) -> u32 {
        let goal = f64::from(self.settings.top_p) * self.total;
        let min_p = f64::from(self.settings.min_p);
        let (mut kept, mut n_kept) = (self.total, self.candidates.len());
        if self.settings.top_p < 1.0 || min_p > 0.0 {
            (kept, n_kept) = (0.0, 0);
            while n_kept < self.weights.len() || self.sort_more() {
                let weight = self.weights[n_kept];
                if n_kept > 0 && (kept >= goal || weight < min_p) {
                    break;
                }
                kept += weight;
                n_kept += 1;
            }
        }
        let (mut below, mut last) = (0.0, 0);
        for at in 0..n_kept {
            if at == self.weights.len() {
                self.sort_more();
            }
            below += self.weights[at];
            last = self.candidates[at].1;
            if u * kept < below {
                break;
            }
        }
        last
    }
}

/// The likelier first, of equals the first.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The tokens of a text, each with how often it has them.
fn counts(ids: &[u32]) -> Vec<(u32, usize)> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids.chunk_by(|a, b| a == b).map(|same| (same[0], same.len())).collect()
}

/// Makes all other tokens impossible.
fn forbid(scores: &mut [f32], allowed: &TokenSet) -> Result<()> {
    let mut is_stuck = true;
    for (id, score) in scores.iter_mut().enumerate() {
        match allowed.contains(id as u32) {
            true => is_stuck &= *score == f32::NEG_INFINITY,
            false => *score = f32::NEG_INFINITY,
        }
    }
    if is_stuck {
        return Err(Error::Usage("the constraint of this answer allows no token that can follow".to_owned()));
    }
    Ok(())
}

/// Of equals the first.
fn likeliest(scores: &[f32]) -> u32 {
    // The largest of each lane, as vectors have them.
    const LANES: usize = 16;
    let larger = |largest: f32, x: f32| if x > largest { x } else { largest };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = scores.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(largest, &x)| *largest = larger(*largest, x));
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |largest, &x| larger(largest, x));
    scores.iter().position(|&x| x == largest).unwrap_or(0) as u32
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
        Sampler::new(settings, Vec::new()).unwrap()
    }

    fn sampled() -> Sampling {
        Sampling { temperature: 1.0, ..Sampling::GREEDY }
    }

    /// The next token of [`LOGITS`] behind a text of which this is the prompt.
    fn next(sampler: &mut Sampler, prompt: &[u32]) -> u32 {
        sampler.next(&mut LOGITS.clone(), Text { ids: prompt, n_prompt: prompt.len() }, None).unwrap()
    }

    /// The scores of [`LOGITS`] that a greedy sampler compares, behind a prompt and an answer.
    fn scores(settings: Sampling, bias: &[(u32, f32)], text: &[u32], n_prompt: usize) -> Vec<f32> {
        let mut scores = LOGITS.to_vec();
        let text = Text { ids: text, n_prompt };
        Sampler::new(settings, bias.to_vec()).unwrap().next(&mut scores, text, None).unwrap();
        scores
    }

    /// The tokens that can be drawn, with their shares of evenly spread numbers.
    fn shares(settings: Sampling) -> Vec<(u32, f64)> {
        let mut s = sampler(settings);
        next(&mut s, &[]);
        let mut counts = [0.0; 5];
        (0..10_000).for_each(|i| counts[s.draw(f64::from(i) / 10_000.0) as usize] += 1e-4);
        (0..5).map(|id| (id, counts[id as usize])).filter(|(_, share)| *share > 0.0).collect()
    }

    #[test]
    fn greedy_takes_the_first_of_the_likeliest() {
        assert_eq!(next(&mut sampler(Sampling::GREEDY), &[4]), 1);
    }

    #[test]
    fn a_temperature_near_zero_takes_the_likeliest() {
        for temperature in [1e-38, 1e-45] {
            let mut sampler = sampler(Sampling { temperature, ..sampled() });
            let text = Text { ids: &[4], n_prompt: 1 };
            let id = sampler.next(&mut LOGITS.map(|x| x * 100.0), text, None).unwrap();
            assert_eq!(id, 1, "{temperature}");
        }
    }

    #[test]
    fn a_penalty_makes_seen_tokens_less_likely_whatever_their_sign() {
        let settings = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
        assert_eq!(next(&mut sampler(settings), &[1, 1, 4, 2]), 3);
        assert_eq!(scores(settings, &[], &[1, 1, 4, 2], 4), [1.0, 1.5, -2.0, 2.0, 1.5]);
    }

    #[test]
    fn penalties_of_the_answer_do_not_count_the_prompt_and_come_behind_that_of_all() {
        let settings = Sampling { presence_penalty: 0.5, frequency_penalty: 0.25, ..Sampling::GREEDY };
        assert_eq!(scores(settings, &[], &[0, 0, 1, 1, 2], 2), [1.0, 2.0, -1.75, 2.0, 3.0]);
        // Bias, then the penalty that multiplies, then those that subtract.
        let all = Sampling { repetition_penalty: 2.0, ..settings };
        assert_eq!(scores(all, &[(0, 2.0), (4, -9.0)], &[0, 1, 4], 1), [1.5, 0.75, -1.0, 2.0, -12.75]);
        assert_eq!(scores(Sampling::GREEDY, &[(9, 1.0)], &[0, 1], 1), LOGITS);
    }

    #[test]
    fn only_allowed_tokens_are_drawn() {
        let mut allowed = TokenSet::empty(5);
        assert!(allowed.is_empty() && allowed.vocab_size() == 5);
        let text = Text { ids: &[1], n_prompt: 1 };
        let next =
            |settings, allowed: &TokenSet| sampler(settings).next(&mut LOGITS.clone(), text, Some(allowed));
        let error = next(sampled(), &allowed).unwrap_err().to_string();
        assert!(error.contains("allows no token"), "{error}");
        [0, 3, 70].iter().for_each(|&id| allowed.insert(id));
        assert_eq!((allowed.contains(3), allowed.contains(1), allowed.contains(70)), (true, false, false));
        assert_eq!(next(Sampling::GREEDY, &allowed).unwrap(), 3);
        let drawn = |seed| next(Sampling { seed, temperature: 5.0, ..sampled() }, &allowed).unwrap();
        let ids: std::collections::BTreeSet<u32> = (0..64).map(drawn).collect();
        assert_eq!(ids.into_iter().collect::<Vec<_>>(), [0, 3]);
        allowed.clear();
        assert!(allowed.is_empty());
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

    /// Of so many tokens that they are sorted in several parts, each is drawn where all are sorted at once.
    #[test]
    fn parts_that_are_sorted_give_the_tokens_of_the_whole_order() {
        let logit = |id: usize| (id * 7919 % 1009) as f32 / 997.0;
        let logits: Vec<f32> = (0..1000).map(logit).collect();
        let mut ids: Vec<usize> = (0..1000).collect();
        ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        for (top_p, min_p) in [(1.0, 0.0), (0.7, 0.0), (1.0, 0.5), (0.01, 0.0)] {
            let mut s = sampler(Sampling { top_p, min_p, ..sampled() });
            let text = Text { ids: &[], n_prompt: 0 };
            s.next(&mut logits.clone(), text, None).unwrap();
            let weight = |id: usize| f64::from(logits[id] - logits[ids[0]]).exp();
            let total: f64 = ids.iter().map(|&id| weight(id)).sum();
            let mut kept = Vec::new();
            let mut sum = 0.0;
            for &id in &ids {
                if !kept.is_empty() && (sum >= f64::from(top_p) * total || weight(id) < f64::from(min_p)) {
                    break;
                }
                sum += weight(id);
                kept.push(id);
            }
            for u in [0.0, 0.003, 0.3, 0.62, 0.9993] {
                let mut below = 0.0;
                let expected = kept.iter().find(|&&id| {
                    below += weight(id);
                    u * sum < below
                });
                assert_eq!(Some(&(s.draw(u) as usize)), expected, "{top_p} {min_p} {u}");
            }
        }
    }

    #[test]
    fn min_p_keeps_tokens_by_their_share_of_the_likeliest() {
        let ids = |s: Sampling| shares(s).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        // The others have exp(-1) = 0.368 and exp(-2) = 0.135 of the likeliest.
        assert_eq!(ids(Sampling { min_p: 1.0, ..sampled() }), [1, 4]);
        assert_eq!(ids(Sampling { min_p: 0.37, ..sampled() }), [1, 4]);
        assert_eq!(ids(Sampling { min_p: 0.36, ..sampled() }), [1, 3, 4]);
        assert_eq!(ids(Sampling { min_p: 0.13, ..sampled() }), [0, 1, 3, 4]);
        assert_eq!(ids(Sampling { min_p: 0.13, top_p: 0.79, ..sampled() }), [1, 4]);
        let of_first = |s: Sampling| shares(s)[0].1;
        assert!((of_first(Sampling { min_p: 0.36, ..sampled() }) - 1.0 / 2.3679).abs() < 2e-4);
    }

    #[test]
    fn a_seed_gives_the_same_tokens_and_another_seed_others() {
        let draw = |seed| {
            let mut s = sampler(Sampling { seed, ..sampled() });
            (0..32).map(|n| next(&mut s, &vec![0; n])).collect::<Vec<_>>()
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
            Sampling { min_p: -0.1, ..sampled() },
            Sampling { min_p: f32::NAN, ..sampled() },
            Sampling { repetition_penalty: 0.0, ..sampled() },
            Sampling { presence_penalty: f32::INFINITY, ..sampled() },
            Sampling { frequency_penalty: f32::NAN, ..sampled() },
        ] {
            assert!(Sampler::new(settings, Vec::new()).is_err(), "{settings:?}");
        }
        assert!(Sampler::new(sampled(), vec![(1, f32::NAN)]).is_err());
        let text = Text { ids: &[], n_prompt: 0 };
        assert!(sampler(sampled()).next(&mut [0.0, f32::NAN], text, None).is_err());
    }
}
