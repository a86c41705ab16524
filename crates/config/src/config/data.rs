//! The text to train on: how texts become rows, and which of them are split off for validation.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::settings::keys::Range::NotNegative;
use crate::settings::keys::Status::{Later, NoEffect, Used};
use crate::settings::keys::ValueType::{Bool, Choice, Float, Int, List, Path, Text};
use crate::settings::section::section;

section! {
    /// The text to train on.
    #[derive(Clone, Debug, PartialEq)]
    pub struct DataArgs of Data with DataParts {
        /// How texts become sequences.
        packing: Packing,
        /// How conversations become tokens; `None` trains on texts.
        chat: Option<ChatArgs>,
        /// Draw the sequences in a seeded random order.
        shuffle: bool,
        /// How several data sets become one.
        mix: Mix,
        /// Draw sequences of similar length together.
        group_by_length: bool,
        /// Evaluate each data set of the evaluation by itself.
        eval_each: bool,
        /// The files of data sets of hubs that are here, by the names of `dataset` and `eval_dataset`.
        remote: BTreeMap<String, Vec<PathBuf>>,
    }

    /// The keys of data.
    pub const DATA = [
        DATASET: Vec<String> = (List, "dataset", "", Used, "Data sets: paths, names in dataset_info.json, or OWNER/NAME on a hub") => Nothing datasets;
        EVAL_DATASET: Vec<String> = (List, "eval_dataset", "", Used, "Data sets of the evaluation: as dataset") => Nothing eval_datasets;
        DATASET_DIR: String = (Path, "dataset_dir", "data", Used, "Folder of dataset_info.json and its files; ONLINE: all names are those of a hub; REMOTE:OWNER/NAME: the dataset_info.json of a data set on a hub") => ByHand dataset_dir: PathBuf, "The folder of `dataset_info.json` and its files." = |settings| PathBuf::from(settings.word(DATASET_DIR));
        CUTOFF_LEN: usize = (Int(2), "cutoff_len", "2048", Used, "Tokens of a sequence") => Computes cutoff_len;
        PACKING: bool = (Bool, "packing", "true", Used, "Concatenate texts and cut them into full sequences; false: one padded text per sequence. Stage sft (default false): whole conversations share a row without attending to each other");
        NEAT_PACKING: bool = (Bool, "neat_packing", "false", Used, "Packing without attention between texts; in stage sft the same as packing");
        MINIMIND_ROWS: bool = (Bool, "minimind_rows", "false", Used, "Our own: MiniMind's rows: begin token, one text, end token, padding; packing is ignored");
        MAX_SAMPLES: Option<usize> = (Int(1), "max_samples", "", Used, "Read at most this many records of a data set") => Computes max_samples;
        VAL_SIZE: f64 = (Float(NotNegative), "val_size", "0", Used, "Records held out for evaluation: a count, or a fraction below 1") => ByHand val_size: Option<ValSize>, "What is split off for the evaluation, if anything is." = |settings| ValSize::of(settings.get(VAL_SIZE));
        DISABLE_SHUFFLING: bool = (Bool, "disable_shuffling", "false", Used, "Take the sequences in the order of the files");
        OVERWRITE_CACHE: bool = (Bool, "overwrite_cache", "false", Used, "Rebuild the token cache") => Unrecorded overwrite_cache;
        PREPROCESSING_NUM_WORKERS: Option<usize> = (Int(1), "preprocessing_num_workers", "", Used, "Threads of the tokenization; unset: one for each core") => Unrecorded workers;
        PREPROCESSING_BATCH_SIZE: usize = (Int(1), "preprocessing_batch_size", "1000", NoEffect("the cache is written as a stream"), "Records in a batch of the tokenization");
        TOKENIZED_PATH: Option<String> = (Path, "tokenized_path", "", Used, "Folder of a tokenized data set: read if it exists, else written; unset: the token cache of output_dir") => ByHand tokenized: Option<PathBuf>, "The folder of a tokenized data set: read if it is there, else written." = |settings| settings.said(TOKENIZED_PATH).map(|_| PathBuf::from(settings.word(TOKENIZED_PATH)));
        DATA_SHARED_FILE_SYSTEM: bool = (Bool, "data_shared_file_system", "false", NoEffect("the machines find out whether they share output_dir; one of those that do builds the cache"), "Whether machines share their files");
        STREAMING: bool = (Bool, "streaming", "false", Used, "Accept data sets larger than memory; they are tokenized to disk first, as without it");
        BUFFER_SIZE: usize = (Int(1), "buffer_size", "16384", NoEffect("the whole data set is shuffled, streamed or not"), "Shuffle buffer of streaming");
        MIX_STRATEGY: String = (Choice(&["concat", "interleave_under", "interleave_over", "interleave_once"]), "mix_strategy", "concat", Used, "How to mix data sets: one after another (concat), or interleaved until the first ends (under), until all have ended with repeats (over), or without repeats (once)");
        INTERLEAVE_PROBS: Vec<String> = (List, "interleave_probs", "", Used, "Probabilities of interleaved data sets; unset: round robin");
        TEMPLATE: Option<String> = (Text, "template", "", Used, "Chat template");
        TOOL_FORMAT: Option<String> = (Text, "tool_format", "", Used, "Format of tool calls");
        DEFAULT_SYSTEM: Option<String> = (Text, "default_system", "", Used, "System message");
        ENABLE_THINKING: Option<bool> = (Bool, "enable_thinking", "", Used, "Thoughts of reasoning models: true (the default) trains on an empty thought if there is none; false gives it as input and removes other thoughts; null gives it as input and keeps them");
        PRESERVE_THINKING: bool = (Bool, "preserve_thinking", "false", Used, "Keep thoughts of earlier turns");
        MEDIA_DIR: Option<String> = (Path, "media_dir", "", NoEffect("models are of text only"), "Folder of images, videos and sounds");
        TRAIN_ON_PROMPT: bool = (Bool, "train_on_prompt", "false", Used, "Compute the loss on prompts, too");
        MASK_HISTORY: bool = (Bool, "mask_history", "false", Used, "Compute the loss on the last turn only");
        IGNORE_PAD_TOKEN_FOR_LOSS: bool = (Bool, "ignore_pad_token_for_loss", "true", Later("padding never counts in the loss"), "Leave padding out of the loss");
        DATALOADER_NUM_WORKERS: usize = (Int(0), "dataloader_num_workers", "0", NoEffect("tokens are read from a mapped file"), "Processes that load data");
        DATALOADER_PIN_MEMORY: bool = (Bool, "dataloader_pin_memory", "true", NoEffect("tokens are read from a mapped file"), "Pinned memory of the loader");
        DATALOADER_PERSISTENT_WORKERS: bool = (Bool, "dataloader_persistent_workers", "false", NoEffect("tokens are read from a mapped file"), "Keep loader processes");
        DATALOADER_PREFETCH_FACTOR: Option<usize> = (Int(1), "dataloader_prefetch_factor", "", NoEffect("tokens are read from a mapped file"), "Batches loaded ahead");
        DATALOADER_DROP_LAST: bool = (Bool, "dataloader_drop_last", "false", Later("the last batch of an epoch is always trained on"), "Drop the last incomplete batch");
        REMOVE_UNUSED_COLUMNS: bool = (Bool, "remove_unused_columns", "true", NoEffect("only the text column is read"), "Drop columns that the model does not take");
        GROUP_BY_LENGTH: bool = (Bool, "group_by_length", "false", Used, "Batch sequences of similar length, within windows of up to 50 steps");
        TRAIN_SAMPLING_STRATEGY: String = (Choice(&["random", "sequential", "group_by_length"]), "train_sampling_strategy", "random", Used, "Order of sequences; sequential is disable_shuffling, group_by_length the key of that name");
    ];
}

impl DataArgs {
    /// The sequences of an example: two answers to one prompt are two.
    pub fn n_segments(&self) -> usize {
        match &self.chat {
            Some(chat) if chat.examples == ExampleKind::Pairs => 2,
            _ => 1,
        }
    }
}

/// How records become rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// LLaMA-Factory's `packing: true`: all records in a row, chopped into blocks of exactly `len` tokens; the tail
    /// is dropped. Attention reaches into the text before.
    Concat,
    /// The same blocks, but attention stays inside a record and no record predicts the next (`neat_packing`).
    ConcatDocuments,
    /// `packing: false`: one record a row, cut to `len` tokens, filled up behind.
    Truncate,
    /// MiniMind's: begin, text and end, cut and filled to `len` tokens; a row is the first `len - 1` of them, its
    /// targets the last `len - 1`, and no target is the fill token.
    MiniMind,
    /// One conversation a row. The rows of a batch run one after another as documents, without padding.
    Examples,
    /// Whole conversations in rows of up to `len` tokens, as many in each as fit; each is a document. Without padding.
    Knapsack,
}

impl Packing {
    /// Whether rows have lengths of their own and run without padding.
    pub fn is_unpadded(self) -> bool {
        matches!(self, Packing::Examples | Packing::Knapsack)
    }

    /// Whether attention stays inside of documents.
    pub fn has_documents(self) -> bool {
        self == Packing::ConcatDocuments || self.is_unpadded()
    }
}

/// How several data sets become one.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Mix {
    /// One after another; the shuffling of the run mixes them.
    #[default]
    Concat,
    /// Row by row from one of them.
    Interleave {
        /// When it ends.
        end: MixEnd,
        /// The probability with which each row is one of each data set; `None` lets them take turns.
        probabilities: Option<Vec<f64>>,
    },
}

/// When interleaving ends, and what becomes of a data set that ends before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixEnd {
    /// With the first data set that ends (`interleave_under`).
    FirstExhausted,
    /// When each data set has ended once; those that ended begin again (`interleave_over`).
    AllExhausted,
    /// When each data set has ended; those that ended are left out (`interleave_once`).
    Once,
}

/// How many records are split off for validation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValSize {
    /// So many.
    Count(u64),
    /// A part of all, rounded up.
    Fraction(f64),
}

impl ValSize {
    /// What a number means: below 1 a part, else records.
    pub fn of(written: f64) -> Option<ValSize> {
        match written {
            0.0 => None,
            share if share < 1.0 => Some(ValSize::Fraction(share)),
            records => Some(ValSize::Count(records as u64)),
        }
    }
}

/// How conversations become tokens, and what is learned of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatArgs {
    /// The name of a layout; `None` takes the tokenizer's own chat template.
    pub template: Option<String>,
    /// How functions and their calls are written, where not as the template says.
    pub tool_format: Option<String>,
    /// The system message of conversations that have none, where it is not the template's.
    pub default_system: Option<String>,
    /// Of templates of reasoning models: whether answers without a thought learn an empty one; `None` leaves thoughts as
    /// they are, and gives the others an empty one to read.
    pub enable_thinking: Option<bool>,
    /// Keep the thoughts of earlier answers where only the last is learned.
    pub preserve_thinking: bool,
    /// Learn the prompts, too.
    pub train_on_prompt: bool,
    /// Compute the loss on the last answer only.
    pub mask_history: bool,
    /// Special tokens that stand in messages stay text.
    pub split_special_tokens: bool,
    /// What of the rows is learned.
    pub examples: ExampleKind,
}

/// What of rows is learned, and so which rows are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExampleKind {
    /// The answers of conversations (`stage: sft`).
    #[default]
    Answers,
    /// Which of two answers to a conversation is better (`stage: dpo` and `rm`).
    Pairs,
    /// Whether the last answer of a conversation is wanted (`stage: kto`).
    UnpairedPreferences,
}

impl ExampleKind {
    /// What these rows are called in messages.
    pub fn stages(self) -> &'static str {
        match self {
            ExampleKind::Answers => "stage sft",
            ExampleKind::Pairs => "stages dpo and rm",
            ExampleKind::UnpairedPreferences => "stage kto",
        }
    }
}
