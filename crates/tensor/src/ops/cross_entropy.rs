//! Cross-entropy of logits that exist already; [`head_loss`](crate::ops::head_loss) spares them.

use crate::cpu::cross_entropy as kernel;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::cast::converted;
use crate::ops::{check_device, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// How the losses of elements or rows become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their mean over those that count; 0 where none does.
    Mean,
}

/// logits `[.., V]`, labels `[..]` (i32) → a scalar f32. Rows whose label is `ignored` have no loss; labels are used as
/// they are: the caller has shifted them.
///
/// # Errors
/// Shapes that do not fit, or [`Error::Index`] for a label outside `0..V` that is not `ignored`.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, ignored: i32, reduction: Reduction) -> Result<Tensor> {
    check_device("cross_entropy", logits, &[labels])?;
    if logits.sizes().is_empty() || logits.shape().last() == 0 {
        return Err(wrong_shape("cross_entropy", "logits of shape [.., V] with V > 0", logits));
    }
    let (rows, vocab) = (logits.shape().n_rows(), logits.shape().last());
    if labels.dtype() != DType::I32 || labels.n_elems() != rows {
        return Err(wrong_shape("cross_entropy", format!("{rows} labels (i32)"), labels));
    }
    let targets = match logits.device().is_dry() {
        true => Tensor::zeros([rows], DType::I32, logits.device())?,
        false => Tensor::from_slice(&targets(labels.slice()?, ignored, vocab)?, [rows], logits.device())?,
    };
    let recorder = Recorder::new(&[logits], &[])?;
    let mut losses = Tensor::uninit([rows], DType::F32, logits.device(), "losses")?;
    let logits32 = converted(logits, DType::F32, "logits")?;
    let dry = kernel::LossSum { sum: f64::NAN, count: rows };
    let found = logits.device().run_or(dry, "cross entropy", 0, logits.len_bytes() as u64, |cpu| {
        kernel::cross_entropy(cpu, logits32.slice()?, targets.slice()?, vocab, losses.slice_mut()?)
    })?;
    let scale = match reduction {
        Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / found.count.max(1) as f64,
    };
    let loss = Tensor::from_slice(&[(found.sum * scale) as f32], [], logits.device())?;
    Ok(Recorder::record(recorder, loss, |recorder| CrossEntropyBackward {
        logits: recorder.save(logits),
        targets,
        scale: scale as f32,
    }))
}

/// The labels with the kernel's mark where they are ignored.
fn targets(labels: &[i32], ignored: i32, vocab: usize) -> Result<Vec<i32>> {
    let target = |(position, &label): (usize, &i32)| match usize::try_from(label) {
        _ if label == ignored => Ok(kernel::IGNORE),
        Ok(index) if index < vocab => Ok(label),
        _ => Err(Error::Index { op: "cross_entropy", index: i64::from(label), position, bound: vocab }),
    };
    labels.iter().enumerate().map(target).collect()
}

struct CrossEntropyBackward {
    logits: Saved,
    targets: Tensor,
    scale: f32,
}

impl Function for CrossEntropyBackward {
    fn backward(self: Box<Self>, mut grads: Vec<Option<Tensor>>, cx: &mut Backward<'_>) -> Result<()> {
        let Some(upstream) = grads[0].take() else { return Ok(()) };
        let logits = cx.get(&self.logits)?;
        let (logits32, scale) =
            (converted(&logits, DType::F32, "logits")?, self.scale * upstream.known_item()?.unwrap_or(1.0));
        let device = logits.device().clone();
        let mut losses = Tensor::uninit(*self.targets.shape(), DType::F32, &device, "losses")?;
        let mut dx = Tensor::uninit(*logits.shape(), logits.dtype(), &device, "gradient")?;
        device.run("cross entropy backward", 0, 2 * logits.len_bytes() as u64, |cpu| {
            with_float!(logits.dtype(), "cross_entropy", T => {
                let (x, targets) = (logits32.slice()?, self.targets.slice()?);
                let (losses, dx) = (losses.slice_mut()?, dx.slice_mut::<T>()?);
                let (vocab, scale) = (logits.shape().last(), kernel::RowScale::Uniform(scale));
                kernel::cross_entropy_grad(cpu, x, targets, vocab, scale, None, losses, dx)?;
                Ok(())
            })
        })?;
        cx.give(0, dx)
    }
}
