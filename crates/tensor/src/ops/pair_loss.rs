//! Losses that compare two tensors element by element: errors, binary cross-entropy, Kullback-Leibler divergence.

use oarlock_cuda::functions;
use oarlock_cuda::geometry::{self, NORM_BLOCK};
use oarlock_kernels::pair_loss::{self as kernel, PairLoss};
use oarlock_kernels::{DType, Element, Error, Result};

use crate::cuda::Call;
use crate::ops::{Reduction, check_device, check_dtype, mul, with_float, wrong_shape};
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
    /// Each for itself.
    None,
    /// Their sum.
    Sum,
    /// Their mean over all elements.
    Mean,
    /// Their sum divided by the size of the first dim: the divergence by its definition.
    BatchMean,
}

/// `(x - target)²`: summed or averaged over all elements to a scalar f32, or of each element in x's dtype. Both get
/// gradients.
///
/// # Errors
/// Unequal shapes or dtypes.
pub fn mse_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    apply(x, target, PairLoss::Squared, divisor(x, reduction), "mse_loss")
}

/// `|x - target|`, reduced as by [`mse_loss`]. The gradient at 0 is 0.
///
/// # Errors
/// As [`mse_loss`].
pub fn l1_loss(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    apply(x, target, PairLoss::Absolute, divisor(x, reduction), "l1_loss")
}

/// `(x - target)² / (2 beta)` where the difference is below `beta`, else `|x - target| - beta / 2`; reduced as by
/// [`mse_loss`]. With a `beta` of 0 it is [`l1_loss`].
///
/// # Errors
/// As [`mse_loss`], or a negative `beta`.
pub fn smooth_l1_loss(x: &Tensor, target: &Tensor, beta: f32, reduction: Reduction) -> Result<Tensor> {
    if beta == 0.0 {
        return l1_loss(x, target, reduction);
    }
    let beta = positive("smooth_l1_loss", "a beta of at least 0", beta)?;
    apply(x, target, PairLoss::Smooth { beta, factor: 1.0 }, divisor(x, reduction), "smooth_l1_loss")
}

/// `(x - target)² / 2` where the difference is below `delta`, else `delta · (|x - target| - delta / 2)`; reduced as by
/// [`mse_loss`] (Huber 1964).
///
/// # Errors
/// As [`mse_loss`], or a `delta` that is not positive.
pub fn huber_loss(x: &Tensor, target: &Tensor, delta: f32, reduction: Reduction) -> Result<Tensor> {
    let beta = positive("huber_loss", "a positive delta", delta)?;
    apply(x, target, PairLoss::Smooth { beta, factor: delta }, divisor(x, reduction), "huber_loss")
}

/// `-t · ln x - (1 - t) · ln(1 - x)` for probabilities x and targets t, reduced as by [`mse_loss`]. Logarithms are -100
/// or more, as in torch.
///
/// # Errors
/// As [`mse_loss`].
pub fn binary_cross_entropy(x: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    apply(x, target, PairLoss::Binary, divisor(x, reduction), "binary_cross_entropy")
}

/// `p · (ln p - x)` for log-probabilities x and a target distribution p → a scalar f32, or one number for each element
/// in x's dtype. Both get gradients.
///
/// # Errors
/// Unequal shapes or dtypes.
pub fn kl_div(x: &Tensor, target: &Tensor, form: KlTarget, reduction: KlReduction) -> Result<Tensor> {
    let loss = match form {
        KlTarget::Probs => PairLoss::KlProbs,
        KlTarget::LogProbs => PairLoss::KlLogProbs,
    };
    let divisor = match reduction {
        KlReduction::None => None,
        KlReduction::Sum => Some(1),
        KlReduction::Mean => Some(x.n_elems()),
        KlReduction::BatchMean => Some(x.sizes().first().copied().unwrap_or(1)),
    };
    apply(x, target, loss, divisor, "kl_div")
}

/// What the sum of all elements is divided by; `None` where there is no sum.
fn divisor(x: &Tensor, reduction: Reduction) -> Option<usize> {
    match reduction {
        Reduction::None => None,
        Reduction::Sum => Some(1),
        Reduction::Mean => Some(x.n_elems()),
    }
}

fn positive(op: &str, expected: &str, got: f32) -> Result<f32> {
    if got > 0.0 && got.is_finite() {
        return Ok(got);
    }
    Err(Error::Usage(format!("{op}: expected {expected}, got {got}")))
}

fn apply(
    x: &Tensor,
    target: &Tensor,
    loss: PairLoss,
    divisor: Option<usize>,
    name: &'static str,
) -> Result<Tensor> {
    check_device(name, x, &[target])?;
    check_dtype(name, x, target)?;
    if x.shape() != target.shape() {
        return Err(wrong_shape(name, format!("a target of shape {:?}", x.shape()), target));
    }
    let recorder = Recorder::new(&[x, target], &[])?;
    let scale = divisor.map(|divisor| 1.0 / divisor.max(1) as f64);
    let mut y = match scale {
        Some(_) => Tensor::uninit([], DType::F32, x.device(), "tensor")?,
        None => Tensor::uninit(*x.shape(), x.dtype(), x.device(), "activation")?,
    };
    let mut launch = x.device().launch(name, 0, 2 * x.len_bytes() as u64);
    let n = x.n_elems();
    with_float!(x.dtype(), name, T => {
        let (x, target) = (launch.read::<T>(x)?, launch.read::<T>(target)?);
        match scale {
            Some(scale) => {
                let y = launch.write::<f32>(&mut y)?;
                launch.cuda(|gpu| {
                    let n_blocks = n.div_ceil(NORM_BLOCK).max(1);
                    let memory = gpu.temporary(8 * n_blocks)?;
                    let (blocks, grid) = (memory.part(0, 8 * n_blocks)?, geometry::squared_norm(n));
                    if n == 0 {
                        gpu.fill_slice(blocks, 0)?;
                    }
                    of_kind(gpu.kernel("pair_loss_sum", &[T::DTYPE])?, loss)
                        .view(&x).view(&target).slice(blocks).u64(n).run(grid)?;
                    let call = gpu.kernel("mean_f64", &[])?.slice(blocks).view(&y);
                    call.u64(divisor.unwrap_or(1).max(1)).u64(n_blocks).run(geometry::one_block())
                })?;
                launch.run(move |cpu| {
                    y.slice(cpu)[0] = (kernel::sum(cpu, loss, x.slice(cpu), target.slice(cpu)) * scale) as f32;
                })
            }
            None => {
                let y = launch.write::<T>(&mut y)?;
                launch.cuda(|gpu| {
                    let call = of_kind(gpu.kernel("pair_loss_each", &[T::DTYPE])?, loss).view(&x).view(&target);
                    call.view(&y).u64(n).run(geometry::elements(n))
                })?;
                launch.run(move |cpu| kernel::each(cpu, loss, x.slice(cpu), target.slice(cpu), y.slice(cpu)))
            }
        }
    })?;
    Ok(Recorder::record(recorder, y, |recorder| PairLossBackward {
        loss,
        name,
        x: recorder.save(x),
        target: recorder.save(target),
        scale: scale.map(|scale| scale as f32),
    }))
}

/// The first arguments of the kernels of a GPU.
fn of_kind(call: Call<'_>, loss: PairLoss) -> Call<'_> {
    let plain = |kind| (kind, 0.0, 0.0);
    let (kind, beta, factor) = match loss {
        PairLoss::Squared => plain(functions::PairLoss::Squared),
        PairLoss::Absolute => plain(functions::PairLoss::Absolute),
        PairLoss::Smooth { beta, factor } => (functions::PairLoss::Smooth, beta, factor),
        PairLoss::Binary => plain(functions::PairLoss::Binary),
        PairLoss::KlProbs => plain(functions::PairLoss::KlProbs),
        PairLoss::KlLogProbs => plain(functions::PairLoss::KlLogProbs),
    };
    call.u32(kind as usize).f32(beta).f32(factor)
}

struct PairLossBackward {
    loss: PairLoss,
    name: &'static str,
    x: Saved,
    target: Saved,
    /// Of the sum; `None` where there is none.
    scale: Option<f32>,
}

impl Function for PairLossBackward {
    fn backward(self: Box<Self>, upstream: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (x, target) = (cx.get(&self.x)?, cx.get(&self.target)?);
        let (device, n) = (x.device().clone(), x.n_elems());
        for index in [0, 1] {
            if !cx.needs(index) {
                continue;
            }
            let mut grad = Tensor::uninit(*x.shape(), x.dtype(), &device, "gradient")?;
            let mut launch = device.launch(self.name, 0, 3 * x.len_bytes() as u64);
            with_float!(x.dtype(), self.name, T => {
                let (x, target) = (launch.read::<T>(&x)?, launch.read::<T>(&target)?);
                let sum = self.scale.map(|scale| Ok((scale, launch.read::<f32>(&upstream)?))).transpose()?;
                let (loss, grad) = (self.loss, launch.write::<T>(&mut grad)?);
                launch.cuda(|gpu| {
                    let op = if index == 0 { "pair_loss_input_grad" } else { "pair_loss_target_grad" };
                    let scale = sum.as_ref().map_or(1.0, |(scale, _)| *scale);
                    let call = of_kind(gpu.kernel(op, &[T::DTYPE])?, loss).f32(scale);
                    let call = call.optional(sum.as_ref().map(|(_, upstream)| upstream)).view(&x).view(&target);
                    call.view(&grad).u64(n).run(geometry::elements(n))
                })?;
                launch.run(move |cpu| {
                    let scale = sum.map_or(1.0, |(scale, upstream)| scale * upstream.slice(cpu)[0]);
                    let (x, target, grad) = (x.slice(cpu), target.slice(cpu), grad.slice(cpu));
                    match index {
                        0 => kernel::input_grad(cpu, loss, scale, x, target, grad),
                        _ => kernel::target_grad(cpu, loss, scale, x, target, grad),
                    }
                })
            })?;
            let grad = if self.scale.is_some() { grad } else { mul(&grad, &upstream)? };
            cx.give(index, grad)?;
        }
        Ok(())
    }
}
