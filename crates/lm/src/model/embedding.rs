//! The embedding of a decoder: a table of numbers, or one in the blocks of a GGUF file.

use oarlock_engine::nn::{Embedding, EmbeddingBlocks, Module, Visitor};
use oarlock_tensor::{Param, Result, Tensor};

/// What gives each token its vector.
#[derive(Clone, Debug)]
pub(super) enum TokenEmbedding {
    Table(Embedding),
    Blocks(EmbeddingBlocks),
}

impl TokenEmbedding {
    pub fn normal(vocab: usize, dim: usize, std: f32) -> Result<TokenEmbedding> {
        Ok(TokenEmbedding::Table(Embedding::normal(vocab, dim, std)?))
    }

    /// The table, or its words.
    pub fn weight(&self) -> &Param {
        match self {
            TokenEmbedding::Table(table) => &table.weight,
            TokenEmbedding::Blocks(blocks) => &blocks.weight,
        }
    }

    /// ids `[..]` → `[.., dim]` in f32.
    pub fn forward_f32(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            TokenEmbedding::Table(table) => table.forward_f32(ids),
            TokenEmbedding::Blocks(blocks) => blocks.forward_f32(ids),
        }
    }

    fn module(&self) -> &dyn Module {
        match self {
            TokenEmbedding::Table(table) => table,
            TokenEmbedding::Blocks(blocks) => blocks,
        }
    }
}

impl Module for TokenEmbedding {
    fn visit(&self, visitor: &mut dyn Visitor) {
        self.module().visit(visitor);
    }

    fn kind(&self) -> &'static str {
        self.module().kind()
    }
}
