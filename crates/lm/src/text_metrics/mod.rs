//! How near generated texts are to those that were expected: BLEU-4 and ROUGE as LLaMA-Factory computes them.

mod bleu;
mod rouge;
#[cfg_attr(not(feature = "tokenizers"), path = "words_absent.rs")]
mod words;

pub use bleu::bleu4;
pub use rouge::{Rouge, rouge};
use words::Words;

/// The scores of a text, each from 0 to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TextScores {
    /// BLEU-4 over characters.
    pub bleu4: f64,
    /// F1 of the words.
    pub rouge1: f64,
    /// F1 of the pairs of words.
    pub rouge2: f64,
    /// F1 of the longest common subsequence of words.
    pub rouge_l: f64,
}

/// Compares texts. Words are those of jieba, which knows Chinese; without the feature `tokenizers` they are what stands
/// between spaces.
pub struct TextMetrics {
    words: Words,
}

impl Default for TextMetrics {
    fn default() -> TextMetrics {
        TextMetrics::new()
    }
}

impl TextMetrics {
    /// Loads jieba's dictionary, which takes some tenths of a second.
    pub fn new() -> TextMetrics {
        TextMetrics { words: Words::new() }
    }

    /// The scores of `prediction`, each rounded to 4 digits as in the original.
    pub fn scores(&self, prediction: &str, label: &str) -> TextScores {
        let round = |score: f64| (score * 1e6).round() / 1e4;
        let joined = |text: &str| self.words.of(text).join(" ");
        let Rouge { one, two, l } = rouge(&joined(prediction), &joined(label));
        TextScores {
            bleu4: round(bleu4(prediction, label)),
            rouge1: round(one),
            rouge2: round(two),
            rouge_l: round(l),
        }
    }
}

impl TextScores {
    /// The scores with the names that LLaMA-Factory gives them.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let TextScores { bleu4, rouge1, rouge2, rouge_l } = *self;
        vec![("bleu-4", bleu4), ("rouge-1", rouge1), ("rouge-2", rouge2), ("rouge-l", rouge_l)]
    }

    /// The mean of each score; 0 of none.
    pub fn mean(scores: &[TextScores]) -> TextScores {
        let n = scores.len().max(1) as f64;
        let mean = |of: fn(&TextScores) -> f64| scores.iter().map(of).sum::<f64>() / n;
        TextScores {
            bleu4: mean(|scores| scores.bleu4),
            rouge1: mean(|scores| scores.rouge1),
            rouge2: mean(|scores| scores.rouge2),
            rouge_l: mean(|scores| scores.rouge_l),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// Texts with the scores of nltk and rouge_chinese on jieba's words (bench/golden/make_text_scores.py).
    #[test]
    fn scores_are_those_of_the_originals() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../oarlock/tests/golden/text_scores.json");
        let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(cases.len() > 20);
        let metrics = TextMetrics::new();
        for case in cases {
            let text = |key: &str| case[key].as_str().unwrap().to_owned();
            let score = |key: &str| case[key].as_f64().unwrap();
            let (prediction, label) = (text("predict"), text("label"));
            let words: Vec<&str> =
                case["words"].as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect();
            assert_eq!(metrics.words.of(&prediction), words);
            let ours = metrics.scores(&prediction, &label);
            for (what, ours, theirs) in [
                ("bleu-4", ours.bleu4, score("bleu-4")),
                ("rouge-1", ours.rouge1, score("rouge-1")),
                ("rouge-2", ours.rouge2, score("rouge-2")),
                ("rouge-l", ours.rouge_l, score("rouge-l")),
            ] {
                assert!((ours - theirs).abs() < 2e-4, "{what} of {prediction:?}: {ours}, {theirs}");
            }
        }
    }

    #[test]
    fn means_are_over_texts() {
        let one = TextScores { bleu4: 100.0, rouge1: 50.0, rouge2: 0.0, rouge_l: 10.0 };
        let mean = TextScores::mean(&[one, TextScores::default()]);
        assert_eq!((mean.bleu4, mean.rouge1, mean.rouge_l), (50.0, 25.0, 5.0));
        assert_eq!(TextScores::mean(&[]), TextScores::default());
    }
}
