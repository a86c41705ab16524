//! NVIDIA GPUs as a device: its memory, its stream, and launches on it, in the op's own form or staged.
//!
//! A GPU has one stream, so its launches run in the order in which they were called, and a block of its pool can have a
//! new owner while the old one's launches still wait: those of the new one come behind them. The host waits for the
//! stream where it copies from or to device memory ([`transfer`](crate::ops::transfer)).
//!
//! A launch is in its own form where the op has one for the GPU ([`form`]), which takes kernels and matrix products of
//! `oarlock-cuda`. Every other launch is staged: what it reads is copied to the host, where its CPU kernel runs, and what
//! it writes is copied back. Memory that the host sees as well has a copy on the GPU ([`mirror`]).

mod attention;
mod code_tables;
mod form;
pub(crate) mod forms;
pub(crate) mod indexed;
mod info;
mod mirror;
mod order;
mod peak;
mod pinned;
mod side_stream;
mod uploads;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use oarlock_cuda::blas::{Blas, WORKSPACE_BYTES};
use oarlock_cuda::cache::Cache;
use oarlock_cuda::driver::{Context, DeviceMemory, Driver, Slice, Stream, Use, Uses};
use oarlock_cuda::libraries::Libraries;
use oarlock_cuda::modules::Modules;
use oarlock_cuda::survey::{self, FoundGpu};
use oarlock_kernels::{Cpu, Error, Result};

use crate::arena::Arena;
use crate::launch::{HostOrder, HostOwner, Mode, Owner, Running, Span};
use crate::lines::Lines;
use crate::profile::Profile;
use pinned::CopyStreams;
use uploads::Uploads;

use attention::AttentionForms;
pub(crate) use attention::Operands;
pub(crate) use code_tables::CodeTables;
pub(crate) use form::{Call, Form, FormError, Found, Kernels, Matrix, Temporary, element};
pub use info::GpuInfo;
pub(crate) use mirror::Mirror;
pub(crate) use oarlock_cuda::attention::{AttentionShape, TiledKernel};
pub(crate) use pinned::PinnedBlock;
pub(crate) use side_stream::Mark;
pub use side_stream::SideStream;

/// A GPU that this process uses.
pub(crate) struct Gpu {
    /// Ends before the stream that its products run on.
    blas: Blas,
    /// Ends before it, too.
    attention: AttentionForms,
    modules: Arc<Modules>,
    stream: Arc<Stream>,
    uploads: Uploads,
    /// Whether products of f32 are in TF32.
    tf32: AtomicBool,
    /// Made when state is first copied from or to pinned memory.
    copies: OnceLock<CopyStreams>,
    context: Context,
    /// Made when a quantized weight is first used.
    code_tables: OnceLock<CodeTables>,
    /// What runs the kernels of staged launches.
    host: Cpu,
    profile: Arc<Profile>,
    /// The newest version of CUDA that the driver supports.
    driver: (u32, u32),
    description: String,
    /// The ops that were staged, with the reason where a form was too large for this GPU.
    staged: Mutex<BTreeMap<&'static str, Option<String>>>,
}

/// What a launch declared to use.
pub(crate) struct Access {
    place: Place,
    bytes: usize,
    mode: Mode,
}

/// Where it is.
enum Place {
    /// Memory of the GPU, from a byte on.
    Device(Arc<Block>, usize),
    /// Memory that the host sees, from a byte of its copy on.
    Host(Arc<Mirror>, usize),
    /// Nowhere yet: only a staged kernel needs it.
    Scratch,
}

/// What a cell holds, made when it is first asked for.
fn made_once<T>(cell: &OnceLock<T>, make: impl FnOnce() -> oarlock_cuda::Result<T>) -> Result<&T> {
    if let Some(made) = cell.get() {
        return Ok(made);
    }
    let made = make().map_err(failed)?;
    // Another thread may have been faster.
    Ok(cell.get_or_init(|| made))
}

/// An error of the GPU as one of an op.
pub(crate) fn failed(error: oarlock_cuda::Error) -> Error {
    Error::Gpu(Box::new(error))
}

/// Whether the driver refused something, as where other programs have a GPU or all of its memory for themselves: nothing that was
/// asked for is wrong, and another device can do it.
pub fn is_refused_by_driver(error: &Error) -> bool {
    let Error::Gpu(error) = error else { return false };
    matches!(error.downcast_ref(), Some(oarlock_cuda::Error::Driver(_)))
}

/// The GPUs that this process sees.
pub(crate) fn gpus(libraries: &Libraries) -> Result<Vec<FoundGpu>> {
    Driver::find(libraries).and_then(|driver| survey::gpus(&driver)).map_err(failed)
}

impl Gpu {
    /// The GPU of this number among those that the process sees, by libraries from where it is said.
    ///
    /// # Errors
    /// [`Error::Gpu`]: no driver, no such GPU, one that is too old, or a library that is missing.
    pub fn open(libraries: &Libraries, index: usize, host: Cpu, profile: Arc<Profile>) -> Result<Gpu> {
        let open = || -> oarlock_cuda::Result<Gpu> {
            let driver = Driver::find(libraries)?;
            let device = driver.device(index)?;
            let context = device.context()?;
            let stream = Arc::new(context.stream()?);
            let modules = Modules::new(&context, libraries, Cache::from_environment())?.compiling_ahead();
            let modules = Arc::new(modules);
            let blas = Blas::with_modules(&stream, libraries, WORKSPACE_BYTES, &modules)?;
            let attention = AttentionForms::from_environment(libraries, &device, &stream)?;
            let ((major, minor), gigabytes) = (driver.version()?, device.memory_bytes()? as f64 / 1e9);
            let description = format!(
                "{} (cuda:{index}), {gigabytes:.1} GB, driver for CUDA {major}.{minor}",
                device.name()?
            );
            let (copies, code_tables, staged) = (OnceLock::new(), OnceLock::new(), Mutex::default());
            let (uploads, tf32) = (Uploads::default(), AtomicBool::new(false));
            Ok(Gpu {
                blas,
                attention,
                modules,
                stream,
                uploads,
                tf32,
                copies,
                context,
                code_tables,
                host,
                profile,
                driver: (major, minor),
                description,
                staged,
            })
        };
        open().map_err(failed)
    }

    /// Its model, number, memory and driver.
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// Memory of it, by itself; `None` where there is no more.
    ///
    /// # Errors
    /// What launches before have met, and other errors of the driver.
    pub fn alloc(self: &Arc<Self>, bytes: usize) -> Result<Option<Arc<Block>>> {
        let memory = self.segment(bytes)?;
        Ok(memory.map(|memory| self.block(memory, 0, bytes, Uses::default())))
    }

    /// Memory of it, to cut blocks out of.
    ///
    /// # Errors
    /// As [`Gpu::alloc`].
    pub fn segment(&self, bytes: usize) -> Result<Option<Arc<DeviceMemory>>> {
        match self.context.alloc(bytes) {
            Ok(memory) => Ok(Some(Arc::new(memory))),
            Err(oarlock_cuda::Error::Driver(error)) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// These bytes of memory, which such copies may still use.
    pub fn block(
        self: &Arc<Self>,
        memory: Arc<DeviceMemory>,
        start: usize,
        bytes: usize,
        copies: Uses,
    ) -> Arc<Block> {
        Arc::new(Block { memory, start, bytes, copies, gpu: self.clone() })
    }

    /// The streams of copies that overlap launches.
    fn copies(&self) -> Result<&CopyStreams> {
        made_once(&self.copies, || CopyStreams::new(&self.context))
    }

    /// The tables that quantized weights are decoded with.
    fn code_tables(&self) -> Result<&CodeTables> {
        made_once(&self.code_tables, || CodeTables::new(&self.context, &self.stream))
    }

    /// Returns when every launch has run.
    ///
    /// # Errors
    /// What a launch met.
    pub fn synchronize(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }

    /// Its free bytes, and all of them.
    ///
    /// # Errors
    /// The driver's own.
    pub fn memory(&self) -> Result<(usize, usize)> {
        let info = self.context.memory_info().map_err(failed)?;
        Ok((info.free_bytes, info.total_bytes))
    }

    /// What `op` declares of a stretch of memory.
    ///
    /// # Errors
    /// Memory that this GPU cannot reach.
    pub fn access(self: &Arc<Self>, op: &'static str, span: &Span<'_>, mode: Mode) -> Result<Access> {
        let elsewhere = || Error::Usage(format!("{op}: its memory is in use on another device"));
        let ptr = span.ptr.ok_or(Error::Dry)?;
        let place = match span.owner {
            Owner::Cuda(block) if Arc::ptr_eq(&block.gpu, self) => {
                block.before(use_of(mode))?;
                Place::Device(block.clone(), block.start_of(ptr))
            }
            Owner::Host(owner) => {
                let mirror = owner.mirror(self)?.ok_or_else(elsewhere)?;
                Place::Host(mirror.clone(), owner.offset_of(ptr))
            }
            _ => return Err(elsewhere()),
        };
        Ok(Access { place, bytes: span.bytes, mode })
    }

    /// Memory that only a staged kernel has.
    pub fn scratch(&self, bytes: usize) -> Access {
        Access { place: Place::Scratch, bytes, mode: Mode::Write }
    }

    /// The ops that had no form of their own so far, or one that is too large for this GPU, which is said then.
    pub fn staged(&self) -> Vec<String> {
        let staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        let line = |(name, why): (&&str, &Option<String>)| match why {
            Some(why) => format!("{name} ({why})"),
            None => (*name).to_owned(),
        };
        staged.iter().map(line).collect()
    }

    /// Runs the CPU kernel of a launch between copies from and to the GPU.
    pub fn stage(
        &self,
        (name, cost): (&'static str, Option<(u64, u64)>),
        accesses: &[Access],
        kernel: &mut dyn FnMut(&Running<'_>) -> Result<()>,
    ) -> Result<()> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default();
        let mut run = || {
            let mut copies =
                accesses.iter().map(|access| self.to_host(access)).collect::<Result<Vec<_>>>()?;
            let places: Vec<NonNull<u8>> = copies.iter_mut().map(HostCopy::first_byte).collect();
            kernel(&Running::new(&self.host, Some(&places)))?;
            accesses.iter().zip(&copies).try_for_each(|(access, copy)| self.to_device(access, copy))
        };
        match cost {
            Some((flops, bytes)) => self.profile.time_as((name, true), flops, bytes, run),
            None => run(),
        }
    }

    /// An access as the kernel of a staged launch finds it.
    fn to_host(&self, access: &Access) -> Result<HostCopy> {
        match &access.place {
            Place::Scratch => Ok(HostCopy::Own(Lines::filled(access.bytes, 0))),
            Place::Device(block, start) => {
                let mut copy = Lines::filled(access.bytes, 0);
                if access.mode != Mode::Write {
                    block.read(*start, copy.bytes_mut(access.bytes))?;
                }
                Ok(HostCopy::Own(copy))
            }
            Place::Host(mirror, start) => {
                mirror.settle()?;
                Ok(HostCopy::There(mirror.host_at(*start)))
            }
        }
    }

    /// Takes over what a staged kernel has written.
    fn to_device(&self, access: &Access, copy: &HostCopy) -> Result<()> {
        match (&access.place, copy) {
            (Place::Device(block, start), HostCopy::Own(copy)) if access.mode != Mode::Read => {
                block.write(*start, copy.bytes(access.bytes))
            }
            _ => Ok(()),
        }
    }

    /// Runs an op in its own form; whether it has one for these elements.
    pub fn run_form(
        &self,
        (name, cost): (&'static str, Option<(u64, u64)>),
        arena: &Arena,
        accesses: &[Access],
        form: impl FnOnce(&Kernels<'_>) -> Form,
    ) -> Result<bool> {
        let run = || {
            for access in accesses {
                if let Place::Host(mirror, start) = &access.place {
                    mirror.before(*start..*start + access.bytes, access.mode)?;
                }
            }
            let launched = Cell::new(false);
            match form(&Kernels::new(self, arena, accesses, &launched)) {
                Ok(()) => {}
                Err(FormError::Failed(error)) => return Err(error),
                // The CPU kernel would find what the first part of the form has written.
                Err(unable) if launched.get() => {
                    let why = if let FormError::TooLarge(why) = unable {
                        format!(": {why}")
                    } else {
                        String::new()
                    };
                    return Err(Error::Usage(format!("{name}: a part of it has no form for a GPU{why}")));
                }
                Err(FormError::NoForm) => return Ok(false),
                Err(FormError::TooLarge(why)) => {
                    self.staged.lock().unwrap_or_else(PoisonError::into_inner).insert(name, Some(why));
                    return Ok(false);
                }
            }
            for access in accesses {
                if let Place::Host(mirror, start) = &access.place {
                    mirror.after(*start..*start + access.bytes, access.mode);
                }
            }
            Ok(true)
        };
        let Some((flops, bytes)) = cost.filter(|_| self.profile.is_enabled()) else { return run() };
        // A launch returns before the GPU has done it: its time is that until the stream is empty.
        self.synchronize()?;
        let start = Instant::now();
        let ran = run()?;
        if ran {
            self.synchronize()?;
            self.profile.book((name, false), flops, bytes, start);
        }
        Ok(ran)
    }
}

impl HostOwner<'_> {
    /// The copy of this memory on a GPU, made when it is first used there; `None` where another device uses it.
    fn mirror(&self, gpu: &Arc<Gpu>) -> Result<Option<&Arc<Mirror>>> {
        if self.order.get().is_none() {
            let mirror = Mirror::new(gpu, self.first, self.bytes)?;
            // Another thread may have been faster; that one counts.
            drop(self.order.set(HostOrder::Cuda(Arc::new(mirror))));
        }
        Ok(match self.order.get() {
            Some(HostOrder::Cuda(mirror)) if mirror.is_of(gpu) => Some(mirror),
            _ => None,
        })
    }

    fn offset_of(&self, ptr: NonNull<u8>) -> usize {
        ptr.addr().get() - self.first.addr().get()
    }
}

/// Memory of the host that a staged kernel works in.
enum HostCopy {
    Own(Lines),
    /// What the host sees anyway.
    There(NonNull<u8>),
}

impl HostCopy {
    fn first_byte(&mut self) -> NonNull<u8> {
        match self {
            HostCopy::Own(lines) => lines.first_byte(),
            HostCopy::There(ptr) => *ptr,
        }
    }
}

/// What a launch does with memory, as copies know it.
fn use_of(mode: Mode) -> Use {
    match mode {
        Mode::Read => Use::Read,
        Mode::Write | Mode::Update => Use::Write,
    }
}

/// A block of a GPU's memory.
pub(crate) struct Block {
    memory: Arc<DeviceMemory>,
    /// Its first byte of that, and how many it has.
    start: usize,
    bytes: usize,
    /// Those that run beside the launches.
    copies: Uses,
    gpu: Arc<Gpu>,
}

impl Block {
    /// Its address on the GPU, which is none of the host.
    pub fn ptr(&self) -> Option<NonNull<u8>> {
        NonNull::new(std::ptr::without_provenance_mut(self.address()))
    }

    fn address(&self) -> usize {
        self.memory.address() as usize + self.start
    }

    /// The copies that use it, for whoever has its memory next.
    pub fn copies(&self) -> Uses {
        self.copies.clone()
    }

    /// The byte that an address means.
    pub fn start_of(&self, ptr: NonNull<u8>) -> usize {
        // Spans are made from addresses inside of their memory.
        ptr.addr().get().saturating_sub(self.address())
    }

    /// What is launched from now on comes behind the copies that such a use must not meet.
    pub fn before(&self, how: Use) -> Result<()> {
        // Later copies wait for all launches, so for these copies too.
        self.copies.order_once(&self.gpu.stream, how).map_err(failed)
    }

    /// The place behind all launches and copies so far that use it.
    pub fn mark(&self) -> Result<Mark> {
        self.before(Use::Write)?;
        self.gpu.mark()
    }

    fn slice(&self, start: usize, bytes: usize) -> Result<Slice<'_>> {
        self.part(start, bytes).map_err(failed)
    }

    fn part(&self, start: usize, bytes: usize) -> oarlock_cuda::Result<Slice<'_>> {
        let all = self.memory.slice(self.start..self.start + self.bytes)?;
        all.part(start..start + bytes)
    }

    /// Copies bytes to the host, when the launches before have run.
    pub fn read(&self, start: usize, out: &mut [u8]) -> Result<()> {
        self.before(Use::Read)?;
        self.gpu.stream.read_now(self.slice(start, out.len())?, out).map_err(failed)
    }

    /// Copies bytes from the host, when the launches before have run. The host waits for many bytes only.
    pub fn write(&self, start: usize, bytes: &[u8]) -> Result<()> {
        self.before(Use::Write)?;
        self.gpu.uploads.write(&self.gpu.stream, bytes, self.slice(start, bytes.len())?).map_err(failed)
    }
}
