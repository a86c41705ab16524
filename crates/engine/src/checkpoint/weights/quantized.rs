//! Layers with weights of 4 or 8 bits, whose weights are quantized while they are read.

use std::collections::{BTreeMap, HashMap};

use oarlock_tensor::cpu::quantized::{Format, Layout};
use oarlock_tensor::ops::quantized;
use oarlock_tensor::{DType, Device, Init, Result, Shape};

use crate::nn::{Linear, LinearQuantized};
use crate::shard::{ParamSlice, WeightSource};

/// Which linear layers of a model have quantized weights. The output weights of a language model are none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuantizedLayers {
    /// All of its blocks.
    All(Format),
    /// Those with these paths.
    At(BTreeMap<String, Format>),
}

impl From<Format> for QuantizedLayers {
    fn from(format: Format) -> QuantizedLayers {
        QuantizedLayers::All(format)
    }
}

impl QuantizedLayers {
    /// The format of the layer with a path, if it is one of them.
    pub fn format(&self, path: &str) -> Option<Format> {
        match self {
            QuantizedLayers::All(format) => Some(*format),
            QuantizedLayers::At(layers) => layers.get(path).copied(),
        }
    }
}

/// The quantized weights of a model, by name.
#[derive(Clone, Debug, Default)]
pub struct QuantizedWeights {
    /// With what the full weights would start as.
    layouts: HashMap<String, (Layout, Init)>,
}

impl QuantizedWeights {
    /// The layer that takes the place of a linear one, whose weight is then one of these.
    pub fn layer(
        &mut self,
        path: &str,
        linear: &Linear,
        format: Format,
        dtype: DType,
    ) -> Result<LinearQuantized> {
        let layer = LinearQuantized::like(linear, format, dtype)?;
        self.layouts.insert(format!("{path}.weight"), (layer.layout(), linear.weight.init()));
        Ok(layer)
    }

    /// How the weight of this name is quantized, if it is.
    pub fn layout(&self, name: &str) -> Option<Layout> {
        self.layouts.get(name).map(|(layout, _)| *layout)
    }

    /// A source that quantizes the weights of another, one at a time, on the threads of a device.
    pub fn source<S: WeightSource>(self, full: S, device: &Device) -> QuantizedSource<S> {
        QuantizedSource { weights: self, full, device: device.clone(), last: None }
    }
}

/// A source of weights, some of them quantized. It never holds more than one weight in full precision. Asked for
/// the shape of the full weight, it gives what the codes stand for.
#[derive(Debug)]
pub struct QuantizedSource<S> {
    weights: QuantizedWeights,
    full: S,
    device: Device,
    /// The weight that was quantized last, of which other parts may be asked for next.
    last: Option<(String, Vec<i32>)>,
}

impl<S: WeightSource> QuantizedSource<S> {
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
        Ok(quantized::quantize(&self.device, layout, &values)?)
    }
}

impl<S: WeightSource> WeightSource for QuantizedSource<S> {
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

    fn notes(&self) -> Vec<String> {
        self.full.notes()
    }
}

/// Elements of a parameter with the weight in `words`: these words, or where its shape is that of the weight, what they
/// stand for.
pub(crate) fn words_or_values(
    device: &Device,
    layout: Layout,
    words: &[i32],
    slice: &ParamSlice<'_>,
    out: &mut [f32],
) -> crate::Result<()> {
    let elements = slice.elements.clone();
    if slice.shape.sizes() != [layout.n_words()] {
        return Ok(quantized::dequantize(device, layout, words, elements, out)?);
    }
    out.iter_mut().zip(&words[elements]).for_each(|(out, &word)| *out = f32::from_bits(word as u32));
    Ok(())
}
