//! The CPU half of the tensor crate: what a kernel may use (instruction set, threads), and the kernels.
//!
//! Kernels work on contiguous slices. They read their elements as f32, compute in f32 and round once when they
//! write. Slice lengths that disagree are a bug of the caller, asserted; values from outside (token ids, labels,
//! positions) that are out of range are errors.

pub mod attention;
pub mod binary;
pub mod compare;
pub mod conv;
pub mod copy;
pub mod cross_entropy;
pub mod elementwise;
pub mod embed;
pub mod gemm;
pub mod glu;
pub mod indexed;
pub(crate) mod isa;
pub(crate) mod lanes;
pub(crate) mod math;
pub mod norm;
pub mod optim;
pub mod pair_loss;
pub(crate) mod pieces;
pub mod pool;
pub mod random;
pub mod reduce;
pub mod rope;
pub mod row_loss;
pub mod scan;
pub mod softmax;
pub mod sort;
pub mod sums;
#[cfg(test)]
pub(crate) mod testing;
pub mod unary;
pub mod walk;

pub use isa::{Isa, Path};

use crate::dtype::Float;
use crate::par::Par;

/// A CPU as kernels see it: the instruction set to use and the threads to spread over.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// The code path of every kernel.
    pub isa: Isa,
    /// The threads of every kernel.
    pub par: Par,
}

/// What a kernel does with what its output already holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Store {
    /// Replaces it.
    Overwrite,
    /// Adds to it.
    Add,
}

impl Store {
    /// Writes `value` into `slot`.
    #[inline(always)]
    pub(crate) fn put<T: Float>(self, slot: &mut T, value: f32) {
        *slot = match self {
            Store::Overwrite => T::from_f32(value),
            Store::Add => T::from_f32(slot.to_f32() + value),
        };
    }

    /// Writes each of `values` into its slot.
    pub(crate) fn put_all(self, slots: &mut [f32], values: &[f32]) {
        slots.iter_mut().zip(values).for_each(|(slot, &value)| self.put(slot, value));
    }
}
