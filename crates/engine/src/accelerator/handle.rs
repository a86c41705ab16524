//! The handle of a training loop: one rank of a run, and what everything that it prepared has in common.

use std::fmt::Arguments;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oarlock_comm::{Communicator, Scalar};
use oarlock_tensor::{DType, Device, DeviceKind};

use super::models::prepared_state::Models;
use super::monitoring::trackers::Trackers;
use super::ranks::device;
use super::ranks::group::Ranks;
use super::ranks::seed::{DeviceSpecific, Seed};
use super::saving::saved::Saved;
use super::settings::config::{AcceleratorConfig, DevicePlacement, GradientAccumulation};
use super::settings::deepspeed_plugin::Plugins;
use super::settings::environment;
use super::steps::gradient_state::GradientState;
use super::steps::window::Window;
use crate::Result;
use crate::distributed::rank;
use crate::nn::nested::Nested;
use crate::parallel::sequence_parallel::SequenceParallel;
use crate::shard::ShardingConfig;

/// The seed where none is given.
const SEED: u64 = 42;

/// How long a rank waits for others before that is reported.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// What to say where the dependent's profile leaves the kernels unoptimized.
const UNOPTIMIZED: &str = "the kernels were compiled without optimization, which makes training tens of times slower; build with \
                           --release, or add to the Cargo.toml at the root of the workspace:\n\
                           [profile.dev.package.oarlock-kernels]\nopt-level = 3";

/// One rank of a training run. Cloning gives another handle to the same rank.
#[derive(Clone)]
pub struct Accelerator {
    pub(crate) inner: Arc<Inner>,
}

/// A function that is called with the folder of a checkpoint.
pub(super) type Hook = dyn Fn(&Accelerator, &Path) -> Result<()> + Send + Sync;

/// What everything that an accelerator prepared has in common.
pub(crate) struct Inner {
    pub config: AcceleratorConfig,
    pub options: ShardingConfig,
    pub plugins: Arc<Plugins>,
    pub ranks: Ranks,
    pub device: Device,
    pub window: Window,
    pub models: Models,
    pub saved: Saved<Hook>,
    pub seed: Seed,
    pub trackers: Mutex<Trackers>,
}

impl Inner {
    /// How micro-batches make a step.
    pub fn accumulation(&self) -> GradientAccumulation {
        let told = self.config.gradient_accumulation;
        GradientAccumulation { num_steps: self.window.num_steps().unwrap_or(told.num_steps), ..told }
    }

    /// Brings the tensors of a value to this rank's device, unless the loop does that.
    pub fn placed<I: Nested>(&self, value: &I) -> Result<I> {
        value.map_tensors(&mut |tensor| match self.config.device_placement {
            DevicePlacement::Automatic => Ok(tensor.to_device(&self.device)?),
            DevicePlacement::ByHand => Ok(tensor.clone()),
        })
    }

    /// Releases everything that was prepared.
    pub fn forget(&self) {
        // Taken out first: what is dropped here may look at these lists.
        drop((self.models.take(), self.saved.take_parts()));
        self.window.with_gradients(|gradients| *gradients = GradientState::default());
    }
}

impl Accelerator {
    /// The rank that this thread is ([`distributed::spawn`](crate::distributed::spawn)), or that the environment makes
    /// of this process: one of a group that was launched, or a world of one. A second accelerator shares the group.
    ///
    /// What `accelerate launch` says counts: `ACCELERATE_MIXED_PRECISION` where `config` names no precision, FSDP's variables
    /// where it divides nothing of its own, and, as in the original, `ACCELERATE_GRADIENT_ACCUMULATION_STEPS` even where it
    /// names a number of steps.
    ///
    /// # Errors
    /// When the group cannot be joined, a variable of the launcher makes no sense, or the CPU lacks the path asked for.
    pub fn new(config: &AcceleratorConfig) -> Result<Accelerator> {
        let comm = rank::join()?;
        if comm.rank() == 0 {
            environment::without_effect(config).iter().for_each(|note| rank::warn_once(note));
        }
        let config = environment::apply(config, comm.world_size())?;
        Accelerator::over(comm, &config)
    }

    /// A rank over a communicator that exists already, such as one of `oarlock_comm::shm::threads`.
    ///
    /// # Errors
    /// As [`Accelerator::new`].
    pub fn over(comm: Communicator, config: &AcceleratorConfig) -> Result<Accelerator> {
        let device = device::open(&comm, config)?;
        let over = device::between_gpus(comm.clone(), &device)?;
        let plugins = Arc::new(Plugins::of(config.deepspeed_plugin.as_ref(), &config.deepspeed_plugins)?);
        Accelerator::build((over, comm), device, config, plugins)
    }

    /// Whether rank 0 has a reason why all ranks are to turn to the CPU, which it says. All ranks must call it.
    pub fn turns_to_cpu(&self, why: Option<String>) -> Result<bool> {
        let why = why.filter(|_| self.is_main_process());
        why.iter().for_each(|why| rank::warn_once(why));
        Ok(self.communicator().broadcast_bytes(0, &[u8::from(why.is_some())])? == [1])
    }

    /// The same rank once more, on the CPU. All ranks must call it.
    pub fn on_cpu(&self) -> Result<Accelerator> {
        let config = AcceleratorConfig { device: DeviceKind::Cpu, ..self.inner.config.clone() };
        Accelerator::over(self.inner.ranks.on_host.clone(), &config)
    }

    /// Over the ranks with NCCL, where they have it, and as they met without it.
    pub(super) fn build(
        both: (Communicator, Communicator),
        device: Device,
        config: &AcceleratorConfig,
        plugins: Arc<Plugins>,
    ) -> Result<Accelerator> {
        let mut options = config.shard.clone();
        options.dtype = config.mixed_precision.unwrap_or(options.dtype);
        let ranks = Ranks::new(both, config, &options)?;
        ranks.comm.on_long_wait_by_default(LONG_WAIT, |wait| rank::print_note(&wait.to_string()));
        if ranks.comm.rank() == 0 && !oarlock_tensor::IS_OPTIMIZED {
            rank::warn_once(UNOPTIMIZED);
        }
        let inner = Inner {
            config: config.clone(),
            options,
            plugins,
            ranks,
            device,
            window: Window::default(),
            models: Models::default(),
            saved: Saved::new(config.project.iteration),
            seed: Seed::new(config.seed.unwrap_or(SEED)),
            trackers: Mutex::default(),
        };
        Ok(Accelerator { inner: Arc::new(inner) })
    }

    /// The number of this process, from 0.
    pub fn process_index(&self) -> usize {
        self.communicator().rank()
    }

    /// The number of processes.
    pub fn num_processes(&self) -> usize {
        self.communicator().world_size()
    }

    /// The ranks that divide each sequence among them, where [`AcceleratorConfig::sequence_parallel_size`] says so. A
    /// `Decoder` is told of them before it is prepared; loaders of tokens then deal the same rows to
    /// all of them, and each takes its part.
    ///
    /// [`AcceleratorConfig::sequence_parallel_size`]: crate::AcceleratorConfig::sequence_parallel_size
    pub fn sequence_parallel(&self) -> Option<&SequenceParallel> {
        self.inner.ranks.sequence.as_ref()
    }

    /// The number of groups of ranks that get rows of their own, and of this one's: of ranks, where sequences are whole.
    pub fn data_parallel(&self) -> (usize, usize) {
        let size = self.sequence_parallel().map_or(1, SequenceParallel::size);
        (self.data_ranks().world_size() / size, self.data_ranks().rank() / size)
    }

    /// Whether this is process 0.
    pub fn is_main_process(&self) -> bool {
        self.communicator().rank() == 0
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// The process group of the ranks that see different data: all ranks, or those of one stage of a pipeline.
    pub fn data_ranks(&self) -> &Communicator {
        self.inner.ranks.data()
    }

    /// The process group.
    pub fn communicator(&self) -> &Communicator {
        &self.inner.ranks.comm
    }

    /// The dtype of the arithmetic; with DeepSpeed plugins that of the active one.
    pub fn dtype(&self) -> DType {
        self.inner.plugins.dtype().unwrap_or(self.inner.options.dtype)
    }

    /// Sets the seed of what is drawn from now on for this accelerator and its clones: initial weights and dropout of the
    /// models that are prepared afterward, the shuffled orders of loaders without a `data_seed` that are prepared
    /// afterward, and [`Accelerator::rank_seed`], which is for whatever else a loop draws (augmentation, sampling). What
    /// is drawn is addressed by its seed and its place (parameter and element, epoch and position, rank and pass and
    /// element), so nothing that another part of the program draws moves it.
    ///
    /// With [`DeviceSpecific::Yes`] only `rank_seed` differs by rank: weights and orders must be those of all ranks, and
    /// what dropout draws is each rank's own anyway. In Accelerate all differ, and weights and orders are made equal
    /// afterward, by rank 0. Accelerate seeds the global generators of
    /// Python, NumPy and torch; here there are none.
    pub fn set_seed(&self, seed: u64, device_specific: DeviceSpecific) {
        self.inner.seed.set(seed, device_specific);
    }

    /// The seed of initial weights, dropout and loaders' orders, the same on all ranks. By default 42.
    pub fn seed(&self) -> u64 {
        self.inner.seed.get().0
    }

    /// The seed of what may differ by rank: with [`DeviceSpecific::Yes`] the number of this rank is added to it.
    pub fn rank_seed(&self) -> u64 {
        match self.inner.seed.get() {
            (seed, DeviceSpecific::No) => seed,
            (seed, DeviceSpecific::Yes) => seed.wrapping_add(self.process_index() as u64),
        }
    }

    /// The sum of each value over all ranks.
    ///
    /// # Errors
    /// When a rank failed, or the ranks gave different numbers of values.
    #[track_caller]
    pub fn reduce_sum(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.communicator().all_reduce_f64(values, Scalar::Sum)?)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// When a rank failed.
    #[track_caller]
    pub fn wait_for_everyone(&self) -> Result<()> {
        Ok(self.communicator().barrier()?)
    }

    /// Prints a line on process 0 only. A reader that went away is no reason to stop a training run.
    pub fn print(&self, line: Arguments<'_>) {
        if self.is_main_process() {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}
