//! The perplexity of a text as llama-perplexity measures it: in pieces of one length, of each the second half.

use std::ops::ControlFlow;

use oarlock_engine::{Error, Result};
use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{IGNORE_INDEX, Labels, Mask};

use super::generator::Generator;

/// How well a model foresees a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Perplexity {
    /// Pieces that were read.
    pub n_chunks: usize,
    /// Tokens that were foreseen.
    pub n_tokens: usize,
    sum: f64,
    sum_of_squares: f64,
}

impl Perplexity {
    /// The mean of the negative log-probabilities.
    pub fn mean(&self) -> f64 {
        self.sum / self.n_tokens as f64
    }

    /// The perplexity: e to the power of the mean.
    pub fn value(&self) -> f64 {
        libm::exp(self.mean())
    }

    /// The standard error of the perplexity, as if the log-probabilities were independent of each other.
    pub fn standard_error(&self) -> f64 {
        let n = self.n_tokens as f64;
        let variance = self.sum_of_squares / n - self.mean() * self.mean();
        if self.n_tokens < 2 || variance <= 0.0 {
            return 0.0;
        }
        libm::sqrt(variance / (n - 1.0)) * self.value()
    }

    fn add(&mut self, log_prob: f32) {
        let negative = -f64::from(log_prob);
        self.n_tokens += 1;
        self.sum += negative;
        self.sum_of_squares += negative * negative;
    }
}

impl Generator {
    /// The perplexity of a text of these tokens, in pieces of `n_ctx`; what is left behind the last piece is not read. Of each
    /// piece the tokens of the second half are foreseen, from all that stand before them. Where texts begin with the token
    /// `begins`, each piece does, in the place of its own first one. `told` hears of each piece, of all pieces, and what was
    /// found so far, and may end it.
    ///
    /// # Errors
    /// Fewer than two tokens for a piece or more than the model has positions, a text of less than two pieces, a token that
    /// the model does not know, and no memory.
    pub fn perplexity(
        &self,
        ids: &[u32],
        n_ctx: usize,
        begins: Option<u32>,
        told: &mut dyn FnMut(usize, &Perplexity) -> ControlFlow<()>,
    ) -> Result<Perplexity> {
        let most = self.model.n_positions;
        if n_ctx < 4 || n_ctx > most {
            return Err(Error::Usage(format!(
                "perplexity: pieces of {n_ctx} tokens; the model takes 4 to {most}"
            )));
        }
        if ids.len() < 2 * n_ctx {
            return Err(Error::Usage(format!(
                "perplexity: the text has {} tokens, and two pieces have {}; take a longer text or shorter pieces",
                ids.len(),
                2 * n_ctx
            )));
        }
        let vocab_size = self.model.decoder.config().vocab_size;
        let unknown = |id: &&u32| **id as usize >= vocab_size;
        if let Some(id) = ids.iter().chain(&begins).find(unknown) {
            return Err(Error::Usage(format!("perplexity: the model has no token {id}, only {vocab_size}")));
        }
        let n_chunks = ids.len() / n_ctx;
        let mut found = Perplexity::default();
        for piece in ids.chunks_exact(n_ctx) {
            let mut input: Vec<i32> = piece.iter().map(|id| id.cast_signed()).collect();
            if let Some(begins) = begins {
                input[0] = begins.cast_signed();
            }
            let mut labels = vec![IGNORE_INDEX; n_ctx];
            let half = n_ctx / 2;
            labels[half..n_ctx - 1].copy_from_slice(&input[half + 1..]);
            let input = Tensor::from_slice(&input, [1, n_ctx], &self.model.device)?;
            let log_probs = self.model.decoder.log_probs(&input, &Labels::new(labels), &Mask::Causal)?;
            let log_probs = log_probs.of_labels.to_f32_vec()?;
            let scored = log_probs.get(half..n_ctx - 1).unwrap_or_default();
            if let Some(bad) = scored.iter().find(|x| !x.is_finite()) {
                return Err(Error::Model(format!(
                    "the model gives a log-probability of {bad}: its weights are damaged or overflow this dtype"
                )));
            }
            scored.iter().for_each(|log_prob| found.add(*log_prob));
            found.n_chunks += 1;
            if told(n_chunks, &found).is_break() {
                break;
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use oarlock_tensor::cpu::Isa;
    use oarlock_tensor::{DType, Device, Par};

    use super::*;
    use crate::model::load_for_inference;

    fn generator() -> Generator {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../oarlock/tests/golden/train-llama");
        let device = Device::cpu(Isa::detect(), Par::threads(2).unwrap());
        Generator::new(load_for_inference(&folder, &device, DType::F32, 64).unwrap())
    }

    /// By the definition, from the logits of each piece, in f64.
    fn reference(generator: &Generator, ids: &[u32], n_ctx: usize, begins: Option<u32>) -> (f64, f64, usize) {
        let (model, mut losses) = (generator.model(), Vec::new());
        for piece in ids.chunks(n_ctx).filter(|piece| piece.len() == n_ctx) {
            let mut piece: Vec<i32> = piece.iter().map(|id| *id as i32).collect();
            piece[0] = begins.map_or(piece[0], |id| id as i32);
            let input = Tensor::from_slice(&piece, [1, n_ctx], &model.device).unwrap();
            let logits = model.decoder.logits(&input, &Mask::Causal).unwrap().to_vec::<f32>().unwrap();
            let vocab = model.decoder.config().vocab_size;
            for at in n_ctx / 2..n_ctx - 1 {
                let row: Vec<f64> = logits[at * vocab..][..vocab].iter().map(|x| f64::from(*x)).collect();
                let sum: f64 = row.iter().map(|x| libm::exp(*x)).sum();
                losses.push(libm::log(sum) - row[piece[at + 1] as usize]);
            }
        }
        let n = losses.len() as f64;
        let mean = losses.iter().sum::<f64>() / n;
        let deviation = losses.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
        (libm::exp(mean), libm::exp(mean) * libm::sqrt(deviation / (n - 1.0)), losses.len())
    }

    #[test]
    fn the_second_half_of_each_piece_is_foreseen() {
        let generator = generator();
        let ids: Vec<u32> = (0..70).map(|i| (i * 7 + i * i) % 50).collect();
        for (n_ctx, begins) in [(16, None), (16, Some(1)), (11, None), (35, Some(0))] {
            let mut heard = Vec::new();
            let found = generator.perplexity(&ids, n_ctx, begins, &mut |all, so_far| {
                heard.push((all, so_far.n_chunks));
                ControlFlow::Continue(())
            });
            let (found, (value, error, n)) = (found.unwrap(), reference(&generator, &ids, n_ctx, begins));
            assert_eq!((found.n_tokens, found.n_chunks), (n, 70 / n_ctx));
            assert_eq!(heard, (1..=70 / n_ctx).map(|at| (70 / n_ctx, at)).collect::<Vec<_>>());
            assert!((found.value() / value - 1.0).abs() < 1e-5, "{} {value}", found.value());
            assert!(
                (found.standard_error() / error - 1.0).abs() < 1e-3,
                "{} {error}",
                found.standard_error()
            );
        }
        // What begins the pieces changes what is foreseen.
        let of = |begins| generator.perplexity(&ids, 16, begins, &mut |_, _| ControlFlow::Break(())).unwrap();
        assert!(of(None) != of(Some(1)) && of(None).n_chunks == 1);
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let generator = generator();
        let refused = |ids: &[u32], n_ctx| {
            generator
                .perplexity(ids, n_ctx, None, &mut |_, _| ControlFlow::Continue(()))
                .unwrap_err()
                .to_string()
        };
        assert!(refused(&[1; 40], 3).contains("the model takes 4 to 64"));
        assert!(refused(&[1; 400], 65).contains("the model takes 4 to 64"));
        assert!(refused(&[1; 31], 16).contains("31 tokens, and two pieces have 32"));
        assert!(refused(&[999_999; 32], 16).contains("no token 999999"));
    }
}
