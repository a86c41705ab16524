//! Uniform noise whose parts have streams of their own, so that a part is the same wherever it stands.

use std::ops::Range;

use oarlock_cuda::geometry;
use oarlock_kernels::random::{Stream, fill_uniform};
use oarlock_kernels::{DType, Error, Result};

use crate::cuda::forms;
use crate::device::Device;
use crate::shape::IntoShape;
use crate::tensor::Tensor;

/// A part of a tensor of noise.
#[derive(Clone, Debug, PartialEq)]
pub struct NoisePart {
    /// Its random numbers.
    pub stream: Stream,
    /// The number of the stream that its first element takes.
    pub first: u64,
    /// The elements that it fills.
    pub elems: Range<usize>,
    /// Its elements are in `-magnitude..magnitude`.
    pub magnitude: f32,
}

/// Noise in f32: each part uniform, 0 outside of all parts.
///
/// # Errors
/// A part that reaches beyond the tensor, or a magnitude that is not a finite number of at least 0.
pub fn uniform_noise(shape: impl IntoShape, parts: Vec<NoisePart>, device: &Device) -> Result<Tensor> {
    let mut noise = Tensor::zeros(shape, DType::F32, device)?;
    let n = noise.n_elems();
    for NoisePart { elems, magnitude, .. } in &parts {
        if elems.start > elems.end || elems.end > n {
            return Err(Error::Usage(format!(
                "uniform_noise: a part is {elems:?} of a tensor of {n} elements"
            )));
        }
        if !(magnitude.is_finite() && *magnitude >= 0.0) {
            return Err(Error::Usage(format!(
                "uniform_noise: the magnitude is {magnitude}; it is at least 0"
            )));
        }
    }
    let mut launch = device.launch("noise", 0, 4 * n as u64);
    let out = launch.update::<f32>(&mut noise)?;
    launch.cuda(|gpu| {
        let out = gpu.slice(&out)?;
        parts.iter().try_for_each(|NoisePart { stream, first, elems, magnitude }| {
            let part = forms::part(out, 4 * elems.start..4 * elems.end)?;
            let call = gpu.kernel("fill_uniform", &[DType::F32])?.random(*stream, *first);
            let call = call.f32(-magnitude).f32(*magnitude).slice(part).u64(elems.len());
            call.run(geometry::elements(elems.len()))
        })
    })?;
    launch.run(move |cpu| {
        let out = out.slice(cpu);
        for NoisePart { stream, first, elems, magnitude } in parts {
            fill_uniform(cpu, stream, first, -magnitude, magnitude, &mut out[elems]);
        }
    })?;
    Ok(noise)
}
