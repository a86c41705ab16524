//! Whether a model with its adapter and the merged model say the same: the logits of both on a few prompts.

use oarlock_tensor::Tensor;
use oarlock_tensor::ops::Mask;

use crate::data::Tokenizer;
use crate::error::Result;
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

/// The logits of every position of every prompt.
pub(super) fn logits(model: &LoadedModel, prompts: &[Vec<i32>]) -> Result<Vec<Vec<f32>>> {
    let of = |ids: &Vec<i32>| {
        let ids = Tensor::from_slice(ids, [1, ids.len()], &model.device)?;
        Ok(model.decoder.logits(&ids, &Mask::Causal)?.to_vec::<f32>()?)
    };
    prompts.iter().map(of).collect()
}

/// The comparison of such logits of two models with a vocabulary of this size.
pub(super) fn compared(a: &[Vec<f32>], b: &[Vec<f32>], vocab_size: usize) -> Compared {
    let mut found = Compared { difference: 0.0, largest: 0.0, same: 0, positions: 0 };
    let likeliest = |row: &[f32]| (0..row.len()).max_by(|&i, &j| row[i].total_cmp(&row[j]));
    for (a, b) in a.iter().zip(b) {
        for (a, b) in a.chunks(vocab_size).zip(b.chunks(vocab_size)) {
            found.positions += 1;
            found.same += usize::from(likeliest(a) == likeliest(b));
            for (a, b) in a.iter().zip(b) {
                found.difference = found.difference.max((a - b).abs());
                found.largest = found.largest.max(a.abs());
            }
        }
    }
    found
}
