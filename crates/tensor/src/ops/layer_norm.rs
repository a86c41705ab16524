//! LayerNorm (Ba et al. 2016): y = (x - mean) / sqrt(variance + eps) · weight + bias, statistics in f32.

use crate::cpu::{Store, norm};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{check_dtype, with_float, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// x `[.., I]`, weight and bias `[I]` → `[.., I]`. The output is cheap, so the tape keeps x and recomputes it.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn layer_norm(x: &Tensor, weight: &Param, bias: Option<&Param>, eps: f32) -> Result<Tensor> {
    let fits = |param: &Param| !x.sizes().is_empty() && param.shape().sizes() == [x.shape().last()];
    if x.shape().last() == 0 || !fits(weight) || !bias.is_none_or(fits) {
        let bias = bias.map_or(String::new(), |bias| format!(" and bias {:?}", bias.shape()));
        let expected = format!(
            "x of shape [.., I] with I > 0, weight and bias of shape [I]; weight {:?}{bias}",
            weight.shape()
        );
        return Err(wrong_shape("layer_norm", expected, x));
    }
    let mut params = vec![weight];
    params.extend(bias);
    let recorder = Recorder::new(&[x], &params)?;
    let (y, [mean, rstd]) = forward(x, weight, bias, eps, "activation", "layer_norm forward")?;
    Ok(Recorder::record(recorder, y, |recorder| LayerNormBackward {
        x: recorder.save(x),
        mean,
        rstd,
        eps,
        weight: weight.clone(),
        bias: bias.cloned(),
    }))
}

/// The output, and mean and 1 / deviation of each row.
fn forward(
    x: &Tensor,
    weight: &Param,
    bias: Option<&Param>,
    eps: f32,
    what: &'static str,
    name: &'static str,
) -> Result<(Tensor, [Tensor; 2])> {
    let w = weight.weight()?;
    check_dtype("layer_norm", x, &w)?;
    let b = bias.map(Param::weight).transpose()?;
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), what)?;
    let statistic = || Tensor::uninit([x.shape().n_rows()], DType::F32, x.device(), "statistics");
    let (mut mean, mut rstd) = (statistic()?, statistic()?);
    x.device().run(name, 0, 2 * x.len_bytes() as u64, |cpu| {
        with_float!(x.dtype(), "layer_norm", T => {
            let b = b.as_ref().map(|b| b.slice::<T>()).transpose()?;
            norm::layer_norm_forward(
                cpu, x.slice::<T>()?, w.slice::<T>()?, b, eps,
                y.slice_mut::<T>()?, mean.slice_mut()?, rstd.slice_mut()?,
            );
            Ok(())
        })
    })?;
    Ok((y, [mean, rstd]))
}

struct LayerNormBackward {
    x: Saved,
    mean: Tensor,
    rstd: Tensor,
    eps: f32,
    weight: Param,
    bias: Option<Param>,
}

impl Function for LayerNormBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = grads[0].take() else { return Ok(()) };
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let device = x.device().clone();
        let (mut dx, store) = cx.slot(0, &x)?;
        let (n_rows, dim) = (x.shape().n_rows(), x.shape().last());
        // The kernel's two gradients are made in scratch memory, since both may lie in one flat buffer.
        let n_scratch = norm::layer_norm_backward_scratch(n_rows, dim);
        let mut scratch = device.scratch(4 * (n_scratch + 2 * dim))?;
        device.run("layer_norm backward", 0, 4 * x.len_bytes() as u64, |cpu| {
            let (scratch, sums) = bytemuck::cast_slice_mut(scratch.bytes_mut()).split_at_mut(n_scratch);
            let (d_weight, d_bias) = sums[..2 * dim].split_at_mut(dim);
            with_float!(x.dtype(), "layer_norm", T => {
                norm::layer_norm_backward(
                    cpu, x.slice::<T>()?, w.slice::<T>()?, self.mean.slice()?, self.rstd.slice()?, dy.slice::<T>()?,
                    (dx.slice_mut::<T>()?, store), (&mut *d_weight, Store::Overwrite),
                    Some((&mut *d_bias, Store::Overwrite)), scratch,
                );
                Ok(())
            })?;
            if let Some(mut slot) = self.weight.grad()? {
                slot.put(d_weight)?;
            }
            if let Some(bias) = &self.bias
                && let Some(mut slot) = bias.grad()?
            {
                slot.put(d_bias)?;
            }
            Ok(())
        })?;
        cx.put(0, dx)
    }

    fn can_replay(&self, _output: usize) -> bool {
        true
    }

    fn replay(&self, _output: usize, cx: &mut Backward<'_>) -> Result<Tensor> {
        let x = cx.get(&self.x)?;
        let (y, _) =
            forward(&x, &self.weight, self.bias.as_ref(), self.eps, "replayed", "layer_norm replay")?;
        Ok(y)
    }
}
