//! Cross-entropy of logits that exist already; [`head_loss`](crate::ops::head_loss) spares them.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::functions::{self, Binary};
use oarlock_cuda::geometry;
use oarlock_kernels::cross_entropy as kernel;
use oarlock_kernels::{DType, Element, Error, Result};

use crate::cuda::{Form, Kernels, forms, indexed};
use crate::launch::{Mode, View, ViewMut};
use crate::ops::cast::converted;
use crate::ops::row_loss::{RowLossOptions, row_losses};
use crate::ops::transfer::DeviceF64;
use crate::ops::{check_device, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// How the losses of elements or rows become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Each for itself.
    None,
    /// Their sum.
    Sum,
    /// Their mean over those that count; 0 where none does.
    Mean,
}

/// logits `[.., V]`, labels `[..]` (i32) → a scalar f32, or a loss for each label without a reduction. Rows whose label is `ignored` have no loss; labels are used as
/// they are: the caller has shifted them.
///
/// # Errors
/// Shapes that do not fit, or [`Error::Index`] for a label outside `0..V` that is not `ignored`.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, ignored: i32, reduction: Reduction) -> Result<Tensor> {
    if reduction == Reduction::None {
        let options =
            RowLossOptions { ignore_index: ignored, weight: None, label_smoothing: 0.0, log_probs: false };
        return Ok(row_losses(logits, labels, &options)?.losses);
    }
    reduced(logits, labels, ignored, reduction, None)
}

/// The sum or the mean of the losses; `exact` gets the same with all its digits.
pub(super) fn reduced(
    logits: &Tensor,
    labels: &Tensor,
    ignored: i32,
    reduction: Reduction,
    exact: Option<&DeviceF64>,
) -> Result<Tensor> {
    check_device("cross_entropy", logits, &[labels])?;
    if logits.sizes().is_empty() || logits.shape().last() == 0 {
        return Err(wrong_shape("cross_entropy", "logits of shape [.., V] with V > 0", logits));
    }
    let (rows, vocab) = (logits.shape().n_rows(), logits.shape().last());
    if labels.dtype() != DType::I32 || labels.n_elems() != rows {
        return Err(wrong_shape("cross_entropy", format!("{rows} labels (i32)"), labels));
    }
    let targets = targets(labels, ignored, vocab, "cross_entropy")?;
    let recorder = Recorder::new(&[logits], &[])?;
    let device = logits.device();
    let logits32 = converted(logits, DType::F32, "logits")?;
    let scalar = || Tensor::uninit([], DType::F32, device, "tensor");
    let (mut loss, mut scale) = (scalar()?, scalar()?);
    let mut launch = device.launch("cross entropy", 0, logits.len_bytes() as u64);
    let losses = launch.scratch::<f32>(rows)?;
    let (x, labels) = (launch.read::<f32>(&logits32)?, launch.read::<i32>(&targets)?);
    let (out, out_scale) = (launch.write::<f32>(&mut loss)?, launch.write::<f32>(&mut scale)?);
    let mut exact_lease = exact.map(DeviceF64::lease).transpose()?;
    let exact = match &mut exact_lease {
        Some(lease) => Some(launch.write_flat::<f64>(lease, &(0..1), Mode::Write)?),
        None => None,
    };
    let scale_of = move |count: usize| match reduction {
        Reduction::None | Reduction::Sum => 1.0,
        Reduction::Mean => 1.0 / count.max(1) as f64,
    };
    launch.cuda(|gpu| {
        let memory = gpu.temporary(4 * rows)?;
        let losses = memory.part(0, 4 * rows)?;
        LossRows { logits: &x, labels: &labels, size: [rows, vocab], smoothing: 0.0 }.losses(gpu, losses)?;
        let call = gpu.kernel("total_loss", &[])?.slice(losses);
        let call = call.optional(Some(&labels).filter(|_| reduction == Reduction::Mean));
        call.optional(exact.as_ref()).view(&out).view(&out_scale).u32(rows).run(geometry::one_block())
    })?;
    launch.run(move |cpu| {
        let found = kernel::cross_entropy(cpu, x.slice(cpu), labels.slice(cpu), vocab, losses.slice(cpu))?;
        let scale = scale_of(found.count);
        out.slice(cpu)[0] = (found.sum * scale) as f32;
        if let Some(exact) = exact {
            exact.slice(cpu)[0] = found.sum * scale;
        }
        out_scale.slice(cpu)[0] = scale as f32;
        Ok(())
    })?;
    Ok(Recorder::record(recorder, loss, |recorder| CrossEntropyBackward {
        logits: recorder.save(logits),
        targets,
        scale,
    }))
}

/// The labels with the kernel's mark where they are ignored.
pub(super) fn targets(labels: &Tensor, ignored: i32, vocab: usize, op: &'static str) -> Result<Tensor> {
    let target = move |(position, &label): (usize, &i32)| match usize::try_from(label) {
        _ if label == ignored => Ok(kernel::IGNORE),
        Ok(index) if index < vocab => Ok(label),
        _ => Err(Error::Index { op, index: i64::from(label), position, bound: vocab }),
    };
    let mut targets = Tensor::uninit([labels.n_elems()], DType::I32, labels.device(), "tensor")?;
    let mut launch = labels.device().quiet_launch(op);
    let n = labels.n_elems();
    let (labels, out) = (launch.read::<i32>(labels)?, launch.write::<i32>(&mut targets)?);
    launch.cuda(|gpu| {
        let marks = [ignored, kernel::IGNORE];
        indexed::targets(gpu, op, (&labels, n, vocab), marks, gpu.slice(&out)?)
    })?;
    launch.run(move |cpu| {
        for (out, label) in out.slice(cpu).iter_mut().zip(labels.slice(cpu).iter().enumerate()) {
            *out = target(label)?;
        }
        Ok(())
    })?;
    Ok(targets)
}

/// Rows of logits on a GPU, with their labels.
pub(super) struct LossRows<'a> {
    pub logits: &'a View<f32>,
    pub labels: &'a View<i32>,
    /// The number of rows, and their length.
    pub size: [usize; 2],
    /// The share of the loss that all classes have in equal parts.
    pub smoothing: f32,
}

impl LossRows<'_> {
    fn kind(&self) -> usize {
        let smoothed = self.smoothing != 0.0;
        (if smoothed { functions::TokenLoss::Smoothed } else { functions::TokenLoss::CrossEntropy }) as usize
    }

    /// The loss of each row.
    pub fn losses(&self, gpu: &Kernels<'_>, losses: Slice<'_>) -> Form {
        let [rows, vocab] = self.size;
        let call = gpu.kernel("token_loss", &[DType::F32])?.view(self.logits).view(self.labels);
        let call = call.u32(self.kind()).f32(self.smoothing).slice(losses).u32(rows).u32(vocab);
        call.run(geometry::losses(rows))
    }

    /// The gradients of the logits, from those of the losses.
    pub fn gradients<T: Element>(&self, gpu: &Kernels<'_>, d_losses: Slice<'_>, dx: &ViewMut<T>) -> Form {
        let [rows, vocab] = self.size;
        let losses = gpu.temporary(4 * rows)?;
        let call =
            gpu.kernel("token_loss_grad", &[DType::F32, T::DTYPE])?.view(self.logits).view(self.labels);
        let call = call.u32(self.kind()).f32(self.smoothing).f32(0.0).slice(d_losses).f32(0.0);
        call.slice(losses.slice()?).view(dx).u32(rows).u32(vocab).run(geometry::losses(rows))
    }
}

struct CrossEntropyBackward {
    logits: Saved,
    targets: Tensor,
    /// What the sum of the losses was multiplied with.
    scale: Tensor,
}

impl Function for CrossEntropyBackward {
    fn backward(self: Box<Self>, upstream: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let logits = cx.get(&self.logits)?;
        let logits32 = converted(&logits, DType::F32, "logits")?;
        let (device, vocab) = (logits.device().clone(), logits.shape().last());
        let mut dx = Tensor::uninit(*logits.shape(), logits.dtype(), &device, "gradient")?;
        let mut launch = device.launch("cross entropy backward", 0, 2 * logits.len_bytes() as u64);
        let losses = launch.scratch::<f32>(self.targets.n_elems())?;
        let (x, targets) = (launch.read::<f32>(&logits32)?, launch.read::<i32>(&self.targets)?);
        let (scale, upstream) = (launch.read::<f32>(&self.scale)?, launch.read::<f32>(&upstream)?);
        with_float!(logits.dtype(), "cross_entropy", T => {
            let dx = launch.write::<T>(&mut dx)?;
            launch.cuda(|gpu| {
                let rows = self.targets.n_elems();
                // The same number for each row.
                let (d_losses, order) = (gpu.temporary(4 * rows)?, forms::walk(&[rows], [&[0], &[0]])?);
                let call = gpu.kernel("binary", &[DType::F32])?.u32(Binary::Mul as usize).walk(&order);
                let call = call.view(&scale).view(&upstream).slice(d_losses.slice()?).u64(rows);
                call.run(geometry::elements(rows))?;
                let of = LossRows { logits: &x, labels: &targets, size: [rows, vocab], smoothing: 0.0 };
                of.gradients(gpu, d_losses.slice()?, &dx)
            })?;
            launch.run(move |cpu| {
                let scale = scale.slice(cpu)[0] * upstream.slice(cpu)[0];
                let (x, targets, losses) = (x.slice(cpu), targets.slice(cpu), losses.slice(cpu));
                let scale = kernel::RowScale::Uniform(scale);
                kernel::cross_entropy_grad(cpu, x, targets, vocab, scale, None, losses, dx.slice(cpu))?;
                Ok(())
            })
        })?;
        cx.give(0, dx)
    }
}
