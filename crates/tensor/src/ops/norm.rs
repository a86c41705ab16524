//! RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x²) + eps) · (offset + weight), statistics in f32.
//!
//! Rows (a residual stream) and weight may be f32 where the output is 16-bit.

use oarlock_cuda::geometry;
use oarlock_kernels::norm::{self, RmsWeight};
use oarlock_kernels::{DType, Result, Store};

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
    if x.sizes().is_empty() || x.shape().last() == 0 || weight.shape().sizes() != [x.shape().last()] {
        let expected = format!("x of shape [.., I] with I > 0 for a weight of shape {:?}", weight.shape());
        return Err(wrong_shape("rms_norm", expected, x));
    }
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

impl Function for RmsNormBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let device = x.device().clone();
        let (mut dx, store) = cx.slot(0, &x)?;
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
            ($launch:ident, $X:ty, $rstd:ident, $dy:ident, $w:ident) => {{
                let (x, dx) = ($launch.read::<$X>(&x)?, $launch.store::<$X>(&mut dx, store)?);
                $launch.cuda(|gpu| {
                    let n_partials = geometry::norm_partials(n_rows);
                    let partials = gpu.temporary(4 * n_partials * dim)?;
                    let call =
                        gpu.kernel("rms_norm_backward", &dtypes)?.view(&x).view(&$w).f32(offset).view(&$rstd);
                    let call =
                        call.view(&$dy).view(&dx).added(store).slice(partials.slice()?).u32(n_rows).u32(dim);
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
                    norm::rms_norm_backward(cpu, x, w, rstd, dy, (dx.slice(cpu), store), d_weight, scratch);
                })
            }};
        }
        with_float!(self.dtype, "rms_norm", T => {
            let (rstd, dy) = (launch.read::<f32>(&self.rstd)?, launch.read::<T>(&dy)?);
            with_float_or_f32!(launch, &w, T, w => match x.dtype() {
                DType::F32 => run!(launch, f32, rstd, dy, w),
                _ => run!(launch, T, rstd, dy, w),
            })
        })?;
        cx.give(0, dx)
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
