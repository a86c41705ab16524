//! BLEU-4 of one text (Papineni et al. 2002) over characters, as nltk's `sentence_bleu` with its smoothing method 3.

use std::collections::HashMap;

/// The score from 0 to 1. A precision of 0 counts as `1 / (2^k · n)`, k counting them: NIST's smoothing.
pub fn bleu4(prediction: &str, label: &str) -> f64 {
    let (prediction, label): (Vec<char>, Vec<char>) = (prediction.chars().collect(), label.chars().collect());
    let mut sum = 0.0;
    let mut missed = 0;
    for n in 1..=4 {
        let (counts, reference) = (counts(&prediction, n), counts(&label, n));
        let hits: usize = counts.iter().map(|(gram, n)| n.min(reference.get(gram).unwrap_or(&0))).sum();
        let total = counts.values().sum::<usize>().max(1) as f64;
        if n == 1 && hits == 0 {
            return 0.0;
        }
        let precision = match hits {
            0 => {
                missed += 1;
                1.0 / (f64::from(1u32 << missed) * total)
            }
            hits => hits as f64 / total,
        };
        sum += 0.25 * libm::log(precision);
    }
    let (ours, theirs) = (prediction.len() as f64, label.len() as f64);
    let brevity = if ours > theirs { 1.0 } else { libm::exp(1.0 - theirs / ours) };
    brevity * libm::exp(sum)
}

fn counts(text: &[char], n: usize) -> HashMap<&[char], usize> {
    let mut counts = HashMap::new();
    text.windows(n).for_each(|gram| *counts.entry(gram).or_default() += 1);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_scores_one_and_another_zero() {
        assert!((bleu4("the same", "the same") - 1.0).abs() < 1e-12);
        assert_eq!(bleu4("abc", "xyz"), 0.0);
        assert_eq!(bleu4("", "xyz"), 0.0);
        assert_eq!(bleu4("abc", ""), 0.0);
    }
}
