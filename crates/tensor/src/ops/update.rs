//! Updates of flat buffers, outside any tape: first values, working copies, sums for the norm.

use std::ops::Range;

use crate::cpu::{elementwise, gemm, random, sums};
use crate::device::{Device, Kind};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::flat::FlatBuffer;
use crate::ops::with_float;

pub use crate::cpu::random::Stream;
pub use crate::cpu::sums::NORM_BLOCK;

/// Rounds master weights (which begin with element `range.start` of the unit) into the working copies.
///
/// # Errors
/// While one of the buffers is in use elsewhere.
pub fn round_into(
    device: &Device,
    master: &FlatBuffer,
    weights: &FlatBuffer,
    range: Range<usize>,
    dtype: DType,
) -> Result<()> {
    let Kind::Cpu(cpu) = device.kind();
    let (master, mut weights) = (master.read()?, weights.write()?);
    with_float!(dtype, "round_into", T => {
        elementwise::cast(cpu, &master.slice::<f32>()[..range.len()], &mut weights.slice_mut::<T>()[range]);
        Ok(())
    })
}

/// The sum of squares of each block of [`NORM_BLOCK`] elements (the last may be shorter), in f64.
pub fn squared_norms(device: &Device, x: &[f32], out: &mut [f64]) {
    let Kind::Cpu(cpu) = device.kind();
    device.profile().time("gradient norm", 0, 4 * x.len() as u64, || sums::squared_norm(cpu, x, out));
}

/// Multiplies f32 elements by `scale` and cuts them off at `-bound` and `bound`, which is at least 0; NaN stays.
///
/// # Errors
/// Elements outside of the buffer, a bound that is none, or while the buffer is in use elsewhere.
pub fn scale_clamp(
    device: &Device,
    flat: &FlatBuffer,
    range: Range<usize>,
    scale: f32,
    bound: f32,
) -> Result<()> {
    let wrong = |expected: String, got: String| Error::Shape { op: "scale_clamp", expected, got };
    if bound.is_nan() || bound < 0.0 {
        return Err(wrong("a bound of at least 0".to_string(), bound.to_string()));
    }
    let mut lease = flat.write()?;
    let Kind::Cpu(cpu) = device.kind();
    let elements = lease.slice_mut::<f32>();
    let n_elems = elements.len();
    let part = elements
        .get_mut(range.clone())
        .ok_or_else(|| wrong(format!("a range inside {n_elems} elements"), format!("{range:?}")))?;
    device.profile().time("clip gradients", 0, 8 * part.len() as u64, || {
        elementwise::scale_clamp(cpu, scale, bound, part);
    });
    Ok(())
}

/// The sum of f64 values by a fixed pairwise tree.
pub fn tree_sum(values: &[f64]) -> f64 {
    sums::tree_sum(values)
}

/// Elements `first..` of a stream of normal numbers with mean 0.
pub fn fill_normal(device: &Device, stream: Stream, first: u64, std: f32, out: &mut [f32]) {
    let Kind::Cpu(cpu) = device.kind();
    random::fill_normal(cpu, stream, first, 0.0, std, out);
}

/// Elements `first..` of a stream of numbers uniform in [-bound, bound).
pub fn fill_uniform(device: &Device, stream: Stream, first: u64, bound: f32, out: &mut [f32]) {
    let Kind::Cpu(cpu) = device.kind();
    random::fill_uniform(cpu, stream, first, -bound, bound, out);
}

/// Floating-point operations per second that products of `dtype` can reach at most with all threads of the device,
/// measured in 20 ms.
pub fn peak_flops(device: &Device, dtype: DType) -> f64 {
    let Kind::Cpu(cpu) = device.kind();
    gemm::peak_flops(cpu, dtype) * cpu.par.n_threads() as f64
}
