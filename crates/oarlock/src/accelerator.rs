//! The accelerator: what a training loop of one's own needs to run on many ranks.
//!
//! ```no_run
//! # use oarlock::{Accelerator, AcceleratorConfig, OptimizerConfig, SeededInit, Batch, model::{Decoder, DecoderConfig}};
//! # fn run(config: DecoderConfig, steps: Vec<Vec<Batch>>) -> oarlock::Result<()> {
//! let accelerator = Accelerator::new(&AcceleratorConfig::default())?;
//! let model = Decoder::new(config, 512)?;
//! let mut optimizer = accelerator.prepare(&model, OptimizerConfig::default(), &mut SeededInit { seed: 42, device: accelerator.device().clone() })?;
//! for window in steps {
//!     let targets = window.iter().map(|batch| batch.n_targets).sum();
//!     let accumulation = accelerator.accumulate(&optimizer, targets)?;
//!     for batch in &window {
//!         let (ids, labels, mask) = accelerator.place(batch)?;
//!         let loss = model.loss(&accumulation.input(&ids), &labels, &mask)?;
//!         accelerator.backward(&loss)?;
//!     }
//!     let norm = accelerator.clip_grad_norm(&mut optimizer, 1.0)?;
//!     optimizer.step(5e-4)?;
//!     accelerator.print(format_args!("gradient norm {norm:.3}"));
//! }
//! # Ok(()) }
//! ```

use std::fmt::Arguments;
use std::io::Write;
use std::path::Path as FilePath;
use std::sync::Arc;

use oarlock_comm::{Communicator, Scalar};
use oarlock_tensor::cpu::{Isa, Path};
use oarlock_tensor::ops::{HeadLoss, Mask};
use oarlock_tensor::{DType, Device, Par, Tape, Tensor, UnitHook};

use crate::checkpoint::{self, ClientState, Contents};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::nn::Module;
use crate::rank;
use crate::shard::{Engine, Options, WeightSource};
use crate::train::{Optimizer, OptimizerConfig};

/// How an [`Accelerator`] runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AcceleratorConfig {
    /// What is divided among the ranks, and in which dtype the model computes; master weights, moments and gradient
    /// sums are f32 whatever that is.
    pub shard: Options,
    /// Threads of this rank; by default its share of the machine's cores.
    pub threads: Option<usize>,
    /// The CPU path; by default the fastest.
    pub cpu_path: Option<Path>,
}

/// One rank of a training run. Cloning gives another handle to the same rank.
#[derive(Clone)]
pub struct Accelerator {
    comm: Communicator,
    device: Device,
    options: Options,
}

/// An accumulation window: the micro-batches of one optimizer step, over all ranks.
#[derive(Clone)]
pub struct Accumulation {
    n_targets: u64,
    loss_scale: f64,
    /// Called when a backward pass is over.
    after: Arc<dyn UnitHook>,
}

impl Accelerator {
    /// The rank that the environment makes of this process: one of a group that was launched, or a world of one.
    ///
    /// # Errors
    /// When the group cannot be joined, or the CPU lacks the path asked for.
    pub fn new(config: &AcceleratorConfig) -> Result<Accelerator> {
        Accelerator::over(rank::join()?, config)
    }

    /// A rank over a communicator that exists already, such as one of `oarlock_comm::shm::threads`.
    ///
    /// # Errors
    /// As [`Accelerator::new`].
    pub fn over(comm: Communicator, config: &AcceleratorConfig) -> Result<Accelerator> {
        let isa = match config.cpu_path {
            None => Isa::detect(),
            Some(path) => Isa::force(path).ok_or_else(|| {
                let found: Vec<_> = Isa::available().into_iter().map(|isa| isa.path().to_string()).collect();
                Error::Usage(format!("this CPU cannot run the path {path}; it can run {}", found.join(", ")))
            })?,
        };
        let threads = match config.threads {
            Some(n) => n,
            None => rank::default_threads(&comm),
        };
        let device = Device::cpu(isa, Par::threads(threads)?);
        config.shard.check(comm.world_size())?;
        Ok(Accelerator { comm, device, options: config.shard.clone() })
    }

    /// The number of this process, from 0.
    pub fn process_index(&self) -> usize {
        self.comm.rank()
    }

    /// The number of processes.
    pub fn num_processes(&self) -> usize {
        self.comm.world_size()
    }

    /// Whether this is process 0.
    pub fn is_main_process(&self) -> bool {
        self.comm.rank() == 0
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The process group.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// The dtype of the arithmetic.
    pub fn dtype(&self) -> DType {
        self.options.dtype
    }

    /// Gives the model's parameters their memory, fills them from `source`, and returns the optimizer over them.
    /// All ranks call it with the same model.
    ///
    /// # Errors
    /// No memory, or what the source reports.
    pub fn prepare(
        &self,
        model: &dyn Module,
        optimizer: OptimizerConfig,
        source: &mut dyn WeightSource,
    ) -> Result<Optimizer> {
        let mut engine = Engine::new(
            model,
            &self.comm,
            &self.device,
            self.options.clone(),
            optimizer.rule,
            &OptimizerConfig::decays,
            &OptimizerConfig::role,
        )?;
        engine.initialize(source)?;
        Ok(Optimizer::new(engine, optimizer))
    }

    /// Begins an accumulation window: the ranks agree on the number of targets of the whole step, so that every token
    /// weighs the same however the step is divided over micro-batches and ranks.
    ///
    /// # Errors
    /// When a rank failed, or the step has no target at all.
    pub fn accumulate(&self, optimizer: &Optimizer, n_targets: usize) -> Result<Accumulation> {
        let mut total = [n_targets as f64];
        self.comm.all_reduce_f64(&mut total, Scalar::Sum)?;
        if total[0] == 0.0 {
            return Err(Error::Usage(
                "a step without a single target: all its labels are ignored".to_string(),
            ));
        }
        Ok(Accumulation {
            n_targets: total[0] as u64,
            loss_scale: optimizer.loss_scale(),
            after: optimizer.engine().pass_hook(),
        })
    }

    /// The tensors of a micro-batch: ids, labels, and which positions see which.
    ///
    /// # Errors
    /// No memory, or a batch whose parts do not fit.
    pub fn place(&self, batch: &Batch) -> Result<(Tensor, Tensor, Mask)> {
        let shape = [batch.rows, batch.len];
        let ids = Tensor::from_slice(&batch.input_ids, shape, &self.device)?;
        let labels = Tensor::from_slice(&batch.labels, shape, &self.device)?;
        let mask = match &batch.doc_start {
            Some(starts) => Mask::Documents(Tensor::from_slice(starts, shape, &self.device)?),
            None => Mask::Causal,
        };
        Ok((ids, labels, mask))
    }

    /// Runs the backward pass of one micro-batch; the gradients add up in the parameters' homes.
    ///
    /// # Errors
    /// When the loss is on no tape, or an op fails.
    pub fn backward(&self, loss: &HeadLoss) -> Result<()> {
        let tape = loss.loss.tape().ok_or_else(|| {
            Error::Usage(
                "backward: the loss is on no tape; give the model `accumulation.input(&ids)`".to_string(),
            )
        })?;
        let seed = tape.seed().ok_or_else(|| {
            Error::Usage(
                "backward: the tape has no seed; it must come from Accelerator::accumulate".to_string(),
            )
        })?;
        tape.backward(&loss.loss, seed)?;
        Ok(())
    }

    /// Scales the gradients of the coming step down so that their global L2 norm is at most `max_norm` (0: never), and
    /// returns the norm before that.
    ///
    /// # Errors
    /// When a rank failed, or the gradients are not finite and there is no loss scale that could follow.
    pub fn clip_grad_norm(&self, optimizer: &mut Optimizer, max_norm: f64) -> Result<f64> {
        optimizer.clip_grad_norm(max_norm)
    }

    /// Saves everything that the run needs to go on: weights, optimizer state, and what the caller keeps. The folder
    /// appears when it is complete; an older checkpoint of that name is replaced only then. All ranks call it, and it
    /// returns when the checkpoint is whole; [`Saver`](checkpoint::Saver) does the same while training goes on.
    ///
    /// # Errors
    /// When a file cannot be written on some rank; then nothing is left of it, and training can go on.
    pub fn save_state(&self, dir: &FilePath, optimizer: &Optimizer, contents: Contents) -> Result<()> {
        let mut saver = checkpoint::Saver::default();
        saver.begin(dir, &self.comm, optimizer.engine(), contents)?;
        saver.finish(&self.comm).map(|_| ())
    }

    /// Restores what [`Accelerator::save_state`] saved, on any number of ranks, and returns what the caller had kept.
    ///
    /// # Errors
    /// When the checkpoint is incomplete, damaged or of another model; then the model is as it was.
    pub fn load_state(&self, dir: &FilePath, optimizer: &mut Optimizer) -> Result<ClientState> {
        checkpoint::load(dir, &self.comm, optimizer.engine_mut())
    }

    /// The values of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn gather(&self, values: &[f32]) -> Result<Vec<f32>> {
        let all = self.comm.all_gather_bytes(bytemuck::cast_slice(values))?;
        Ok(all.iter().flat_map(|bytes| bytemuck::pod_collect_to_vec::<u8, f32>(bytes)).collect())
    }

    /// The sum of each value over all ranks.
    ///
    /// # Errors
    /// When a rank failed, or the ranks gave different numbers of values.
    pub fn reduce_sum(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.comm.all_reduce_f64(values, Scalar::Sum)?)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// When a rank failed.
    pub fn wait_for_everyone(&self) -> Result<()> {
        Ok(self.comm.barrier()?)
    }

    /// Prints a line on process 0 only. A reader that went away is no reason to stop a training.
    pub fn print(&self, line: Arguments<'_>) {
        if self.is_main_process() {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}

impl Accumulation {
    /// The targets of the whole step, over all micro-batches and ranks.
    pub fn n_targets(&self) -> u64 {
        self.n_targets
    }

    /// Puts the input of a micro-batch on a fresh tape whose loss will be divided by the targets of the whole step.
    pub fn input(&self, ids: &Tensor) -> Tensor {
        let tape = Tape::with_seed((self.loss_scale / self.n_targets as f64) as f32);
        tape.enter_unit(self.after.clone());
        tape.input(ids)
    }
}
