//! The head with its loss: logits in chunks of rows, cross-entropy and first gradient in one pass.
//!
//! The logits of a whole batch never exist. Where the tape was promised its seed, the gradients of x and of the weight
//! are made chunk by chunk in the forward pass, while the logits are there; otherwise the backward pass recomputes the
//! logits. The chunks are in `head_chunks`.

use oarlock_cuda::{functions, geometry};
use oarlock_kernels::token_loss::TokenLoss;
use oarlock_kernels::{DType, Error, Result, cross_entropy};

use crate::launch::Mode;
use crate::ops::cross_entropy::reduced;
use crate::ops::head_chunks::{self, Head, Upstream};
use crate::ops::head_rows::chunk_rows;
use crate::ops::transfer::DeviceF64;
use crate::ops::{IGNORE_INDEX, Labels, Reduction, WeightLayout, linear, wrong_shape};
use crate::param::Param;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::{Known, Tensor};

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
    /// The same sum with all its digits.
    pub exact: DeviceF64,
    /// The number of targets: labels that are not [`IGNORE_INDEX`](crate::ops::IGNORE_INDEX).
    pub n_targets: usize,
}

impl HeadLoss {
    /// The summed cross-entropy of logits `[.., V]` that exist already, for a head that is not a product with one weight.
    ///
    /// # Errors
    /// As [`head_loss`].
    pub fn of_logits(logits: &Tensor, labels: &Labels) -> Result<HeadLoss> {
        labels.check("head_loss", logits.shape().n_rows(), logits.shape().last())?;
        let ids = Tensor::from_slice(labels.ids(), [labels.ids().len()], logits.device())?;
        let exact = DeviceF64::zero(logits.device(), "losses")?;
        let loss = reduced(logits, &ids, IGNORE_INDEX, Reduction::Sum, Some(&exact))?;
        Ok(HeadLoss { loss, exact, n_targets: labels.n_targets() })
    }

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

/// x `[.., I]`, weight `[V, I]`, a label for each row of x → the summed cross-entropy of `x·Wᵀ`. Labels are used as they
/// are: the caller has shifted them. Rows whose label is ignored cost nothing.
///
/// # Errors
/// Shapes that do not fit, or a label outside `0..V` that is not [`IGNORE_INDEX`](crate::ops::IGNORE_INDEX).
pub fn head_loss(x: &Tensor, weight: &Param, labels: &Labels, options: HeadOptions) -> Result<HeadLoss> {
    head_token_loss(x, weight, labels, options, TokenLoss::CrossEntropy)
}

/// As [`head_loss`], with another loss of each token. What stands in its formula as a weight has no gradient.
///
/// # Errors
/// As [`head_loss`], and a smoothing outside `0..1` or a power below 0.
pub fn head_token_loss(
    x: &Tensor,
    weight: &Param,
    labels: &Labels,
    options: HeadOptions,
    kind: TokenLoss,
) -> Result<HeadLoss> {
    let op = "head_loss";
    match kind {
        TokenLoss::Smoothed(smoothing) if !(0.0..1.0).contains(&smoothing) => {
            return Err(Error::Usage(format!(
                "{op}: expected a smoothing of at least 0 and below 1, got {smoothing}"
            )));
        }
        TokenLoss::ByEntropy { alpha } if !(alpha.is_finite() && alpha >= 0.0) => {
            return Err(Error::Usage(format!("{op}: expected a power of at least 0, got {alpha}")));
        }
        _ => {}
    }
    check(op, x, weight, labels, options)?;
    let recorder = Recorder::new(&[x], &[weight])?;
    let seed = recorder.as_ref().filter(|r| r.needs_grad()).and_then(Recorder::promised_seed);
    let mut dx = match (&recorder, seed) {
        (Some(r), Some(_)) if r.needs_input(0) => {
            Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?)
        }
        _ => None,
    };
    let head = Head { x, weight, labels, options, loss: kind, hits: false };
    let losses = head_chunks::run(&head, seed.map(Upstream::Seed), dx.as_mut())?;
    let (exact, mut loss) =
        (DeviceF64::zero(x.device(), "losses")?, Tensor::uninit([], DType::F32, x.device(), "tensor")?);
    let chunk = chunk_rows(x.device(), x.shape().n_rows(), weight.shape().sizes()[0]);
    let mut launch = x.device().quiet_launch(op);
    let n = losses.n_elems();
    let (losses, out) = (launch.read::<f32>(&losses)?, launch.write::<f32>(&mut loss)?);
    let mut sum_lease = exact.lease()?;
    let sum = launch.write_flat::<f64>(&mut sum_lease, &(0..1), Mode::Write)?;
    launch.cuda(|gpu| {
        let call = gpu.kernel("total_loss", &[])?.view(&losses).null().view(&sum).view(&out).null();
        call.u32(n).run(geometry::one_block())
    })?;
    launch.run(move |cpu| {
        let total = cross_entropy::total(losses.slice(cpu), chunk);
        (sum.slice(cpu)[0], out.slice(cpu)[0]) = (total, total as f32);
    })?;
    drop(sum_lease);
    let n_targets = labels.n_targets();
    let loss = Recorder::record(recorder, loss, |recorder| {
        let again = seed.is_none().then(|| (recorder.save(x), labels.clone()));
        HeadBackward { weight: weight.clone(), options, kind, seed, dx, again }
    });
    Ok(HeadLoss { loss, exact, n_targets })
}

/// As [`head_loss`], for the log-probability of each label: f32, of x's shape without its last dim; 0 where the label is
/// ignored. For losses that are not a sum over tokens; the backward pass recomputes the logits.
///
/// # Errors
/// As [`head_loss`].
pub fn head_log_probs(x: &Tensor, weight: &Param, labels: &Labels, options: HeadOptions) -> Result<Tensor> {
    check("head_log_probs", x, weight, labels, options)?;
    let recorder = Recorder::new(&[x], &[weight])?;
    let losses = head_chunks::run(
        &Head { x, weight, labels, options, loss: TokenLoss::CrossEntropy, hits: false },
        None,
        None,
    )?;
    let sizes = x.sizes();
    let mut y = Tensor::uninit(&sizes[..sizes.len() - 1], DType::F32, x.device(), "activation")?;
    let mut launch = x.device().quiet_launch("head_log_probs");
    let n = losses.n_elems();
    let (losses, out) = (launch.read::<f32>(&losses)?, launch.write::<f32>(&mut y)?);
    launch.cuda(|gpu| {
        let call = gpu.kernel("unary_forward", &[DType::F32])?.u32(functions::Unary::Affine as usize);
        call.f32(-1.0).f32(0.0).view(&losses).view(&out).u64(n).run(geometry::elements(n))
    })?;
    launch.run(move |cpu| {
        // Subtracted from 0, so that no -0 appears.
        out.slice(cpu).iter_mut().zip(losses.slice(cpu)).for_each(|(y, loss)| *y = 0.0 - loss);
    })?;
    Ok(Recorder::record(recorder, y, |recorder| LogProbsBackward {
        weight: weight.clone(),
        options,
        x: recorder.save(x),
        labels: labels.clone(),
    }))
}

/// Whether each label is the likeliest token, the first of equals: f32, 1 or 0, of x's shape without its last dim; 0 where
/// the label is ignored. Not recorded.
///
/// # Errors
/// As [`head_loss`].
pub fn head_hits(x: &Tensor, weight: &Param, labels: &Labels, options: HeadOptions) -> Result<Tensor> {
    check("head_hits", x, weight, labels, options)?;
    let loss = TokenLoss::CrossEntropy;
    let hits = head_chunks::run(&Head { x, weight, labels, options, loss, hits: true }, None, None)?;
    let sizes = x.sizes();
    hits.reshape(&sizes[..sizes.len() - 1])
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
    kind: TokenLoss,
    seed: Option<f32>,
    /// The gradient made in the forward pass.
    dx: Option<Tensor>,
    /// The inputs of the recomputation, where the gradients are made in the backward pass.
    again: Option<(Saved, Labels)>,
}

impl Function for HeadBackward {
    fn backward(self: Box<Self>, upstream: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if let Some((x, labels)) = &self.again {
            let head =
                RecomputedHead { x, weight: &self.weight, labels, options: self.options, loss: self.kind };
            return head.gradients(cx, Upstream::Loss(&upstream));
        }
        let (seed, device) = (self.seed, upstream.device().clone());
        let mut launch = device.quiet_launch("head_loss");
        let upstream = launch.read::<f32>(&upstream)?;
        let check = move |upstream: f32| match seed {
            Some(seed) if seed == upstream => Ok(()),
            _ => Err(Error::Usage(format!(
                "head_loss: its gradient was made for the promised seed {seed:?}, but the loss was scaled on its way to \
                 backward ({upstream}); use a tape without a promised seed"
            ))),
        };
        launch.cuda(|gpu| match upstream.known() {
            // It is the seed as the tape has written it: nobody has scaled it on its way.
            Some(Known::All(value)) => Ok(check(value)?),
            _ => Ok(gpu.download(&upstream)?.into_iter().try_for_each(check)?),
        })?;
        launch.run(move |cpu| check(upstream.slice(cpu)[0]))?;
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
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (weight, labels, options) = (&self.weight, &self.labels, self.options);
        let head = RecomputedHead { x: &self.x, weight, labels, options, loss: TokenLoss::CrossEntropy };
        head.gradients(cx, Upstream::LogProbs(&dy))
    }
}

/// A head whose logits are computed again.
struct RecomputedHead<'a> {
    x: &'a Saved,
    weight: &'a Param,
    labels: &'a Labels,
    options: HeadOptions,
    loss: TokenLoss,
}

impl RecomputedHead<'_> {
    /// Gives the gradients of x and of the weight.
    fn gradients(&self, cx: &mut Backward<'_>, upstream: Upstream<'_>) -> Result<()> {
        let &RecomputedHead { x, weight, labels, options, loss } = self;
        let x = cx.get(x)?;
        let mut dx = match cx.needs(0) {
            true => Some(Tensor::uninit(*x.shape(), x.dtype(), x.device(), "gradient")?),
            false => None,
        };
        head_chunks::run(
            &Head { x: &x, weight, labels, options, loss, hits: false },
            Some(upstream),
            dx.as_mut(),
        )?;
        dx.map_or(Ok(()), |dx| cx.give(0, dx))
    }
}
