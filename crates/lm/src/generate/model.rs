//! A model that generates, wherever its weights came from, and the prompts that it takes.

use oarlock_engine::Result;
use oarlock_tensor::{DType, Device, Tensor};

use super::generator::Generator;
use super::refusal::Refusal;
use crate::model::hf::LoadedModel;
use crate::model::{Decoder, LayerCache};

/// A model that generates, wherever its weights came from.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// The model. Where its weights are sharded, all ranks answer in step ([`Model::generate_in_step`]).
    pub decoder: &'a Decoder,
    /// The dtype that it computes in.
    pub dtype: DType,
    /// Where it lives.
    pub device: &'a Device,
    /// The longest sequence that it can take.
    pub n_positions: usize,
}

impl Generator {
    /// The model with what it computes in.
    pub(super) fn as_model(&self) -> Model<'_> {
        let LoadedModel { decoder, dtype, device, n_positions, .. } = &self.model;
        Model { decoder, dtype: *dtype, device, n_positions: *n_positions }
    }
}

impl Model<'_> {
    /// Whether an answer to these tokens can be written.
    pub(super) fn check_prompt(&self, prompt: &[u32]) -> std::result::Result<(), Refusal> {
        let (n_tokens, n_positions) = (prompt.len(), self.n_positions);
        if prompt.is_empty() {
            return Err(Refusal::PromptEmpty);
        }
        if n_tokens >= n_positions {
            return Err(Refusal::PromptTooLong { n_tokens, n_positions });
        }
        let vocab_size = self.decoder.config().vocab_size;
        match prompt.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(Refusal::UnknownToken { id, vocab_size }),
            None => Ok(()),
        }
    }

    /// An empty cache of each layer, for up to so many positions.
    pub(super) fn empty_cache(&self, capacity: usize) -> Result<Vec<LayerCache>> {
        Ok(self.decoder.empty_cache(capacity, self.dtype, self.device)?)
    }

    /// As [`Model::next_logits`]. `seen` is given the logits `[n, V]` behind each token as well, in parts of `n_rows` rows with the
    /// place of their first.
    pub(super) fn logits_of_all(
        &self,
        ids: &[u32],
        cache: &mut [LayerCache],
        n_rows: usize,
        seen: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::from_slice(&ids, [1, ids.len()], self.device)?;
        self.decoder.logits_of_all(&ids, cache, n_rows, seen)
    }

    /// The logits `[1, V]` after tokens that follow what the cache holds.
    pub(super) fn next_logits(&self, ids: &[u32], cache: &mut [LayerCache]) -> Result<Tensor> {
        let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
        let ids = Tensor::from_slice(&ids, [1, ids.len()], self.device)?;
        Ok(self.decoder.next_logits(&ids, cache)?)
    }
}
