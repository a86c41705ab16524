//! Decoders with weights of 4 or 8 bits.

use oarlock_engine::checkpoint::weights::{QuantizedLayers, QuantizedWeights};
use oarlock_engine::nn::Layer;
use oarlock_tensor::{DType, Result};

use super::decoder::Decoder;

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
}
