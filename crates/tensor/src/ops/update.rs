//! Updates of flat buffers, outside any tape: first values, working copies, sums for the norm.

use std::ops::Range;

use crate::cpu::{elementwise, gemm, random, sums};
use crate::device::{Device, Kind};
use crate::dtype::DType;
use crate::error::Result;
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
