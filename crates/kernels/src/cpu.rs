//! What kernels are given beside their operands: a CPU, and what becomes of what an output holds.

use crate::dtype::Float;
use crate::isa::Isa;
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
    pub fn put_all(self, slots: &mut [f32], values: &[f32]) {
        slots.iter_mut().zip(values).for_each(|(slot, &value)| self.put(slot, value));
    }
}
