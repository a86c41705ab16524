//! Tensors, fused ops and a tape for training language models.
//!
//! This crate knows no rank, no file and no configuration.
//!
//! A [`Tensor`] is dense and lives on a [`Device`]; its memory comes from the device's [`Arena`]. A model holds
//! [`Param`]s, handles whose memory belongs to a [`ParamHome`]. Ops ([`ops`]) on tensors that are on a [`Tape`] are
//! recorded; [`Tape::backward`] runs them in reverse and writes weight gradients straight into their homes.

mod active;
mod arena;
mod cuda;
mod device;
mod dims;
mod flat;
mod grad;
mod init;
mod ints;
mod launch;
mod lines;
mod neighbors;
mod offloaded;
pub mod ops;
mod param;
mod print;
mod profile;
mod rope_table;
mod shape;
mod strict;
mod tape;
mod tensor;

/// What cuBLASLt works in on a GPU.
pub use oarlock_cuda::blas::WORKSPACE_BYTES as GPU_WORKSPACE_BYTES;
/// Where the libraries of CUDA are.
pub use oarlock_cuda::driver::Counts as GpuCounts;
pub use oarlock_cuda::libraries::Libraries as CudaLibraries;
/// What the GPUs of this machine are, and what runs them.
pub use oarlock_cuda::survey::{Automatic, FoundGpu, FoundLibrary, Survey as GpuSurvey, visible_gpus};
/// The kernels on the CPU, and what they stand on.
pub use oarlock_kernels as cpu;
pub use oarlock_kernels::{DType, Element, Error, Float, IS_OPTIMIZED, Par, Result, Scalar, bf16, f16};

pub use active::{ActivePass, ActiveTapes};
pub use arena::{ALIGN, Arena, Buffer, GpuOutOfMemory, MemoryStats, Usage, is_out_of_memory};
pub use cuda::{GpuInfo, SideStream, is_refused_by_driver};
pub use device::{Device, DeviceKind};
pub use dims::Dims;
pub use flat::{Backing, FlatBuffer, Lease, PendingLaunches, WriteLease};
pub use init::{Fan, Init, Nonlinearity};
pub use ints::{Int, Ints};
pub use param::{FlatParams, GradSlot, Param, ParamHome, ParamLocation, Store};
pub use profile::{OpEvent, OpTime, Profile, Scope};
pub use rope_table::{LongRope, RopeScaling, RopeTable, Yarn, inverse_frequencies};
pub use shape::{IntoShape, MAX_DIMS, Shape};
pub use tape::{Gradients, Tape, UnitHook};
pub use tensor::Tensor;
