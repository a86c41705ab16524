//! Whether a model with its adapters and the exported model say the same: the logits of both on a few prompts.

use std::path::Path;

use oarlock_engine::{Error, Result};
use oarlock_tensor::Tensor;
use oarlock_tensor::cpu::difference::{largest_difference, largest_magnitude};
use oarlock_tensor::ops::Mask;

use crate::data::Tokenizer;
use crate::model::LoadedModel;

/// What both models are asked.
pub const PROMPTS: [&str; 3] =
    ["The capital of France is", "Question: what is 12 times 7? Answer:", "def add(a, b):\n    return"];

/// How far the logits of two models are apart on the same prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compared {
    /// The largest difference of two logits.
    pub difference: f32,
    /// The largest logit, so that the difference can be judged.
    pub largest: f32,
    /// The root mean square of all differences over that of the logits.
    pub relative: f32,
    /// Positions at which both models take the same token for the likeliest.
    pub same: usize,
    /// All positions.
    pub positions: usize,
}

impl Compared {
    /// The same, if the differences are at most this share of the logits.
    ///
    /// # Errors
    /// Larger differences: the model in the folder is another one.
    pub(super) fn within(self, bound: f32, dir: &Path) -> Result<Compared> {
        if self.relative <= bound {
            return Ok(self);
        }
        Err(Error::bad_file(
            dir,
            format!(
                "the export is broken, do not use it: its logits differ from those of the model in memory by {:.2e} of their \
                 size, and {bound:.0e} is what rounding explains; export again, or report this",
                self.relative
            ),
        ))
    }
}

/// Tokens that stand for the prompts where a tokenizer has none for any of them.
const N_TOKENS: usize = 16;

/// The prompts as tokens of a vocabulary of this size, cut to what the model takes. A tokenizer that makes nothing of them
/// leaves tokens from all over the vocabulary, so that both models are asked something.
pub(super) fn prompts(tokenizer: &Tokenizer, vocab_size: usize, n_positions: usize) -> Result<Vec<Vec<i32>>> {
    let mut prompts = Vec::new();
    for text in PROMPTS {
        let ids = tokenizer.encode(text)?;
        prompts.push(ids.into_iter().take(n_positions).map(|id| id as i32).collect::<Vec<_>>());
    }
    prompts.retain(|ids| !ids.is_empty());
    if prompts.is_empty() {
        let n = N_TOKENS.min(n_positions).min(vocab_size);
        prompts.push((0..n).map(|index| (index * vocab_size / n) as i32).collect());
    }
    Ok(prompts)
}

/// The logits of every position of every prompt, of the model in the folder `dir`.
///
/// # Errors
/// Logits that are not finite: of such a model nothing can be said.
pub(super) fn logits(model: &LoadedModel, dir: &Path, prompts: &[Vec<i32>]) -> Result<Vec<Vec<f32>>> {
    let of = |ids: &Vec<i32>| {
        let ids = Tensor::from_slice(ids, [1, ids.len()], &model.device)?;
        let logits = model.decoder.logits(&ids, &Mask::Causal)?.to_vec::<f32>()?;
        match largest_magnitude(logits.iter().copied()) {
            Ok(_) => Ok(logits),
            Err(found) => Err(Error::bad_file(
                dir,
                format!("the model gives logits that are not finite numbers ({found}); it cannot be used"),
            )),
        }
    };
    prompts.iter().map(of).collect()
}

/// The comparison of such logits of two models with a vocabulary of this size.
///
/// # Errors
/// Logits of other prompts, or that are not finite, or none at all: those would be called the same.
pub(super) fn compared(a: &[Vec<f32>], b: &[Vec<f32>], vocab_size: usize) -> Result<Compared> {
    let mut found = Compared { difference: 0.0, largest: 0.0, relative: 0.0, same: 0, positions: 0 };
    let likeliest = |row: &[f32]| (0..row.len()).max_by(|&i, &j| row[i].total_cmp(&row[j]));
    let (a, b) = (a.concat(), b.concat());
    let incomparable = |error| Error::Model(format!("the logits of both models cannot be compared: {error}"));
    if a.is_empty() {
        return Err(Error::Model("the models were asked nothing, so that nothing was compared".to_owned()));
    }
    found.difference = largest_difference(&a, &b).map_err(incomparable)? as f32;
    found.largest = largest_magnitude(a.iter().copied()).map_err(incomparable)? as f32;
    let sum = |squares: &mut dyn Iterator<Item = f64>| squares.sum::<f64>();
    let size = sum(&mut a.iter().map(|a| f64::from(*a).powi(2)));
    let far = sum(&mut a.iter().zip(&b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)));
    found.relative = if far == 0.0 { 0.0 } else { (far / size).sqrt() as f32 };
    for (a, b) in a.chunks(vocab_size).zip(b.chunks(vocab_size)) {
        found.positions += 1;
        found.same += usize::from(likeliest(a) == likeliest(b));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_no_number_is_called_the_same() {
        let rows = [vec![1.0, 2.0, 0.5, 0.25], vec![-4.0, 1.0]];
        let same = compared(&rows, &rows, 2).unwrap();
        assert_eq!(same, Compared { difference: 0.0, largest: 4.0, relative: 0.0, same: 3, positions: 3 });
        for value in [f32::NAN, f32::INFINITY] {
            for index in 0..4 {
                let mut other = rows.clone();
                other[0][index] = value;
                assert!(compared(&rows, &other, 2).is_err() && compared(&other, &rows, 2).is_err());
                assert!(compared(&other, &other, 2).is_err(), "{value} at {index}");
            }
        }
        assert!(compared(&rows, &rows[..1], 2).is_err());
        assert!(compared(&[], &[], 2).is_err() && compared(&[vec![]], &[vec![]], 2).is_err());
    }

    /// A tokenizer whose normalizer leaves nothing of a text.
    #[test]
    fn a_tokenizer_without_tokens_for_the_prompts_leaves_some_of_its_vocabulary() {
        let dir = tempfile::tempdir().unwrap();
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": ""},
            "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        });
        std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
        let tokenizer = Tokenizer::open(dir.path()).unwrap();
        assert!(tokenizer.encode(PROMPTS[0]).unwrap().is_empty());
        assert_eq!(prompts(&tokenizer, 2, 256).unwrap(), [[0, 1]]);
        assert_eq!(prompts(&tokenizer, 64, 4).unwrap(), [[0, 16, 32, 48]]);
    }
}
