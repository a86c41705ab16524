//! Decoders with weights of 4 bits: their layers, and their weights quantized while they are read.

use std::collections::HashMap;
use std::ops::Range;

use oarlock_tensor::cpu::four_bit::{Format, Layout};
use oarlock_tensor::{DType, Init, Result, Shape};

use super::Decoder;
use crate::nn::{Layer, LinearFourBit};
use crate::shard::WeightSource;

/// The weights of a model that have 4 bits, by name.
#[derive(Clone, Debug, Default)]
pub struct FourBitWeights {
    /// With what the full weights would start as.
    layouts: HashMap<String, (Layout, Init)>,
}

impl Decoder {
    /// Puts layers with frozen weights of 4 bits in the place of the linear layers of all blocks; embedding, norms and
    /// output weights stay. `dtype` is what the model will compute in. To be called before adapters are put around the
    /// layers and before the model is prepared; its weights then come from [`FourBitWeights::source`].
    ///
    /// # Errors
    /// A model that is in use already.
    pub fn quantize_four_bit(&mut self, format: Format, dtype: DType) -> Result<FourBitWeights> {
        let mut layouts = HashMap::new();
        self.map_linears(|path, linear| {
            let layer = LinearFourBit::like(linear, format, dtype)?;
            layouts.insert(format!("{path}.weight"), (layer.layout(), linear.weight.init()));
            Ok(Some(Box::new(layer) as Box<dyn Layer>))
        })?;
        Ok(FourBitWeights { layouts })
    }
}

impl FourBitWeights {
    /// A source that quantizes the weights of another, one at a time.
    pub fn source<S: WeightSource>(self, full: S) -> FourBitSource<S> {
        FourBitSource { weights: self, full, last: None }
    }
}

/// A source of weights, some of them quantized to 4 bits. It never holds more than one weight in full precision.
#[derive(Debug)]
pub struct FourBitSource<S> {
    weights: FourBitWeights,
    full: S,
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
        self.full.read(name, &shape, init, 0..values.len(), &mut values)?;
        let mut words = vec![0; layout.n_words()];
        layout.quantize(&values, &mut words);
        Ok(words)
    }
}

impl<S: WeightSource> WeightSource for FourBitSource<S> {
    fn read(
        &mut self,
        name: &str,
        shape: &Shape,
        init: Init,
        elements: Range<usize>,
        out: &mut [f32],
    ) -> crate::Result<()> {
        let Some(&(layout, init)) = self.weights.layouts.get(name) else {
            return self.full.read(name, shape, init, elements, out);
        };
        let words = self.quantized(name, layout, init)?;
        out.iter_mut().zip(&words[elements]).for_each(|(out, &word)| *out = f32::from_bits(word as u32));
        self.last = Some((name.to_owned(), words));
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.full.has(name)
    }
}
