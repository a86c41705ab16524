//! What the tests of the kernels share: every code path and thread count, and element types that the references know.

use oarlock_kernels::{Cpu, DType, Float, Isa, Par, Path};
use oarlock_reference::number::Number;

pub use oarlock_reference::compare::assert_close;
pub use oarlock_reference::number::{f64s, scaled, values};

/// An element type of kernels and of references.
pub trait Element: Float + Number {}
impl<T: Float + Number> Element for T {}

/// Every instruction set of this CPU, alone and with 2 and 7 threads; alone under Miri, where threads that wait awake take too
/// long.
pub fn cpus() -> Vec<Cpu> {
    let par = |n_threads| if cfg!(miri) { Par::solo() } else { Par::threads(n_threads).unwrap() };
    let pars = [Par::solo(), par(2), par(7)];
    let pairs = Isa::available().into_iter().flat_map(|isa| pars.clone().map(|par| Cpu { isa, par }));
    pairs.collect()
}

/// Whether a path gives the bits that docs/numerics.md promises for operands of a dtype: all do that fuse multiplication and
/// addition, but for products of pairs in bf16.
pub fn has_the_promised_bits(path: Path, dtype: DType) -> bool {
    path != Path::Portable && (path, dtype) != (Path::Avx512Bf16, DType::BF16)
}

/// Each of two added.
pub fn sum(x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x + y).collect()
}

/// Runs `kernel` on every CPU of [`cpus`] and returns its result, which must be bitwise identical everywhere.
#[track_caller]
pub fn same_everywhere<R: PartialEq + std::fmt::Debug>(kernel: impl Fn(&Cpu) -> R) -> R {
    let mut cpus = cpus().into_iter();
    let first = kernel(&cpus.next().unwrap());
    for cpu in cpus {
        assert!(kernel(&cpu) == first, "{cpu:?} differs from the portable path on one thread");
    }
    first
}
