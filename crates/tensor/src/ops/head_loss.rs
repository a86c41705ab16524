//! The head with its loss: logits in chunks of rows, cross-entropy and first gradient in one pass.
//!
//! The logits of a whole batch never exist. Where the tape was promised its seed, the gradients of x and of the weight
//! are made chunk by chunk in the forward pass, while the logits are there; otherwise the backward pass makes the
//! logits again.

use crate::cpu::Store;
use crate::cpu::cross_entropy::{self, LossSum};
use crate::cpu::gemm::{self, MatMut, MatRef};
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::ops::linear::product;
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
    pub sum: f64,
    /// The number of targets: labels that are not [`IGNORE_INDEX`].
    pub n_targets: usize,
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
    let (sum, n_targets) = run(x, weight, labels, seed, dx.as_mut())?;
    let loss = Tensor::from_slice(&[sum as f32], [], x.device())?;
    let Some(recorder) = recorder else { return Ok(HeadLoss { loss, sum, n_targets }) };
    let again = match seed {
        Some(_) => None,
        None => Some((recorder.save(x), labels.detach())),
    };
    let [loss] = recorder.finish([loss], HeadBackward { weight: weight.clone(), seed, dx, again });
    Ok(HeadLoss { loss, sum, n_targets })
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
        let upstream = upstream.known_item()?.or(self.seed).unwrap_or(1.0);
        if let Some((x, labels)) = &self.again {
            let x = cx.get(x)?;
            let mut dx = match cx.needs(0) {
                true => Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?),
                false => None,
            };
            run(&x, &self.weight, labels, Some(upstream), dx.as_mut())?;
            return dx.map_or(Ok(()), |dx| cx.give(0, dx));
        }
        if self.seed != Some(upstream) {
            return Err(Error::Usage(format!(
                "head_loss: its gradient was made for the promised seed {:?}, but the loss was scaled on its way to \
                 backward ({upstream}); use a tape without a promised seed",
                self.seed
            )));
        }
        match self.dx {
            Some(dx) => cx.give(0, dx),
            None => Ok(()),
        }
    }
}

/// The loss sum and the number of targets; with a scale also the gradients, times that scale.
fn run(
    x: &Tensor,
    weight: &Param,
    labels: &Tensor,
    scale: Option<f32>,
    dx: Option<&mut Tensor>,
) -> Result<(f64, usize)> {
    let w = weight.weight()?;
    check_dtype("head_loss", x, &w)?;
    let slot = if scale.is_some() { weight.grad()? } else { None };
    with_float!(x.dtype(), "head_loss", T => chunks::<T>(x, &w, labels, scale, dx, slot))
}

fn chunks<T: Float>(
    x: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    scale: Option<f32>,
    mut dx: Option<&mut Tensor>,
    mut slot: Option<GradSlot>,
) -> Result<(f64, usize)> {
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
    let mut losses = vec![0.0; chunk];
    let (mut sum, mut n_targets) = (0.0, 0);
    if n_rows == 0
        && let Some(slot) = &mut slot
        && slot.store == Store::Overwrite
    {
        slot.slice_mut().fill(0.0);
    }
    for first in (0..n_rows).step_by(chunk) {
        let rows = chunk.min(n_rows - first);
        let span = first * dim..(first + rows) * dim;
        let x_rows = || -> Result<MatRef<'_, T>> {
            let data = &x.slice::<T>()?[span.clone()];
            Ok(MatRef { data, rows, cols: dim, row_stride: dim, transposed: false })
        };
        product(device, "head forward", x.dtype(), [rows, vocab, dim], |cpu, scratch| {
            let data = w.slice::<T>()?;
            let w_mat = MatRef { data, rows: dim, cols: vocab, row_stride: dim, transposed: true };
            let data = &mut logits.slice_mut::<f32>()?[..rows * vocab];
            let out = MatMut { data, rows, cols: vocab, row_stride: vocab };
            gemm::gemm(cpu, x_rows()?, w_mat, out, Store::Overwrite, scratch);
            Ok(())
        })?;
        let dry = LossSum { sum: f64::NAN, count: rows };
        let bytes = (rows * vocab * (4 + size_of::<T>())) as u64;
        let part = device.run_or(dry, "cross entropy", 0, bytes, |cpu| {
            let logit_rows = &mut logits.slice_mut::<f32>()?[..rows * vocab];
            let (labels, losses) = (&labels.slice()?[first..first + rows], &mut losses[..rows]);
            let part = match (scale, &mut d_logits) {
                (None, _) => cross_entropy::cross_entropy(cpu, logit_rows, labels, vocab, losses),
                (Some(scale), None) => {
                    cross_entropy::cross_entropy_grad_in_place(cpu, logit_rows, labels, vocab, scale, losses)
                }
                (Some(scale), Some(d_logits)) => {
                    let d_rows = &mut d_logits.slice_mut::<T>()?[..rows * vocab];
                    cross_entropy::cross_entropy_grad(cpu, logit_rows, labels, vocab, scale, losses, d_rows)
                }
            };
            part.map_err(|e| e.shifted(first))
        })?;
        (sum, n_targets) = (sum + part.sum, n_targets + part.count);
        if scale.is_none() {
            continue;
        }
        let d_logits = d_logits.as_ref().unwrap_or(&logits);
        if let Some(dx) = &mut dx {
            product(device, "head input grad", x.dtype(), [rows, dim, vocab], |cpu, scratch| {
                let data = &d_logits.slice::<T>()?[..rows * vocab];
                let d = MatRef { data, rows, cols: vocab, row_stride: vocab, transposed: false };
                let data = w.slice::<T>()?;
                let w_mat = MatRef { data, rows: vocab, cols: dim, row_stride: dim, transposed: false };
                let data = &mut dx.slice_mut::<T>()?[span.clone()];
                let out = MatMut { data, rows, cols: dim, row_stride: dim };
                gemm::gemm(cpu, d, w_mat, out, Store::Overwrite, scratch);
                Ok(())
            })?;
        }
        if let Some(slot) = &mut slot {
            product(device, "head weight grad", x.dtype(), [vocab, dim, rows], |cpu, scratch| {
                let data = &d_logits.slice::<T>()?[..rows * vocab];
                let d = MatRef { data, rows: vocab, cols: rows, row_stride: vocab, transposed: true };
                let store = if first == 0 { slot.store } else { Store::Add };
                let out = MatMut { data: slot.slice_mut(), rows: vocab, cols: dim, row_stride: dim };
                gemm::gemm(cpu, d, x_rows()?, out, store, scratch);
                Ok(())
            })?;
        }
    }
    Ok((sum, n_targets))
}
