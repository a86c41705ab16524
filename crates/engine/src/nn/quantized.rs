//! Linear layers with frozen quantized weights (QLoRA, Dettmers et al. 2023).

use oarlock_tensor::cpu::quantized::{Format, Layout};
use oarlock_tensor::{DType, Error, Param, Result, Tensor, ops};

use super::layers::Linear;
use super::layers::in_dtype;
use super::module::{Forward, Module, Visitor};
use super::scope::in_scope;

/// y = x·Wᵀ + b with a weight `[outputs, inputs]` of 4 or 8 bits, as `Linear4bit` and `Linear8bitLt` of bitsandbytes (the
/// latter without outliers apart, as on its CPU path), or in the blocks of a GGUF file. It is never dequantized as a whole, and gets no gradient.
#[derive(Clone, Debug)]
pub struct LinearQuantized {
    /// The words of the weight, as [`Layout::quantize`] writes them.
    pub weight: Param,
    /// `[outputs]`, frozen.
    pub bias: Option<Param>,
    layout: Layout,
}

impl LinearQuantized {
    /// In the place of a linear layer whose weight will be quantized, in a model that computes in `dtype`.
    ///
    /// # Errors
    /// A layer with a weight of other than two dims.
    pub fn like(linear: &Linear, format: Format, dtype: DType) -> Result<LinearQuantized> {
        let &[rows, cols] = linear.weight.shape().sizes() else {
            return Err(Error::Usage("LinearQuantized: a linear layer has a weight of two dims".to_owned()));
        };
        let layout = Layout { rows, cols, format };
        if let Some(bias) = &linear.bias {
            bias.freeze();
        }
        Ok(LinearQuantized {
            weight: Param::of_words(layout.n_words(), layout.n_elems(), dtype)?,
            bias: linear.bias.clone(),
            layout,
        })
    }

    /// The size and format of the weight.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The same weight without the bias.
    #[must_use]
    pub fn no_bias(self) -> LinearQuantized {
        LinearQuantized { bias: None, ..self }
    }

    /// The weight that it computes with, in f32 and on no tape.
    ///
    /// # Errors
    /// Before the model is prepared, or while the weight is not gathered.
    pub fn dequantized(&self) -> Result<Tensor> {
        let whole = ops::dequantize(&self.weight, self.layout, self.weight.compute_dtype(DType::F32))?;
        if whole.dtype() == DType::F32 { Ok(whole) } else { whole.cast(DType::F32) }
    }
}

impl Forward<Tensor> for LinearQuantized {
    type Output = Tensor;

    /// x `[.., inputs]` → `[.., outputs]`; an x of another dtype than that of the model is converted first.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            let x = in_dtype(x, self.weight.compute_dtype(x.dtype()))?;
            let y = ops::linear_quantized(&x, &self.weight, self.layout)?;
            match &self.bias {
                Some(bias) => y.add(&ops::parameter(bias, &y)?),
                None => Ok(y),
            }
        })
    }
}

impl Module for LinearQuantized {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }

    fn kind(&self) -> &'static str {
        match self.layout.format {
            Format::FourBit { .. } => "Linear4bit",
            Format::Int8 => "Linear8bitLt",
            Format::Blocks(_) => "Linear",
        }
    }
}
