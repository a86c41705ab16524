//! The data of a run: token caches, built once by rank 0, and the rows to train and to evaluate on.

use std::path::Path;
use std::sync::Arc;

use oarlock_comm::release_freed_memory;
use rayon::ThreadPoolBuilder;

use crate::accelerator::Accelerator;
use crate::config::TrainConfig;
use crate::data::{Chat, Encoder, RowSettings, Rows, Source, TokenCache, Tokenizer, bracketed, colored};
use crate::error::{Error, Result};
use crate::train::model::place_of_vocab_size;

/// Rows to train on, and rows to evaluate on where there are any.
pub struct RunData {
    /// Rows to train on.
    pub train: Arc<Rows>,
    /// Rows to evaluate on.
    pub eval: Option<Arc<Rows>>,
    /// What rank 0 tells of them before the run.
    pub told: Vec<String>,
    /// The first row to train on as the model sees it: plain, and for a terminal.
    pub first: Option<[String; 2]>,
}

impl RunData {
    /// The longest row of a batch of so many: conversations run one after another.
    pub fn longest_row(config: &TrainConfig) -> usize {
        let batch_size = config.train.batch_size.max(config.eval.batch_size);
        match config.data.packing.is_unpadded() {
            true => config.data.cutoff_len.saturating_mul(batch_size * config.data.n_segments()),
            false => config.data.cutoff_len,
        }
    }
}

/// Opens the rows of a run; rank 0 builds the token caches that are missing or out of date.
pub fn open(accelerator: &Accelerator, config: &TrainConfig, vocab_size: usize) -> Result<RunData> {
    let tokenizer = Tokenizer::open(&config.model.tokenizer)?;
    let mut special = tokenizer.special();
    let chat = match &config.data.chat {
        Some(args) => Some(Chat::new(&tokenizer, &config.model.tokenizer, args, config.data.cutoff_len)?),
        None => None,
    };
    let encoder = match &chat {
        Some(chat) => {
            special.eos = chat.end_token(&tokenizer)?;
            Encoder::sft(&tokenizer, chat)
        }
        None => Encoder::from(&tokenizer),
    };
    // The two answers of a pair have the room of a sequence each.
    let len = config.data.cutoff_len.saturating_mul(config.data.n_segments());
    let settings = RowSettings { packing: config.data.packing, len, special };
    let mut tokenized = false;
    let mut told: Vec<String> =
        chat.iter().map(|chat| format!("conversations are written by {}", chat.describe())).collect();
    let mut cache = |datasets: &[String]| -> Result<Arc<TokenCache>> {
        let (cache, built) = cache(accelerator, config, encoder, datasets, vocab_size)?;
        tokenized |= built;
        if let Some(report) = cache.report()? {
            let mut lines = report.lines(config.data.cutoff_len);
            lines[0].insert_str(0, &format!("{}: ", datasets.join(", ")));
            told.append(&mut lines);
        }
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
    let first = match (&chat, accelerator.is_main_process()) {
        (Some(_), true) => {
            let (ids, learned) = train.shown(0);
            Some([bracketed(&tokenizer, &ids, &learned)?, colored(&tokenizer, &ids, &learned)?])
        }
        _ => None,
    };
    // What tokenizing took the steps do not need, and no prediction counts it.
    drop(chat);
    drop(tokenizer);
    if tokenized {
        // New threads get the heaps of those that have ended.
        on_passing_threads(|| drop(rayon::broadcast(|_| release_freed_memory())))?;
    }
    release_freed_memory();
    Ok(RunData { train: Arc::new(train), eval: eval.map(Arc::new), told, first })
}

/// The token cache of data sets, and whether this rank had to build it.
fn cache(
    accelerator: &Accelerator,
    config: &TrainConfig,
    encoder: Encoder,
    datasets: &[String],
    vocab_size: usize,
) -> Result<(Arc<TokenCache>, bool)> {
    let max_samples = config.data.max_samples.map(|n| n as u64);
    let source = Source::resolve(&datasets.join(","), &config.data.dataset_dir, max_samples)?;
    let pairs = config.data.n_segments() > 1;
    if let Some(chat) = &config.data.chat
        && let Some(name) = source.with_ranking(!pairs)
    {
        let holds = match pairs {
            true => {
                "holds no pairs of answers; its entry in dataset_info.json says `\"ranking\": true` where it does"
            }
            false => "holds pairs of answers (ranking: true)",
        };
        return Err(Error::Usage(format!(
            "The dataset is not applicable in the current training stage: {name} {holds}, and the rows are for {}",
            chat.learned.stages()
        )));
    }
    let dir = config.save.output_dir.join("cache");
    let path = TokenCache::path(&dir, &source, encoder);
    let mut built = false;
    if accelerator.is_main_process() {
        accelerator.communicator().set_phase("building the token cache");
        if config.data.overwrite_cache {
            remove_if_present(&path)?;
        }
        built = !on_passing_threads(|| TokenCache::build(&dir, &source, encoder, &mut |_| ()))??.reused;
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
