//! Decoders with weights of 4 bits: their layers, and their weights quantized while they are read.

use std::collections::{BTreeMap, HashMap};

use oarlock_tensor::cpu::four_bit::{Format, Layout};
use oarlock_tensor::ops::four_bit;
use oarlock_tensor::{DType, Device, Init, Result, Shape};

use super::Decoder;
use crate::nn::{Layer, Linear, LinearFourBit};
use crate::shard::{ParamSlice, WeightSource};

/// Which linear layers of a decoder have weights of 4 bits. The output weights are none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FourBitLayers {
    /// Those of all blocks.
    All(Format),
    /// Those with these paths.
    At(BTreeMap<String, Format>),
}

impl From<Format> for FourBitLayers {
    fn from(format: Format) -> FourBitLayers {
        FourBitLayers::All(format)
    }
}

impl FourBitLayers {
    /// The format of the layer with a path, if it is one of them.
    pub fn format(&self, path: &str) -> Option<Format> {
        match self {
            FourBitLayers::All(format) => Some(*format),
            FourBitLayers::At(layers) => layers.get(path).copied(),
        }
    }
}

/// The weights of a model that have 4 bits, by name.
#[derive(Clone, Debug, Default)]
pub struct FourBitWeights {
    /// With what the full weights would start as.
    layouts: HashMap<String, (Layout, Init)>,
}

impl Decoder {
    /// Puts layers with frozen weights of 4 bits in the place of linear layers of its blocks; embedding, norms and output
    /// weights stay. `dtype` is what the model will compute in. To be called before the model is prepared; its weights
    /// then come from [`FourBitWeights::source`]. With adapters, call
    /// `adapters::adapt_four_bit` instead.
    ///
    /// # Errors
    /// A model that is in use already.
    pub fn quantize_four_bit(
        &mut self,
        layers: impl Into<FourBitLayers>,
        dtype: DType,
    ) -> Result<FourBitWeights> {
        let (layers, mut weights) = (layers.into(), FourBitWeights::default());
        self.map_linears(|path, linear| {
            let Some(format) = layers.format(path) else { return Ok(None) };
            let layer = weights.layer(path, linear, format, dtype)?;
            Ok(Some(Box::new(layer) as Box<dyn Layer>))
        })?;
        Ok(weights)
    }
}

impl FourBitWeights {
    /// The layer that takes the place of a linear one, whose weight is then one of these.
    pub(crate) fn layer(
        &mut self,
        path: &str,
        linear: &Linear,
        format: Format,
        dtype: DType,
    ) -> Result<LinearFourBit> {
        let layer = LinearFourBit::like(linear, format, dtype)?;
        self.layouts.insert(format!("{path}.weight"), (layer.layout(), linear.weight.init()));
        Ok(layer)
    }

    /// How the weight of this name is quantized, if it is.
    pub fn layout(&self, name: &str) -> Option<Layout> {
        self.layouts.get(name).map(|(layout, _)| *layout)
    }

    /// A source that quantizes the weights of another, one at a time, on the threads of a device.
    pub fn source<S: WeightSource>(self, full: S, device: &Device) -> FourBitSource<S> {
        FourBitSource { weights: self, full, device: device.clone(), last: None }
    }
}

/// A source of weights, some of them quantized to 4 bits. It never holds more than one weight in full precision. Asked for
/// the shape of the full weight, it gives what the 4 bits stand for.
#[derive(Debug)]
pub struct FourBitSource<S> {
    weights: FourBitWeights,
    full: S,
    device: Device,
    /// The weight that was quantized last, of which other parts may be asked for next.
    last: Option<(String, Vec<i32>)>,
}

impl<S: WeightSource> FourBitSource<S> {
    fn quantized(&mut self, name: &str, layout: Layout, init: Init) -> crate::Result<Vec<i32>> {
        if let Some((_, words)) = self.last.take_if(|(last, _)| last == name) {
            return Ok(words);
        }
        // Before the next is read, the last is gone.
        self.last = None;
        let mut values = vec![0.0; layout.n_elems()];
        let shape = Shape::new(&[layout.rows, layout.cols])?;
        let elements = 0..values.len();
        self.full.read(&ParamSlice { name, shape, init, elements }, &mut values)?;
        Ok(four_bit::quantize(&self.device, layout, &values)?)
    }
}

impl<S: WeightSource> WeightSource for FourBitSource<S> {
    fn read(&mut self, slice: &ParamSlice<'_>, out: &mut [f32]) -> crate::Result<()> {
        let Some(&(layout, full_init)) = self.weights.layouts.get(slice.name) else {
            return self.full.read(slice, out);
        };
        let words = self.quantized(slice.name, layout, full_init)?;
        let read = words_or_values(&self.device, layout, &words, slice, out);
        self.last = Some((slice.name.to_owned(), words));
        read
    }

    fn has(&self, name: &str) -> bool {
        self.full.has(name)
    }
}

/// Elements of a parameter with the weight in `words`: these words, or where its shape is that of the weight, what they
/// stand for.
pub(super) fn words_or_values(
    device: &Device,
    layout: Layout,
    words: &[i32],
    slice: &ParamSlice<'_>,
    out: &mut [f32],
) -> crate::Result<()> {
    let elements = slice.elements.clone();
    if slice.shape.sizes() != [layout.n_words()] {
        return Ok(four_bit::dequantize(device, layout, words, elements, out)?);
    }
    out.iter_mut().zip(&words[elements]).for_each(|(out, &word)| *out = f32::from_bits(word as u32));
    Ok(())
}
