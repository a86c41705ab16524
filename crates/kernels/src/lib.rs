//! The kernels of tensor ops on a CPU: element types, what a kernel may use (instruction set, threads), and the kernels.
//!
//! Kernels work on contiguous slices. They read their elements as f32, compute in f32 and round once when they
//! write. Slice lengths that disagree are a bug of the caller, asserted; values from outside (token ids, labels,
//! positions) that are out of range are errors.
//!
//! Every kernel is compiled in this crate, for each dtype that it takes, so that this crate alone needs optimization.

pub mod attention;
pub mod binary;
pub mod block_quantized;
pub mod compare;
pub mod compressed;
pub mod conv;
pub mod copy;
mod cpu;
mod crew;
pub mod cross_entropy;
pub mod decompose;
pub mod difference;
mod dtype;
pub mod elementwise;
pub mod embed;
mod error;
pub mod gemm;
pub mod glu;
pub mod indexed;
mod instances;
mod isa;
mod lanes;
pub mod math;
pub mod multiply_add;
pub mod norm;
pub mod optim;
pub mod pair_loss;
mod par;
pub mod pieces;
pub mod pool;
pub mod quantized;
pub mod random;
pub mod rank_sum;
pub mod reduce;
pub mod rope;
pub mod row_loss;
pub mod scan;
pub mod softmax;
pub mod sort;
pub mod sums;
pub mod token_loss;
pub mod unary;
pub mod walk;

pub use cpu::{Cpu, Store};
pub use dtype::{DType, Element, Float, Scalar, Word, bf16, f16};
pub use error::{Error, Result};
pub use isa::{Isa, Path};
pub use par::Par;

/// Whether the kernels were compiled with optimization. Without it they are tens of times slower.
pub const IS_OPTIMIZED: bool = !matches!(env!("OARLOCK_OPT_LEVEL").as_bytes(), b"" | b"0");
