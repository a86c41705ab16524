//! LoRA (Hu et al. 2021): a small decoder that was pretrained on reviews learns to write stories, by adapters of low rank
//! beside its projections; its own weights stay. [lora.py](lora.py) is the same program in PyTorch.
//!
//! `cargo run -p oarlock --example lora`, or on two ranks, which divide each batch:
//! `oarlock torchrun --nproc-per-node 2 --no-python target/debug/examples/lora`

use std::path::{Path, PathBuf};

use oarlock::dataloader::DataLoader;
use oarlock::model::{Decoder, HfConfig};
use oarlock::nn::{self, Forward, Init, Layer, Linear, Mask, Module};
use oarlock::weights::Strict;
use oarlock::{Accelerator, AcceleratorConfig, Prepared, ReduceOp, Result, Tensor, optim};

const TEXT: &str = include_str!("data/stories.txt");
const LENGTH: usize = 32;
const BATCH_SIZE: usize = 16;
const RANK: usize = 4;
/// What the adapters count.
const SCALE: f32 = 2.0;

/// A frozen linear layer with a trained update of low rank. The layer keeps its names, under which its weights are loaded.
#[derive(Module)]
struct Lora {
    #[module(name = "")]
    base: Linear,
    lora_a: Linear,
    lora_b: Linear,
}

impl Lora {
    /// Begins as the layer alone: `lora_b` is zero.
    fn around(base: &Linear) -> nn::Result<Lora> {
        let sizes = base.weight.shape().sizes();
        Ok(Lora {
            base: base.clone(),
            lora_a: Linear::new(sizes[1], RANK)?.no_bias(),
            lora_b: Linear::new(RANK, sizes[0])?.no_bias().init(Init::Zeros),
        })
    }
}

impl Forward<Tensor> for Lora {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
        self.base.forward(x)? + (self.lora_b.forward(&self.lora_a.forward(x)?)? * SCALE)?
    }
}

/// The folder of the pretrained decoder, as transformers writes it.
pub fn pretrained() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/distillation/teacher")
}

/// The decoder with adapters around all projections of its blocks, which alone are trained.
pub fn model() -> Result<Decoder> {
    let mut model = Decoder::new(HfConfig::read(&pretrained())?.decoder().clone(), LENGTH)?;
    nn::freeze(&model);
    model.map_linears(|_, linear| Ok(Some(Box::new(Lora::around(linear)?) as Box<dyn Layer>)))?;
    Ok(model)
}

/// The trained model, and the loss of every step, the mean over the batch of all ranks.
pub fn train(accelerator: &Accelerator, steps: usize) -> Result<(Prepared<Decoder>, Vec<f64>)> {
    // Bytes are tokens from 1 on.
    let tokens: Vec<i32> = TEXT.bytes().map(|byte| i32::from(byte) + 1).collect();
    let sample = |window: &[i32]| (window[..LENGTH].to_vec(), window[1..].to_vec());
    let samples: Vec<_> = tokens.windows(LENGTH + 1).step_by(LENGTH).map(sample).collect();
    let loader = DataLoader::new(samples, BATCH_SIZE).shuffle(true).drop_last(true);
    let model = model()?;
    let optimizer = optim::adamw(&model).lr(1e-2);
    let (loader, model, optimizer) = accelerator.prepare((loader, model, optimizer))?;
    // The adapters are not there, and keep their first values.
    accelerator.load_model_with(&model, pretrained(), Strict::No)?;

    let mut losses = Vec::new();
    while losses.len() < steps {
        for batch in loader.iter()?.take(steps - losses.len()) {
            let (ids, next) = batch?;
            let logits = model.call(&ids, |model, ids| model.logits(ids, &Mask::Causal))?;
            let loss = nn::cross_entropy(&logits, &next)?;
            accelerator.backward(&loss)?;
            optimizer.step()?;
            losses.push(accelerator.reduce(&loss, ReduceOp::Avg, 1.0)?.item()?);
        }
    }
    Ok((model, losses))
}

fn main() -> Result<()> {
    let accelerator = Accelerator::new(&AcceleratorConfig::default().split_batches(true))?;
    let (model, losses) = train(&accelerator, 300)?;
    let params = nn::parameters(model.module());
    let trained = params.iter().map(|named| &named.param).filter(|param| !param.is_frozen());
    let n_trained: usize = trained.map(|param| param.shape().n_elems()).sum();
    accelerator.print(format_args!("{n_trained} parameters are trained"));
    accelerator.print(format_args!("losses {:.3?}", losses.iter().step_by(30).collect::<Vec<_>>()));

    model.eval();
    let mut ids: Vec<i32> = "Every summer ".bytes().map(|byte| i32::from(byte) + 1).collect();
    for step in 0..200 {
        let context = &ids[ids.len().saturating_sub(LENGTH)..];
        let context = Tensor::from_slice(context, [1, context.len()], accelerator.device())?;
        let logits = model.call(&context, |model, ids| model.logits(ids, &Mask::Causal))?;
        let probabilities = (logits.i((0, -1))? / 0.5)?.softmax(-1)?.to_vec::<f32>()?;
        // A number between 0 and 1 for each step, the same on all ranks, selects the next byte.
        let mut rest = (f64::from(step) * 0.618_033_988_749_895).fract() as f32;
        let next = probabilities.iter().position(|p| {
            rest -= p;
            rest < 0.0
        });
        ids.push(next.unwrap_or(0) as i32);
    }
    let text: Vec<u8> = ids.iter().map(|&id| id.saturating_sub(1) as u8).collect();
    accelerator.print(format_args!("{}", String::from_utf8_lossy(&text)));
    Ok(())
}
