//! The head with its loss: logits in chunks of rows, cross-entropy and first gradient in one pass.
//!
//! The logits of a whole batch never exist. Where the tape was promised its seed, the gradients of x and of the weight
//! are made chunk by chunk in the forward pass, while the logits are there; otherwise the backward pass makes the
//! logits again.

use crate::cpu::gemm::{MatMut, MatRef};
use crate::cpu::{Store, cross_entropy};
use crate::device::Kind;
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::ops::linear::matmul;
use crate::ops::{WeightLayout, check_dtype, linear, with_float, wrong_shape};
use crate::param::{GradSlot, Param};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// Labels with this value have no loss.
pub const IGNORE_INDEX: i32 = -100;

/// Elements of one chunk of logits: large enough for fast products, small enough to stay in the cache.
const CHUNK_ELEMS: usize = 1 << 21;

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
        (Some(r), Some(_)) if r.needs_input(0) => Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?),
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
        let upstream = upstream.item()?;
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
    with_float!(x.dtype(), "head_loss", T => chunks::<T>(x, &w, labels.slice()?, scale, dx, slot))
}

fn chunks<T: Float>(
    x: &Tensor,
    w: &Tensor,
    labels: &[i32],
    scale: Option<f32>,
    mut dx: Option<&mut Tensor>,
    mut slot: Option<GradSlot>,
) -> Result<(f64, usize)> {
    let device = x.device();
    let Kind::Cpu(cpu) = device.kind();
    let (vocab, dim, n_rows) = (w.sizes()[0], x.shape().last(), x.shape().n_rows());
    let chunk = (CHUNK_ELEMS / vocab.max(1)).next_multiple_of(32).clamp(32, 1024).min(n_rows.max(1));
    let mut logits = Tensor::uninit([chunk, vocab], DType::F32, device, "logits")?;
    let mut d_logits = match scale {
        Some(_) => Some(Tensor::uninit([chunk, vocab], x.dtype(), device, "logits")?),
        None => None,
    };
    let mut losses = vec![0.0; chunk];
    let (xs, ws) = (x.slice::<T>()?, w.slice::<T>()?);
    let (mut sum, mut n_targets) = (0.0, 0);
    if n_rows == 0
        && let Some(slot) = &mut slot
        && slot.store == Store::Overwrite
    {
        slot.slice_mut().fill(0.0);
    }
    for first in (0..n_rows).step_by(chunk) {
        let rows = chunk.min(n_rows - first);
        let labels = &labels[first..first + rows];
        let x_rows = &xs[first * dim..(first + rows) * dim];
        let flops = 2 * (rows * dim * vocab) as u64;
        let x_mat = MatRef { data: x_rows, rows, cols: dim, row_stride: dim, transposed: false };
        device.profile().time("head forward", flops, 0, || {
            let w_mat = MatRef { data: ws, rows: dim, cols: vocab, row_stride: dim, transposed: true };
            let out = MatMut { data: &mut logits.slice_mut::<f32>()?[..rows * vocab], rows, cols: vocab, row_stride: vocab };
            matmul(device, x_mat, w_mat, out, Store::Overwrite)
        })?;
        let logit_rows = &mut logits.slice_mut::<f32>()?[..rows * vocab];
        let losses = &mut losses[..rows];
        let bytes = (logit_rows.len() * (4 + size_of::<T>())) as u64;
        let (Some(scale), Some(d_logits)) = (scale, &mut d_logits) else {
            let part = device.profile().time("cross entropy", 0, bytes, || {
                cross_entropy::cross_entropy(cpu, logit_rows, labels, vocab, losses)
            });
            let part = part.map_err(|e| e.shifted(first))?;
            (sum, n_targets) = (sum + part.sum, n_targets + part.count);
            continue;
        };
        let d_rows = &mut d_logits.slice_mut::<T>()?[..rows * vocab];
        let part = device.profile().time("cross entropy", 0, bytes, || {
            cross_entropy::cross_entropy_grad(cpu, logit_rows, labels, vocab, scale, losses, d_rows)
        });
        let part = part.map_err(|e| e.shifted(first))?;
        (sum, n_targets) = (sum + part.sum, n_targets + part.count);
        if let Some(dx) = &mut dx {
            device.profile().time("head input grad", flops, 0, || {
                let d = MatRef { data: &*d_rows, rows, cols: vocab, row_stride: vocab, transposed: false };
                let w_mat = MatRef { data: ws, rows: vocab, cols: dim, row_stride: dim, transposed: false };
                let data = &mut dx.slice_mut::<T>()?[first * dim..(first + rows) * dim];
                matmul(device, d, w_mat, MatMut { data, rows, cols: dim, row_stride: dim }, Store::Overwrite)
            })?;
        }
        if let Some(slot) = &mut slot {
            device.profile().time("head weight grad", flops, 0, || {
                let d = MatRef { data: &*d_rows, rows: vocab, cols: rows, row_stride: vocab, transposed: true };
                let store = if first == 0 { slot.store } else { Store::Add };
                let out = MatMut { data: slot.slice_mut(), rows: vocab, cols: dim, row_stride: dim };
                matmul(device, d, x_mat, out, store)
            })?;
        }
    }
    Ok((sum, n_targets))
}
