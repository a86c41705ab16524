//! The CPU half of the tensor crate: what a kernel may use (instruction set, threads), and the kernels.

pub mod attention;
pub(crate) mod isa;

pub use isa::{Isa, Path};

use crate::par::Par;

/// A CPU as kernels see it: the instruction set to use and the threads to spread over.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// The code path of every kernel.
    pub isa: Isa,
    /// The threads of every kernel.
    pub par: Par,
}
