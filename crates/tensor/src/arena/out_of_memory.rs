//! The error that there is no memory: on a GPU with what the pool has of it.

use oarlock_kernels::Error;

use super::MemoryStats;

/// Memory of a GPU that could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOutOfMemory {
    /// The bytes asked for.
    pub bytes: usize,
    /// What they were for.
    pub what: &'static str,
    /// What the pool has.
    pub held: MemoryStats,
    /// The free bytes of the GPU and all of them, where the driver says so.
    pub memory: Option<(usize, usize)>,
}

impl std::fmt::Display for GpuOutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let GpuOutOfMemory { bytes, what, held: MemoryStats { reserved, allocated, .. }, memory } = self;
        write!(f, "cannot allocate {bytes} bytes of the GPU for {what}")?;
        if let Some((free, total)) = memory {
            write!(f, ": {free} of its {total} bytes are free")?;
        }
        write!(
            f,
            "; the pool of this process has reserved {reserved} bytes, of which {allocated} are allocated. Use less memory: \
             a smaller batch, more sharding, or a GPU that no other process uses"
        )
    }
}

impl std::error::Error for GpuOutOfMemory {}

/// Whether an error says that the system or a GPU has no memory, so that less of it might do.
pub fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { .. } => true,
        Error::Gpu(error) => match error.downcast_ref::<oarlock_cuda::Error>() {
            Some(oarlock_cuda::Error::Driver(error)) => error.is_out_of_memory(),
            _ => error.is::<GpuOutOfMemory>(),
        },
        _ => false,
    }
}
