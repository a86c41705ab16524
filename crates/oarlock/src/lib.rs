//! Oarlock trains models on many ranks from one binary. This is its library: for a loop and a model of one's own.
//!
//! # Four lines
//!
//! A loop for one process becomes one for many by four lines, those with a number:
//!
//! ```
//! use oarlock::dataloader::DataLoader;
//! use oarlock::nn::{self, Linear};
//! use oarlock::{Accelerator, AcceleratorConfig, Result, optim};
//!
//! fn main() -> Result<()> {
//!     let accelerator = Accelerator::new(&AcceleratorConfig::default())?; // 1: this rank
//!
//!     let samples: Vec<(Vec<f32>, Vec<f32>)> =
//!         (0..64).map(|i| (vec![i as f32 / 64.0; 4], vec![i as f32 / 16.0])).collect();
//!     let loader = DataLoader::new(samples, 8).shuffle(true);
//!     let model = Linear::new(4, 1)?;
//!     let optimizer = optim::adamw(&model).lr(0.05);
//!
//!     let (model, optimizer, loader) = accelerator.prepare((model, optimizer, loader))?; // 2: in any order
//!
//!     for _epoch in 0..10 {
//!         for batch in loader.iter()? {
//!             let (x, y) = batch?;
//!             let loss = nn::mse_loss(&model.forward(&x)?, &y)?;
//!             accelerator.backward(&loss)?; // 3: in place of loss.backward()
//!             optimizer.step()?;
//!             optimizer.zero_grad()?;
//!         }
//!     }
//!     accelerator.print(format_args!("{} steps", optimizer.n_steps()?)); // 4: once, not on every rank
//! #   assert_eq!(optimizer.n_steps()?, 80);
//!     Ok(())
//! }
//! ```
//!
//! It runs alone as it stands. `oarlock torchrun --nproc-per-node 4 --no-python PROGRAM`, or the real torchrun,
//! accelerate or deepspeed, starts four ranks of it; [`distributed::spawn`] does from inside of a program.
//! Every rank then gets its own batches, and every step is the mean over all of them: the same losses as on one rank
//! with batches four times as large.
//!
//! # A model of one's own
//!
//! A model is a struct of layers. [`derive(Module)`](macro@nn::Module) finds its parameters and names them by their
//! fields; [`Forward`](nn::Forward) says what it computes. One word on a field, [`Unit`](nn::Unit), makes a part move on
//! its own where parameters are divided.
//!
//! ```
//! use oarlock::nn::{self, Embedding, Forward, LayerNorm, Linear, Mlp, Module, MultiHeadAttention, Unit};
//! use oarlock::{Result, Tensor};
//!
//! #[derive(Module)]
//! struct Block {
//!     norm_1: LayerNorm,
//!     attention: MultiHeadAttention,
//!     norm_2: LayerNorm,
//!     mlp: Mlp,
//! }
//!
//! #[derive(Module)]
//! struct Transformer {
//!     embed: Unit<Embedding>,
//!     blocks: Vec<Unit<Block>>,
//!     head: Unit<Linear>,
//! }
//!
//! impl Forward<Tensor> for Block {
//!     type Output = Tensor;
//!     fn forward(&self, x: &Tensor) -> nn::Result<Tensor> {
//!         let x = x.add(&self.attention.forward(&self.norm_1.forward(x)?)?)?;
//!         x.add(&self.mlp.forward(&self.norm_2.forward(&x)?)?)
//!     }
//! }
//!
//! impl Forward<Tensor> for Transformer {
//!     type Output = Tensor;
//!     fn forward(&self, ids: &Tensor) -> nn::Result<Tensor> {
//!         let mut x = self.embed.forward(ids)?;
//!         for block in &self.blocks {
//!             x = block.forward(&x)?;
//!         }
//!         self.head.forward(&x)
//!     }
//! }
//!
//! fn transformer(vocab: usize, dim: usize, n_blocks: usize) -> Result<Transformer> {
//!     let block = || -> Result<Unit<Block>> {
//!         Ok(Unit::new(Block {
//!             norm_1: LayerNorm::new(dim)?,
//!             attention: MultiHeadAttention::new(dim, 4)?,
//!             norm_2: LayerNorm::new(dim)?,
//!             mlp: Mlp::new(dim, 4 * dim)?,
//!         }))
//!     };
//!     Ok(Transformer {
//!         embed: Unit::new(Embedding::new(vocab, dim)?),
//!         blocks: (0..n_blocks).map(|_| block()).collect::<Result<_>>()?,
//!         head: Unit::new(Linear::new(dim, vocab)?),
//!     })
//! }
//! # use oarlock::{Accelerator, AcceleratorConfig, Options, shard::Placements, optim};
//! # fn main() -> Result<()> {
//! # let config = AcceleratorConfig { shard: Options { placements: Placements::PARAMETERS, ..Options::default() }, ..AcceleratorConfig::default() };
//! # let accelerator = Accelerator::new(&config)?;
//! # let model = transformer(50, 16, 2)?;
//! # let optimizer = optim::adamw(&model);
//! # let (model, optimizer) = accelerator.prepare((model, optimizer))?;
//! # let ids = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], [2, 3], accelerator.device())?;
//! # let labels = Tensor::from_slice(&[2i32, 3, 4, 5, 6, 7], [2, 3], accelerator.device())?;
//! # let loss = nn::cross_entropy(&model.forward(&ids)?, &labels)?;
//! # accelerator.backward(&loss)?;
//! # optimizer.step()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Divided among the ranks
//!
//! What is divided is a line of the configuration, and changes no bit of the result. This is ZeRO-3 in bf16 with windows
//! of four micro-batches:
//!
//! ```
//! use oarlock::shard::Placements;
//! use oarlock::{AcceleratorConfig, DType, GradientAccumulation, Options};
//!
//! let config = AcceleratorConfig {
//!     shard: Options { placements: Placements::PARAMETERS, ..Options::default() },
//!     mixed_precision: Some(DType::BF16),
//!     gradient_accumulation: GradientAccumulation::steps(4),
//!     ..AcceleratorConfig::default()
//! };
//! ```
//!
//! The loop puts each micro-batch into [`Accelerator::accumulate`], and nothing else changes.
//!
//! # Where to go on
//!
//! - [`Accelerator`]: collectives, evaluation by [`gather_for_metrics`](Accelerator::gather_for_metrics), clipping,
//!   checkpoints, trackers
//! - [`nn`]: layers, buffers, losses, ops with a backward pass of one's own
//! - [`dataloader`]: data sets, samplers, workers, how batches are divided
//! - [`distributed`]: ranks started from code, process groups, bare collectives
//! - [`deepspeed`]: DeepSpeed's shape of a training, several models in one process
//! - [`model`]: the decoder families and their way from and to Hugging Face folders
//!
//! The examples of the repository run as they stand. ARCHITECTURE.md tells the story of a training step.

// The derives name this crate from outside.
extern crate self as oarlock;

mod accelerator;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod dataloader;
pub mod deepspeed;
mod disk;
pub mod distributed;
mod error;
pub mod estimate;
pub mod generate;
pub mod launch;
pub mod lr_scheduler;
pub mod model;
pub mod nearest;
mod nested;
pub mod nn;
pub mod optim;
pub mod rank;
pub mod report;
pub mod settings;
pub mod shard;
pub mod train;

pub use accelerator::{
    Accelerator, AcceleratorConfig, Accumulation, ApplyPadding, DataLoaderConfiguration, DeepSpeedPlugin,
    DevicePlacement, DeviceSpecific, DivideBy, DummyOptim, DummyScheduler, Ends, GradientAccumulation,
    GradientState, HookHandle, Kept, KeyAverage, LocalSgd, LocalSteps, LogWith, Loss, OffloadDevice, Pad,
    Plan, Prepare, Prepared, PreparedOptimizer, PreparedScheduler, ProfileConfig, ProfileSchedule, Profiler,
    ProjectConfiguration, Reduction, STARTING_BATCH_SIZE, SaveModel, SchedulerSteps, ShardSize, Stateful,
    Tracker, TrackerOptions, WandbRun,
};
pub use checkpoint::ClientState;
pub use data::Batch;
pub use error::{Error, Result};
pub use nested::{Nested, Parcel};
pub use oarlock_tensor::{DType, Device, Tensor};
pub use shard::{Options, Placements, SeededInit, WeightSource};
pub use train::{Optimizer, OptimizerConfig};

/// The Rust code of the pages for newcomers, compiled by `cargo test`.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/accelerator.md")]
    mod accelerator {}
    #[doc = include_str!("../../../docs/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../../../docs/dataloader.md")]
    mod dataloader {}
    #[doc = include_str!("../../../docs/distributed.md")]
    mod distributed {}
    #[doc = include_str!("../../../docs/library.md")]
    mod library {}
    #[doc = include_str!("../../../docs/nn.md")]
    mod nn {}
    #[doc = include_str!("../../../docs/tracking.md")]
    mod tracking {}
}
