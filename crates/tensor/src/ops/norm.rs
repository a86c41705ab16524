//! RMSNorm (Zhang and Sennrich 2019): y = x / sqrt(mean(x²) + eps) · weight, statistics in f32.

use crate::cpu::{Store, norm};
use crate::device::Kind;
use crate::error::Result;
use crate::ops::{check_dtype, with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// x `[.., I]`, weight `[I]` → `[.., I]`. The output is cheap, so the tape keeps x and makes it again.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn rms_norm(x: &Tensor, weight: &Param, eps: f32) -> Result<Tensor> {
    if x.sizes().is_empty() || x.shape().last() == 0 || weight.shape().sizes() != [x.shape().last()] {
        let expected = format!("x of shape [.., I] with I > 0 for a weight of shape {:?}", weight.shape());
        return Err(wrong_shape("rms_norm", expected, x));
    }
    let recorder = Recorder::new(&[x], &[weight])?;
    let w = weight.weight()?;
    check_dtype("rms_norm", x, &w)?;
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?;
    let mut rstd = Tensor::uninit([x.shape().n_rows()], crate::DType::F32, x.device(), "statistics")?;
    let Kind::Cpu(cpu) = x.device().kind();
    x.device().profile().time("rms_norm forward", 0, 2 * x.bytes().len() as u64, || {
        with_float!(x.dtype(), "rms_norm", T => {
            norm::rms_norm_forward(cpu, x.slice::<T>()?, w.slice::<T>()?, eps, y.slice_mut::<T>()?, rstd.slice_mut()?);
            Ok(())
        })
    })?;
    drop(w);
    let Some(recorder) = recorder else { return Ok(y) };
    let op = RmsNormBackward { x: recorder.save(x), rstd, weight: weight.clone() };
    let [y] = recorder.finish([y], op);
    Ok(y)
}

struct RmsNormBackward {
    x: Saved,
    rstd: Tensor,
    weight: Param,
}

impl Function for RmsNormBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = grads[0].take() else { return Ok(()) };
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let device = x.device().clone();
        let Kind::Cpu(cpu) = device.kind();
        let (mut dx, store) = cx.slot(0, &x)?;
        let mut slot = self.weight.grad()?;
        // A frozen weight's gradient goes to scratch memory.
        let (n_rows, dim) = (x.shape().n_rows(), x.shape().last());
        let n_scratch = norm::rms_norm_backward_scratch(n_rows, dim);
        let mut scratch = device.scratch(4 * (n_scratch + dim))?;
        let (scratch, unused) = bytemuck::cast_slice_mut(scratch.bytes_mut()).split_at_mut(n_scratch);
        device.profile().time("rms_norm backward", 0, 4 * x.bytes().len() as u64, || {
            with_float!(x.dtype(), "rms_norm", T => {
                let d_weight = match &mut slot {
                    Some(slot) => {
                        let store = slot.store;
                        (slot.slice_mut(), store)
                    }
                    None => (&mut unused[..dim], Store::Overwrite),
                };
                norm::rms_norm_backward(
                    cpu, x.slice::<T>()?, w.slice::<T>()?, self.rstd.slice()?, dy.slice::<T>()?,
                    (dx.slice_mut::<T>()?, store), d_weight, scratch,
                );
                Ok(())
            })
        })?;
        cx.put(0, dx)
    }

    fn can_replay(&self, _output: usize) -> bool {
        true
    }

    fn replay(&self, _output: usize, cx: &mut Backward<'_>) -> Result<Tensor> {
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), "replayed")?;
        let Kind::Cpu(cpu) = x.device().kind();
        x.device().profile().time("rms_norm replay", 0, 2 * x.bytes().len() as u64, || {
            with_float!(x.dtype(), "rms_norm", T => {
                norm::rms_norm_apply(cpu, x.slice::<T>()?, w.slice::<T>()?, self.rstd.slice()?, y.slice_mut::<T>()?);
                Ok(())
            })
        })?;
        Ok(y)
    }
}
