//! The head with its loss: logits in chunks of rows, cross-entropy and first gradient in one pass.
//!
//! The logits of a whole batch never exist. Where the tape was promised its seed, the gradients of x and of the weight
//! are made chunk by chunk in the forward pass, while the logits are there; otherwise the backward pass makes the
//! logits again.

use crate::cpu::gemm::{self, MatMut, MatRef};
use crate::cpu::{Store, cross_entropy};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::ops::linear::product;
use crate::ops::transfer::DeviceF64;
use crate::ops::{WeightLayout, check_dtype, linear, with_float, wrong_shape};
use crate::param::{GradSlot, Param};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// Labels with this value have no loss.
pub const IGNORE_INDEX: i32 = -100;

/// Elements of one chunk of logits: large enough for fast products, small enough to stay in the cache.
const CHUNK_ELEMS: usize = 1 << 22;

/// A summed loss.
#[derive(Clone, Debug)]
pub struct HeadLoss {
    /// The sum over all targets: a scalar f32 on the tape.
    pub loss: Tensor,
    /// The same sum with all its digits.
    pub exact: DeviceF64,
    /// The number of targets: labels that are not [`IGNORE_INDEX`].
    pub n_targets: usize,
}

impl HeadLoss {
    /// The same with another tensor for the sum on the tape.
    pub fn with_loss(&self, loss: Tensor) -> HeadLoss {
        HeadLoss { loss, ..self.clone() }
    }

    /// The sum with all its digits, copied to the host.
    ///
    /// # Errors
    /// On a dry device, and what a launch met that made it.
    pub fn sum(&self) -> Result<f64> {
        self.exact.read()
    }
}

/// x `[.., I]`, weight `[V, I]`, labels `[..]` → the summed cross-entropy of `x·Wᵀ`. Labels are used as they are: the
/// caller has shifted them.
///
/// # Errors
/// Shapes that do not fit, or a label outside `0..V` that is not [`IGNORE_INDEX`].
pub fn head_loss(x: &Tensor, weight: &Param, labels: &Tensor) -> Result<HeadLoss> {
    let &[(1..), dim] = weight.shape().sizes() else {
        return Err(wrong_shape("head_loss", "a weight of shape [V, I] with V > 0", &weight.weight()?));
    };
    if x.sizes().is_empty() || x.shape().last() != dim {
        return Err(wrong_shape("head_loss", format!("x of shape [.., {dim}]"), x));
    }
    if labels.dtype() != DType::I32 || labels.n_elems() != x.shape().n_rows() {
        return Err(wrong_shape("head_loss", format!("{} labels (i32)", x.shape().n_rows()), labels));
    }
    let recorder = Recorder::new(&[x], &[weight])?;
    let seed = recorder.as_ref().filter(|r| r.needs_grad()).and_then(Recorder::promised_seed);
    let mut dx = match (&recorder, seed) {
        (Some(r), Some(_)) if r.needs_input(0) => {
            Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?)
        }
        _ => None,
    };
    let n_targets = match labels.device().is_dry() {
        true => labels.n_elems(),
        false => labels.to_vec::<i32>()?.iter().filter(|&&label| label != IGNORE_INDEX).count(),
    };
    let scale = seed.map(|seed| Scale { factor: seed, upstream: None });
    let (loss, exact) = run(x, weight, labels, scale, dx.as_mut())?;
    let Some(recorder) = recorder else { return Ok(HeadLoss { loss, exact, n_targets }) };
    let again = match seed {
        Some(_) => None,
        None => Some((recorder.save(x), labels.detach())),
    };
    let [loss] = recorder.finish([loss], HeadBackward { weight: weight.clone(), seed, dx, again });
    Ok(HeadLoss { loss, exact, n_targets })
}

/// The logits themselves: x `[.., I]`, weight `[V, I]` → `[.., V]`; for generation and for losses of one's own.
///
/// # Errors
/// Shapes that do not fit.
pub fn logits(x: &Tensor, weight: &Param) -> Result<Tensor> {
    linear(x, weight, None, WeightLayout::OutIn)
}

struct HeadBackward {
    weight: Param,
    seed: Option<f32>,
    /// The gradient made in the forward pass.
    dx: Option<Tensor>,
    /// What it takes to make the gradients now.
    again: Option<(Saved, Tensor)>,
}

impl Function for HeadBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(upstream) = grads[0].take() else { return Ok(()) };
        if let Some((x, labels)) = &self.again {
            let x = cx.get(x)?;
            let mut dx = match cx.needs(0) {
                true => Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?),
                false => None,
            };
            let scale = Scale { factor: 1.0, upstream: Some(upstream) };
            run(&x, &self.weight, labels, Some(scale), dx.as_mut())?;
            return dx.map_or(Ok(()), |dx| cx.give(0, dx));
        }
        let (seed, device) = (self.seed, upstream.device().clone());
        let mut launch = device.quiet_launch("head_loss");
        let upstream = launch.read::<f32>(&upstream)?;
        launch.run(move |cpu| match upstream.slice(cpu)[0] {
            upstream if seed == Some(upstream) => Ok(()),
            upstream => Err(Error::Usage(format!(
                "head_loss: its gradient was made for the promised seed {seed:?}, but the loss was scaled on its way to \
                 backward ({upstream}); use a tape without a promised seed"
            ))),
        })?;
        match self.dx {
            Some(dx) => cx.give(0, dx),
            None => Ok(()),
        }
    }
}

/// What gradients are multiplied with.
struct Scale {
    factor: f32,
    upstream: Option<Tensor>,
}

/// The loss sum, as a tensor and with all its digits; with a scale also the gradients, times that scale.
fn run(
    x: &Tensor,
    weight: &Param,
    labels: &Tensor,
    scale: Option<Scale>,
    dx: Option<&mut Tensor>,
) -> Result<(Tensor, DeviceF64)> {
    let w = weight.weight()?;
    check_dtype("head_loss", x, &w)?;
    let slot = if scale.is_some() { weight.grad()? } else { None };
    let sum = DeviceF64::zero(x.device(), "losses")?;
    with_float!(x.dtype(), "head_loss", T => chunks::<T>(x, &w, labels, scale.as_ref(), dx, slot, &sum))?;
    let mut loss = Tensor::uninit([], DType::F32, x.device(), "tensor")?;
    let mut launch = x.device().quiet_launch("head_loss");
    let (from, to) = (sum.view(&mut launch)?, launch.write::<f32>(&mut loss)?);
    launch.run(move |cpu| {
        to.slice(cpu)[0] = from.slice(cpu)[0] as f32;
        Ok(())
    })?;
    Ok((loss, sum))
}

fn chunks<T: Float>(
    x: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    scale: Option<&Scale>,
    mut dx: Option<&mut Tensor>,
    mut slot: Option<GradSlot>,
    sum: &DeviceF64,
) -> Result<()> {
    let device = x.device();
    let (vocab, dim, n_rows) = (w.sizes()[0], x.shape().last(), x.shape().n_rows());
    // Chunks of one size: a short last one would waste the packing of the weights.
    let n_chunks = (n_rows * vocab).div_ceil(CHUNK_ELEMS).min(n_rows.div_ceil(32)).max(1);
    let chunk = n_rows.div_ceil(n_chunks).next_multiple_of(32).clamp(1, n_rows.max(1));
    let mut logits = Tensor::uninit([chunk, vocab], DType::F32, device, "logits")?;
    // In f32 the gradient is written over the logits.
    let in_place = x.dtype() == DType::F32;
    let mut d_logits = match scale {
        Some(_) if !in_place => Some(Tensor::uninit([chunk, vocab], x.dtype(), device, "logits")?),
        _ => None,
    };
    if n_rows == 0
        && let Some(slot) = &mut slot
        && slot.store == Store::Overwrite
    {
        let mut launch = device.quiet_launch("head_loss");
        let grad = launch.grad(slot)?;
        launch.run(move |cpu| {
            grad.slice(cpu).fill(0.0);
            Ok(())
        })?;
    }
    for first in (0..n_rows).step_by(chunk) {
        let rows = chunk.min(n_rows - first);
        let span = first * dim..(first + rows) * dim;
        let (mut launch, scratch) = product(device, "head forward", x.dtype(), [rows, vocab, dim])?;
        let (x_rows, w_all) = (launch.read_at::<T>(x, &span)?, launch.read::<T>(w)?);
        let out = launch.write_at::<f32>(&mut logits, &(0..rows * vocab))?;
        launch.run(move |cpu| {
            let w =
                MatRef { data: w_all.slice(cpu), rows: dim, cols: vocab, row_stride: dim, transposed: true };
            let (x, out) =
                (MatRef::new(x_rows.slice(cpu), rows, dim), MatMut::new(out.slice(cpu), rows, vocab));
            gemm::gemm(cpu, x, w, out, Store::Overwrite, scratch.slice(cpu));
            Ok(())
        })?;
        let bytes = (rows * vocab * (4 + size_of::<T>())) as u64;
        let mut launch = device.launch("cross entropy", 0, bytes);
        let losses = launch.scratch::<f32>(rows)?;
        let labels = launch.read_at::<i32>(labels, &(first..first + rows))?;
        let sum = sum.view_mut(&mut launch)?;
        let factor = scale.map(|scale| scale.factor);
        let upstream = scale.and_then(|scale| scale.upstream.as_ref());
        let upstream = upstream.map(|upstream| launch.read::<f32>(upstream)).transpose()?;
        let x_logits = launch.update_at::<f32>(&mut logits, &(0..rows * vocab))?;
        let d_rows = match &mut d_logits {
            Some(d_logits) => Some(launch.write_at::<T>(d_logits, &(0..rows * vocab))?),
            None => None,
        };
        launch.run(move |cpu| {
            let (x, labels, losses) = (x_logits.slice(cpu), labels.slice(cpu), losses.slice(cpu));
            let scale = factor.map(|factor| factor * upstream.map_or(1.0, |upstream| upstream.slice(cpu)[0]));
            let part = match (scale, d_rows) {
                (None, _) => cross_entropy::cross_entropy(cpu, x, labels, vocab, losses),
                (Some(scale), None) => {
                    cross_entropy::cross_entropy_grad_in_place(cpu, x, labels, vocab, scale, losses)
                }
                (Some(scale), Some(d_rows)) => {
                    cross_entropy::cross_entropy_grad(cpu, x, labels, vocab, scale, losses, d_rows.slice(cpu))
                }
            };
            sum.slice(cpu)[0] += part.map_err(|e| e.shifted(first))?.sum;
            Ok(())
        })?;
        if scale.is_none() {
            continue;
        }
        let d_logits = d_logits.as_ref().unwrap_or(&logits);
        if let Some(dx) = &mut dx {
            let (mut launch, scratch) = product(device, "head input grad", x.dtype(), [rows, dim, vocab])?;
            let (d, w) = (launch.read_at::<T>(d_logits, &(0..rows * vocab))?, launch.read::<T>(w)?);
            let out = launch.write_at::<T>(dx, &span)?;
            launch.run(move |cpu| {
                let (d, w) = (MatRef::new(d.slice(cpu), rows, vocab), MatRef::new(w.slice(cpu), vocab, dim));
                let out = MatMut::new(out.slice(cpu), rows, dim);
                gemm::gemm(cpu, d, w, out, Store::Overwrite, scratch.slice(cpu));
                Ok(())
            })?;
        }
        if let Some(slot) = &mut slot {
            let (mut launch, scratch) = product(device, "head weight grad", x.dtype(), [vocab, dim, rows])?;
            let (d, x_rows) =
                (launch.read_at::<T>(d_logits, &(0..rows * vocab))?, launch.read_at::<T>(x, &span)?);
            let store = if first == 0 { slot.store } else { Store::Add };
            let out = launch.grad_as(slot, store)?;
            launch.run(move |cpu| {
                let d = MatRef {
                    data: d.slice(cpu),
                    rows: vocab,
                    cols: rows,
                    row_stride: vocab,
                    transposed: true,
                };
                let (x, out) =
                    (MatRef::new(x_rows.slice(cpu), rows, dim), MatMut::new(out.slice(cpu), vocab, dim));
                gemm::gemm(cpu, d, x, out, store, scratch.slice(cpu));
                Ok(())
            })?;
        }
    }
    Ok(())
}
