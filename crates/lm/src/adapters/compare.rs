//! Whether a model with its adapter and the merged model say the same: the logits of both on a few prompts.

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
    /// Positions at which both models take the same token for the likeliest.
    pub same: usize,
    /// All positions.
    pub positions: usize,
}

/// The prompts as tokens, cut to what the model takes.
pub(super) fn prompts(tokenizer: &Tokenizer, n_positions: usize) -> Result<Vec<Vec<i32>>> {
    let mut prompts = Vec::new();
    for text in PROMPTS {
        let ids = tokenizer.encode(text)?;
        prompts.push(ids.into_iter().take(n_positions).map(|id| id as i32).collect::<Vec<_>>());
    }
    prompts.retain(|ids| !ids.is_empty());
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
/// Logits of other prompts, or that are not finite.
pub(super) fn compared(a: &[Vec<f32>], b: &[Vec<f32>], vocab_size: usize) -> Result<Compared> {
    let mut found = Compared { difference: 0.0, largest: 0.0, same: 0, positions: 0 };
    let likeliest = |row: &[f32]| (0..row.len()).max_by(|&i, &j| row[i].total_cmp(&row[j]));
    let (a, b) = (a.concat(), b.concat());
    let incomparable = |error| Error::Model(format!("the logits of both models cannot be compared: {error}"));
    found.difference = largest_difference(&a, &b).map_err(incomparable)? as f32;
    found.largest = largest_magnitude(a.iter().copied()).map_err(incomparable)? as f32;
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
        assert_eq!(same, Compared { difference: 0.0, largest: 4.0, same: 3, positions: 3 });
        for value in [f32::NAN, f32::INFINITY] {
            for index in 0..4 {
                let mut other = rows.clone();
                other[0][index] = value;
                assert!(compared(&rows, &other, 2).is_err() && compared(&other, &rows, 2).is_err());
                assert!(compared(&other, &other, 2).is_err(), "{value} at {index}");
            }
        }
        assert!(compared(&rows, &rows[..1], 2).is_err());
    }
}
