//! LayerNorm (Ba et al. 2016): y = (x - mean) / sqrt(variance + eps) · weight + bias, statistics in f32.

use oarlock_cuda::geometry;
use oarlock_kernels::{DType, Element, Result, Store, norm};

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
    let mut launch = x.device().launch(name, 0, 2 * x.len_bytes() as u64);
    let (rows, dim) = (x.shape().n_rows(), x.shape().last());
    with_float!(x.dtype(), "layer_norm", T => {
        let (x, w) = (launch.read::<T>(x)?, launch.read::<T>(&w)?);
        let b = b.as_ref().map(|b| launch.read::<T>(b)).transpose()?;
        let (y, mean, rstd) = (launch.write::<T>(&mut y)?, launch.write(&mut mean)?, launch.write(&mut rstd)?);
        launch.cuda(|gpu| {
            let call = gpu.kernel("layer_norm_forward", &[T::DTYPE])?.view(&x).view(&w).optional(b.as_ref()).f32(eps);
            let call = call.view(&y).view::<f32>(&mean).view::<f32>(&rstd).u32(rows).u32(dim);
            call.run(geometry::rows(rows, dim))
        })?;
        launch.run(move |cpu| {
            let b = b.map(|b| b.slice(cpu));
            let (y, mean, rstd) = (y.slice(cpu), mean.slice(cpu), rstd.slice(cpu));
            norm::layer_norm_forward(cpu, x.slice(cpu), w.slice(cpu), b, eps, y, mean, rstd);
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
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let x = cx.get(&self.x)?;
        let w = self.weight.weight()?;
        let device = x.device().clone();
        let (mut dx, store) = cx.slot(0, &x)?;
        let (n_rows, dim) = (x.shape().n_rows(), x.shape().last());
        // The two gradients are made in memory of their own, since their places may be in one flat buffer, which is lent to one
        // at a time.
        let sums = || Tensor::uninit([dim], DType::F32, &device, "gradient");
        let (mut weight_sums, mut bias_sums) = (sums()?, sums()?);
        let n_scratch = norm::layer_norm_backward_scratch(n_rows, dim);
        let mut launch = device.launch("layer_norm backward", 0, 4 * x.len_bytes() as u64);
        let scratch = launch.scratch::<f32>(n_scratch)?;
        with_float!(x.dtype(), "layer_norm", T => {
            let (x, w, dy) = (launch.read::<T>(&x)?, launch.read::<T>(&w)?, launch.read::<T>(&dy)?);
            let (mean, rstd) = (launch.read::<f32>(&self.mean)?, launch.read::<f32>(&self.rstd)?);
            let dx = launch.store::<T>(&mut dx, store)?;
            let (d_weight, d_bias) =
                (launch.write::<f32>(&mut weight_sums)?, launch.write::<f32>(&mut bias_sums)?);
            launch.cuda(|gpu| {
                let n_partials = geometry::norm_partials(n_rows);
                let partials = gpu.temporary(2 * 4 * n_partials * dim)?;
                let bytes = 4 * n_partials * dim;
                let [of_weight, of_bias] = [partials.part(0, bytes)?, partials.part(bytes, bytes)?];
                let call = gpu.kernel("layer_norm_backward", &[T::DTYPE])?.view(&x).view(&w).view(&mean).view(&rstd);
                let call = call.view(&dy).view(&dx).added(store).slice(of_weight).slice(of_bias);
                call.u32(n_rows).u32(dim).run(geometry::norm_backward(n_rows, dim, 2))?;
                let sizes = [1, n_partials, dim];
                [(of_weight, &d_weight), (of_bias, &d_bias)].into_iter().try_for_each(|(from, to)| {
                    let to = (gpu.slice(to)?, DType::F32, Store::Overwrite);
                    gpu.sum_rows(1.0, (from, DType::F32), sizes, to)
                })
            })?;
            launch.run(move |cpu| {
                norm::layer_norm_backward(
                    cpu, x.slice(cpu), w.slice(cpu), mean.slice(cpu), rstd.slice(cpu), dy.slice(cpu),
                    (dx.slice(cpu), store), (d_weight.slice(cpu), Store::Overwrite),
                    Some((d_bias.slice(cpu), Store::Overwrite)), scratch.slice(cpu),
                );
            })
        })?;
        for (param, sums) in [(Some(&self.weight), &weight_sums), (self.bias.as_ref(), &bias_sums)] {
            if let Some(mut slot) = param.map(Param::grad).transpose()?.flatten() {
                slot.put(sums)?;
            }
        }
        cx.give(0, dx)
    }

    fn can_replay(&self) -> bool {
        true
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        let x = cx.get(&self.x)?;
        let (y, _) =
            forward(&x, &self.weight, self.bias.as_ref(), self.eps, "replayed", "layer_norm replay")?;
        Ok(y)
    }
}
