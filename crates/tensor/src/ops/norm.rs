//! RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x²) + eps) · (offset + weight), statistics in f32.
//!
//! Rows (a residual stream) and weight may be f32 where the output is 16-bit.

use oarlock_cuda::geometry;
use oarlock_kernels::norm::{self, RmsWeight};
use oarlock_kernels::{DType, Result, Store, elementwise};

use crate::ops::residual::{self, add_residual};
use crate::ops::{with_float, with_float_or_f32, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// x `[.., I]`, weight `[I]` in f32 or x's dtype → `[.., I]` in x's dtype, without an offset. The output is cheap, so the
/// tape keeps x and recomputes it.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn rms_norm(x: &Tensor, weight: &Param, eps: f32) -> Result<Tensor> {
    rms_norm_to(x, weight, eps, 0.0, x.dtype())
}

/// As [`rms_norm`], times `offset + weight` and with the output in `dtype`; x and the weight are each f32 or of that
/// dtype. Gemma's weights have the offset 1, all others 0.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn rms_norm_to(x: &Tensor, weight: &Param, eps: f32, offset: f32, dtype: DType) -> Result<Tensor> {
    check(x, weight)?;
    let recorder = Recorder::new(&[x], &[weight])?;
    let w = weight.weight()?;
    let mut y = Tensor::uninit(*x.shape(), dtype, x.device(), "activation")?;
    let mut rstd = Tensor::uninit([x.shape().n_rows()], DType::F32, x.device(), "statistics")?;
    let mut launch = x.device().launch("rms_norm forward", 0, bytes(&[x, &y]));
    let ([rows, dim], dtypes) = ([x.shape().n_rows(), x.shape().last()], [x.dtype(), w.dtype(), dtype]);
    with_float!(dtype, "rms_norm", T => {
        let (y, rstd) = (launch.write::<T>(&mut y)?, launch.write::<f32>(&mut rstd)?);
        with_float_or_f32!(launch, x, T, x => with_float_or_f32!(launch, &w, T, w => {
            launch.cuda(|gpu| {
                let call = gpu.kernel("rms_norm_forward", &dtypes)?.view(&x).view(&w).f32(offset).f32(eps);
                call.view(&y).view(&rstd).u32(rows).u32(dim).run(geometry::rows(rows, dim))
            })?;
            launch.run(move |cpu| {
                let weight = RmsWeight { weight: w.slice(cpu), offset };
                norm::rms_norm_forward(cpu, x.slice(cpu), weight, eps, y.slice(cpu), rstd.slice(cpu));
            })
        }))
    })?;
    drop(w);
    Ok(Recorder::record(recorder, y, |recorder| RmsNormBackward {
        x: recorder.save(x),
        rstd,
        weight: weight.clone(),
        offset,
        dtype,
    }))
}

/// The residual stream with what a part has computed, as by [`add_residual`], and the norm of that, as by [`rms_norm_to`]. On
/// a GPU one kernel makes both.
///
/// # Errors
/// As both of them.
pub fn add_rms_norm(
    stream: &Tensor,
    part: &Tensor,
    weight: &Param,
    eps: f32,
    offset: f32,
    dtype: DType,
) -> Result<(Tensor, Tensor)> {
    let w = weight.weight()?;
    let is_one = stream.device().is_cuda() && part.dtype() == dtype && w.dtype() == DType::F32;
    if !is_one {
        drop(w);
        let sum = add_residual(stream, part)?;
        let y = rms_norm_to(&sum, weight, eps, offset, dtype)?;
        return Ok((sum, y));
    }
    residual::check(stream, part)?;
    check(stream, weight)?;
    let recorder = Recorder::new(&[stream, part], &[])?;
    let (shape, device) = (*stream.shape(), stream.device());
    let mut sum = Tensor::uninit(shape, DType::F32, device, "activation")?;
    let mut y = Tensor::uninit(shape, dtype, device, "activation")?;
    let mut rstd = Tensor::uninit([shape.n_rows()], DType::F32, device, "statistics")?;
    let mut launch = device.launch("add and rms_norm forward", 0, bytes(&[stream, part, &sum, &y]));
    let (rows, dim) = (shape.n_rows(), shape.last());
    with_float!(dtype, "rms_norm", T => {
        let (x, part, w) = (launch.read::<f32>(stream)?, launch.read::<T>(part)?, launch.read::<f32>(&w)?);
        let (sum, y) = (launch.write::<f32>(&mut sum)?, launch.write::<T>(&mut y)?);
        let rstd = launch.write::<f32>(&mut rstd)?;
        launch.cuda(|gpu| {
            let call = gpu.kernel("add_rms_norm_forward", &[DType::F32, DType::F32, dtype])?.view(&x).view(&part);
            let call = call.view(&sum).view(&w).f32(offset).f32(eps).view(&y).view(&rstd);
            call.u32(rows).u32(dim).run(geometry::rows(rows, dim))
        })?;
        launch.run(move |cpu| {
            let (sum, weight) = (sum.slice(cpu), RmsWeight { weight: w.slice(cpu), offset });
            elementwise::add_mixed(cpu, x.slice(cpu), part.slice(cpu), &mut *sum);
            norm::rms_norm_forward(cpu, &*sum, weight, eps, y.slice(cpu), rstd.slice(cpu));
        })
    })?;
    drop(w);
    let sum = residual::record(recorder, sum, part.dtype());
    let recorder = Recorder::new(&[&sum], &[weight])?;
    let y = Recorder::record(recorder, y, |recorder| RmsNormBackward {
        x: recorder.save(&sum),
        rstd,
        weight: weight.clone(),
        offset,
        dtype,
    });
    Ok((sum, y))
}

fn check(x: &Tensor, weight: &Param) -> Result<()> {
    if x.sizes().is_empty() || x.shape().last() == 0 || weight.shape().sizes() != [x.shape().last()] {
        let expected = format!("x of shape [.., I] with I > 0 for a weight of shape {:?}", weight.shape());
        return Err(wrong_shape("rms_norm", expected, x));
    }
    Ok(())
}

fn bytes(tensors: &[&Tensor]) -> u64 {
    tensors.iter().map(|t| t.len_bytes() as u64).sum()
}

struct RmsNormBackward {
    x: Saved,
    rstd: Tensor,
    weight: Param,
    offset: f32,
    /// Of the output.
    dtype: DType,
}

impl RmsNormBackward {
    /// The backward pass; with `y`, the output is written there.
    fn run(&self, dy: Tensor, mut y: Option<&mut Tensor>, cx: &mut Backward<'_>) -> Result<()> {
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let device = x.device().clone();
        let (mut dx, store) = cx.slot(0, &x)?;
        // The op that made x may want its gradient in the type of the output: one kernel then writes both.
        let is_wanted =
            device.is_cuda() && x.dtype() == DType::F32 && cx.wants_rounded(0) == Some(self.dtype);
        let mut rounded = match is_wanted {
            true => Some(Tensor::uninit(*x.shape(), self.dtype, &device, "gradient")?),
            false => None,
        };
        let mut slot = self.weight.grad()?;
        // A frozen weight's gradient goes to scratch memory.
        let (n_rows, dim) = (x.shape().n_rows(), x.shape().last());
        let n_scratch = norm::rms_norm_backward_scratch(n_rows, dim);
        let mut launch = device.launch("rms_norm backward", 0, bytes(&[&x, &dy, &dx]));
        let scratch = launch.scratch::<f32>(n_scratch + dim)?;
        let grad = match &mut slot {
            Some(slot) => Some((slot.store, launch.grad(slot)?)),
            None => None,
        };
        let (offset, dtypes) = (self.offset, [x.dtype(), w.dtype(), self.dtype]);
        // For x and its gradient in one of two dtypes.
        macro_rules! run {
            ($launch:ident, $X:ty, $rstd:ident, $dy:ident, $w:ident, $rounded:ident, $y:ident) => {{
                let (x, dx) = ($launch.read::<$X>(&x)?, $launch.store::<$X>(&mut dx, store)?);
                $launch.cuda(|gpu| {
                    let n_partials = geometry::norm_partials(n_rows);
                    let partials = gpu.temporary(4 * n_partials * dim)?;
                    let call =
                        gpu.kernel("rms_norm_backward", &dtypes)?.view(&x).view(&$w).f32(offset).view(&$rstd);
                    let call = call
                        .view(&$dy)
                        .view(&dx)
                        .optional($rounded.as_ref())
                        .optional($y.as_ref())
                        .added(store)
                        .slice(partials.slice()?)
                        .u32(n_rows)
                        .u32(dim);
                    call.run(geometry::norm_backward(n_rows, dim, 1))?;
                    let Some((store, grad)) = &grad else { return Ok(()) };
                    let sums = (partials.slice()?, DType::F32);
                    gpu.sum_rows(1.0, sums, [1, n_partials, dim], (gpu.slice(grad)?, DType::F32, *store))
                })?;
                $launch.run(move |cpu| {
                    let (scratch, unused) = scratch.slice(cpu).split_at_mut(n_scratch);
                    let d_weight = match grad {
                        Some((store, grad)) => (grad.slice(cpu), store),
                        None => (unused, Store::Overwrite),
                    };
                    let w = RmsWeight { weight: $w.slice(cpu), offset };
                    let (x, rstd, dy) = (x.slice(cpu), $rstd.slice(cpu), $dy.slice(cpu));
                    if let Some(y) = $y {
                        norm::rms_norm_apply(cpu, x, w, rstd, y.slice(cpu));
                    }
                    let dx = dx.slice(cpu);
                    norm::rms_norm_backward(cpu, x, w, rstd, dy, (&mut *dx, store), d_weight, scratch);
                    if let Some(rounded) = $rounded {
                        elementwise::cast(cpu, &*dx, rounded.slice(cpu));
                    }
                })
            }};
        }
        with_float!(self.dtype, "rms_norm", T => {
            let (rstd, dy) = (launch.read::<f32>(&self.rstd)?, launch.read::<T>(&dy)?);
            let rounded = match &mut rounded {
                Some(rounded) => Some(launch.write::<T>(rounded)?),
                None => None,
            };
            let y = match &mut y {
                Some(y) => Some(launch.write::<T>(y)?),
                None => None,
            };
            with_float_or_f32!(launch, &w, T, w => match x.dtype() {
                DType::F32 => run!(launch, f32, rstd, dy, w, rounded, y),
                _ => run!(launch, T, rstd, dy, w, rounded, y),
            })
        })?;
        cx.give_rounded(0, dx, rounded)
    }
}

impl Function for RmsNormBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        self.run(dy, None, cx)
    }

    fn can_finish(&self) -> bool {
        self.rstd.device().is_gpu()
    }

    fn finish(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<Tensor> {
        let mut y = Tensor::uninit(*dy.shape(), self.dtype, dy.device(), "replayed")?;
        self.run(dy, Some(&mut y), cx)?;
        Ok(y)
    }

    fn can_replay(&self) -> bool {
        true
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let mut y = Tensor::uninit(*x.shape(), self.dtype, x.device(), "replayed")?;
        let offset = self.offset;
        let mut launch = x.device().launch("rms_norm replay", 0, bytes(&[&x, &y]));
        let ([rows, dim], dtypes) =
            ([x.shape().n_rows(), x.shape().last()], [x.dtype(), w.dtype(), self.dtype]);
        with_float!(self.dtype, "rms_norm", T => {
            let (rstd, y) = (launch.read::<f32>(&self.rstd)?, launch.write::<T>(&mut y)?);
            with_float_or_f32!(launch, &x, T, x => with_float_or_f32!(launch, &w, T, w => {
                launch.cuda(|gpu| {
                    let call = gpu.kernel("rms_norm_apply", &dtypes)?.view(&x).view(&w).f32(offset).view(&rstd);
                    call.view(&y).u32(rows).u32(dim).run(geometry::rows(rows, dim))
                })?;
                launch.run(move |cpu| {
                    let weight = RmsWeight { weight: w.slice(cpu), offset };
                    norm::rms_norm_apply(cpu, x.slice(cpu), weight, rstd.slice(cpu), y.slice(cpu));
                })
            }))
        })?;
        Ok(y)
    }
}
