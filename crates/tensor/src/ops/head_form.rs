//! The losses of rows of logits on a GPU, with their gradients.

use std::ops::Range;

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::token_loss::TokenLoss;
use oarlock_kernels::{DType, Float};

use crate::cuda::{Form, FormError, Kernels, forms};
use crate::launch::{View, ViewMut};

/// Rows of logits with their labels, and the places of their losses among those of all rows.
pub(super) struct RowsOfLoss<'a> {
    pub logits: &'a ViewMut<f32>,
    pub labels: &'a View<i32>,
    pub to: &'a View<i32>,
    /// The places, where they follow one another.
    pub span: Option<Range<usize>>,
    pub losses: &'a ViewMut<f32>,
}

/// The factors of the gradients: one number of the host, one of the device, or the negative of one for each row.
pub(super) struct RowScales<'a> {
    pub seed: Option<f32>,
    pub grad: Option<&'a View<f32>>,
    pub per_row: bool,
}

/// A loss as the kernels know it, with its smoothing.
fn kind(loss: TokenLoss) -> Result<(usize, f32), FormError> {
    match loss {
        TokenLoss::CrossEntropy => Ok((0, 0.0)),
        TokenLoss::Smoothed(smoothing) => Ok((1, smoothing)),
        TokenLoss::ByProbability => Ok((2, 0.0)),
        TokenLoss::ByEntropy { .. } => Err(FormError::NoForm),
    }
}

impl RowsOfLoss<'_> {
    fn capped(&self, gpu: &Kernels<'_>, cap: Option<f32>, [rows, vocab]: [usize; 2]) -> Form {
        let Some(cap) = cap else { return Ok(()) };
        let (n, call) = (rows * vocab, gpu.kernel("soft_cap", &[])?.view(self.logits).f32(cap));
        call.u64(n).run(geometry::elements(n))
    }

    /// Has the losses written by `kernel`, in their places or on the way to them.
    fn in_places(&self, gpu: &Kernels<'_>, rows: usize, kernel: impl FnOnce(Slice<'_>) -> Form) -> Form {
        if let Some(Range { start, end }) = self.span {
            return kernel(forms::part(gpu.slice(self.losses)?, 4 * start..4 * end)?);
        }
        let losses = gpu.temporary(4 * rows)?;
        let losses = losses.part(0, 4 * rows)?;
        kernel(losses)?;
        forms::place_rows(gpu, losses, self.to, (self.losses, DType::F32), [rows, 1])
    }

    /// The losses alone.
    pub fn losses(
        &self,
        gpu: &Kernels<'_>,
        loss: TokenLoss,
        cap: Option<f32>,
        [rows, vocab]: [usize; 2],
    ) -> Form {
        let (kind, smoothing) = kind(loss)?;
        self.capped(gpu, cap, [rows, vocab])?;
        self.in_places(gpu, rows, |losses| {
            let call = gpu.kernel("token_loss", &[DType::F32])?.view(self.logits).view(self.labels);
            let call = call.u32(kind).f32(smoothing).slice(losses).u32(rows).u32(vocab);
            call.run(geometry::losses(rows))
        })
    }

    /// The losses, and the gradients of the logits, written over the logits where they have no other place.
    pub fn gradients<T: Float>(
        &self,
        gpu: &Kernels<'_>,
        loss: TokenLoss,
        cap: Option<f32>,
        scale: RowScales<'_>,
        d_logits: Option<&ViewMut<T>>,
        [rows, vocab]: [usize; 2],
    ) -> Form {
        let (kind, smoothing) = kind(loss)?;
        self.capped(gpu, cap, [rows, vocab])?;
        let bytes = 4 * rows;
        let memory = gpu.temporary(3 * bytes)?;
        let [scales, gathered, zeros] =
            [memory.part(0, bytes)?, memory.part(bytes, bytes)?, memory.part(2 * bytes, bytes)?];
        if let Some(grad) = scale.grad {
            // scales = grad[to], with the other sign for log-probabilities, or grad[0] for all.
            gpu.fill_slice(scales, 0)?;
            gpu.fill_slice(zeros, 0)?;
            let call = gpu.kernel("embed_forward", &[DType::F32, DType::F32])?.view(grad);
            let call = if scale.per_row { call.view(self.to) } else { call.slice(zeros) };
            call.slice(gathered).u32(rows).u32(1).run(geometry::elements(8 * rows))?;
            let call =
                gpu.kernel("axpy", &[DType::F32, DType::F32])?.f32(if scale.per_row { -1.0 } else { 1.0 });
            call.slice(gathered).slice(scales).u64(rows).run(geometry::elements(rows))?;
        }
        let to = d_logits.map_or(DType::F32, |_| T::DTYPE);
        self.in_places(gpu, rows, |losses| {
            let call = gpu.kernel("token_loss_grad", &[DType::F32, to])?.view(self.logits).view(self.labels);
            let call = call.u32(kind).f32(smoothing).f32(scale.seed.unwrap_or(0.0));
            let call = match scale.grad {
                Some(_) => call.slice(scales),
                None => call.optional(None::<&View<f32>>),
            };
            let call = call.f32(cap.unwrap_or(0.0)).slice(losses);
            let call = match d_logits {
                Some(d_logits) => call.view(d_logits),
                None => call.view(self.logits),
            };
            call.u32(rows).u32(vocab).run(geometry::losses(rows))
        })
    }
}
