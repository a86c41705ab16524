//! Decoders with weights of 4 or 8 bits, and with weights in the blocks of a GGUF file.

use std::collections::BTreeMap;
use std::sync::Arc;

use oarlock_engine::checkpoint::weights::{QuantizedLayers, QuantizedWeights};
use oarlock_engine::nn::{EmbeddingBlocks, Layer, LinearBlocks};
use oarlock_tensor::cpu::block_quantized::BlockLayout;
use oarlock_tensor::{DType, Error, Result};

use super::decoder::Decoder;
use super::embedding::TokenEmbedding;
use super::projection::Projection;

impl Decoder {
    /// Puts layers with frozen quantized weights in the place of linear layers of its blocks; embedding, norms and output
    /// weights stay. `dtype` is what the model will compute in. To be called before the model is prepared; its weights
    /// then come from [`QuantizedWeights::source`]. With adapters, call
    /// `adapters::adapt_quantized` instead.
    ///
    /// # Errors
    /// A model that is in use already.
    pub fn quantize(&mut self, layers: impl Into<QuantizedLayers>, dtype: DType) -> Result<QuantizedWeights> {
        let (layers, mut weights) = (layers.into(), QuantizedWeights::default());
        self.map_linears(|path, linear| {
            let Some(format) = layers.format(path) else { return Ok(None) };
            let layer = weights.layer(path, linear, format, dtype)?;
            Ok(Some(Box::new(layer) as Box<dyn Layer>))
        })?;
        Ok(weights)
    }

    /// Puts layers that compute with blocks in the place of the embedding, of linear layers and of the output weights, where
    /// `layouts` has one for the name of their weight. Such a model is for inference alone, and its source gives the words
    /// of these weights.
    ///
    /// # Errors
    /// A model that is in use already.
    pub(super) fn keep_blocks(
        &mut self,
        layouts: &BTreeMap<String, BlockLayout>,
        dtype: DType,
    ) -> Result<()> {
        let layout = |path: &str| layouts.get(&format!("{path}.weight")).copied();
        self.map_linears(|path, linear| {
            let Some(layout) = layout(path) else { return Ok(None) };
            let layer = LinearBlocks::new(layout, linear.bias.clone(), dtype)?;
            Ok(Some(Box::new(layer) as Box<dyn Layer>))
        })?;
        let tied = self.config().tie_embeddings;
        let Some((embedding, head)) = self.ends_mut() else {
            return Err(Error::Usage("keep_blocks: the model is in use".to_owned()));
        };
        let mut output = match layout("lm_head") {
            Some(layout) if !tied => Some(LinearBlocks::new(layout, None, dtype)?),
            _ => None,
        };
        if let Some(layout) = layout("model.embed_tokens") {
            let table = EmbeddingBlocks::new(layout, dtype)?;
            if tied {
                output = Some(table.output());
            }
            *embedding = TokenEmbedding::Blocks(table);
        }
        if let Some(output) = output {
            head.lm_head = Projection::Other(Arc::new(output));
        }
        Ok(())
    }
}
