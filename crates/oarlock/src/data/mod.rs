//! From text files to batches of tokens: records, tokenizer, token cache, packing, order and prefetch.
//!
//! Read in the order of a token's life: `source` (records), `tokenizer` (ids), `cache` (all ids, memory-mapped),
//! `pack` (rows of a fixed length), `sampler` (which rows, when, on which rank), `loader` (batches, ahead of time).

mod cache;
mod error;
mod hash;
mod loader;
mod pack;
mod pieces;
mod sampler;
mod shards;
mod source;
mod tokenizer;
mod train_bpe;

pub use cache::{Build, Progress, TokenCache};
pub use error::{Error, Result};
pub use loader::{Batch, Loader, StepBatches, eval_batches};
pub use pack::{Packing, RowSettings, Rows, ValSize};
pub use sampler::{Sampler, Window};
pub use shards::{BatchSamplerShard, DistributedSampler};
pub(crate) use shards::{randperm, room};
pub use source::{Source, Texts};
pub use tokenizer::{SpecialIds, StreamDecoder, Tokenizer};
pub use train_bpe::{MINIMIND_RESERVED, SpecialToken, TrainSettings, train_bpe};
