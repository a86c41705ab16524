//! The handle of a training loop: one rank of a run, and what everything that it prepared has in common.

use std::fmt::Arguments;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use oarlock_comm::{Communicator, Scalar, nccl};
use oarlock_tensor::cpu::Isa;
use oarlock_tensor::{Automatic, DType, Device, DeviceKind, Par};

use super::config::{AcceleratorConfig, DevicePlacement, GradientAccumulation};
use super::deepspeed_plugin::Plugins;
use super::environment;
use super::gradient_state::GradientState;
use super::hooks::Hooks;
use super::loaders::{LastBatch, Loaders};
use super::prepared_state::PreparedState;
use super::stateful::Stateful;
use super::trackers::Trackers;
use crate::distributed::rank;
use crate::nn::nested::Nested;
use crate::parallel::sequence_parallel::{SequenceParallel, check_ranks};
use crate::shard::{Axis, Mesh, ShardingConfig, Topology, check_sharding, check_stage};
use crate::{Error, Result};

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
    pub(super) comm: Communicator,
    pub(super) device: Device,
    pub(super) options: ShardingConfig,
    pub(crate) inner: Arc<Inner>,
}

/// A function that is called with the folder of a checkpoint.
pub(super) type Hook = dyn Fn(&Accelerator, &Path) -> Result<()> + Send + Sync;

/// What everything that an accelerator prepared has in common.
pub(crate) struct Inner {
    pub comm: Communicator,
    /// The same ranks as they met, without NCCL.
    on_host: Communicator,
    /// Its ranks by axes: stages of a pipeline, data, parts of sequences.
    pub mesh: Mesh,
    /// The ranks that divide sequences among them, where some do.
    pub sequence: Option<SequenceParallel>,
    pub device: Device,
    pub config: AcceleratorConfig,
    pub plugins: Arc<Plugins>,
    /// The micro-batches of a step that a DeepSpeed configuration asks for; 0: what the accelerator was told.
    num_steps: AtomicUsize,
    gradients: Mutex<GradientState>,
    loaders: Mutex<Loaders>,
    /// The micro-batch that runs; 0 outside of any.
    pub micro_batch: AtomicU64,
    pub n_micro_batches: AtomicU64,
    models: Mutex<Vec<Arc<PreparedState>>>,
    /// What checkpoints keep besides, by what it is.
    stateful: Mutex<Vec<(&'static str, Arc<dyn Stateful>)>>,
    /// Raised by `set_trigger` until the next check.
    pub trigger: AtomicBool,
    /// Nothing is global: another accelerator of the process has a seed of its own.
    pub seed: AtomicU64,
    pub seed_is_device_specific: AtomicBool,
    /// The number of the next checkpoint of the project.
    pub save_iteration: AtomicU64,
    /// Who sees which output folder, where that is not one for all.
    pub stores: Mutex<Option<crate::checkpoint::Stores>>,
    pub before_save: Hooks<Hook>,
    pub before_load: Hooks<Hook>,
    pub trackers: Mutex<Trackers>,
}

impl Inner {
    /// The ranks that see different data: all, or those of one stage of a pipeline.
    pub fn data(&self) -> &Communicator {
        self.mesh.get(Axis::Data).unwrap_or(&self.comm)
    }

    /// Where the loop stands in its window; locked for a moment only.
    pub fn gradients(&self) -> MutexGuard<'_, GradientState> {
        // Numbers, whole at every moment.
        self.gradients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what a loader does, and what the loop knows of its batch then.
    pub fn with_loaders<R>(&self, note: impl FnOnce(&mut Loaders) -> R) -> R {
        // Lists of numbers, whole at every moment.
        let mut loaders = self.loaders.lock().unwrap_or_else(PoisonError::into_inner);
        let result = note(&mut loaders);
        let LastBatch { is_last, rows, real } = loaders.last_batch();
        let mut gradients = self.gradients();
        (gradients.end_of_dataloader, gradients.rows, gradients.real) = (is_last, rows, real);
        result
    }

    /// How micro-batches make a step.
    pub fn accumulation(&self) -> GradientAccumulation {
        match self.num_steps.load(Relaxed) {
            0 => self.config.gradient_accumulation,
            num_steps => GradientAccumulation { num_steps, ..self.config.gradient_accumulation },
        }
    }

    /// Makes a step of so many micro-batches.
    pub fn set_num_steps(&self, num_steps: usize) {
        self.num_steps.store(num_steps, Relaxed);
    }

    /// The models that were prepared, in their order.
    pub fn models(&self) -> Vec<Arc<PreparedState>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What checkpoints keep besides, by what it is, in the order in which it came.
    pub fn stateful(&self) -> Vec<(&'static str, Arc<dyn Stateful>)> {
        self.stateful.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has checkpoints keep it.
    pub fn add_stateful(&self, what: &'static str, part: Arc<dyn Stateful>) {
        self.stateful.lock().unwrap_or_else(PoisonError::into_inner).push((what, part));
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
        let models = std::mem::take(&mut *self.models.lock().unwrap_or_else(PoisonError::into_inner));
        let stateful = std::mem::take(&mut *self.stateful.lock().unwrap_or_else(PoisonError::into_inner));
        drop((models, stateful));
        *self.gradients() = GradientState::default();
    }

    pub fn add_model(&self, state: Arc<PreparedState>) {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).push(state);
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
        let open = |kind| Device::open(kind, isa, Par::threads(threads)?);
        let device = match config.device {
            DeviceKind::Cuda(first) => open(DeviceKind::Cuda(gpu_of_rank(first, &comm)?))?,
            DeviceKind::Auto => automatic(&comm, &open)?,
            other => open(other)?,
        };
        device.set_tf32(config.tf32);
        let over = between_gpus(comm.clone(), &device)?;
        let plugins = Arc::new(Plugins::of(config.deepspeed_plugin.as_ref(), &config.deepspeed_plugins)?);
        Accelerator::build((over, comm), device, config, plugins)
    }

    /// Whether rank 0 has a reason why all ranks are to turn to the CPU, which it says. All ranks must call it.
    pub fn turns_to_cpu(&self, why: Option<String>) -> Result<bool> {
        let why = why.filter(|_| self.is_main_process());
        why.iter().for_each(|why| rank::warn_once(why));
        Ok(self.comm.broadcast_bytes(0, &[u8::from(why.is_some())])? == [1])
    }

    /// The same rank once more, on the CPU. All ranks must call it.
    pub fn on_cpu(&self) -> Result<Accelerator> {
        let config = AcceleratorConfig { device: DeviceKind::Cpu, ..self.inner.config.clone() };
        Accelerator::over(self.inner.on_host.clone(), &config)
    }

    /// The ranks with NCCL, where they have it, and as they met without it.
    pub(super) fn both(&self) -> (Communicator, Communicator) {
        (self.comm.clone(), self.inner.on_host.clone())
    }

    /// Over [`Accelerator::both`].
    pub(super) fn build(
        (comm, on_host): (Communicator, Communicator),
        device: Device,
        config: &AcceleratorConfig,
        plugins: Arc<Plugins>,
    ) -> Result<Accelerator> {
        let mut options = config.shard.clone();
        options.dtype = config.mixed_precision.unwrap_or(options.dtype);
        let mesh = mesh(&comm, config, &options)?;
        let sequence = mesh.get(Axis::Sequence).map(SequenceParallel::new);
        comm.on_long_wait_by_default(LONG_WAIT, |wait| rank::print_note(&wait.to_string()));
        if comm.rank() == 0 && !oarlock_tensor::IS_OPTIMIZED {
            rank::warn_once(UNOPTIMIZED);
        }
        let inner = Inner {
            comm: comm.clone(),
            on_host,
            mesh,
            sequence,
            device: device.clone(),
            config: config.clone(),
            plugins,
            num_steps: AtomicUsize::new(0),
            gradients: Mutex::default(),
            loaders: Mutex::default(),
            micro_batch: AtomicU64::new(0),
            n_micro_batches: AtomicU64::new(0),
            models: Mutex::default(),
            stateful: Mutex::default(),
            trigger: AtomicBool::new(false),
            seed: AtomicU64::new(config.seed.unwrap_or(SEED)),
            seed_is_device_specific: AtomicBool::new(false),
            save_iteration: AtomicU64::new(config.project.iteration),
            stores: Mutex::default(),
            before_save: Hooks::default(),
            before_load: Hooks::default(),
            trackers: Mutex::default(),
        };
        Ok(Accelerator { comm, device, options, inner: Arc::new(inner) })
    }

    /// The number of this process, from 0.
    pub fn process_index(&self) -> usize {
        self.comm.rank()
    }

    /// The number of processes.
    pub fn num_processes(&self) -> usize {
        self.comm.world_size()
    }

    /// The ranks that divide each sequence among them, where [`AcceleratorConfig::sequence_parallel_size`] says so. A
    /// `Decoder` is told of them before it is prepared; loaders of tokens then deal the same rows to
    /// all of them, and each takes its part.
    ///
    /// [`AcceleratorConfig::sequence_parallel_size`]: crate::AcceleratorConfig::sequence_parallel_size
    pub fn sequence_parallel(&self) -> Option<&SequenceParallel> {
        self.inner.sequence.as_ref()
    }

    /// The number of groups of ranks that get rows of their own, and of this one's: of ranks, where sequences are whole.
    pub fn data_parallel(&self) -> (usize, usize) {
        let size = self.sequence_parallel().map_or(1, SequenceParallel::size);
        (self.data_ranks().world_size() / size, self.data_ranks().rank() / size)
    }

    /// Whether this is process 0.
    pub fn is_main_process(&self) -> bool {
        self.comm.rank() == 0
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The process group of the ranks that see different data: all ranks, or those of one stage of a pipeline.
    pub fn data_ranks(&self) -> &Communicator {
        self.inner.data()
    }

    /// The process group.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// The dtype of the arithmetic; with DeepSpeed plugins that of the active one.
    pub fn dtype(&self) -> DType {
        self.inner.plugins.dtype().unwrap_or(self.options.dtype)
    }

    /// The sum of each value over all ranks.
    ///
    /// # Errors
    /// When a rank failed, or the ranks gave different numbers of values.
    #[track_caller]
    pub fn reduce_sum(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.comm.all_reduce_f64(values, Scalar::Sum)?)
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// When a rank failed.
    #[track_caller]
    pub fn wait_for_everyone(&self) -> Result<()> {
        Ok(self.comm.barrier()?)
    }

    /// Prints a line on process 0 only. A reader that went away is no reason to stop a training run.
    pub fn print(&self, line: Arguments<'_>) {
        if self.is_main_process() {
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}
/// The ranks on the axes that a configuration asks for.
fn mesh(comm: &Communicator, config: &AcceleratorConfig, options: &ShardingConfig) -> Result<Mesh> {
    let (args, size, world) = (&config.pipeline, config.sequence_parallel_size, comm.world_size());
    let mut mesh = Mesh::new(comm);
    if args.is_on() {
        if !world.is_multiple_of(args.stages) {
            return Err(Error::Usage(format!(
                "pipeline: {} stages must divide the {world} ranks; start a multiple of {} ranks",
                args.stages, args.stages
            )));
        }
        check_stage(options)?;
        let grid = Topology::new(&[(Axis::Pipe, args.stages), (Axis::Data, world / args.stages)]);
        mesh.divide(&grid, &[Axis::Data, Axis::Pipe])?;
    }
    check_sharding(options, mesh.get(Axis::Data).unwrap_or(comm).world_size())?;
    if size > 1 {
        check_ranks(world, size)?;
        if args.is_on() {
            return Err(Error::Usage(format!(
                "sequence_parallel_size={size} divides sequences over ranks, which the stages of a pipeline cannot do: take one \
                 of the two"
            )));
        }
        let grid = Topology::new(&[(Axis::Data, world / size), (Axis::Sequence, size)]);
        match size == world {
            true => mesh.put_all_on(Axis::Sequence),
            false => mesh.divide(&grid, &[Axis::Sequence])?,
        }
    }
    Ok(mesh)
}

/// The ranks by NCCL where each has a GPU of its own. Where that is not so, what they have on GPUs goes through memory of the
/// host, and rank 0 says why.
fn between_gpus(comm: Communicator, device: &Device) -> Result<Communicator> {
    // All ranks have the same kind of device.
    if !device.is_cuda() || comm.world_size() == 1 {
        return Ok(comm);
    }
    match nccl::over(&comm, device)? {
        nccl::Choice::Nccl(over) => Ok(over),
        nccl::Choice::Host(why) => {
            if let Some(why) = why.filter(|_| comm.rank() == 0) {
                let host = comm.describe();
                rank::warn_once(&format!("gradients and weights go between GPUs over {host}: {why}"));
            }
            Ok(comm)
        }
    }
}

/// A GPU for each rank, else the CPU for all of them: why is said by rank 0 in a line, unless no rank sees any GPU.
fn automatic(
    comm: &Communicator,
    open: &dyn Fn(DeviceKind) -> oarlock_tensor::Result<Device>,
) -> Result<Device> {
    let found = match Device::automatic() {
        Automatic::Gpus(_) => match open(DeviceKind::Cuda(gpu_of_rank(0, comm)?)) {
            Err(error) if oarlock_tensor::is_refused_by_driver(&error) => {
                Err(Some(format!("this machine has a GPU that cannot be used ({error})")))
            }
            opened => Ok(opened?),
        },
        Automatic::Lacks(why) => Err(Some(why.clone())),
        Automatic::Cpu => Err(None),
    };
    match of_all(comm, found)? {
        Ok(device) => Ok(device),
        Err(why) => {
            if let Some(why) = why.filter(|_| comm.rank() == 0) {
                rank::warn_once(&format!("{why}; the CPU is used until then"));
            }
            Ok(open(DeviceKind::Cpu)?)
        }
    }
}

/// What a rank has found, if all have found a GPU: ranks of other machines may see none, or one that does not work. Otherwise why
/// not; nothing where no rank sees one.
fn of_all<T>(
    comm: &Communicator,
    found: std::result::Result<T, Option<String>>,
) -> Result<std::result::Result<T, Option<String>>> {
    const GPU: &[u8] = b"gpu";
    const CPU: &[u8] = b"cpu";
    let said = match &found {
        Ok(_) => GPU,
        Err(None) => CPU,
        Err(Some(why)) => why.as_bytes(),
    };
    let all = comm.all_gather_bytes(said)?;
    let lacks = all.iter().find(|said| *said != GPU && *said != CPU);
    let without = all.iter().position(|said| said == CPU).filter(|_| all.iter().any(|said| said == GPU));
    Ok(match (lacks, without) {
        (Some(why), _) => Err(Some(String::from_utf8_lossy(why).into_owned())),
        (None, Some(rank)) => Err(Some(format!("rank {rank} sees no GPU"))),
        (None, None) => found,
    })
}

/// The GPU of a rank.
fn gpu_of_rank(first: usize, comm: &Communicator) -> Result<usize> {
    // By the machine alone: ranks that are bound to cores of their own share its GPUs as well.
    Ok(gpu_of(first, &comm.machines(), comm.rank(), &Device::cuda_indices()?))
}

/// The ranks of a machine take the GPUs that they see in turns, from `first` on; `machines` has that of each rank.
fn gpu_of<T: PartialEq>(first: usize, machines: &[T], rank: usize, gpus: &[usize]) -> usize {
    let place = machines.iter().take(rank).filter(|machine| machines.get(rank) == Some(*machine)).count();
    gpus.get((first + place) % gpus.len().max(1)).copied().unwrap_or(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_have_gpus_or_none_has() {
        let lacks = || Err(Some("no compiler".to_owned()));
        for (found, expected) in [
            ([Ok(1), Ok(2)], [Ok(1), Ok(2)]),
            ([Err(None), Err(None)], [Err(None), Err(None)]),
            ([Ok(1), lacks()], [lacks(), lacks()]),
            ([Err(None), lacks()], [lacks(), lacks()]),
            (
                [Err(None), Ok(2)],
                [Err(Some("rank 0 sees no GPU".to_owned())), Err(Some("rank 0 sees no GPU".to_owned()))],
            ),
        ] {
            let of_rank = |comm: Communicator| of_all(&comm, found[comm.rank()].clone()).unwrap();
            assert_eq!(oarlock_comm::shm::on_threads(2, of_rank).unwrap(), expected);
        }
    }

    #[test]
    fn ranks_of_a_machine_take_its_gpus_in_turns() {
        let of = |first, machines: &str, gpus: &[usize]| -> Vec<usize> {
            let machines: Vec<char> = machines.chars().collect();
            (0..machines.len()).map(|rank| gpu_of(first, &machines, rank, gpus)).collect()
        };
        assert_eq!(of(0, "aaaa", &[0, 1, 2, 3]), [0, 1, 2, 3]);
        // Each machine begins anew, wherever its ranks stand.
        assert_eq!(of(0, "aabb", &[0, 1]), [0, 1, 0, 1]);
        assert_eq!(of(0, "abab", &[0, 1]), [0, 0, 1, 1]);
        // More ranks than GPUs share them, a first one moves all, and GPUs that cannot be used are left out.
        assert_eq!(of(0, "aaa", &[0, 1]), [0, 1, 0]);
        assert_eq!(of(1, "aa", &[0, 1]), [1, 0]);
        assert_eq!(of(0, "aa", &[1, 2]), [1, 2]);
        assert_eq!(of(0, "a", &[]), [0]);
    }
}
