//! Losses that compare two tensors: mean squared error and Kullback-Leibler divergence.

use crate::cpu::pair_loss::{self as kernel, PairLoss};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Reduction, check_device, check_dtype, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// What [`kl_div`] is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlTarget {
    /// Probabilities.
    Probs,
    /// Their logarithms.
    LogProbs,
}

/// How the terms of [`kl_div`] become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlReduction {
    /// Their sum.
    Sum,
    /// Their mean over all elements.
    Mean,
    /// Their sum divided by the size of the first dim: the divergence by its definition.
    BatchMean,
}

/// `(x - target)²`, summed or averaged over all elements → a scalar f32. Both get gradients.
///
/// # Errors
/// Unequal shapes or dtypes.
pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let divisor = match reduction {
        Reduction::Sum => 1,
        Reduction::Mean => x.n_elems(),
    };
    apply(x, target, PairLoss::Squared, divisor, "mse_loss")
}

/// `p · (ln p - x)` for log-probabilities x and a target distribution p → a scalar f32. Both get gradients.
///
/// # Errors
/// Unequal shapes or dtypes.
pub fn kl_div(x: &Tensor, target: &Tensor, form: KlTarget, reduction: KlReduction) -> Result<Tensor> {
    let loss = match form {
        KlTarget::Probs => PairLoss::KlProbs,
        KlTarget::LogProbs => PairLoss::KlLogProbs,
    };
    let divisor = match reduction {
        KlReduction::Sum => 1,
        KlReduction::Mean => x.n_elems(),
        KlReduction::BatchMean => x.sizes().first().copied().unwrap_or(1),
    };
    apply(x, target, loss, divisor, "kl_div")
}

fn apply(x: &Tensor, target: &Tensor, loss: PairLoss, divisor: usize, name: &'static str) -> Result<Tensor> {
    check_device(name, x, &[target])?;
    check_dtype(name, x, target)?;
    if x.shape() != target.shape() {
        return Err(wrong_shape(name, format!("a target of shape {:?}", x.shape()), target));
    }
    let recorder = Recorder::new(&[x, target], &[])?;
    let scale = 1.0 / divisor.max(1) as f64;
    let mut y = Tensor::uninit([], DType::F32, x.device(), "tensor")?;
    let mut launch = x.device().launch(name, 0, 2 * x.len_bytes() as u64);
    with_float!(x.dtype(), name, T => {
        let (x, target) = (launch.read::<T>(x)?, launch.read::<T>(target)?);
        let y = launch.write::<f32>(&mut y)?;
        launch.run(move |cpu| {
            y.slice(cpu)[0] = (kernel::sum(cpu, loss, x.slice(cpu), target.slice(cpu)) * scale) as f32;
        })
    })?;
    Ok(Recorder::record(recorder, y, |recorder| PairLossBackward {
        loss,
        name,
        x: recorder.save(x),
        target: recorder.save(target),
        scale: scale as f32,
    }))
}

struct PairLossBackward {
    loss: PairLoss,
    name: &'static str,
    x: Saved,
    target: Saved,
    scale: f32,
}

impl Function for PairLossBackward {
    fn backward(self: Box<Self>, upstream: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (x, target) = (cx.get(&self.x)?, cx.get(&self.target)?);
        let device = x.device().clone();
        for index in [0, 1] {
            if !cx.needs(index) {
                continue;
            }
            let mut grad = Tensor::uninit(*x.shape(), x.dtype(), &device, "gradient")?;
            let mut launch = device.launch(self.name, 0, 3 * x.len_bytes() as u64);
            with_float!(x.dtype(), self.name, T => {
                let (x, target, upstream) =
                    (launch.read::<T>(&x)?, launch.read::<T>(&target)?, launch.read::<f32>(&upstream)?);
                let (loss, scale, grad) = (self.loss, self.scale, launch.write::<T>(&mut grad)?);
                launch.run(move |cpu| {
                    let scale = scale * upstream.slice(cpu)[0];
                    let (x, target, grad) = (x.slice(cpu), target.slice(cpu), grad.slice(cpu));
                    match index {
                        0 => kernel::input_grad(cpu, loss, scale, x, target, grad),
                        _ => kernel::target_grad(cpu, loss, scale, x, target, grad),
                    }
                })
            })?;
            cx.give(index, grad)?;
        }
        Ok(())
    }
}
