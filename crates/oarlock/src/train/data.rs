//! The data of a run: token caches, built once by rank 0, and the rows to train and to evaluate on.

use std::path::Path;
use std::sync::Arc;

use oarlock_comm::release_freed_memory;
use rayon::ThreadPoolBuilder;

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
    let mut tokenized = false;
    let mut cache = |datasets: &[String]| -> Result<Arc<TokenCache>> {
        let (cache, built) = cache(accelerator, config, &tokenizer, datasets, vocab_size)?;
        tokenized |= built;
        Ok(cache)
    };
    let train = cache(&config.data.datasets)?;
    let (train, held_out) = match config.data.val_size {
        Some(size) => Rows::split(train, &settings, size, config.train.data_seed)?,
        None => (Rows::new(train, &settings)?, None),
    };
    let eval = match config.data.eval_datasets.is_empty() {
        true => held_out,
        false => Some(Rows::new(cache(&config.data.eval_datasets)?, &settings)?),
    };
    // What tokenizing took the steps do not need, and no prediction counts it.
    drop(tokenizer);
    if tokenized {
        // New threads get the heaps of those that have ended.
        on_passing_threads(|| drop(rayon::broadcast(|_| release_freed_memory())))?;
    }
    release_freed_memory();
    Ok(RunData { train: Arc::new(train), eval: eval.map(Arc::new) })
}

/// The token cache of data sets, and whether this rank had to build it.
fn cache(
    accelerator: &Accelerator,
    config: &TrainConfig,
    tokenizer: &Tokenizer,
    datasets: &[String],
    vocab_size: usize,
) -> Result<(Arc<TokenCache>, bool)> {
    let max_samples = config.data.max_samples.map(|n| n as u64);
    let source = Source::resolve(&datasets.join(","), &config.data.dataset_dir, max_samples)?;
    let dir = config.save.output_dir.join("cache");
    let path = TokenCache::path(&dir, &source, tokenizer);
    let mut built = false;
    if accelerator.is_main_process() {
        accelerator.communicator().set_phase("building the token cache");
        if config.data.overwrite_cache {
            remove_if_present(&path)?;
        }
        built = !on_passing_threads(|| TokenCache::build(&dir, &source, tokenizer, &mut |_| ()))??.reused;
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
    Ok((Arc::new(cache), built))
}

/// Runs `work` on threads that end with it, and with them what libraries keep for each thread: tokenizers keep pieces.
fn on_passing_threads<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let mut threads = Vec::new();
    let pool = ThreadPoolBuilder::new().spawn_handler(|thread| {
        threads.push(std::thread::Builder::new().spawn(|| thread.run())?);
        Ok(())
    });
    let pool = pool.build().map_err(|e| Error::Usage(format!("cannot start threads to tokenize: {e}")))?;
    let done = pool.install(work);
    drop(pool);
    // A panic of theirs is one of `work`.
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Ok(done)
}

fn remove_if_present(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}
