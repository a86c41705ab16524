//! A device is a value: where tensors lie, and who runs ops on them.
//!
//! # How an op reaches a device
//!
//! An op checks shapes, allocates its outputs, and puts a launch together: a name and a cost for the profile, and
//! a declaration of every stretch of memory that it reads or writes. Each declaration gives a typed view. The launch ends
//! with the kernel, a closure that owns its views and numbers and borrows nothing:
//!
//! ```ignore
//! let mut launch = device.launch("cast", 0, bytes);
//! let (x, out) = (launch.read::<f32>(x)?, launch.write::<bf16>(&mut y)?);
//! launch.run(move |cpu| elementwise::cast(cpu, x.slice(cpu), out.slice(cpu)))?;
//! ```
//!
//! Only the running kernel turns a view into a slice. The host has no other way to the elements than the copies of
//! [`ops::transfer`](crate::ops::transfer), which wait for the launches that they depend on.
//!
//! # Kinds of device
//!
//! - The *CPU* runs a launch at once, in the calling thread and its helpers. Nothing is recorded and nothing allocated.
//! - A *dry* device does everything but the work: ops check shapes, record and allocate as they would, so the arena's
//!   accounts are exactly those of a real run, but there is no memory behind its tensors and no kernel runs.
//! - A *GPU* runs a launch later, in the order of its stream. See [`cuda`](crate::cuda).
//! - The *strict* device is for tests: it treats the CPU as a device far away. See [`strict`](crate::strict).
//!
//! An op that has no form for a device is *staged*: what it reads is copied to the host, its CPU kernel runs there, and
//! what it writes is copied back. It works from the first day, and the profile names it, such as
//! "linear forward (staged)".
//!
//! # Order
//!
//! A launch may run later than it was called, so blocks of memory carry what must have happened before they are used
//! again: the launches that wrote and read them last, also when a block was freed and has a new owner. A launch waits for
//! those that conflict with its declarations, and a copy to the host for those that write what it reads. An error of a
//! launch that ran late comes out of the next copy, with the op's name ([`Error::Launch`](crate::Error::Launch)).

use std::sync::{Arc, LazyLock};

use oarlock_kernels::{Cpu, Error, Isa, Par, Result};

use crate::arena::Arena;
use oarlock_cuda::libraries::Libraries as CudaLibraries;
use oarlock_cuda::survey::{self, Automatic};

use crate::cuda::{self, Gpu, GpuInfo};
use crate::launch::Launch;
use crate::profile::Profile;
use crate::strict::Queue;

/// With the value 1, each tensor on a GPU has memory of its own, for `compute-sanitizer` to see what goes beyond; as
/// `PYTORCH_NO_CUDA_MEMORY_CACHING` of torch.
const NO_CACHING: &str = "OARLOCK_NO_CUDA_MEMORY_CACHING";

/// Where tensors live and ops run. Cloning gives another handle to the same device.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    kind: Kind,
    /// What runs kernels in host memory.
    host: Cpu,
    arena: Arena,
    /// Pinned memory of the host beside a GPU.
    pinned: Option<Arena>,
    profile: Arc<Profile>,
    /// All memory of the GPU that it is, or that a dry device stands for.
    gpu_bytes: Option<usize>,
}

/// The devices that one can ask for by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// [`Device::cpu`].
    #[default]
    Cpu,
    /// [`Device::strict`], for tests.
    Strict,
    /// [`Device::staging`], for tests.
    Staging,
    /// [`Device::cuda`], of this number.
    Cuda(usize),
    /// The first GPU that can be used where there is one, else the CPU: see [`Device::automatic`].
    Auto,
}

impl DeviceKind {
    /// Whether it is a GPU, on this machine.
    pub fn is_gpu(self) -> bool {
        match self {
            DeviceKind::Cuda(_) => true,
            DeviceKind::Auto => matches!(Device::automatic(), Automatic::Gpus(_)),
            DeviceKind::Cpu | DeviceKind::Strict | DeviceKind::Staging => false,
        }
    }
}

/// What a device is.
enum Kind {
    Cpu,
    Dry,
    Strict(Arc<Queue>),
    Cuda(Arc<Gpu>),
}

impl Device {
    fn new(kind: Kind, host: Cpu, arena: Arena, profile: Arc<Profile>) -> Device {
        let pinned = match &kind {
            Kind::Cuda(gpu) => Some(Arena::pinned(gpu)),
            Kind::Cpu | Kind::Dry | Kind::Strict(_) => None,
        };
        let gpu_bytes = match &kind {
            // One that does not say has the least.
            Kind::Cuda(gpu) => Some(gpu.memory().map_or(0, |(_, all)| all)),
            Kind::Cpu | Kind::Dry | Kind::Strict(_) => None,
        };
        Device(Arc::new(Inner { kind, host, arena, pinned, profile, gpu_bytes }))
    }

    /// A device of this kind, on the given code path of the CPU, with the given threads.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn open(kind: DeviceKind, isa: Isa, par: Par) -> Result<Device> {
        match kind {
            DeviceKind::Cpu => Ok(Device::cpu(isa, par)),
            DeviceKind::Strict => Ok(Device::strict(isa, par)),
            DeviceKind::Staging => Ok(Device::staging(isa, par)),
            DeviceKind::Cuda(index) => Device::cuda(index, isa, par),
            DeviceKind::Auto => match Device::automatic() {
                Automatic::Gpus(usable) => Device::cuda(usable.first().copied().unwrap_or(0), isa, par),
                Automatic::Cpu | Automatic::Lacks(_) => Ok(Device::cpu(isa, par)),
            },
        }
    }

    /// Where this process computes if nobody says where: on the GPUs that it sees and can use, else on the CPU. It is
    /// found out once; on a machine without a driver that takes no time.
    pub fn automatic() -> &'static Automatic {
        static FOUND: LazyLock<Automatic> =
            LazyLock::new(|| survey::automatic(&CudaLibraries::from_environment()));
        &FOUND
    }

    /// The numbers of the GPUs that ranks take: those that this process sees and can use, or all that it sees where it
    /// can use none, so that opening one says why.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn cuda_indices() -> Result<Vec<usize>> {
        let found = cuda::gpus(&CudaLibraries::from_environment())?;
        let usable: Vec<usize> = (0..found.len()).filter(|index| found[*index].is_usable()).collect();
        Ok(if usable.is_empty() { (0..found.len()).collect() } else { usable })
    }

    /// All memory of the GPU of this number among those that the process sees.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn cuda_memory_bytes(index: usize) -> Result<usize> {
        let found = cuda::gpus(&CudaLibraries::from_environment())?;
        let gpu = found.get(index).map(|gpu| gpu.memory_bytes);
        gpu.ok_or_else(|| Error::Usage(format!("there is no GPU {index}, but {} of them", found.len())))
    }

    /// The CPU, on the given code path, with the given threads. [`Device::default`] chooses both.
    pub fn cpu(isa: Isa, par: Par) -> Device {
        Device::new(Kind::Cpu, Cpu { isa, par }, Arena::new(), Arc::default())
    }

    /// The NVIDIA GPU of this number among those that the process sees (`CUDA_VISIBLE_DEVICES`). Ops that have no form
    /// for it run on the CPU, on the given code path, with the given threads. The libraries of CUDA are loaded from where
    /// [`oarlock_cuda::libraries`] says.
    ///
    /// # Errors
    /// [`Error::Gpu`](crate::Error::Gpu): no driver, no such GPU, one that is too old, or a library that is missing.
    pub fn cuda(index: usize, isa: Isa, par: Par) -> Result<Device> {
        Device::cuda_of(&CudaLibraries::from_environment(), index, isa, par)
    }

    /// As [`Device::cuda`], with libraries from where it is said.
    ///
    /// # Errors
    /// As [`Device::cuda`].
    pub fn cuda_of(libraries: &CudaLibraries, index: usize, isa: Isa, par: Par) -> Result<Device> {
        let (host, profile) = (Cpu { isa, par }, Arc::<Profile>::default());
        let gpu = Arc::new(Gpu::open(libraries, index, host.clone(), profile.clone())?);
        let arena = Arena::cuda(&gpu);
        if std::env::var_os(NO_CACHING).is_some_and(|value| value == "1") {
            arena.keep_blocks_apart();
        }
        Ok(Device::new(Kind::Cuda(gpu.clone()), host, arena, profile))
    }

    /// A stand-in for the CPU that only counts: what a model would take of memory and do of work, in no time and
    /// without the memory. Its tensors have no values; whoever asks for them gets an error.
    pub fn dry(isa: Isa, par: Par) -> Device {
        Device::new(Kind::Dry, Cpu { isa, par }, Arena::dry(), Arc::default())
    }

    /// A device for tests, with the CPU's kernels and bits: its memory cannot be touched outside of kernels and copies
    /// (whoever tries is ended by the system), and launches run as late as their dependencies allow.
    pub fn strict(isa: Isa, par: Par) -> Device {
        Device::deferring(isa, par, false)
    }

    /// As [`Device::strict`], for which no op has a form of its own: each is staged through host memory.
    pub fn staging(isa: Isa, par: Par) -> Device {
        Device::deferring(isa, par, true)
    }

    fn deferring(isa: Isa, par: Par, stages: bool) -> Device {
        let (host, profile) = (Cpu { isa, par }, Arc::<Profile>::default());
        let queue = Arc::new(Queue::new(host.clone(), stages, profile.clone()));
        Device::new(Kind::Strict(queue.clone()), host, Arena::protected(&queue), profile)
    }

    /// A dry device with the kernels and threads of this one, and an empty pool that cuts blocks out of segments if this one's does;
    /// of a GPU, one that stands for that.
    pub fn as_dry(&self) -> Device {
        let arena = if self.arena().is_in_segments() { Arena::dry_of_gpu() } else { Arena::dry() };
        self.dry_with(self.0.gpu_bytes, arena)
    }

    /// A dry device that stands for a GPU with so much memory, with the accounts of its pool, which cuts blocks out of segments.
    pub fn as_dry_gpu(&self, memory_bytes: usize) -> Device {
        self.dry_with(Some(memory_bytes), Arena::dry_of_gpu())
    }

    fn dry_with(&self, gpu_bytes: Option<usize>, arena: Arena) -> Device {
        let (host, profile) = (self.0.host.clone(), Arc::default());
        Device(Arc::new(Inner { kind: Kind::Dry, host, arena, pinned: None, profile, gpu_bytes }))
    }

    /// The CPU that works in memory of the host beside this device, with the same threads and profile, as a device of its
    /// own.
    pub fn host_device(&self) -> Device {
        Device::new(Kind::Cpu, self.0.host.clone(), Arena::new(), self.0.profile.clone())
    }

    /// Whether this is a device that only counts.
    pub fn is_dry(&self) -> bool {
        matches!(self.0.kind, Kind::Dry)
    }

    /// A launch to put together: `name` is what errors and the profile call it, `flops` and `bytes` what it has to
    /// compute and to move.
    pub(crate) fn launch(&self, name: &'static str, flops: u64, bytes: u64) -> Launch<'_> {
        Launch::new(self, name, Some((flops, bytes)))
    }

    /// A launch that no profile shows.
    pub(crate) fn quiet_launch(&self, name: &'static str) -> Launch<'_> {
        Launch::new(self, name, None)
    }

    /// Runs what a launch does, and books it when it has a cost and the profile is on.
    pub(crate) fn book<R>(&self, name: &'static str, cost: Option<(u64, u64)>, f: impl FnOnce() -> R) -> R {
        match cost {
            Some((flops, bytes)) => self.0.profile.time(name, flops, bytes, f),
            None => f(),
        }
    }

    /// Where launches wait on a device that defers them.
    pub(crate) fn queue(&self) -> Option<&Arc<Queue>> {
        match &self.0.kind {
            Kind::Strict(queue) => Some(queue),
            Kind::Cpu | Kind::Dry | Kind::Cuda(_) => None,
        }
    }

    /// The GPU that it is.
    pub(crate) fn gpu(&self) -> Option<&Arc<Gpu>> {
        match &self.0.kind {
            Kind::Cuda(gpu) => Some(gpu),
            Kind::Cpu | Kind::Dry | Kind::Strict(_) => None,
        }
    }

    /// All memory of the GPU that it is, or that a dry device stands for.
    pub(crate) fn gpu_bytes(&self) -> Option<usize> {
        self.0.gpu_bytes
    }

    /// Whether it is a GPU, or a dry device that stands for one.
    pub fn is_gpu(&self) -> bool {
        self.0.gpu_bytes.is_some()
    }

    /// Whether it is a GPU.
    pub fn is_cuda(&self) -> bool {
        self.gpu().is_some()
    }

    /// The ops that a GPU had no form for so far, or too little room, so that their memory was copied to the host and back.
    pub fn staged_ops(&self) -> Vec<String> {
        self.gpu().map_or_else(Vec::new, |gpu| gpu.staged())
    }

    /// What a report says about the GPU; none of another device.
    ///
    /// # Errors
    /// The driver's own.
    pub fn gpu_info(&self) -> Result<Option<GpuInfo>> {
        self.gpu().map(|gpu| gpu.info()).transpose()
    }

    /// The matrix products that a GPU has computed so far, whose algorithms can be measured; none of another device.
    pub fn gpu_products(&self) -> Vec<oarlock_cuda::blas::Shape> {
        self.gpu().map_or_else(Vec::new, |gpu| gpu.products())
    }

    /// From now on, whether a GPU rounds the factors of products of f32 to TF32 (10 bits of mantissa), as
    /// `torch.backends.cuda.matmul.allow_tf32` does. Sums stay in f32. It changes nothing on other devices, and nothing where
    /// cuBLASLt is not there.
    pub fn set_tf32(&self, tf32: bool) {
        if let Some(gpu) = self.gpu() {
            gpu.set_tf32(tf32);
        }
    }

    /// What was asked of a GPU's driver so far; none of another device.
    pub fn gpu_counts(&self) -> Option<oarlock_cuda::driver::Counts> {
        self.gpu().map(|gpu| gpu.counts())
    }

    /// The free bytes and all bytes of the GPU's memory, whoever uses them; none of another device.
    ///
    /// # Errors
    /// The driver's own.
    pub fn gpu_memory(&self) -> Result<Option<(usize, usize)>> {
        self.gpu().map(|gpu| gpu.memory()).transpose()
    }

    /// Returns when every launch has run.
    ///
    /// # Errors
    /// What a launch met that nobody has been told of.
    pub fn synchronize(&self) -> Result<()> {
        match &self.0.kind {
            Kind::Cpu | Kind::Dry => Ok(()),
            Kind::Strict(queue) => queue.drain(),
            Kind::Cuda(gpu) => gpu.synchronize(),
        }
    }

    /// The CPU that works in host memory beside this device, or is the device.
    pub(crate) fn host(&self) -> &Cpu {
        &self.0.host
    }

    /// The pool of this device's memory.
    pub fn arena(&self) -> &Arena {
        &self.0.arena
    }

    /// The pool of pinned memory beside a GPU.
    pub fn pinned(&self) -> Option<&Arena> {
        self.0.pinned.as_ref()
    }

    /// The times of the ops run on this device, when switched on.
    pub fn profile(&self) -> &Profile {
        &self.0.profile
    }

    /// What the kernels run on, in words.
    pub fn describe(&self) -> String {
        let cpu = self.host();
        let kind = match &self.0.kind {
            Kind::Cpu => "",
            Kind::Dry => "dry ",
            Kind::Strict(_) => "strict ",
            Kind::Cuda(gpu) => return gpu.describe().to_string(),
        };
        format!("{kind}cpu, {}, {} thread(s)", cpu.isa.path(), cpu.par.n_threads())
    }

    /// Whether it is this device.
    pub fn same(&self, other: &Device) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Default for Device {
    /// The CPU on its fastest code path, with one thread for each core that this process may use: the same device at
    /// every call, so that tensors on it can be used together.
    fn default() -> Device {
        static CPU: LazyLock<Device> = LazyLock::new(|| {
            let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
            Device::cpu(Isa::detect(), Par::threads(n_threads).unwrap_or(Par::solo()))
        });
        CPU.clone()
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.describe())
    }
}
