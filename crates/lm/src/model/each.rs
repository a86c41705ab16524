//! Passes over the last tokens of many sequences of different lengths.

use oarlock_tensor::{Error, Result, Tensor};

use super::cache::LayerCache;
use super::decoder::Decoder;

impl Decoder {
    /// The next tokens' logits `[B, V]` of sequences of different lengths, after one more token of each: `ids` `[B, 1]`. Each
    /// sequence has its caches, one for each layer, which grow by it. The products of all of them are one. Tokens that are
    /// more than the sequences only make its rows more, and their logits mean nothing.
    ///
    /// # Errors
    /// As [`Decoder::next_logits`]; no sequence, or fewer tokens than sequences.
    pub fn next_logits_of_each(&self, ids: &Tensor, caches: &mut [&mut [LayerCache]]) -> Result<Tensor> {
        let mut sequences: Vec<(&mut [LayerCache], usize)> =
            caches.iter_mut().map(|cache| (&mut **cache, 1)).collect();
        self.logits_of_each(ids, &mut sequences)
    }

    /// As [`Decoder::next_logits_of_each`], where so many rows in a row are of the same sequence: the logits after each of
    /// them, with the bits that it has after those before it one by one, as far as the bits of a product do not depend on
    /// its rows.
    pub(crate) fn logits_of_each(
        &self,
        ids: &Tensor,
        sequences: &mut [(&mut [LayerCache], usize)],
    ) -> Result<Tensor> {
        let n_rows = ids.sizes().first().copied().unwrap_or(0);
        let n_needed: usize = sequences.iter().map(|(_, n)| *n).sum();
        if sequences.iter().all(|(_, n)| *n == 0) || ids.sizes() != [n_rows.max(n_needed), 1] {
            let what = format!(
                "next_logits_of_each: ids are {:?} for {n_needed} tokens of {} caches",
                ids.sizes(),
                sequences.len()
            );
            return Err(Error::Usage(what));
        }
        let mut x = self.body.embed_tokens.run(ids, |embed| self.body.embed(embed, ids, None))?;
        for (index, (layer, ropes)) in self.body.layers.iter().zip(&self.body.ropes).enumerate() {
            let of_sequence = sequences.iter_mut();
            let mut of_layer: Vec<(&mut LayerCache, usize)> =
                of_sequence.filter_map(|(cache, n)| Some((cache.get_mut(index)?, *n))).collect();
            x = layer.run(&x, |block| block.forward_cached_each(&x, ropes, &mut of_layer))?;
        }
        let x = x.reshape([n_rows, x.shape().last()])?;
        self.head.run(&x, |head| head.logits(&x))
    }
}
