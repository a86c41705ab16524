//! Tensors, fused ops and a tape for training language models.
//!
//! This crate knows no rank, no file and no configuration.
//!
//! A [`Tensor`] is dense and lives on a [`Device`]; its memory comes from the device's [`Arena`]. A model holds
//! [`Param`]s, handles whose memory belongs to a [`ParamHome`]. Ops ([`ops`]) on tensors that are on a [`Tape`] are
//! recorded; [`Tape::backward`] runs them in reverse and writes weight gradients straight into their homes.

mod active;
mod arena;
pub mod cpu;
mod device;
mod dims;
mod dtype;
mod error;
mod flat;
mod grad;
mod init;
mod ints;
mod launch;
pub mod ops;
mod par;
mod param;
mod print;
mod profile;
mod rope_table;
mod shape;
mod strict;
mod tape;
mod tensor;

pub use active::{ActivePass, ActiveTapes};
pub use arena::{ALIGN, Arena, Buffer, Usage};
pub use device::{Device, DeviceKind};
pub use dims::Dims;
pub use dtype::{DType, Element, Float, Scalar, bf16, f16};
pub use error::{Error, Result};
pub use flat::{Backing, FlatBuffer, Lease, PendingLaunches, WriteLease};
pub use init::{Fan, Init, Nonlinearity};
pub use ints::{Int, Ints};
pub use par::Par;
pub use param::{FlatParams, GradSlot, Param, ParamHome, ParamLocation, Store};
pub use profile::{OpEvent, OpTime, Profile, Scope};
pub use rope_table::{LongRope, RopeScaling, RopeTable, Yarn, inverse_frequencies};
pub use shape::{IntoShape, MAX_DIMS, Shape};
pub use tape::{Gradients, Tape, UnitHook};
pub use tensor::Tensor;

/// Whether the kernels were compiled with optimization. Without it they are tens of times slower.
pub const IS_OPTIMIZED: bool = !matches!(env!("OARLOCK_OPT_LEVEL").as_bytes(), b"" | b"0");
