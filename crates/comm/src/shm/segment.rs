//! The memory that the ranks of a machine share: one anonymous sparse file with a control part and an area for each rank.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::failure::FailureCell;
use super::layout::{CHANNELS, CHUNK, MAX_RANKS, RankCell, Slot};
use crate::cores::available_cores;
use crate::error::{Error, Result};

pub(super) const PAGE: usize = 4096;
/// The area of a rank: address space, not memory. Halved until the system accepts it.
const LARGEST_AREA: u64 = 1 << 40;
const SMALLEST_AREA: u64 = 1 << 30;
pub(super) const FORMAT: u64 = 1;

/// The head of the segment.
#[repr(C)]
pub(super) struct Header {
    token: [AtomicU64; 2],
    format: AtomicU64,
    world_size: AtomicU64,
    area: AtomicU64,
    /// How often a waiting rank polls before it sleeps: never where ranks outnumber cores.
    pub(super) spins: AtomicU64,
    pub(super) failure: FailureCell,
}

/// The random secret of a run: a process that knows it was started by the run's launcher.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Token(pub(super) u128);

/// A mapped control part, and the file behind it.
pub(super) struct Segment {
    file: OwnedFd,
    base: NonNull<u8>,
    world_size: usize,
    area: u64,
}

// SAFETY: the control part is reached through atomics and through payload bytes that the protocol hands from one rank to
// the next; the mapping lives as long as the value.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

fn cells_at() -> usize {
    size_of::<Header>().next_multiple_of(PAGE)
}

fn slots_at(world_size: usize) -> usize {
    (cells_at() + world_size * size_of::<RankCell>()).next_multiple_of(PAGE)
}

fn payloads_at(world_size: usize) -> usize {
    (slots_at(world_size) + CHANNELS * world_size * size_of::<Slot>()).next_multiple_of(PAGE)
}

fn control_bytes(world_size: usize) -> usize {
    payloads_at(world_size) + CHANNELS * world_size * 2 * CHUNK
}

impl Segment {
    /// A fresh segment, of which no file name exists anywhere.
    pub(super) fn create(world_size: usize) -> Result<(Segment, Token)> {
        if !(1..=MAX_RANKS).contains(&world_size) {
            return Err(Error::Argument {
                operation: "shared memory",
                expected: format!("1 to {MAX_RANKS} ranks on one machine"),
                got: world_size.to_string(),
            });
        }
        let file = rustix::fs::memfd_create("oarlock", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| Error::system("create anonymous shared memory", e))?;
        let area = reserve(&file, control_bytes(world_size) as u64, world_size as u64)?;
        // With a sealed size no access inside a mapping can fault beyond the end of the file.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| Error::system("seal the size of the shared memory", e))?;
        let mut random = [0u64; 2];
        rustix::rand::getrandom(bytemuck::bytes_of_mut(&mut random), rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::system("draw a random token", e))?;
        let segment = Segment::map(file, world_size, area)?;
        let header = segment.header();
        header.world_size.store(world_size as u64, Ordering::Relaxed);
        header.area.store(area, Ordering::Relaxed);
        header.format.store(FORMAT, Ordering::Relaxed);
        // Also below a quota of processor time, of which the list of cores knows nothing.
        let quota = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = if world_size <= quota.min(available_cores().len()) { 3000 } else { 0 };
        header.spins.store(spins, Ordering::Relaxed);
        header.token[0].store(random[0], Ordering::Relaxed);
        header.token[1].store(random[1], Ordering::Release);
        Ok((segment, Token((random[0] as u128) << 64 | random[1] as u128)))
    }

    /// Opens the segment behind an inherited file after checking that it is this run's.
    pub(super) fn open(file: OwnedFd, world_size: usize, token: Token) -> Result<Segment> {
        let stranger =
            |what: &str| Error::Join(format!("the inherited file is not this run's shared memory: {what}"));
        if !(1..=MAX_RANKS).contains(&world_size) {
            return Err(stranger("impossible number of ranks"));
        }
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| stranger("it is not anonymous memory"))?;
        let size = rustix::fs::fstat(&file)
            .map_err(|e| Error::system("look at the shared memory", e))?
            .st_size as u64;
        let control = control_bytes(world_size) as u64;
        if !seals.contains(SealFlags::SHRINK) || size < control {
            return Err(stranger("wrong size"));
        }
        let mut segment = Segment::map(file, world_size, 0)?;
        let header = segment.header();
        let low = header.token[1].load(Ordering::Acquire);
        if token != Token((header.token[0].load(Ordering::Relaxed) as u128) << 64 | low as u128) {
            return Err(stranger("wrong token"));
        }
        if header.format.load(Ordering::Relaxed) != FORMAT {
            return Err(stranger("launcher and rank are different versions of this program"));
        }
        let area = header.area.load(Ordering::Relaxed);
        let whole = area.checked_mul(world_size as u64).and_then(|areas| areas.checked_add(control));
        if header.world_size.load(Ordering::Relaxed) != world_size as u64 || whole != Some(size) {
            return Err(stranger("wrong number of ranks"));
        }
        segment.area = area;
        Ok(segment)
    }

    fn map(file: OwnedFd, world_size: usize, area: u64) -> Result<Segment> {
        let base = map_file(file.as_fd(), 0, control_bytes(world_size))?;
        Ok(Segment { file, base, world_size, area })
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where the area of a rank begins in the file, and its bytes.
    pub(super) fn area(&self, rank: usize) -> (u64, u64) {
        (control_bytes(self.world_size) as u64 + rank as u64 * self.area, self.area)
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the control part begins with it; it is atomics only, for which any bytes are valid.
        unsafe { self.base.cast().as_ref() }
    }

    pub(super) fn cell(&self, rank: usize) -> &RankCell {
        assert!(rank < self.world_size);
        // SAFETY: inside the control part (asserted), page aligned base and a multiple of the size; atomics only.
        unsafe { self.base.add(cells_at()).cast::<RankCell>().add(rank).as_ref() }
    }

    pub(super) fn slot(&self, channel: usize, rank: usize) -> &Slot {
        assert!(channel < CHANNELS && rank < self.world_size);
        let index = channel * self.world_size + rank;
        // SAFETY: inside the control part (asserted), page aligned base and a multiple of the size; atomics only.
        unsafe { self.base.add(slots_at(self.world_size)).cast::<Slot>().add(index).as_ref() }
    }

    /// The [`CHUNK`] bytes that `rank` hands over in rounds of this parity.
    pub(super) fn payload(&self, channel: usize, rank: usize, parity: usize) -> NonNull<u8> {
        assert!(channel < CHANNELS && rank < self.world_size && parity < 2);
        let index = (channel * self.world_size + rank) * 2 + parity;
        // SAFETY: inside the control part (asserted).
        unsafe { self.base.add(payloads_at(self.world_size) + index * CHUNK) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size; nothing borrowed from it outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), control_bytes(self.world_size)) };
    }
}

/// Sets the size of the file: the control part and as large an area a rank as the system accepts.
fn reserve(file: &OwnedFd, control: u64, ranks: u64) -> Result<u64> {
    // Beyond this limit the kernel sends a signal that ends the process.
    let limit =
        rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(i64::MAX as u64);
    let mut area = LARGEST_AREA;
    loop {
        let size = control + ranks * area;
        let refused = match size <= limit {
            true => match rustix::fs::ftruncate(file, size) {
                Ok(()) => return Ok(area),
                Err(e) => e.to_string(),
            },
            false => format!("the limit for file sizes is {limit} (ulimit -f)"),
        };
        if area == SMALLEST_AREA {
            return Err(Error::system(format!("reserve {size} bytes of address space"), refused));
        }
        area /= 2;
    }
}

pub(super) fn map_file(file: BorrowedFd, offset: u64, length: usize) -> Result<NonNull<u8>> {
    // SAFETY: a mapping at an address of the kernel's choice, of a file whose size is sealed.
    let base = unsafe {
        rustix::mm::mmap(
            null_mut(),
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            offset,
        )
    };
    base.ok()
        .and_then(|base| NonNull::new(base.cast()))
        .ok_or_else(|| Error::system(format!("map {length} bytes of shared memory"), "no address space"))
}
