//! Layers with weights in the blocks of a GGUF file, for inference (products of integers).

use oarlock_tensor::cpu::block_quantized::BlockLayout;
use oarlock_tensor::{DType, Param, Result, Tensor, ops};

use super::layers::in_dtype;
use super::module::{Forward, Module, Visitor};
use super::scope::in_scope;

/// y = x·Wᵀ + b with a frozen weight `[outputs, inputs]` in blocks, which is not dequantized: x is quantized to 8 bits, as in
/// llama.cpp.
#[derive(Clone, Debug)]
pub struct LinearBlocks {
    /// The words of the weight.
    pub weight: Param,
    /// `[outputs]`, frozen.
    pub bias: Option<Param>,
    layout: BlockLayout,
}

impl LinearBlocks {
    /// With a weight of this layout and a bias, in a model that computes in `dtype`.
    ///
    /// # Errors
    /// An impossible size.
    pub fn new(layout: BlockLayout, bias: Option<Param>, dtype: DType) -> Result<LinearBlocks> {
        bias.iter().for_each(Param::freeze);
        Ok(LinearBlocks { weight: words(layout, dtype)?, bias, layout })
    }
}

impl Forward<Tensor> for LinearBlocks {
    type Output = Tensor;

    /// x `[.., inputs]` → `[.., outputs]`; an x of another dtype than that of the model is converted first.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        in_scope(self, x.device(), || {
            let x = in_dtype(x, self.weight.compute_dtype(x.dtype()))?;
            let y = ops::linear_blocks(&x, &self.weight, self.layout)?;
            match &self.bias {
                Some(bias) => y.add(&ops::parameter(bias, &y)?),
                None => Ok(y),
            }
        })
    }
}

impl Module for LinearBlocks {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
        if let Some(bias) = &self.bias {
            visitor.param("bias", bias);
        }
    }

    fn kind(&self) -> &'static str {
        "Linear"
    }
}

/// Rows of a table `[vocabulary, dim]` in blocks by token id, dequantized as they are looked up.
#[derive(Clone, Debug)]
pub struct EmbeddingBlocks {
    /// The words of the table.
    pub weight: Param,
    layout: BlockLayout,
}

impl EmbeddingBlocks {
    /// With a table of this layout, in a model that computes in `dtype`.
    ///
    /// # Errors
    /// An impossible size.
    pub fn new(layout: BlockLayout, dtype: DType) -> Result<EmbeddingBlocks> {
        Ok(EmbeddingBlocks { weight: words(layout, dtype)?, layout })
    }

    /// A linear layer with the same words, as the output weights of a model that shares them.
    pub fn output(&self) -> LinearBlocks {
        LinearBlocks { weight: self.weight.clone(), bias: None, layout: self.layout }
    }

    /// ids `[..]` → `[.., dim]` in f32.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn forward_f32(&self, ids: &Tensor) -> Result<Tensor> {
        in_scope(self, ids.device(), || ops::embedding_blocks(ids, &self.weight, self.layout))
    }
}

impl Module for EmbeddingBlocks {
    fn visit(&self, visitor: &mut dyn Visitor) {
        visitor.param("weight", &self.weight);
    }

    fn kind(&self) -> &'static str {
        "Embedding"
    }
}

fn words(layout: BlockLayout, dtype: DType) -> Result<Param> {
    Param::of_words(layout.n_words(), layout.rows() * layout.cols(), dtype)
}
