//! A kernel launch as a value: what it is called, what it costs, which memory it reads and writes, and what to do.
//!
//! A launch declares its memory first and gets a typed view for each declaration; a view becomes a slice only inside of
//! the kernel. See [`device`](crate::device) for what a device does with a launch.

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use oarlock_kernels::{Cpu, Element, Error, Result, Store};

use crate::arena::Buffer;
use crate::cuda::{self, Block, Form, Gpu, Kernels, Mirror, PinnedBlock};
use crate::device::Device;
use crate::flat::{Lease, WriteLease};
use crate::param::GradSlot;
use crate::strict::{Access, Guard, Queue};
use crate::tensor::{Known, Tensor};

/// What a launch does with a stretch of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Its content is needed and stays.
    Read,
    /// All of it is overwritten.
    Write,
    /// Its content is needed, or only a part of it is overwritten.
    Update,
}

/// A stretch of device memory.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    /// The first byte; `None` on a dry device, which has no memory.
    pub ptr: Option<NonNull<u8>>,
    pub bytes: usize,
    pub owner: Owner<'a>,
}

/// Whose memory a span is.
#[derive(Clone, Copy)]
pub(crate) enum Owner<'a> {
    /// A block of the pool of a device that runs launches at once, in memory of the host or in none.
    Pool,
    /// A block of a strict device's pool.
    Strict(&'a Arc<Guard>),
    /// A block of a GPU's pool.
    Cuda(&'a Arc<Block>),
    /// Pinned memory of the host, which copies from and to a GPU use.
    Pinned(&'a Arc<PinnedBlock>),
    /// Memory that the host sees as well.
    Host(HostOwner<'a>),
}

/// Memory of the host as a whole, and what a device leaves there that does not run launches at once.
#[derive(Clone, Copy)]
pub(crate) struct HostOwner<'a> {
    pub first: NonNull<u8>,
    pub bytes: usize,
    pub order: &'a OnceLock<HostOrder>,
}

/// What keeps the order between launches on memory of the host and the host itself.
#[derive(Clone)]
pub(crate) enum HostOrder {
    Strict(Arc<Guard>),
    Cuda(Arc<Mirror>),
}

impl HostOrder {
    /// Returns when no launch is to use the memory any more.
    ///
    /// # Errors
    /// What a launch met.
    pub fn settle(&self) -> Result<()> {
        match self {
            HostOrder::Strict(guard) => guard.settle(),
            HostOrder::Cuda(mirror) => mirror.settle(),
        }
    }

    /// As [`HostOrder::settle`] at the end of the memory: what fails is told to whoever copies next.
    pub fn finish(&self) {
        match self {
            HostOrder::Strict(guard) => guard.finish(),
            HostOrder::Cuda(mirror) => drop(mirror.settle()),
        }
    }
}

impl<'a> Span<'a> {
    /// These bytes of it.
    pub fn part(self, range: Range<usize>) -> Result<Span<'a>> {
        if range.start > range.end || range.end > self.bytes {
            return Err(Error::Shape {
                op: "a view of device memory",
                expected: format!("a range inside of {} bytes", self.bytes),
                got: format!("{range:?}"),
            });
        }
        let ptr = self.ptr.map(|ptr| offset(ptr, range.start));
        Ok(Span { ptr, bytes: range.len(), ..self })
    }

    /// The elements `range` of type `T`.
    pub fn elements<T>(self, range: &Range<usize>) -> Result<Span<'a>> {
        let byte = |element: usize| element.saturating_mul(size_of::<T>());
        self.part(byte(range.start)..byte(range.end))
    }
}

/// The address so many bytes further inside the same memory, which may be that of a GPU.
pub(crate) fn offset(ptr: NonNull<u8>, bytes: usize) -> NonNull<u8> {
    ptr.map_addr(|addr| addr.saturating_add(bytes))
}

/// Memory that a launch reads. Only the running kernel sees elements.
pub(crate) struct View<T> {
    ptr: NonNull<T>,
    len: usize,
    access: usize,
    known: Option<Known>,
}

impl<T> Clone for View<T> {
    fn clone(&self) -> View<T> {
        *self
    }
}
impl<T> Copy for View<T> {}

/// Memory that a launch writes, alone.
pub(crate) struct ViewMut<T> {
    ptr: NonNull<T>,
    len: usize,
    access: usize,
    /// As a mutable slice, so that it is not copied and is invariant.
    elements: PhantomData<*mut T>,
}

// SAFETY: a view is an address. Its memory is reached only through `slice`, while the launch that declared it runs.
unsafe impl<T: Sync> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for ViewMut<T> {}

impl<T> View<T> {
    /// Its number among the launch's declarations.
    pub fn number(&self) -> usize {
        self.access
    }

    /// What the host knows of the elements.
    pub fn known(&self) -> Option<Known> {
        self.known
    }
}

impl<T> ViewMut<T> {
    /// Its number among the launch's declarations.
    pub fn number(&self) -> usize {
        self.access
    }
}

/// Memory that the op's own form on a GPU uses and no CPU kernel does.
#[derive(Clone, Copy)]
pub(crate) struct Stretch {
    access: usize,
}

impl Stretch {
    /// Its number among the launch's declarations.
    pub fn number(&self) -> usize {
        self.access
    }
}

impl<T: Pod> View<T> {
    /// The elements, for the kernel of the launch that declared the view.
    pub fn slice<'r>(self, running: &'r Running<'_>) -> &'r [T] {
        let ptr = running.address(self.access, self.ptr);
        // SAFETY: the launch declared this initialized, aligned memory, which lives and is written by nobody until the
        // launch has run: at once, or before any launch or copy that was called later and conflicts with it.
        unsafe { std::slice::from_raw_parts(ptr.as_ptr(), self.len) }
    }
}

impl<T: Pod> ViewMut<T> {
    /// The elements, for the kernel of the launch that declared the view.
    #[allow(clippy::mut_from_ref, reason = "the right to write is in `self`, which is used up")]
    pub fn slice<'r>(self, running: &'r Running<'_>) -> &'r mut [T] {
        let ptr = running.address(self.access, self.ptr);
        // SAFETY: as for `View::slice`; the launch declared that it writes this memory, for which it had to be the sole
        // owner, and a mutable view is neither copied nor declared twice.
        unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), self.len) }
    }
}

/// The CPU while it runs the kernel of one launch.
pub(crate) struct Running<'a> {
    cpu: &'a Cpu,
    /// Where the launch's views lie in host memory, when it is staged.
    staged: Option<&'a [NonNull<u8>]>,
}

impl<'a> Running<'a> {
    pub fn new(cpu: &'a Cpu, staged: Option<&'a [NonNull<u8>]>) -> Running<'a> {
        Running { cpu, staged }
    }

    fn address<T>(&self, access: usize, ptr: NonNull<T>) -> NonNull<T> {
        self.staged.map_or(ptr, |staged| staged[access].cast())
    }
}

impl Deref for Running<'_> {
    type Target = Cpu;
    fn deref(&self) -> &Cpu {
        self.cpu
    }
}

/// What a kernel returns: nothing, or whether it succeeded.
pub(crate) trait Outcome {
    fn result(self) -> Result<()>;
}

impl Outcome for () {
    fn result(self) -> Result<()> {
        Ok(())
    }
}

impl Outcome for Result<()> {
    fn result(self) -> Result<()> {
        self
    }
}

/// A launch that is being put together. It ends with [`Launch::run`].
pub(crate) struct Launch<'d> {
    device: &'d Device,
    pub(crate) name: &'static str,
    /// Floating-point operations and bytes; `None` for what no profile shows.
    pub(crate) cost: Option<(u64, u64)>,
    n_accesses: usize,
    target: Target<'d>,
    scratch: Option<Buffer>,
}

/// Who runs a launch, with what was declared where that must be known.
enum Target<'d> {
    /// The calling thread.
    Now,
    Strict(&'d Arc<Queue>, Vec<Access>),
    Cuda(CudaTarget<'d>),
}

struct CudaTarget<'d> {
    gpu: &'d Arc<Gpu>,
    accesses: Vec<cuda::Access>,
    /// Whether the op's own form was launched.
    launched: bool,
}

impl<'d> Launch<'d> {
    pub(crate) fn new(device: &'d Device, name: &'static str, cost: Option<(u64, u64)>) -> Launch<'d> {
        let target = match (device.queue(), device.gpu()) {
            (Some(queue), _) => Target::Strict(queue, Vec::new()),
            (_, Some(gpu)) => Target::Cuda(CudaTarget { gpu, accesses: Vec::new(), launched: false }),
            (None, None) => Target::Now,
        };
        Launch { device, name, cost, n_accesses: 0, target, scratch: None }
    }

    fn declare<T>(&mut self, span: Span<'_>, mode: Mode) -> Result<(NonNull<T>, usize, usize)> {
        let access = self.n_accesses;
        self.n_accesses += 1;
        let len = span.bytes / size_of::<T>();
        let Some(ptr) = span.ptr else {
            // A dry device runs no kernel; a real one has memory behind each span.
            return if self.device.is_dry() {
                Ok((NonNull::dangling(), len, access))
            } else {
                Err(Error::Dry)
            };
        };
        debug_assert!(ptr.cast::<T>().is_aligned() && span.bytes.is_multiple_of(size_of::<T>()));
        let elsewhere = || Error::Usage(format!("{}: its memory is in use on another device", self.name));
        match &mut self.target {
            // What the host sees may have been given to another device before.
            Target::Now => match span.owner {
                Owner::Pool | Owner::Host(_) => {}
                Owner::Pinned(block) => block.settle(mode)?,
                Owner::Strict(_) | Owner::Cuda(_) => return Err(elsewhere()),
            },
            Target::Strict(queue, accesses) => {
                let guard = match span.owner {
                    Owner::Pool => None,
                    Owner::Strict(guard) => Some(guard),
                    Owner::Cuda(_) | Owner::Pinned(_) => return Err(elsewhere()),
                    Owner::Host(host) => {
                        match host.order.get_or_init(|| HostOrder::Strict(Arc::new(Guard::of_host(queue)))) {
                            HostOrder::Strict(guard) => Some(guard),
                            HostOrder::Cuda(_) => return Err(elsewhere()),
                        }
                    }
                };
                if guard.is_some_and(|guard| !guard.is_of(queue)) {
                    return Err(elsewhere());
                }
                accesses.push(Access { guard: guard.cloned(), ptr, bytes: span.bytes, mode });
            }
            Target::Cuda(target) => target.accesses.push(target.gpu.access(self.name, &span, mode)?),
        }
        Ok((ptr.cast(), len, access))
    }

    fn view<T>(&mut self, span: Span<'_>) -> Result<View<T>> {
        let (ptr, len, access) = self.declare(span, Mode::Read)?;
        Ok(View { ptr, len, access, known: None })
    }

    fn view_mut<T>(&mut self, span: Span<'_>, mode: Mode) -> Result<ViewMut<T>> {
        let (ptr, len, access) = self.declare(span, mode)?;
        Ok(ViewMut { ptr, len, access, elements: PhantomData })
    }

    /// Reads a tensor's elements.
    pub fn read<T: Element>(&mut self, tensor: &Tensor) -> Result<View<T>> {
        tensor.check_elements::<T>(self.name)?;
        Ok(View { known: tensor.known(), ..self.view(tensor.span())? })
    }

    /// Reads a tensor's elements as words of their size, to move them.
    pub fn read_words<W: Pod>(&mut self, tensor: &Tensor) -> Result<View<W>> {
        self.view(tensor.span())
    }

    /// Reads the elements `range` of a tensor.
    pub fn read_at<T: Element>(&mut self, tensor: &Tensor, range: &Range<usize>) -> Result<View<T>> {
        tensor.check_elements::<T>(self.name)?;
        self.view(tensor.span().elements::<T>(range)?)
    }

    /// Overwrites all elements of a tensor.
    pub fn write<T: Element>(&mut self, tensor: &mut Tensor) -> Result<ViewMut<T>> {
        tensor.check_elements::<T>(self.name)?;
        self.view_mut(tensor.span_mut()?, Mode::Write)
    }

    /// Overwrites the elements `range` of a tensor.
    pub fn write_at<T: Element>(&mut self, tensor: &mut Tensor, range: &Range<usize>) -> Result<ViewMut<T>> {
        tensor.check_elements::<T>(self.name)?;
        self.view_mut(tensor.span_mut()?.elements::<T>(range)?, Mode::Write)
    }

    /// Reads and writes the elements `range` of a tensor.
    pub fn update_at<T: Element>(&mut self, tensor: &mut Tensor, range: &Range<usize>) -> Result<ViewMut<T>> {
        tensor.check_elements::<T>(self.name)?;
        self.view_mut(tensor.span_mut()?.elements::<T>(range)?, Mode::Update)
    }

    /// Reads and writes elements of a tensor, or writes some of them.
    pub fn update<T: Element>(&mut self, tensor: &mut Tensor) -> Result<ViewMut<T>> {
        tensor.check_elements::<T>(self.name)?;
        self.view_mut(tensor.span_mut()?, Mode::Update)
    }

    /// Adds to the elements of a tensor, or overwrites them.
    pub fn store<T: Element>(&mut self, tensor: &mut Tensor, store: Store) -> Result<ViewMut<T>> {
        match store {
            Store::Add => self.update(tensor),
            Store::Overwrite => self.write(tensor),
        }
    }

    /// Overwrites all elements of a tensor with words of their size.
    pub fn write_words<W: Pod>(&mut self, tensor: &mut Tensor) -> Result<ViewMut<W>> {
        self.view_mut(tensor.span_mut()?, Mode::Write)
    }

    /// Overwrites the words `range` of a tensor.
    pub fn write_words_at<W: Pod>(
        &mut self,
        tensor: &mut Tensor,
        range: &Range<usize>,
    ) -> Result<ViewMut<W>> {
        self.view_mut(tensor.span_mut()?.elements::<W>(range)?, Mode::Write)
    }

    /// Overwrites words of a tensor here and there.
    pub fn update_words<W: Pod>(&mut self, tensor: &mut Tensor) -> Result<ViewMut<W>> {
        self.view_mut(tensor.span_mut()?, Mode::Update)
    }

    /// Writes the gradient of a parameter, as its [`GradSlot::store`] says.
    pub fn grad(&mut self, slot: &'d mut GradSlot) -> Result<ViewMut<f32>> {
        let store = slot.store;
        self.grad_as(slot, store)
    }

    /// Writes the gradient of a parameter.
    pub fn grad_as(&mut self, slot: &'d mut GradSlot, store: Store) -> Result<ViewMut<f32>> {
        let mode = match store {
            Store::Add => Mode::Update,
            Store::Overwrite => Mode::Write,
        };
        self.view_mut(slot.span()?, mode)
    }

    /// Reads elements of a flat buffer, which stays lent until the launch was handed over.
    pub fn read_flat<T: Pod>(&mut self, lease: &'d Lease, range: &Range<usize>) -> Result<View<T>> {
        self.view(lease.span().elements::<T>(range)?)
    }

    /// Writes elements of a flat buffer, as [`Launch::read_flat`] reads them.
    pub fn write_flat<T: Pod>(
        &mut self,
        lease: &'d mut WriteLease,
        range: &Range<usize>,
        mode: Mode,
    ) -> Result<ViewMut<T>> {
        self.view_mut(lease.span().elements::<T>(range)?, mode)
    }

    /// Elements of a flat buffer, for the op's own form on a GPU alone: several may be parts of one lease, since none becomes a
    /// slice.
    pub fn stretch<T: Pod>(
        &mut self,
        lease: &'d WriteLease,
        range: &Range<usize>,
        mode: Mode,
    ) -> Result<Stretch> {
        let (_, _, access) = self.declare::<T>(lease.span().elements::<T>(range)?, mode)?;
        Ok(Stretch { access })
    }

    /// Memory of arbitrary content for the kernel, given back when it has run.
    pub fn scratch<T: Pod>(&mut self, len: usize) -> Result<ViewMut<T>> {
        let bytes = len * size_of::<T>();
        let for_gpu = match &mut self.target {
            Target::Cuda(target) => {
                // The op's own form takes other memory; only a staged kernel needs this.
                target.accesses.push(target.gpu.scratch(bytes));
                true
            }
            // Nothing runs on a device that counts for a GPU.
            _ => self.device.is_dry() && self.device.is_gpu(),
        };
        if for_gpu {
            let access = self.n_accesses;
            self.n_accesses += 1;
            return Ok(ViewMut { ptr: NonNull::dangling(), len, access, elements: PhantomData });
        }
        let mut buffer = self.device.arena().allocate(bytes, "scratch")?;
        let view = self.buffer(&mut buffer, bytes);
        self.scratch = Some(buffer);
        view
    }

    /// Has a device that counts for a GPU count what the op's own form there takes by [`Kernels::temporary`].
    pub fn counts_temporary(&mut self, bytes: usize) -> Result<()> {
        if self.device.is_dry() && self.device.is_gpu() {
            self.scratch = Some(self.device.arena().allocate(bytes, "scratch")?);
        }
        Ok(())
    }

    /// The first bytes of a buffer that the caller keeps, for the same.
    pub fn buffer<T: Pod>(&mut self, buffer: &mut Buffer, bytes: usize) -> Result<ViewMut<T>> {
        self.view_mut(buffer.span().part(0..bytes)?, Mode::Write)
    }

    /// The op's own form on a GPU, before [`Launch::run`], which then has nothing left to do. Other devices do not look
    /// at it.
    ///
    /// # Errors
    /// What the GPU met until now.
    pub fn cuda(&mut self, form: impl FnOnce(&Kernels<'_>) -> Form) -> Result<()> {
        if let Target::Cuda(target) = &mut self.target {
            target.launched =
                target.gpu.run_form((self.name, self.cost), self.device.arena(), &target.accesses, form)?;
        }
        Ok(())
    }

    /// Hands the launch to its device: `kernel` is what to do on a CPU, or on a device that has no form of its own for
    /// the op, which then stages it.
    ///
    /// # Errors
    /// What the kernel reports, where it runs at once.
    pub fn run<R: Outcome>(self, kernel: impl FnOnce(&Running<'_>) -> R + Send + 'static) -> Result<()> {
        let kernel = |running: &Running<'_>| kernel(running).result();
        if let Target::Strict(queue, accesses) = self.target {
            return queue.defer(self.name, self.cost, accesses, Box::new(kernel));
        }
        let mut kernel = Some(kernel);
        self.run_now(&mut |running| kernel.take().map_or(Ok(()), |kernel| kernel(running)))
    }

    /// Runs a kernel in this thread. What is booked is not generic, so that it is compiled once and not for each kernel.
    fn run_now(self, kernel: &mut dyn FnMut(&Running<'_>) -> Result<()>) -> Result<()> {
        let device = self.device;
        if let Target::Cuda(target) = &self.target {
            return match target.launched {
                true => Ok(()),
                false => target.gpu.stage((self.name, self.cost), &target.accesses, kernel),
            };
        }
        device.book(self.name, self.cost, || match device.is_dry() {
            true => Ok(()),
            false => kernel(&Running::new(device.host(), None)),
        })
    }
}
