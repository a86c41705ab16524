//! Updates of flat buffers, outside any tape: first values, the optimizer step, working copies, sums for the norm.

use std::ops::Range;

use crate::cpu::adamw::{AdamW, AdamWState, adamw_step};
use crate::cpu::{elementwise, gemm, random, sums};
use crate::device::{Device, Kind};
use crate::dtype::DType;
use crate::error::Result;
use crate::flat::FlatBuffer;
use crate::ops::with_float;

pub use crate::cpu::random::Stream;
pub use crate::cpu::sums::NORM_BLOCK;

/// The flat buffers of a unit that an AdamW step touches.
#[derive(Clone, Copy, Debug)]
pub struct AdamWBuffers<'a> {
    /// Working copies, all of the unit's elements.
    pub weights: &'a FlatBuffer,
    /// Their dtype.
    pub dtype: DType,
    /// f32 gradients, all of the unit's elements.
    pub grads: &'a FlatBuffer,
    /// f32 master weights; absent where the working copies are f32 themselves.
    pub master: Option<&'a FlatBuffer>,
    /// First moments.
    pub exp_avg: &'a FlatBuffer,
    /// Second moments.
    pub exp_avg_sq: &'a FlatBuffer,
    /// The element of the unit that master weights and moments begin with.
    pub state_first: usize,
}

/// One AdamW step on the elements `range` of a unit, in one pass.
///
/// # Errors
/// While one of the buffers is in use elsewhere.
pub fn adamw(device: &Device, args: &AdamW, flat: &AdamWBuffers<'_>, range: Range<usize>) -> Result<()> {
    let Kind::Cpu(cpu) = device.kind();
    let own = range.start - flat.state_first..range.end - flat.state_first;
    let (mut weights, mut m, mut v) =
        (flat.weights.write()?, flat.exp_avg.write()?, flat.exp_avg_sq.write()?);
    let grads = flat.grads.read()?;
    let grads = &grads.slice::<f32>()[range.clone()];
    let (m, v) = (&mut m.slice_mut::<f32>()[own.clone()], &mut v.slice_mut::<f32>()[own.clone()]);
    device.profile().time("adamw", 0, (28 * range.len()) as u64, || match flat.master {
        None => {
            let state = AdamWState { weights: &mut weights.slice_mut::<f32>()[range], m, v };
            adamw_step::<f32>(cpu, args, state, grads, None);
            Ok(())
        }
        Some(master) => {
            let mut master = master.write()?;
            let state = AdamWState { weights: &mut master.slice_mut::<f32>()[own], m, v };
            with_float!(flat.dtype, "adamw", T => {
                adamw_step(cpu, args, state, grads, Some(&mut weights.slice_mut::<T>()[range]));
                Ok(())
            })
        }
    })
}

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
