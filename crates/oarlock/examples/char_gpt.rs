//! A small GPT that learns to write stories, letter by letter. [char_gpt.py](char_gpt.py) is the same program in PyTorch.
//!
//! `cargo run -p oarlock --example char_gpt`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/char_gpt`

use oarlock::dataloader::DataLoader;
use oarlock::nn::{
    self, Embedding, Forward, LayerNorm, Linear, Mlp, Module, MultiHeadAttention, Param, Unit,
};
use oarlock::{Accelerator, AcceleratorConfig, Prepared, ReduceOp, Result, Tensor, lr_scheduler, optim};

/// The text is ASCII, and its bytes are the tokens.
const TEXT: &str = include_str!("data/stories.txt");
const VOCAB: usize = 128;
const DIM: usize = 64;
const LENGTH: usize = 64;
const BATCH_SIZE: usize = 16;

#[derive(Module)]
struct Block {
    ln1: LayerNorm,
    attn: MultiHeadAttention,
    ln2: LayerNorm,
    mlp: Mlp,
}

impl Forward<Tensor> for Block {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        let x = (x + self.attn.forward(&self.ln1.forward(x)?)?)?;
        &x + self.mlp.forward(&self.ln2.forward(&x)?)?
    }
}

/// A decoder with learned positions.
#[derive(Module)]
pub struct Gpt {
    tokens: Embedding,
    positions: Param,
    blocks: Vec<Unit<Block>>,
    norm: LayerNorm,
    head: Linear,
}

impl Forward<Tensor> for Gpt {
    type Output = Tensor;
    fn forward(&self, ids: &Tensor) -> nn::Result<Tensor> {
        let mut x = (self.tokens.forward(ids)? + nn::parameter(&self.positions, ids)?.i(..ids.size(1)?)?)?;
        for block in &self.blocks {
            x = block.forward(&x)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

/// The model with fresh weights.
pub fn model() -> nn::Result<Gpt> {
    let block = || {
        Ok(Unit::new(Block {
            ln1: LayerNorm::new(DIM)?,
            attn: MultiHeadAttention::new(DIM, 4)?.causal(),
            ln2: LayerNorm::new(DIM)?,
            mlp: Mlp::new(DIM, 4 * DIM)?,
        }))
    };
    Ok(Gpt {
        tokens: Embedding::normal(VOCAB, DIM, 0.02)?,
        positions: nn::param([LENGTH, DIM], nn::Init::Normal { std: 0.02 })?,
        blocks: (0..2).map(|_| block()).collect::<nn::Result<_>>()?,
        norm: LayerNorm::new(DIM)?,
        head: Linear::new(DIM, VOCAB)?,
    })
}

/// The trained model, and the loss of every step, the mean over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Gpt>, Vec<f64>)> {
    let sample = |window: &[u8]| (window[..LENGTH].to_vec(), window[1..].to_vec());
    let samples: Vec<_> = TEXT.as_bytes().windows(LENGTH + 1).step_by(LENGTH).map(sample).collect();
    let loader = DataLoader::new(samples, BATCH_SIZE).shuffle(true).drop_last(true);
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(3e-3);
    let scheduler = lr_scheduler::cosine(&optimizer, 0, steps as u64);
    let (loader, model, optimizer, scheduler) = accelerator.prepare((loader, model, optimizer, scheduler))?;

    let mut losses = Vec::new();
    while losses.len() < steps {
        for batch in loader.iter()?.take(steps - losses.len()) {
            let (ids, next) = batch?;
            let loss = nn::cross_entropy(&model.forward(&ids)?, &next)?;
            accelerator.backward(&loss)?;
            accelerator.clip_grad_norm(&optimizer, 1.0)?;
            optimizer.step()?;
            scheduler.step();
            losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
        }
    }
    Ok((model, losses))
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let (model, losses) = train(&accelerator, 1000)?;
    accelerator.print(format_args!("losses {:.3?}", losses.iter().step_by(125).collect::<Vec<_>>()));

    model.eval();
    let mut text: Vec<i32> = b"Every summer ".map(i32::from).to_vec();
    for _ in 0..300 {
        let context = &text[text.len().saturating_sub(LENGTH)..];
        let ids = Tensor::from_slice(context, [1, context.len()], accelerator.device())?;
        text.push(model.forward(&ids)?.i((0, -1))?.argmax(-1)?.item()?);
    }
    accelerator.print(format_args!("{}", text.iter().map(|&id| id as u8 as char).collect::<String>()));
    Ok(())
}
