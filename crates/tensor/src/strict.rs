//! The strict device for tests: launches that run as late as their dependencies allow, in an order that nobody expects,
//! and memory that the host cannot touch but in kernels and copies.
//!
//! A launch waits in a [`Queue`] until somebody needs what it writes: a copy to the host, a collective, the end of its
//! memory. Dependencies are found where memory is used: each block has a [`Guard`], which knows the launches that read and
//! wrote it last, also while the block is free or has a new owner. Blocks lie in mappings of their own, which are open to
//! a launch only for what it declared.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use oarlock_kernels::{Cpu, Error, Result};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::arena::ALIGN;
use crate::launch::{Mode, Running};
use crate::lines::Lines;
use crate::profile::Profile;

#[cfg(test)]
mod tests;

/// What a launch does on a CPU.
type Kernel = Box<dyn FnOnce(&Running<'_>) -> Result<()> + Send>;

/// A stretch of memory that a launch declared.
pub(crate) struct Access {
    /// `None` for memory of another device that the host owns.
    pub guard: Option<Arc<Guard>>,
    pub ptr: NonNull<u8>,
    pub bytes: usize,
    pub mode: Mode,
}

// SAFETY: an access is an address and what keeps it in order; its memory is reached by the queue, under its lock.
unsafe impl Send for Access {}

impl Access {
    fn range(&self) -> Range<usize> {
        let start = self.ptr.addr().get();
        start..start + self.bytes
    }

    fn conflicts(&self, range: &Range<usize>, writes: bool) -> bool {
        (writes || self.mode != Mode::Read) && overlap(&self.range(), range)
    }
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// What must have happened to a block of memory before it is used again.
pub(crate) struct Guard {
    queue: Arc<Queue>,
    /// Whether only declared accesses may touch it.
    protected: bool,
    /// Reached only under the queue's lock.
    stamps: Mutex<Vec<Stamp>>,
}

/// A launch that will use a stretch of memory.
struct Stamp {
    launch: u64,
    range: Range<usize>,
    writes: bool,
}

impl Guard {
    /// For memory that the host may touch at any time.
    pub fn of_host(queue: &Arc<Queue>) -> Guard {
        Guard { queue: queue.clone(), protected: false, stamps: Mutex::default() }
    }

    fn of_block(queue: &Arc<Queue>) -> Guard {
        Guard { queue: queue.clone(), protected: true, stamps: Mutex::default() }
    }

    pub fn is_of(&self, queue: &Arc<Queue>) -> bool {
        Arc::ptr_eq(&self.queue, queue)
    }

    fn stamps(&self) -> MutexGuard<'_, Vec<Stamp>> {
        self.stamps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launches that a use of `range` must wait for.
    fn before(&self, range: &Range<usize>, writes: bool) -> Vec<u64> {
        let conflicts = |stamp: &&Stamp| (writes || stamp.writes) && overlap(&stamp.range, range);
        self.stamps().iter().filter(conflicts).map(|stamp| stamp.launch).collect()
    }

    /// Runs every launch that uses this memory.
    ///
    /// # Errors
    /// That of the first launch that failed since somebody asked.
    pub fn settle(&self) -> Result<()> {
        let mut state = self.queue.state();
        self.settle_in(&mut state);
        state.failed.take().map_or(Ok(()), Err)
    }

    /// As [`Guard::settle`] at the end of the memory: what fails is told to whoever copies next.
    pub fn finish(&self) {
        self.settle_in(&mut self.queue.state());
    }

    fn settle_in(&self, state: &mut State) {
        let before = self.before(&(0..usize::MAX), true);
        self.queue.run_all(state, before);
    }

    /// Runs what a copy between the host and this memory must wait for, then the copy.
    pub fn copy<R>(&self, ptr: NonNull<u8>, bytes: usize, mode: Mode, copy: impl FnOnce() -> R) -> Result<R> {
        let mut state = self.queue.state();
        let range = ptr.addr().get()..ptr.addr().get() + bytes;
        let before = self.before(&range, mode != Mode::Read);
        self.queue.run_all(&mut state, before);
        if let Some(error) = state.failed.take() {
            return Err(error);
        }
        self.protect(&range, Some(mode));
        let result = copy();
        self.protect(&range, None);
        Ok(result)
    }

    /// Opens or closes the pages of a range.
    fn protect(&self, range: &Range<usize>, open: Option<Mode>) {
        if !self.protected || range.is_empty() {
            return;
        }
        let flags = match open {
            None => MprotectFlags::empty(),
            Some(Mode::Read) => MprotectFlags::READ,
            Some(Mode::Write | Mode::Update) => MprotectFlags::READ | MprotectFlags::WRITE,
        };
        let page = rustix::param::page_size();
        let (start, end) = (range.start / page * page, range.end.next_multiple_of(page));
        // SAFETY: whole pages of a block's own mapping. Rust references into them exist only while they are open.
        let result = unsafe { rustix::mm::mprotect(start as *mut _, end - start, flags) };
        assert!(result.is_ok(), "mprotect of a block: {result:?}");
    }
}

/// A block whose pages only declared accesses may touch. It ends at the end of a page, before a page that nobody may
/// touch, so that a kernel that runs beyond it is caught, too.
pub(crate) struct ProtectedBlock {
    base: *mut u8,
    mapped: usize,
    ptr: NonNull<u8>,
    pub guard: Arc<Guard>,
}

impl ProtectedBlock {
    /// `bytes` is a multiple of [`ALIGN`].
    pub fn new(bytes: usize, queue: &Arc<Queue>) -> Option<ProtectedBlock> {
        let page = rustix::param::page_size();
        let mapped = bytes.checked_next_multiple_of(page)?.checked_add(page)?;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, ProtFlags::empty(), MapFlags::PRIVATE)
        };
        let base = base.ok()?.cast::<u8>();
        // SAFETY: inside the mapping.
        let ptr = NonNull::new(unsafe { base.add(mapped - page - bytes) })?;
        debug_assert!(ptr.addr().get().is_multiple_of(ALIGN));
        Some(ProtectedBlock { base, mapped, ptr, guard: Arc::new(Guard::of_block(queue)) })
    }

    pub fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }
}

impl Drop for ProtectedBlock {
    fn drop(&mut self) {
        self.guard.finish();
        // SAFETY: mapped in `new` with this size, unmapped once, after the last launch that uses it.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.mapped) };
    }
}

/// The launches of a strict device that have not run yet.
pub(crate) struct Queue {
    cpu: Cpu,
    /// Whether no op has a form for this device, so that each is staged.
    stages: bool,
    profile: Arc<Profile>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    n_launches: u64,
    pending: BTreeMap<u64, Pending>,
    failed: Option<Error>,
}

struct Pending {
    name: &'static str,
    cost: Option<(u64, u64)>,
    accesses: Vec<Access>,
    /// The launches that must run first.
    after: Vec<u64>,
    kernel: Kernel,
}

impl Queue {
    pub fn new(cpu: Cpu, stages: bool, profile: Arc<Profile>) -> Queue {
        Queue { cpu, stages, profile, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A kernel that panics has left the queue already.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a launch to run later.
    pub fn defer(
        self: &Arc<Self>,
        name: &'static str,
        cost: Option<(u64, u64)>,
        accesses: Vec<Access>,
        kernel: Kernel,
    ) -> Result<()> {
        for (index, access) in accesses.iter().enumerate() {
            let twice = |other: &Access| other.conflicts(&access.range(), access.mode != Mode::Read);
            if accesses[..index].iter().any(twice) {
                return Err(Error::Usage(format!(
                    "{name}: it writes memory that it also declares otherwise"
                )));
            }
        }
        let mut state = self.state();
        let launch = state.n_launches;
        state.n_launches += 1;
        let mut after = Vec::new();
        for access in &accesses {
            let Some(guard) = &access.guard else { continue };
            guard.stamps().retain(|stamp| state.pending.contains_key(&stamp.launch));
            after.extend(guard.before(&access.range(), access.mode != Mode::Read));
        }
        for access in &accesses {
            if let Some(guard) = &access.guard {
                let stamp = Stamp { launch, range: access.range(), writes: access.mode != Mode::Read };
                guard.stamps().push(stamp);
            }
        }
        state.pending.insert(launch, Pending { name, cost, accesses, after, kernel });
        Ok(())
    }

    /// Runs all launches.
    ///
    /// # Errors
    /// That of the first launch that failed since somebody asked.
    pub fn drain(&self) -> Result<()> {
        let mut state = self.state();
        let all = state.pending.keys().copied().collect();
        self.run_all(&mut state, all);
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Runs these launches and what they need, the latest first.
    fn run_all(&self, state: &mut State, launches: Vec<u64>) {
        let mut stack = launches;
        stack.sort_unstable();
        while let Some(&launch) = stack.last() {
            let after = match state.pending.get_mut(&launch) {
                Some(pending) => std::mem::take(&mut pending.after),
                None => Vec::new(),
            };
            // Those that have run are found missing when their turn comes.
            if after.is_empty() {
                stack.pop();
                if let Some(pending) = state.pending.remove(&launch) {
                    self.run(state, pending);
                }
            }
            stack.extend(after);
        }
    }

    fn run(&self, state: &mut State, pending: Pending) {
        let Pending { name, cost, accesses, kernel, .. } = pending;
        let run = || self.open(&accesses, |staged| kernel(&Running::new(&self.cpu, staged)));
        let result = match cost {
            Some((flops, bytes)) => self.profile.time_as((name, self.stages), flops, bytes, run),
            None => run(),
        };
        if let Err(cause) = result {
            state.failed.get_or_insert(Error::Launch { op: name, cause: Box::new(cause) });
        }
    }

    /// Runs a kernel while what it declared is open: where it lies, or copied to the host and back.
    fn open<R>(&self, accesses: &[Access], kernel: impl FnOnce(Option<&[NonNull<u8>]>) -> R) -> R {
        if !self.stages {
            protect(accesses, true);
            let result = kernel(None);
            protect(accesses, false);
            return result;
        }
        let mut copies: Vec<Lines> = accesses.iter().map(Access::staged).collect();
        let places: Vec<_> = copies.iter_mut().map(Lines::first_byte).collect();
        let result = kernel(Some(&places));
        for (access, copy) in accesses.iter().zip(&copies) {
            access.copy_back(copy);
        }
        result
    }
}

/// Opens what a launch declared, writes last, since a page may hold something that is read as well.
fn protect(accesses: &[Access], open: bool) {
    for writes in [false, true] {
        for access in accesses.iter().filter(|access| (access.mode != Mode::Read) == writes) {
            if let Some(guard) = &access.guard {
                guard.protect(&access.range(), open.then_some(access.mode));
            }
        }
    }
}

impl Access {
    /// The memory as a staged kernel finds it.
    fn staged(&self) -> Lines {
        // What is to be overwritten holds nothing that anybody would take for a result.
        let mut copy = Lines::filled(self.bytes, 0xa5);
        if self.mode != Mode::Write {
            let to = copy.first_byte().as_ptr();
            // SAFETY: the access is `bytes` initialized bytes, open now; the copy has as many of its own.
            self.opened(|| unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr(), to, self.bytes) });
        }
        copy
    }

    /// Takes over what a staged kernel has written.
    fn copy_back(&self, copy: &Lines) {
        if self.mode != Mode::Read {
            let from = copy.bytes(self.bytes).as_ptr();
            // SAFETY: as in `staged`, the other way.
            self.opened(|| unsafe { std::ptr::copy_nonoverlapping(from, self.ptr.as_ptr(), self.bytes) });
        }
    }

    fn opened(&self, copy: impl FnOnce()) {
        let protect = |open| self.guard.iter().for_each(|guard| guard.protect(&self.range(), open));
        protect(Some(self.mode));
        copy();
        protect(None);
    }
}
