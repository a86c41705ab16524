//! Oarlock trains models on many ranks. This crate is its library: custom training loops and custom models, from tensors
//! to sharding, checkpoints and the trainer.
//!
//! # Four lines
//!
//! Four lines turn a training loop for one process into a loop for many. They are numbered here:
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
//! The program runs on one rank as it is. `oarlock torchrun --nproc-per-node 4 --no-python PROGRAM` starts four ranks of
//! it, and so do the original torchrun, accelerate and deepspeed. [`distributed::spawn`] starts ranks from inside of a
//! program. Each rank then gets its own batches, and each step uses the mean over all ranks: the losses are those of one
//! rank with batches four times as large.
//!
//! # Custom models
//!
//! A model is a struct of layers. [`derive(Module)`](macro@nn::Module) finds its parameters and names them after their
//! fields; [`Forward`](nn::Forward) defines what it computes. A field of type [`Unit`](nn::Unit) is gathered, reduced and
//! released as one piece where parameters are sharded.
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
//! # use oarlock::{Accelerator, AcceleratorConfig, ShardingConfig, shard::Placements, optim};
//! # fn main() -> Result<()> {
//! # let config = AcceleratorConfig { shard: ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() }, ..AcceleratorConfig::default() };
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
//! # Sharding
//!
//! One line of the configuration selects what is sharded across the ranks. With one micro-batch per step every choice
//! produces bitwise identical results (hybrid groups: if their size is a power of two). With gradient accumulation,
//! ZeRO-2, ZeRO-3 and FSDP's sharded strategies reduce every micro-batch, so their sums are associated differently from
//! those of DDP and ZeRO-1, and losses agree within rounding; docs/sharding.md lists the exact classes. This is ZeRO-3 in
//! bf16 with four micro-batches per step:
//!
//! ```
//! use oarlock::shard::Placements;
//! use oarlock::{AcceleratorConfig, DType, GradientAccumulation, ShardingConfig};
//!
//! let config = AcceleratorConfig {
//!     shard: ShardingConfig { placements: Placements::PARAMETERS, ..ShardingConfig::default() },
//!     mixed_precision: Some(DType::BF16),
//!     gradient_accumulation: GradientAccumulation::steps(4),
//!     ..AcceleratorConfig::default()
//! };
//! ```
//!
//! The loop wraps each micro-batch in [`Accelerator::accumulate`]. Nothing else changes.
//!
//! # Where to continue
//!
//! - [`Accelerator`]: collectives, evaluation with [`gather_for_metrics`](Accelerator::gather_for_metrics), clipping,
//!   checkpoints, trackers
//! - [`nn`]: layers, buffers, losses, ops with a custom backward pass
//! - [`dataloader`]: data sets, samplers, workers, how batches are distributed to the ranks
//! - [`distributed`]: ranks started from code, process groups, collectives
//! - [`deepspeed`]: DeepSpeed's engine, several models in one process
//! - [`model`]: the decoder families, and loading and saving of Hugging Face folders
//!
//! # Templates of others
//!
//! The chat template of a folder is a program. It runs with bounds to its steps, its time and what it writes; the bound of
//! its memory holds in programs with the allocator that counts, as `oarlock` itself has it:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: oarlock::MeteredAllocator = oarlock::MeteredAllocator;
//! # fn main() {}
//! ```
//!
//! The examples in the repository run without changes. ARCHITECTURE.md explains a training step.

pub use oarlock_config::config;
pub use oarlock_engine::accelerator::deepspeed;
pub use oarlock_engine::checkpoint::weights;
pub use oarlock_engine::optim::lr_scheduler;
pub use oarlock_engine::parallel::{pipeline, sequence_parallel};
pub use oarlock_engine::{
    Accelerator, AcceleratorConfig, ApplyPadding, Checkpointed, ClientState, DType, DataLoaderConfiguration,
    DeepSpeedPlugin, Device, DevicePlacement, DeviceSpecific, DivideBy, DummyOptim, DummyScheduler, Ema,
    Ends, Error, Frozen, GradientAccumulation, GradientState, Gradients, HookHandle, KeyAverage, LocalSgd,
    LocalSteps, LogWith, Loss, MeteredAllocator, Nested, Occupied, OffloadDevice, OuterStep, Outputs, Pad,
    ParamSlice, Parcel, PartOutput, PartPasses, Placements, Plan, Prepare, Prepared, PreparedLoader,
    PreparedOptimizer, PreparedScheduler, ProfileConfig, ProfileSchedule, Profiler, ProjectConfiguration,
    ReduceOp, Result, STARTING_BATCH_SIZE, SaveModel, SchedulerSteps, SeededInit, ShardSize, ShardingConfig,
    Stateful, SwanLabRun, Tape, Tensor, Tracker, TrackerOptions, WandbRun, WeightSource, Writer,
};
pub use oarlock_engine::{checkpoint, dataloader, nn, optim, shard};
pub use oarlock_lm::{Batch, PreparedTokenLoader, TokenLoader};
pub use oarlock_lm::{adapters, data, estimate, export, generate, model, train};

/// Launching from code, process groups and bare collectives: what `torch.multiprocessing` and `torch.distributed` are for,
/// and the launchers that Accelerate has for notebooks.
///
/// [`spawn`](distributed::spawn) runs a function in ranks that are threads,
/// [`spawn_processes`](distributed::spawn_processes) in ranks that are processes. Inside, and in programs that a launcher
/// started, [`init_process_group`](distributed::init_process_group) gives the group and its collectives, and
/// [`DistributedDataParallel`](distributed::DistributedDataParallel) trains a model with it; [`Accelerator::new`] needs no
/// group to be made before. What a group is belongs to the thread that made it: ranks of one process know nothing of each
/// other.
///
/// There is no `send` and no `recv`: ranks meet all together in shared memory, and a pair of them has no way of its own. A
/// sub-group of two ([`new_group`](distributed::new_group)) with `broadcast` does the same.
pub mod distributed {
    pub use oarlock_engine::accelerator::DistributedDataParallel;
    pub use oarlock_engine::distributed::{
        Backend, InitOptions, NotebookLaunch, ProcessGroup, ReduceOp, SpawnError, all_gather,
        all_gather_object, all_reduce, all_to_all, barrier, broadcast, broadcast_object_list, debug_launcher,
        default_config_file, destroy_process_group, gather, get_rank, get_world_size, init_distributed,
        init_process_group, is_initialized, new_group, notebook_launcher, reduce, reduce_scatter, scatter,
        spawn, spawn_processes, world, write_basic_config,
    };
}
