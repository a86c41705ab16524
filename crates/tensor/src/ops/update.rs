//! Updates of flat buffers, outside any tape: scaling, sums for the norm.

use std::ops::Range;

use oarlock_cuda::{Pieces, geometry};
use oarlock_kernels::{DType, Error, Result, elementwise, gemm, sums};

use crate::cuda::FormError;
use crate::device::Device;
use crate::flat::FlatBuffer;
use crate::launch::Mode;
use crate::ops::optimizer::Part;
use crate::ops::transfer::{self, DeviceF64};

pub use oarlock_kernels::random::Stream;
pub use oarlock_kernels::sums::NORM_BLOCK;

/// The sum of squares of each block of [`NORM_BLOCK`] f32 elements of `x` (the last may be shorter), in f64, into `out`.
///
/// # Errors
/// Parts that do not fit their buffers or each other, or that are in use elsewhere.
pub fn squared_norms(device: &Device, x: &Part<'_>, out: &Part<'_>) -> Result<()> {
    let n_blocks = x.range.len().div_ceil(NORM_BLOCK);
    if out.range.len() != n_blocks {
        let (expected, got) = (format!("{n_blocks} sums"), format!("{:?}", out.range));
        return Err(Error::Shape { op: "squared_norms", expected, got });
    }
    let n = x.range.len();
    let mut launch = device.launch("gradient norm", 0, 4 * n as u64);
    let x_lease = x.flat.read()?;
    let x = launch.read_flat::<f32>(&x_lease, &x.range)?;
    let mut out_lease = out.flat.write()?;
    let out = launch.write_flat::<f64>(&mut out_lease, &out.range, Mode::Write)?;
    launch.cuda(|gpu| {
        let call = gpu.kernel("squared_norm", &[DType::F32])?.view(&x).view(&out).u64(n);
        call.run(geometry::squared_norm(n))
    })?;
    launch.run(move |cpu| sums::squared_norm(cpu, x.slice(cpu), out.slice(cpu)))
}

/// The sum of the first `n` f64 elements of a buffer: on the host by the tree of [`tree_sum`], on a GPU there, by a tree of its
/// own, so that one number is copied.
///
/// # Errors
/// Elements that are not there, or while the buffer is in use elsewhere; what a launch met before.
pub fn sum_f64(device: &Device, x: &FlatBuffer, n: usize) -> Result<f64> {
    if !device.is_cuda() || n == 0 {
        return transfer::read_with::<f64, _>(x, 0..n, tree_sum);
    }
    let sum = DeviceF64::zero(device, "gradient norm")?;
    let mut launch = device.quiet_launch("gradient norm");
    let (x_lease, mut lease) = (x.read()?, sum.lease()?);
    let x = launch.read_flat::<f64>(&x_lease, &(0..n))?;
    let out = launch.write_flat::<f64>(&mut lease, &(0..1), Mode::Write)?;
    launch.cuda(|gpu| gpu.sum_f64(gpu.slice(&x)?, n, gpu.slice(&out)?))?;
    launch.run(move |cpu| out.slice(cpu)[0] = tree_sum(x.slice(cpu)))?;
    drop(lease);
    sum.read()
}

/// As [`squared_norms`] of pairs of x and the place of its sums; on a GPU in one launch for many.
///
/// # Errors
/// As [`squared_norms`].
pub fn all_squared_norms(device: &Device, pairs: &[(Part<'_>, Part<'_>)]) -> Result<()> {
    let Some(out) = pairs.first().map(|(_, out)| out.flat).filter(|_| device.is_cuda()) else {
        return pairs.iter().try_for_each(|(x, out)| squared_norms(device, x, out));
    };
    let fits = |(x, to): &(Part<'_>, Part<'_>)| {
        to.flat.same(out) && to.range.len() == x.range.len().div_ceil(NORM_BLOCK)
    };
    if let Some((x, to)) = pairs.iter().find(|pair| !fits(pair)) {
        let expected = format!("sums of {} elements in one buffer", x.range.len());
        return Err(Error::Shape { op: "squared_norms", expected, got: format!("{:?}", to.range) });
    }
    let filled: Vec<_> = pairs.iter().filter(|(x, _)| !x.range.is_empty()).collect();
    for some in filled.chunks(Pieces::MOST) {
        let n: usize = some.iter().map(|(x, _)| x.range.len()).sum();
        let mut launch = device.launch("gradient norm", 0, 4 * n as u64);
        let sums = out.write()?;
        let leases = some.iter().map(|(x, _)| x.flat.read()).collect::<Result<Vec<_>>>()?;
        let mut declared = Vec::with_capacity(some.len());
        for ((x, to), lease) in some.iter().zip(&leases) {
            let sums = launch.stretch::<f64>(&sums, &to.range, Mode::Write)?;
            declared.push((x.range.len(), launch.read_flat::<f32>(lease, &x.range)?, sums));
        }
        launch.cuda(|gpu| {
            let mut pieces = Pieces::new();
            for (n, x, sums) in &declared {
                if !pieces.push(*n, [Some(gpu.slice(x)?), Some(gpu.slice(sums)?), None, None, None]) {
                    return Err(FormError::NoForm);
                }
            }
            gpu.kernel("squared_norms", &[])?.pieces(&pieces).run(geometry::pieces(&pieces))
        })?;
        launch
            .run(|_| -> Result<()> { Err(Error::Usage("squared_norms: too many elements".to_string())) })?;
    }
    Ok(())
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
    let n_elems = flat.len_bytes() / 4;
    if range.start > range.end || range.end > n_elems {
        return Err(wrong(format!("a range inside {n_elems} elements"), format!("{range:?}")));
    }
    let mut launch = device.launch("clip gradients", 0, 8 * range.len() as u64);
    let mut part_lease = flat.write()?;
    let part = launch.write_flat::<f32>(&mut part_lease, &range, Mode::Update)?;
    launch.cuda(|gpu| {
        let n = range.len();
        let call = gpu.kernel("scale_clamp", &[])?.view(&part).f32(scale).f32(bound).u64(n);
        call.run(geometry::elements(n))
    })?;
    launch.run(move |cpu| elementwise::scale_clamp(cpu, scale, bound, part.slice(cpu)))
}

/// The sum of f64 values by a fixed pairwise tree.
pub fn tree_sum(values: &[f64]) -> f64 {
    sums::tree_sum(values)
}

/// Floating-point operations per second that products of `dtype` can reach at most with all threads of the device,
/// measured in 8 ms; on a GPU those of large products, and 0 where it has failed.
pub fn peak_flops(device: &Device, dtype: DType) -> f64 {
    if let Some(gpu) = device.gpu() {
        return gpu.peak_flops(dtype).unwrap_or(0.0);
    }
    let cpu = device.host();
    gemm::peak_flops(cpu, dtype) * cpu.par.n_threads() as f64
}
