//! The memory of a region that the other ranks of this machine reach: an anonymous file that each of them maps.

use std::os::fd::{AsRawFd, OwnedFd};

use bytemuck::{Pod, Zeroable};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, Result};
use crate::procfs::stat;
use crate::region::Memory;

/// A buffer of this rank or of another of its machine, mapped.
pub(super) struct SharedBuffer {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is reached only through its pointer.
unsafe impl Send for SharedBuffer {}
// SAFETY: as above; a shared reference gives out nothing but the address.
unsafe impl Sync for SharedBuffer {}

/// What a rank tells the others of its machine about its buffer.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Offer {
    pid: u32,
    /// The descriptor in that process; negative where it has none.
    descriptor: i32,
    /// When the process began.
    start: u64,
    /// Which file it is.
    inode: u64,
}

impl Offer {
    /// Of a rank that shares nothing.
    pub(super) fn none() -> Offer {
        Offer { descriptor: -1, ..Offer::zeroed() }
    }
}

impl SharedBuffer {
    /// A fresh buffer of zeros, the file that others open while it is kept, and what they need for it.
    pub(super) fn create(bytes: usize) -> Result<(SharedBuffer, OwnedFd, Offer)> {
        let failed = |e| Error::system("create anonymous shared memory", e);
        let file = rustix::fs::memfd_create("oarlock", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = file.map_err(failed)?;
        // Beyond this limit the kernel sends a signal that ends the process.
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        if bytes as u64 > limit {
            return Err(Error::system(
                "create anonymous shared memory",
                format!("files have at most {limit} bytes"),
            ));
        }
        rustix::fs::ftruncate(&file, bytes.max(1) as u64).map_err(failed)?;
        // With a sealed size no access inside a mapping can fault beyond the end of the file.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
        let pid = std::process::id();
        let start = stat(pid).map_or(0, |(_, start)| start);
        let inode = rustix::fs::fstat(&file).map_err(failed)?.st_ino;
        let offer = Offer { pid, descriptor: file.as_raw_fd(), start, inode };
        Ok((SharedBuffer::map(&file, bytes)?, file, offer))
    }

    /// The buffer that another rank of this machine offers.
    pub(super) fn open(offer: &Offer, bytes: usize) -> Result<SharedBuffer> {
        let failed = |cause: &dyn std::fmt::Display| {
            Error::system(format!("open the memory of process {}", offer.pid), cause)
        };
        if offer.descriptor < 0 {
            return Err(failed(&"it shares none"));
        }
        let path = format!("/proc/{}/fd/{}", offer.pid, offer.descriptor);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| failed(&e))?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| failed(&"it is not anonymous memory"))?;
        let found = rustix::fs::fstat(&file).map_err(|e| failed(&e))?;
        let is_its = stat(offer.pid).is_ok_and(|(_, start)| start == offer.start);
        let is_said = found.st_ino == offer.inode && found.st_size as u64 == bytes.max(1) as u64;
        if !seals.contains(SealFlags::SHRINK) || !is_said || !is_its {
            return Err(failed(&"it is another file than was said"));
        }
        SharedBuffer::map(&file, bytes)
    }

    fn map(file: &OwnedFd, bytes: usize) -> Result<SharedBuffer> {
        let bytes = bytes.max(1);
        // SAFETY: a mapping at an address of the kernel's choice, of a file of at least this size, which is sealed.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)
        };
        let base = base.map_err(|e| Error::system(format!("map {bytes} bytes of shared memory"), e))?;
        Ok(SharedBuffer { base: base.cast(), bytes })
    }
}

// SAFETY: mappings are page aligned and live until drop.
unsafe impl Memory for SharedBuffer {
    fn as_ptr(&self) -> *mut u8 {
        self.base
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this size, unmapped once. A failure would leave the mapping, which harms nobody.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_mappings_are_one_memory_and_nothing_else_is_opened() {
        let (mine, file, offer) = SharedBuffer::create(5000).unwrap();
        let other = SharedBuffer::open(&offer, 5000).unwrap();
        // SAFETY: inside both mappings, and this thread alone uses them.
        unsafe {
            assert_eq!(mine.as_ptr().add(4999).read(), 0);
            mine.as_ptr().add(4999).write(7);
            assert_eq!(other.as_ptr().add(4999).read(), 7);
        }
        assert!(SharedBuffer::open(&offer, 5001).is_err(), "another size");
        assert!(
            SharedBuffer::open(&Offer { start: offer.start + 1, ..offer }, 5000).is_err(),
            "another process"
        );
        assert!(SharedBuffer::open(&Offer::none(), 5000).is_err());
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(5000).unwrap();
        assert!(
            SharedBuffer::open(&Offer { descriptor: plain.as_raw_fd(), ..offer }, 5000).is_err(),
            "a file"
        );
        // The number of the descriptor means another file of the same size.
        drop(file);
        assert!(SharedBuffer::open(&offer, 5000).is_err(), "closed");
        let others: Vec<_> = (0..64).map(|_| SharedBuffer::create(5000).unwrap()).collect();
        assert!(SharedBuffer::open(&offer, 5000).is_err(), "another file");
        drop(others);
    }
}
