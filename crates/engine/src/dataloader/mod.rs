//! Data sets and loaders of a custom training loop, divided among the ranks.
//!
//! A [`Dataset`] has samples with numbers, an [`IterableDataset`] samples in a row. A [`DataLoader`] says in which order
//! they come ([`sampler`](Sampler)), how many make a batch, and how ([`Collate`]). [`Accelerator::prepare`] makes it a
//! [`PreparedLoader`], which gives each rank its own batches; a loader that is not prepared gives all of them.
//!
//! Inside, an epoch is a *plan*: the batches of a rank in their order, each a job yet to be done. Workers do the jobs
//! ahead of the loop and hand them over in order; the loop looks one batch ahead, and so knows its last.
//!
//! ```
//! use oarlock::dataloader::DataLoader;
//! use oarlock::{Accelerator, AcceleratorConfig};
//!
//! # fn main() -> oarlock::Result<()> {
//! let samples: Vec<(Vec<f32>, i32)> = (0..10).map(|i| (vec![i as f32; 4], i % 2)).collect();
//! let loader = DataLoader::new(samples, 4).shuffle(true);
//!
//! let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
//! let loader = accelerator.prepare(loader)?;
//! for batch in loader.iter()? {
//!     let (x, y) = batch?;
//!     assert_eq!((x.sizes()[1], y.sizes().len()), (4, 1));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`Accelerator::prepare`]: crate::Accelerator::prepare

mod batches;
mod collate;
mod core;
mod dataset;
mod dispatch;
mod json_lines;
mod loader;
mod plan;
mod position;
mod prefetch;
mod prepare;
mod prepared;
mod sampler;
mod shards;
mod state;

pub use batches::Batches;
pub use collate::{Collate, Collator, Number, Stack};
pub use dataset::{Dataset, Items, IterableDataset, from_fn, stream};
pub use json_lines::json_lines;
pub use loader::DataLoader;
pub use prepared::{PreparedLoader, skip_first_batches};
pub use sampler::{BatchSampler, Replica, Sampler};
pub use shards::{BatchSamplerShard, DistributedSampler};
