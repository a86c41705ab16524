//! `oarlock train recipes/pretrain.yaml` as a custom training loop: the same model, bit by bit.
//!
//! `oarlock torchrun --nproc-per-node 2 --no-python target/release/examples/pretrain_loop`

use std::path::Path;
use std::sync::Arc;

use oarlock::data::{Packing, RowSettings, Rows, Source, TokenCache, Tokenizer};
use oarlock::model::Decoder;
use oarlock::model::hf::{HfConfig, SaveOptions};
use oarlock::train::Inputs;
use oarlock::{Accelerator, AcceleratorConfig, DType, Result, TokenLoader, lr_scheduler, optim};

fn main() -> Result<()> {
    train(Path::new("."), Path::new("out/pretrain_loop"), None)
}

/// Trains with the recipes of `root`, for all epochs or for `max_steps`, and writes the model to `out`.
pub fn train(root: &Path, out: &Path, max_steps: Option<u64>) -> Result<()> {
    let config = AcceleratorConfig { mixed_precision: Some(DType::BF16), ..AcceleratorConfig::default() };
    let accelerator = Accelerator::new(&config)?;
    let folder = root.join("recipes/minimind-small");
    let tokenizer = Tokenizer::open(&folder)?;
    let texts = Source::resolve("pretrain.jsonl", &root.join("recipes/corpus"), None)?;
    let tokens = || Ok(TokenCache::build(&out.join("cache"), &texts, &tokenizer, &mut |_| ())?);
    let cache = Arc::new(TokenCache::open(&accelerator.main_process_first(tokens)?.path)?);
    let settings = RowSettings { packing: Packing::ConcatDocuments, len: 256, special: tokenizer.special() };
    let rows = Arc::new(Rows::new(cache, &settings)?);
    let loader = TokenLoader { rows, shuffle: true, seed: 42, micro_batch: 4, accumulation: 1 };
    let mut loader = accelerator.prepare(loader)?;

    let hf = HfConfig::read(&folder)?;
    let model = Decoder::new(hf.decoder().clone(), 256)?;
    let adamw = optim::adamw(&model).lr(3e-3).betas(0.9, 0.95).weight_decay(0.1);
    let adamw = adamw.no_decay_of_vectors(&model);
    let n_steps = max_steps.unwrap_or(6 * loader.sampler().steps_per_epoch());
    let cosine = lr_scheduler::cosine(&adamw, (0.05 * n_steps as f64).ceil() as u64, n_steps);
    let (model, optimizer, scheduler) = accelerator.prepare((model, adamw, cosine))?;

    for step in 1..=n_steps {
        let window = loader.next_step()?;
        let n_targets: usize = window.batches.iter().map(|batch| batch.n_targets).sum();
        accelerator.accumulation_window(&optimizer, n_targets as f64)?;
        for batch in &window.batches {
            let inputs = Inputs::new(batch, accelerator.device())?;
            let loss = model.loss(&inputs.ids, |m, ids| m.loss(ids, &inputs.labels, &inputs.mask))?;
            accelerator.backward(&loss)?;
        }
        let norm = accelerator.clip_grad_norm(&optimizer, 1.0)?;
        optimizer.step()?;
        scheduler.step();
        accelerator.print(format_args!("step {step}: norm {norm:?}"));
    }
    let options = SaveOptions::new(accelerator.dtype(), Some(&folder));
    accelerator.save_pretrained(&model, out, hf.files_of(model.module(), &options)?)
}
