//! Cross-entropy of each row for itself: what weights of classes, smoothed labels and losses of rows need.

use oarlock_cuda::geometry;
use oarlock_kernels::row_loss::{self as kernel, RowLoss};
use oarlock_kernels::{DType, Element, Error, Result};

use crate::ops::cast::converted;
use crate::ops::cross_entropy::targets;
use crate::ops::{check_device, with_float, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// What the losses of rows are made of.
#[derive(Clone, Debug)]
pub struct RowLossOptions {
    /// The label of rows without a loss.
    pub ignore_index: i32,
    /// A factor for each class: f32 `[V]`.
    pub weight: Option<Tensor>,
    /// The share of the loss that all classes have in equal parts, 0 to 1.
    pub label_smoothing: f32,
    /// Whether rows are log-probabilities already, not logits.
    pub log_probs: bool,
}

/// The losses of rows.
#[derive(Clone, Debug)]
pub struct RowLosses {
    /// Of each row, 0 where it is ignored: f32 in the shape of the labels.
    pub losses: Tensor,
    /// What each counts in a mean: the weight of its class, 0 where it is ignored. Without a gradient.
    pub weights: Tensor,
}

/// x `[.., V]` and labels `[..]` (i32) → the cross-entropy of each row, in f32.
///
/// # Errors
/// Shapes that do not fit, a smoothing outside `0..=1`, or [`Error::Index`] for a label outside `0..V` that is not
/// ignored.
pub fn row_losses(x: &Tensor, labels: &Tensor, options: &RowLossOptions) -> Result<RowLosses> {
    let name = if options.log_probs { "nll_loss" } else { "cross_entropy" };
    check_device(name, x, &[labels])?;
    let Some((&n_classes, rows)) = x.sizes().split_last().filter(|(n, _)| **n > 0) else {
        return Err(wrong_shape(name, "an input of shape [.., V] with V > 0", x));
    };
    let n_rows: usize = rows.iter().product();
    if labels.dtype() != DType::I32 || labels.n_elems() != n_rows {
        return Err(wrong_shape(name, format!("{n_rows} labels (i32)"), labels));
    }
    if !(0.0..=1.0).contains(&options.label_smoothing) {
        let got = options.label_smoothing;
        return Err(Error::Usage(format!("{name}: expected a label smoothing of 0 to 1, got {got}")));
    }
    if let Some(weight) = &options.weight {
        check_device(name, x, &[weight])?;
        if weight.sizes() != [n_classes] || weight.dtype() != DType::F32 {
            return Err(wrong_shape(
                name,
                format!("weights of classes in f32 of shape [{n_classes}]"),
                weight,
            ));
        }
    }
    let targets = targets(labels, options.ignore_index, n_classes, name)?;
    let recorder = Recorder::new(&[x], &[])?;
    let shape = *labels.shape();
    let like_rows = || Tensor::uninit(shape, DType::F32, x.device(), "losses of rows");
    let (mut losses, mut weights) = (like_rows()?, like_rows()?);
    let x32 = converted(x, DType::F32, "logits")?;
    let mut launch = x.device().launch(name, 0, x.len_bytes() as u64);
    let (values, labels) = (launch.read::<f32>(&x32)?, launch.read::<i32>(&targets)?);
    let weight = options.weight.as_ref().map(|weight| launch.read::<f32>(weight)).transpose()?;
    let (out, out_weights) = (launch.write::<f32>(&mut losses)?, launch.write::<f32>(&mut weights)?);
    let (smoothing, log_probs) = (options.label_smoothing, options.log_probs);
    launch.cuda(|gpu| {
        let call = gpu.kernel("row_loss", &[])?.view(&values).view(&labels).optional(weight.as_ref());
        let call = call.f32(smoothing).u32(usize::from(log_probs)).view(&out).view(&out_weights);
        call.u32(n_rows).u32(n_classes).run(geometry::losses(n_rows))
    })?;
    launch.run(move |cpu| {
        let (labels, weight) = (labels.slice(cpu), weight.map(|weight| weight.slice(cpu)));
        let loss = RowLoss { labels, n_classes, weight, smoothing, log_probs };
        kernel::forward(cpu, loss, values.slice(cpu), out.slice(cpu), out_weights.slice(cpu));
    })?;
    let options = RowLossOptions { weight: options.weight.as_ref().map(Tensor::detach), ..*options };
    let losses = Recorder::record(recorder, losses, |recorder| RowLossBackward {
        name,
        x: recorder.save(x),
        targets,
        options,
        shape: *x.shape(),
    });
    Ok(RowLosses { losses, weights })
}

struct RowLossBackward {
    name: &'static str,
    x: Saved,
    targets: Tensor,
    options: RowLossOptions,
    shape: Shape,
}

impl Function for RowLossBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let x = cx.get(&self.x)?;
        let x32 = converted(&x, DType::F32, "logits")?;
        let (device, n_classes) = (x.device().clone(), self.shape.last());
        let mut dx = Tensor::uninit(self.shape, x.dtype(), &device, "gradient")?;
        let mut launch = device.launch(self.name, 0, 2 * x.len_bytes() as u64);
        let (values, labels) = (launch.read::<f32>(&x32)?, launch.read::<i32>(&self.targets)?);
        let weight = self.options.weight.as_ref().map(|weight| launch.read::<f32>(weight)).transpose()?;
        let (smoothing, log_probs) = (self.options.label_smoothing, self.options.log_probs);
        with_float!(x.dtype(), self.name, T => {
            let (dy, dx) = (launch.read::<f32>(&dy)?, launch.write::<T>(&mut dx)?);
            launch.cuda(|gpu| {
                let n_rows = self.targets.n_elems();
                let call = gpu.kernel("row_loss_grad", &[T::DTYPE])?.view(&values).view(&labels);
                let call = call.optional(weight.as_ref()).f32(smoothing).u32(usize::from(log_probs));
                call.view(&dy).view(&dx).u32(n_rows).u32(n_classes).run(geometry::losses(n_rows))
            })?;
            launch.run(move |cpu| {
                let (labels, weight) = (labels.slice(cpu), weight.map(|weight| weight.slice(cpu)));
                let loss = RowLoss { labels, n_classes, weight, smoothing, log_probs };
                kernel::backward(cpu, loss, values.slice(cpu), dy.slice(cpu), dx.slice(cpu));
            })
        })?;
        cx.give(0, dx)
    }
}
