//! Multiplication and addition in plain Rust: with two roundings, or fused with one.

/// What the kernels in plain Rust multiply and add with.
pub(crate) trait MultiplyAdd: Copy + Send + Sync + 'static {
    /// `x y + sum` in each lane.
    fn lanes<const N: usize>(x: [f32; N], y: [f32; N], sum: [f32; N]) -> [f32; N];

    /// `x y + sum`.
    #[inline(always)]
    fn one(x: f32, y: f32, sum: f32) -> f32 {
        Self::lanes([x], [y], [sum])[0]
    }
}

/// Whether the target has an instruction for [`Fused`]. Else it is arithmetic of f64, which takes many times as long.
pub(crate) const IS_FUSED_FAST: bool = cfg!(any(target_feature = "fma", target_arch = "aarch64"));

/// The product is rounded before the sum is.
#[derive(Clone, Copy)]
pub(crate) struct Separate;

impl MultiplyAdd for Separate {
    #[inline(always)]
    fn lanes<const N: usize>(x: [f32; N], y: [f32; N], mut sum: [f32; N]) -> [f32; N] {
        for i in 0..N {
            sum[i] += x[i] * y[i];
        }
        sum
    }
}

/// The sum alone is rounded, as by the instructions of AVX2 and AVX-512.
#[derive(Clone, Copy)]
pub(crate) struct Fused;

impl MultiplyAdd for Fused {
    #[inline(always)]
    fn lanes<const N: usize>(x: [f32; N], y: [f32; N], mut sum: [f32; N]) -> [f32; N] {
        for i in 0..N {
            sum[i] = if IS_FUSED_FAST { x[i].mul_add(y[i], sum[i]) } else { fused(x[i], y[i], sum[i]) };
        }
        sum
    }
}

/// `x y + sum`, rounded once, on any CPU: the bits of `f32::mul_add` where the result is a number, without branches.
///
/// The product is exact in f64. The sum in f64 is rounded to odd (Boldo and Melquiond 2008), so that the second rounding, to
/// f32, gives what a single one would.
#[inline(always)]
pub fn fused(x: f32, y: f32, sum: f32) -> f32 {
    let (product, sum) = (f64::from(x) * f64::from(y), f64::from(sum));
    let total = product + sum;
    // What the rounding took from the total, exact (Knuth's TwoSum); NaN where the total is not finite.
    let rest = total - product;
    let error = (product - (total - rest)) + (sum - rest);
    let is_inexact = u64::from(error.abs() > 0.0);
    // Toward zero, and the last bit says that something is missing.
    let is_above = (total.to_bits() ^ error.to_bits()) >> 63;
    f64::from_bits((total.to_bits() - (is_above & is_inexact)) | is_inexact) as f32
}
