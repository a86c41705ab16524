//! The data of a run: token caches, built once in each output folder, and the rows to train and to evaluate on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use oarlock_comm::release_freed_memory;
use oarlock_config::config::{ChatArgs, ModelArgs, ModelSource, Packing, Predict, TrainConfig};
use oarlock_engine::{Accelerator, Error, Result};
use rayon::ThreadPoolBuilder;

use crate::adapters::{TemplateFiles, stop_ids, template_files};
use crate::data::{
    Chat, Encoder, Made, RowSettings, Rows, Sampler, Source, Split, TokenCache, Tokenizer, bracketed,
    colored, longest_batch,
};
use crate::estimate::Longest;
use crate::model::hf::HfConfig;
use crate::train::inputs::{DATASET, Input};
use crate::train::objective::Answering;
use crate::train::written::CACHE;

/// Rows to train on, and rows to evaluate on where there are any.
pub struct RunData {
    /// Rows to train on.
    pub train: Arc<Rows>,
    /// Rows to evaluate on: of each data set where each is evaluated by itself.
    pub eval: Vec<EvalData>,
    /// Rows to answer after training.
    pub predict: Option<PredictData>,
    /// What answers are made of, where the objective makes some.
    pub answering: Option<Answering>,
    /// What is saved beside the model, so that it is talked to as it is trained.
    pub template_files: TemplateFiles,
    /// What rank 0 tells of them before the run.
    pub messages: Vec<String>,
    /// The files that they were made of, by key.
    pub read: Vec<(String, Input)>,
    /// The first row to train on as the model sees it: plain, and for a terminal.
    pub first: Option<[String; 2]>,
}

/// Rows to evaluate on.
#[derive(Clone)]
pub struct EvalData {
    /// The data set, where each is evaluated by itself.
    pub name: Option<String>,
    /// Its rows.
    pub rows: Arc<Rows>,
}

/// Rows to answer: of each conversation the last answer is expected, all before it is the prompt.
pub struct PredictData {
    /// The rows.
    pub rows: Arc<Rows>,
    /// The tokens that end an answer.
    pub stop_ids: Vec<u32>,
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

    /// A configuration with the sizes of the micro-batches that the data fill, where they do not fill those that it asks for.
    pub fn filled(&self, config: &TrainConfig, world: u64) -> Option<TrainConfig> {
        let filled = |rows: &Rows, wanted: usize| rows.micro_batch(world, wanted as u64) as usize;
        let of_eval = |data: &EvalData| filled(&data.rows, config.eval.batch_size);
        let batch = filled(&self.train, config.train.batch_size);
        let eval_batch = self.eval.iter().map(of_eval).max().unwrap_or(config.eval.batch_size);
        let is_filled = (batch, eval_batch) == (config.train.batch_size, config.eval.batch_size);
        (!is_filled).then(|| {
            let mut config = config.clone();
            (config.train.batch_size, config.eval.batch_size) = (batch, eval_batch);
            config
        })
    }

    /// The largest micro-batches of `batch` conversations that come in so many steps, and of `eval_batch` in evaluations.
    pub fn longest(&self, sampler: &Sampler, steps: u64, batch: usize, eval_batch: Option<usize>) -> Longest {
        let world = sampler.world;
        let end = sampler.position_after(steps);
        let sampler = Sampler { micro_batch: batch as u64, ..sampler.clone() };
        let of_eval = |batch: usize| {
            let longest = |rows: &Rows| {
                let sampler = Sampler::in_order(rows.n_rows(), world, 0, batch as u64);
                longest_batch(rows, &sampler, 0..rows.n_rows())
            };
            self.eval.iter().map(|data| longest(&data.rows)).max().unwrap_or(0)
        };
        Longest { train: longest_batch(&self.train, &sampler, 0..end), eval: eval_batch.map_or(0, of_eval) }
    }
}

/// Opens the rows of a run; the first rank that sees an output folder builds the token caches that are missing or out of date.
pub fn open(accelerator: &Accelerator, config: &TrainConfig, hf: &HfConfig) -> Result<RunData> {
    let vocab_size = hf.decoder().vocab_size;
    let tokenizer = Tokenizer::open_with(&config.model.tokenizer, &config.model.new_tokens)?;
    let mut special = tokenizer.special();
    let chat = chat(config, &tokenizer)?;
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
    let mut messages: Vec<String> =
        chat.iter().map(|chat| format!("conversations are written by {}", chat.describe())).collect();
    messages.extend(added_tokens(&tokenizer, config, vocab_size)?);
    if let Some(chat) = &chat {
        messages.extend(chat.disagreement(&tokenizer, &config.model.tokenizer)?);
    }
    let saved = template_texts(config, hf, &tokenizer, chat.as_ref())?;
    let read = Vec::new();
    let mut caches = Caches { accelerator, config, encoder, vocab_size, messages, read, tokenized: false };
    let train = caches.open(&config.data.datasets, "train")?;
    let n_records = train.n_records();
    let split = Split {
        val_size: config.data.val_size,
        val_seed: config.train.seed,
        keeps_order: !config.data.shuffle,
        mix: config.data.mix.clone(),
        mix_seed: config.train.seed,
    };
    let (train, held_out) = Rows::split(train, &settings, &split)?;
    let train = if config.data.group_by_length { train.grouped_by_length() } else { train };
    let eval_data = |name: Option<String>, rows: Rows| EvalData { name, rows: Arc::new(rows) };
    let mut eval: Vec<EvalData> = held_out.into_iter().map(|rows| eval_data(None, rows)).collect();
    let eval_datasets = &config.data.eval_datasets;
    if config.data.eval_each {
        for name in eval_datasets {
            let cache = caches.open(std::slice::from_ref(name), &format!("eval-{}", file_name(name)))?;
            eval.push(eval_data(Some(name.clone()), Rows::new(cache, &settings)?));
        }
    } else if !eval_datasets.is_empty() {
        eval.push(eval_data(None, Rows::new(caches.open(eval_datasets, "eval")?, &settings)?));
    }
    let first = match (&chat, accelerator.is_main_process()) {
        (Some(_), true) => {
            let (ids, supervised) = train.shown(0);
            Some([bracketed(&tokenizer, &ids, &supervised)?, colored(&tokenizer, &ids, &supervised)?])
        }
        _ => None,
    };
    let Caches { messages, mut read, mut tokenized, .. } = caches;
    let predict = match (&config.predict, &config.data.chat, &chat) {
        (Some(Predict::Answers(_)), Some(args), Some(chat)) => {
            // Of a conversation that goes on, the last answer alone is expected.
            let args = ChatArgs { mask_history: true, train_on_prompt: false, ..args.clone() };
            let last = Chat::new(&tokenizer, &config.model.tokenizer, &args, config.data.cutoff_len)?;
            let encoder = Encoder::sft(&tokenizer, &last);
            let mut caches = Caches {
                accelerator,
                config,
                encoder,
                vocab_size,
                messages: Vec::new(),
                read: Vec::new(),
                tokenized: false,
            };
            let settings = RowSettings { packing: Packing::Examples, ..settings };
            let rows = if eval_datasets.is_empty() {
                let cache = caches.open(&config.data.datasets, "predict")?;
                if cache.n_records() != n_records {
                    return Err(Error::Usage(
                        "the data to predict on cannot be held out by val_size: with only their last answers other rows \
                         are longer than cutoff_len; name the data in eval_dataset"
                            .to_owned(),
                    ));
                }
                Rows::split(cache, &settings, &split)?.1
            } else {
                Some(Rows::new(caches.open(eval_datasets, "predict")?, &settings)?)
            };
            tokenized |= caches.tokenized;
            read.append(&mut caches.read);
            let stop_ids = stop_ids(chat, &tokenizer, hf)?;
            rows.map(|rows| PredictData { rows: Arc::new(rows), stop_ids })
        }
        _ => None,
    };
    let answering = match &chat {
        Some(chat) if config.train.objective.makes_answers() => Some(Answering {
            tokenizer: Tokenizer::open_with(&config.model.tokenizer, &config.model.new_tokens)?,
            stop_ids: stop_ids(chat, &tokenizer, hf)?,
        }),
        _ => None,
    };
    // What tokenizing took the steps do not need, and no prediction counts it.
    drop(chat);
    drop(tokenizer);
    if tokenized {
        // New threads get the heaps of those that have ended.
        on_passing_threads(None, || drop(rayon::broadcast(|_| release_freed_memory())))?;
    }
    release_freed_memory();
    Ok(RunData {
        train: Arc::new(train),
        eval,
        predict,
        answering,
        template_files: saved,
        messages,
        read,
        first,
    })
}

/// What writes the conversations of a run, where it trains on some.
pub fn chat(config: &TrainConfig, tokenizer: &Tokenizer) -> Result<Option<Chat>> {
    let Some(args) = &config.data.chat else { return Ok(None) };
    Ok(Some(Chat::new(tokenizer, &config.model.tokenizer, args, config.data.cutoff_len)?))
}

/// What a run saves beside its model in the place of files of the tokenizer: the texts of its template, and the tokenizer where
/// it has grown.
pub fn template_texts(
    config: &TrainConfig,
    hf: &HfConfig,
    tokenizer: &Tokenizer,
    chat: Option<&Chat>,
) -> Result<TemplateFiles> {
    let mut texts = match chat {
        Some(chat) => template_files(chat, tokenizer, &config.model.tokenizer, hf)?,
        None => TemplateFiles::new(),
    };
    texts.extend(tokenizer.grown_json()?.map(|json| ("tokenizer.json", json)));
    Ok(texts)
}

/// Refuses a tokenizer with more tokens than the model knows.
pub fn check_vocab_size(n_tokens: usize, config: &TrainConfig, vocab_size: usize) -> Result<()> {
    if n_tokens <= vocab_size {
        return Ok(());
    }
    Err(Error::Model(format!(
        "the tokenizer knows {n_tokens} tokens, the model only {vocab_size} (vocab_size in {}); take the tokenizer that \
         the model was made for, or write resize_vocab: true, which gives the model a row for each token",
        place_of_vocab_size(&config.model)
    )))
}

/// The source of data sets whose entries do not say that they are for another stage.
pub fn source(config: &TrainConfig, datasets: &[String]) -> Result<Source> {
    let max_samples = config.data.max_samples.map(|n| n as u64);
    let source =
        Source::with_remote(&datasets.join(","), &config.data.dataset_dir, max_samples, &config.data.remote)?;
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
            chat.examples.stages()
        )));
    }
    Ok(source)
}

/// Warnings about tokens that `tokenizer.json` lacks and that the files beside it add.
pub fn added_tokens(
    tokenizer: &Tokenizer,
    config: &TrainConfig,
    vocab_size: usize,
) -> Result<Option<String>> {
    let added = tokenizer.added()?;
    if let Some((token, id)) = added.iter().find(|(_, id)| *id as usize >= vocab_size) {
        return Err(Error::Model(format!(
            "tokenizer_config.json or a file beside it names the token {token}, which tokenizer.json lacks; it would be token \
             {id}, and the model knows only {vocab_size} (vocab_size in {}); name a token that is in tokenizer.json, \
             or write `resize_vocab: true`",
            place_of_vocab_size(&config.model)
        )));
    }
    let listed: Vec<String> = added.iter().take(10).map(|(token, id)| format!("{token} ({id})")).collect();
    let more = if added.len() > listed.len() { ", …" } else { "" };
    Ok((!added.is_empty()).then(|| {
        format!(
            "note: tokens that tokenizer.json lacks and the files beside it add: {}{more}",
            listed.join(", ")
        )
    }))
}

/// Where somebody would change the number of tokens that the model knows.
fn place_of_vocab_size(args: &ModelArgs) -> String {
    match &args.source {
        ModelSource::Folder(dir) => dir.join("config.json").display().to_string(),
        ModelSource::Fields(_) => "model_config".to_owned(),
    }
}

/// A name of a data set as part of a file name.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' }).collect()
}

/// Opens token caches.
struct Caches<'a> {
    accelerator: &'a Accelerator,
    config: &'a TrainConfig,
    encoder: Encoder<'a>,
    vocab_size: usize,
    /// What there is to tell of them.
    messages: Vec<String>,
    /// What they were made of.
    read: Vec<(String, Input)>,
    /// Whether this rank had to build one.
    tokenized: bool,
}

impl Caches<'_> {
    /// The token cache of data sets; `tokenized_path` keeps it under `name`.
    fn open(&mut self, datasets: &[String], name: &str) -> Result<Arc<TokenCache>> {
        let kept = self.config.data.tokenized.as_ref().map(|dir| dir.join(format!("{name}.tokens")));
        let path = match &kept {
            Some(kept) => {
                let stores = self.accelerator.stores();
                for leader in stores.each() {
                    // One after the other, as they may see one folder.
                    if leader == self.accelerator.process_index() {
                        self.keep(kept, datasets)?;
                    }
                    self.accelerator.wait_for_everyone()?;
                }
                kept.clone()
            }
            None => self.build(datasets)?,
        };
        self.accelerator.wait_for_everyone()?;
        let cache = TokenCache::open(&path)?;
        let key = match name.strip_prefix("eval") {
            None if name == "train" => DATASET.to_owned(),
            None => name.to_owned(),
            Some(of) => format!("eval_dataset{}", of.replacen('-', " ", 1)),
        };
        self.read.push((key, Input::of_tokens(&cache)?));
        check_vocab_size(cache.vocab_size() as usize, self.config, self.vocab_size)?;
        if let Some(report) = cache.report()? {
            let mut lines = report.lines(self.config.data.cutoff_len);
            let of = if datasets.is_empty() { path.display().to_string() } else { datasets.join(", ") };
            lines[0].insert_str(0, &format!("{of}: "));
            // Where nothing is trained the data to evaluate on stand for both.
            if !self.messages.contains(&lines[0]) {
                self.messages.append(&mut lines);
            }
        }
        Ok(Arc::new(cache))
    }

    /// Makes sure that there is a tokenized data set at `kept`. One that is there is taken as it is.
    fn keep(&mut self, kept: &Path, datasets: &[String]) -> Result<()> {
        if !kept.exists() {
            let built = self.build(datasets)?;
            TokenCache::copy_file(&built, kept)?;
            self.messages.push(format!("the tokenized data set is kept in {}", kept.display()));
            return Ok(());
        }
        let cache = TokenCache::open(kept)?;
        cache.verify()?;
        let of = format!("the tokenized data set {}", kept.display());
        match cache.made_by(self.encoder)? {
            Made::Same => self.messages.push(format!("{of} is read; dataset and its formats are not looked at")),
            Made::OtherSettings => self.messages.push(format!(
                "warning: {of} was tokenized with other settings of template or cutoff_len; it is read as it is"
            )),
            Made::OtherTokenizer => {
                return Err(Error::Usage(format!(
                    "{of} was made with another tokenizer; remove it, or name another folder in tokenized_path"
                )));
            }
        }
        Ok(())
    }

    /// The path of the token cache of data sets, which the first rank that sees an output folder builds where it is missing or out
    /// of date.
    fn build(&mut self, datasets: &[String]) -> Result<PathBuf> {
        let config = self.config;
        let source = source(config, datasets)?;
        self.messages.extend(source.unread().cloned());
        let dir = config.save.output_dir.join(CACHE);
        let encoder = self.encoder;
        let path = TokenCache::path(&dir, &source, encoder);
        let (stores, rank) = (self.accelerator.stores(), self.accelerator.process_index());
        if stores.leader_of(rank) == rank {
            self.accelerator.communicator().set_phase("building the token cache");
            if config.data.overwrite_cache {
                remove_if_present(&path)?;
            }
            let build = || TokenCache::build(&dir, &source, encoder, &mut |_| ());
            let built = on_passing_threads(config.data.workers, build)??;
            self.tokenized |= !built.reused;
            self.messages
                .extend(built.reason.map(|reason| format!("{} is built again: {reason}", path.display())));
        }
        Ok(path)
    }
}

/// Runs `work` on threads that end with it, and with them what libraries keep for each thread: tokenizers keep pieces.
fn on_passing_threads<T: Send>(n_threads: Option<usize>, work: impl FnOnce() -> T + Send) -> Result<T> {
    let mut threads = Vec::new();
    // None, as 0, is one for each core.
    let pool = ThreadPoolBuilder::new().num_threads(n_threads.unwrap_or(0)).spawn_handler(|thread| {
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
