//! From records to batches of tokens, on one road for every kind of training.
//!
//! Read in the order of a token's life: `source` (records), `example` (what a record means), `template` (conversations
//! as text), `tokenizer` and `encode` (tokens, and which of them are supervised), `cache` (all tokens, memory-mapped),
//! `pack` (rows of a fixed length), `sampler` (which rows, when, on which rank), `loader` (batches, ahead of time).

mod added_tokens;
mod answered;
mod answers;
mod batch;
mod cache;
pub(crate) mod confined;
mod cut;
mod deal;
#[cfg(feature = "tokenizers")]
mod distinct_ids;
mod encode;
mod encode_chat;
mod encoded;
#[cfg_attr(not(feature = "tokenizers"), path = "engine_absent.rs")]
mod engine;
mod error;
mod example;
mod fence;
mod format;
mod hash;
mod knapsack;
mod layout;
mod lengths;
mod loader;
mod longest;
mod marks;
mod mismatched;
mod mix;
mod numpy_random;
mod pack;
#[cfg(feature = "tokenizers")]
mod pieces;
#[cfg(feature = "tokenizers")]
mod pre_tokenizer;
#[cfg(feature = "csv")]
mod questions;
mod record;
mod report;
mod rows;
mod sampler;
#[cfg(feature = "tokenizers")]
mod scored_tokens;
mod selection;
mod sequence_part;
mod sft;
mod show;
mod source;
mod template;
#[cfg(feature = "tokenizers")]
mod token_bytes;
mod tokenizer;
mod tool_calls;
#[cfg(feature = "tokenizers")]
mod train_bpe;
mod unpaired;
mod written_template;

pub use answered::AnsweredPrompt;
pub use batch::{ANSWERS, Batch, CHOSEN, Field, Fields, MISMATCHED, REJECTED, Sample};
pub use cache::{Build, Made, Progress, TokenCache};
pub use encode::Encoder;
pub use encoded::{Encoded, Labels};
pub use error::{Error, Result};
pub use example::{Conversation, Example, Message, Pair, UnpairedPreference};
pub use layout::layout_names;
pub use lengths::Lengths;
pub use loader::{Loader, StepBatches, eval_batches};
pub use longest::longest_batch;
pub use mix::{Mix, MixEnd};
pub use pack::{Packing, RowSettings, ValSize};
#[cfg(feature = "csv")]
pub use questions::{CHOICES, Language, Question, Subject, subjects};
pub use record::{Content, Record, Records};
pub use report::{Dropped, RowReport, Unread};
pub use rows::Rows;
pub use sampler::{Sampler, StepRows};
pub use selection::Split;
pub use sft::Chat;
pub use show::{Statistics, bracketed, colored};
pub use source::{RemoteDataset, RemoteFiles, Source};
pub use template::{ChatTemplate, Rendered};
pub use tokenizer::{SpecialIds, StreamDecoder, Tokenizer};
pub use tool_calls::{ToolCall, tool_calls};
#[cfg(feature = "tokenizers")]
pub use train_bpe::{MINIMIND_RESERVED, SpecialToken, TOKENIZER_FILES, TrainSettings, learn_bpe, train_bpe};
