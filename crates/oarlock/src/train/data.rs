//! The data of a run: token caches, built once by rank 0, and the rows to train and to evaluate on.

use std::path::Path;
use std::sync::Arc;

use oarlock_comm::release_freed_memory;

use crate::accelerator::Accelerator;
use crate::config::TrainConfig;
use crate::data::{RowSettings, Rows, Source, TokenCache, Tokenizer};
use crate::error::{Error, Result};
use crate::train::model::place_of_vocab_size;

/// Rows to train on, and rows to evaluate on where there are any.
pub struct RunData {
    /// Rows to train on.
    pub train: Arc<Rows>,
    /// Rows to evaluate on.
    pub eval: Option<Arc<Rows>>,
}

/// Opens the rows of a run; rank 0 builds the token caches that are missing or out of date.
pub fn open(accelerator: &Accelerator, config: &TrainConfig, vocab_size: usize) -> Result<RunData> {
    let tokenizer = Tokenizer::open(&config.model.tokenizer)?;
    let settings = RowSettings {
        packing: config.data.packing,
        len: config.data.cutoff_len,
        special: tokenizer.special(),
    };
    let train = cache(accelerator, config, &tokenizer, &config.data.datasets, vocab_size)?;
    let (train, held_out) = match config.data.val_size {
        Some(size) => Rows::split(train, &settings, size, config.train.data_seed)?,
        None => (Rows::new(train, &settings)?, None),
    };
    let eval = match config.data.eval_datasets.is_empty() {
        true => held_out,
        false => {
            let cache = cache(accelerator, config, &tokenizer, &config.data.eval_datasets, vocab_size)?;
            Some(Rows::new(cache, &settings)?)
        }
    };
    // Tokenizing takes more than the tokens, and no prediction of a run counts it.
    drop(tokenizer);
    release_freed_memory();
    Ok(RunData { train: Arc::new(train), eval: eval.map(Arc::new) })
}

fn cache(
    accelerator: &Accelerator,
    config: &TrainConfig,
    tokenizer: &Tokenizer,
    datasets: &[String],
    vocab_size: usize,
) -> Result<Arc<TokenCache>> {
    let max_samples = config.data.max_samples.map(|n| n as u64);
    let source = Source::resolve(&datasets.join(","), &config.data.dataset_dir, max_samples)?;
    let dir = config.save.output_dir.join("cache");
    let path = TokenCache::path(&dir, &source, tokenizer);
    if accelerator.is_main_process() {
        accelerator.communicator().set_phase("building the token cache");
        if config.data.overwrite_cache {
            remove_if_present(&path)?;
        }
        TokenCache::build(&dir, &source, tokenizer, &mut |_| ())?;
    }
    accelerator.wait_for_everyone()?;
    let cache = TokenCache::open(&path)?;
    if cache.vocab_size() > vocab_size as u64 {
        return Err(Error::Model(format!(
            "the tokenizer knows {} tokens, the model only {vocab_size} (vocab_size in {}); take the tokenizer that \
             the model was made for, or a larger vocab_size and train_from_scratch: true",
            cache.vocab_size(),
            place_of_vocab_size(&config.model)
        )));
    }
    Ok(Arc::new(cache))
}

fn remove_if_present(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}
