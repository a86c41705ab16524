//! The head with its loss: logits in chunks of rows, cross-entropy and first gradient in one pass.
//!
//! The logits of a whole batch never exist. Where the tape was promised its seed, the gradients of x and of the weight
//! are made chunk by chunk in the forward pass, while the logits are there; otherwise the backward pass recomputes the
//! logits. The chunks are in `head_chunks`.

use crate::cpu::cross_entropy;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::head_chunks::{self, Head, Upstream};
use crate::ops::{Labels, WeightLayout, linear, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// What the head does with its logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadOptions {
    /// A soft cap `c`: logits become `c · tanh(logits / c)`, as in Gemma 2.
    pub logit_cap: Option<f32>,
}

/// A summed loss.
#[derive(Clone, Debug)]
pub struct HeadLoss {
    /// The sum over all targets: a scalar f32 on the tape.
    pub loss: Tensor,
    /// The bits of the same sum in f64: i32 `[2]`, the lower half first.
    total: Tensor,
    n_targets: usize,
}

impl HeadLoss {
    /// The number of targets: labels that are not [`IGNORE_INDEX`](crate::ops::IGNORE_INDEX).
    pub fn n_targets(&self) -> usize {
        self.n_targets
    }

    /// Reads the sum with all its digits, which waits for the device. NaN on a dry device.
    ///
    /// # Errors
    /// What the device reports.
    pub fn sum(&self) -> Result<f64> {
        if self.total.device().is_dry() {
            return Ok(f64::NAN);
        }
        let words = self.total.to_vec::<i32>()?;
        Ok(f64::from_bits(u64::from(words[0] as u32) | u64::from(words[1] as u32) << 32))
    }

    /// The same off its tape: what to keep of a loss until its sum is read.
    pub fn detach(&self) -> HeadLoss {
        self.with_loss(self.loss.detach())
    }

    /// The same with another tensor for its loss.
    pub fn with_loss(&self, loss: Tensor) -> HeadLoss {
        HeadLoss { loss, ..self.clone() }
    }
}

/// x `[.., I]`, weight `[V, I]`, a label for each row of x → the summed cross-entropy of `x·Wᵀ`. Labels are used as they
/// are: the caller has shifted them. Rows whose label is ignored cost nothing.
///
/// # Errors
/// Shapes that do not fit, or a label outside `0..V` that is not [`IGNORE_INDEX`](crate::ops::IGNORE_INDEX).
pub fn head_loss(x: &Tensor, weight: &Param, labels: &Labels, options: HeadOptions) -> Result<HeadLoss> {
    let op = "head_loss";
    check(op, x, weight, labels, options)?;
    let recorder = Recorder::new(&[x], &[weight])?;
    let seed = recorder.as_ref().filter(|r| r.needs_grad()).and_then(Recorder::promised_seed);
    let mut dx = match (&recorder, seed) {
        (Some(r), Some(_)) if r.needs_input(0) => {
            Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?)
        }
        _ => None,
    };
    let head = Head { x, weight, labels, options };
    let losses = head_chunks::run(&head, seed.map(Upstream::Uniform), dx.as_mut())?;
    let mut loss = Tensor::uninit([], DType::F32, x.device(), "losses")?;
    let mut total = Tensor::uninit([2], DType::I32, x.device(), "losses")?;
    let chunk = head_chunks::chunk_rows(x.shape().n_rows(), weight.shape().sizes()[0]);
    x.device().run("loss sum", 0, losses.len_bytes() as u64, |_| {
        let sum = cross_entropy::total(losses.slice()?, chunk);
        let bits = sum.to_bits();
        loss.slice_mut::<f32>()?[0] = sum as f32;
        total.slice_mut::<i32>()?.copy_from_slice(&[bits as i32, (bits >> 32) as i32]);
        Ok(())
    })?;
    let n_targets = labels.n_targets();
    let Some(recorder) = recorder else { return Ok(HeadLoss { loss, total, n_targets }) };
    let again = match seed {
        Some(_) => None,
        None => Some((recorder.save(x), labels.clone())),
    };
    let op = HeadBackward { weight: weight.clone(), options, seed, dx, again };
    let [loss] = recorder.finish([loss], op);
    Ok(HeadLoss { loss, total, n_targets })
}

/// As [`head_loss`], for the log-probability of each label: f32, of x's shape without its last dim; 0 where the label is
/// ignored. For losses that are no sum over tokens; the backward pass recomputes the logits.
///
/// # Errors
/// As [`head_loss`].
pub fn head_log_probs(x: &Tensor, weight: &Param, labels: &Labels, options: HeadOptions) -> Result<Tensor> {
    check("head_log_probs", x, weight, labels, options)?;
    let recorder = Recorder::new(&[x], &[weight])?;
    let losses = head_chunks::run(&Head { x, weight, labels, options }, None, None)?;
    let sizes = x.sizes();
    let mut y = Tensor::uninit(&sizes[..sizes.len() - 1], DType::F32, x.device(), "activation")?;
    x.device().run("log probabilities", 0, 2 * y.len_bytes() as u64, |_| {
        // Subtracted from 0, so that no -0 appears.
        y.slice_mut::<f32>()?.iter_mut().zip(losses.slice::<f32>()?).for_each(|(y, loss)| *y = 0.0 - loss);
        Ok(())
    })?;
    let Some(recorder) = recorder else { return Ok(y) };
    let op =
        LogProbsBackward { weight: weight.clone(), options, x: recorder.save(x), labels: labels.clone() };
    let [y] = recorder.finish([y], op);
    Ok(y)
}

/// The logits themselves: x `[.., I]`, weight `[V, I]` → `[.., V]`, not capped; for generation and for custom losses.
///
/// # Errors
/// Shapes that do not fit.
pub fn logits(x: &Tensor, weight: &Param) -> Result<Tensor> {
    linear(x, weight, None, WeightLayout::OutIn)
}

fn check(op: &'static str, x: &Tensor, weight: &Param, labels: &Labels, options: HeadOptions) -> Result<()> {
    let &[vocab @ (1..), dim] = weight.shape().sizes() else {
        return Err(wrong_shape(op, "a weight of shape [V, I] with V > 0", &weight.weight()?));
    };
    if x.sizes().is_empty() || x.shape().last() != dim {
        return Err(wrong_shape(op, format!("x of shape [.., {dim}]"), x));
    }
    if let Some(cap) = options.logit_cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
        return Err(Error::Usage(format!("{op}: expected a positive logit cap, got {cap}")));
    }
    labels.check(op, x.shape().n_rows(), vocab)
}

struct HeadBackward {
    weight: Param,
    options: HeadOptions,
    seed: Option<f32>,
    /// The gradient made in the forward pass.
    dx: Option<Tensor>,
    /// The inputs of the recomputation, where the gradients are made in the backward pass.
    again: Option<(Saved, Labels)>,
}

impl Function for HeadBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(upstream) = grads[0].take() else { return Ok(()) };
        let upstream = upstream.known_item()?.or(self.seed).unwrap_or(1.0);
        if let Some((x, labels)) = &self.again {
            return gradients(cx, x, &self.weight, labels, self.options, Upstream::Uniform(upstream));
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

struct LogProbsBackward {
    weight: Param,
    options: HeadOptions,
    x: Saved,
    labels: Labels,
}

impl Function for LogProbsBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(dy) = grads[0].take() else { return Ok(()) };
        let upstream = Upstream::LogProbs(&dy);
        gradients(cx, &self.x, &self.weight, &self.labels, self.options, upstream)
    }
}

/// Recomputes the logits for the gradients of x and of the weight.
fn gradients(
    cx: &mut Backward<'_>,
    x: &Saved,
    weight: &Param,
    labels: &Labels,
    options: HeadOptions,
    upstream: Upstream<'_>,
) -> Result<()> {
    let x = cx.get(x)?;
    let mut dx = match cx.needs(0) {
        true => Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?),
        false => None,
    };
    head_chunks::run(&Head { x: &x, weight, labels, options }, Some(upstream), dx.as_mut())?;
    dx.map_or(Ok(()), |dx| cx.give(0, dx))
}
