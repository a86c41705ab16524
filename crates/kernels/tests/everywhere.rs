//! What the tests of the kernels share: every code path and thread count, and reproducible data.

use oarlock_kernels::{Cpu, Float, Isa, Par};

/// Every instruction set of this CPU, alone and with 2 and 7 threads; alone under Miri, to which the queues of rayon's threads
/// are undefined behaviour.
pub fn cpus() -> Vec<Cpu> {
    let par = |n_threads| if cfg!(miri) { Par::solo() } else { Par::threads(n_threads).unwrap() };
    let pars = [Par::solo(), par(2), par(7)];
    let pairs = Isa::available().into_iter().flat_map(|isa| pars.clone().map(|par| Cpu { isa, par }));
    pairs.collect()
}

/// `n` values in about -2..2, different for each seed, exact in `T`.
pub fn values<T: Float>(seed: u64, n: usize) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        T::from_f32((state >> 40) as f32 / (1u64 << 22) as f32 - 2.0)
    };
    (0..n).map(|_| next()).collect()
}

/// The values as f64, for references.
pub fn f64s<T: Float>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| f64::from(x.to_f32())).collect()
}

/// Asserts `|got - want| <= tolerance * (1 + |want|)` for each element.
#[track_caller]
pub fn assert_close<T: Float>(got: &[T], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in f64s(got).iter().zip(want).enumerate() {
        let error = (got - want).abs() / (1.0 + want.abs());
        assert!(error <= tolerance, "element {i}: got {got}, want {want}");
    }
}

/// Runs `kernel` on every CPU of [`cpus`] and returns its result, which must be the same to the bit everywhere.
#[track_caller]
pub fn same_everywhere<R: PartialEq + std::fmt::Debug>(kernel: impl Fn(&Cpu) -> R) -> R {
    let mut cpus = cpus().into_iter();
    let first = kernel(&cpus.next().unwrap());
    for cpu in cpus {
        assert!(kernel(&cpu) == first, "{cpu:?} differs from the portable path on one thread");
    }
    first
}
