//! The passes over the logits of the head, some rows at a time, leaving out the rows without a label. Which rows are in a
//! pass is said by `head_rows`.

use std::ops::Range;

use oarlock_kernels::cross_entropy::{self, RowScale};
use oarlock_kernels::embed::{embed_forward, place_rows};
use oarlock_kernels::gemm::{self, MatMut, MatRef};
use oarlock_kernels::token_loss::{self, TokenLoss};
use oarlock_kernels::{DType, Float, Result, Store};

use crate::cuda::{FormError, forms};
use crate::launch::Launch;
use crate::ops::head_form::{RowScales, RowsOfLoss};
use crate::ops::head_loss::HeadOptions;
use crate::ops::head_rows::{Group, chunk_rows, groups};
use crate::ops::labels::Labels;
use crate::ops::linear::product;
use crate::ops::{check_dtype, with_float};
use crate::param::{GradSlot, Param};
use crate::tensor::Tensor;

/// The inputs of the head.
pub(super) struct Head<'a> {
    pub(super) x: &'a Tensor,
    pub(super) weight: &'a Param,
    pub(super) labels: &'a Labels,
    pub(super) options: HeadOptions,
    pub(super) loss: TokenLoss,
    /// Whether the label is the likeliest token, 1 or 0, in the place of each loss. Goes without a gradient.
    pub(super) hits: bool,
}

/// The gradient that comes from above.
#[derive(Clone, Copy)]
pub(super) enum Upstream<'a> {
    /// Of the summed loss, known.
    Seed(f32),
    /// Of the summed loss.
    Loss(&'a Tensor),
    /// Of each token's log-probability.
    LogProbs(&'a Tensor),
}

/// The loss of each row (f32, 0 where the label is ignored); with a gradient from above also the gradients of x, where
/// it is wanted, and of the weight.
pub(super) fn run(
    head: &Head<'_>,
    upstream: Option<Upstream<'_>>,
    dx: Option<&mut Tensor>,
) -> Result<Tensor> {
    let w = head.weight.weight()?;
    check_dtype("head_loss", head.x, &w)?;
    let slot = if upstream.is_some() { head.weight.grad()? } else { None };
    with_float!(head.x.dtype(), "head_loss", T => passes::<T>(head, &w, upstream, dx, slot))
}

fn passes<T: Float>(
    head: &Head<'_>,
    w: &Tensor,
    upstream: Option<Upstream<'_>>,
    mut dx: Option<&mut Tensor>,
    mut slot: Option<GradSlot>,
) -> Result<Tensor> {
    let (x, device, cap, loss) = (head.x, head.x.device(), head.options.logit_cap, head.loss);
    let hits = head.hits;
    let (vocab, dim, n_rows) = (w.sizes()[0], x.shape().last(), x.shape().n_rows());
    let mut losses = Tensor::zeros([n_rows], DType::F32, device)?;
    let chunk = chunk_rows(device, n_rows, vocab);
    let groups = groups(device, head.labels.ids(), chunk, [vocab, dim], x.dtype());
    // Of whole chunks, whatever the labels: a step that repeats its shapes takes no fresh memory.
    let mut logits = Tensor::uninit([chunk, vocab], DType::F32, device, "logits")?;
    // In f32 the gradient is written over the logits.
    let in_place = x.dtype() == DType::F32 && loss == TokenLoss::CrossEntropy;
    let mut d_logits = match upstream {
        Some(_) if !in_place => Some(Tensor::uninit([chunk, vocab], x.dtype(), device, "logits")?),
        _ => None,
    };
    let n_kept: usize = groups.iter().map(|group| group.rows.len()).sum();
    if n_kept < n_rows
        && let Some(dx) = &mut dx
    {
        let mut launch = device.quiet_launch("head input grad");
        let dx = launch.write::<T>(dx)?;
        launch.cuda(|gpu| gpu.fill(&dx, 0))?;
        launch.run(move |cpu| dx.slice(cpu).fill(T::from_f32(0.0)))?;
    }
    if n_kept == 0
        && let Some(slot) = &mut slot
        && slot.store == Store::Overwrite
    {
        let mut launch = device.quiet_launch("head weight grad");
        let grad = launch.grad(slot)?;
        launch.cuda(|gpu| gpu.fill(&grad, 0))?;
        launch.run(move |cpu| grad.slice(cpu).fill(0.0))?;
    }
    // On a GPU, rows that follow one another get their gradients where those belong, rounded by the product.
    let in_its_place = |group: &Group| device.gpu_bytes().is_some() && group.span().is_some();
    // The rows of x that have labels, where they do not follow each other, and the gradients of these rows, in f32: on a CPU
    // a sum over the whole vocabulary is formed block by block, which a product with an output in 16 bits cannot do.
    let buffer = |wanted: bool, dtype, what| match wanted {
        true => Tensor::uninit([chunk, dim], dtype, device, what).map(Some),
        false => Ok(None),
    };
    let scattered = groups.iter().any(|group| group.span().is_none());
    let mut gathered = buffer(scattered, x.dtype(), "activation")?;
    let in_rows = dx.is_some() && !groups.iter().all(in_its_place);
    let mut d_rows = buffer(in_rows, DType::F32, "gradient")?;
    // All of them at once: a copy to a GPU takes about the same time for one row.
    let all: Vec<i32> = groups.iter().flat_map(|group| &group.rows).copied().collect();
    let positions = Tensor::from_slice(&all, [n_kept], device)?;
    let labels: Vec<i32> = all.iter().map(|&row| head.labels.ids()[row as usize]).collect();
    let labels = Tensor::from_slice(&labels, [n_kept], device)?;
    let (mut is_first, mut end) = (true, 0);
    for group in &groups {
        let rows = group.rows.len();
        let places = end..end + rows;
        end += rows;
        let span = group.span();
        if let (None, Some(gathered)) = (&span, &mut gathered) {
            let mut launch = device.launch("head input", 0, (2 * rows * dim * size_of::<T>()) as u64);
            let (x, positions) = (launch.read::<T>(x)?, launch.read_at::<i32>(&positions, &places)?);
            let to = launch.write_at::<T>(gathered, &(0..rows * dim))?;
            launch.cuda(|gpu| {
                forms::gather_rows(gpu, (&x, T::DTYPE), &positions, (&to, T::DTYPE), [rows, dim])
            })?;
            launch
                .run(move |cpu| embed_forward(cpu, x.slice(cpu), dim, positions.slice(cpu), to.slice(cpu)))?;
        }
        let x_rows = |launch: &mut Launch<'_>, part: &Range<usize>| {
            let (tensor, first) = match (&span, &gathered) {
                (None, Some(gathered)) => (gathered, 0),
                (span, _) => (x, span.as_ref().map_or(0, |span| span.start)),
            };
            launch.read_at::<T>(tensor, &((first + part.start) * dim..(first + part.end) * dim))
        };
        let (mut launch, scratch) = product(device, "head forward", x.dtype(), [rows, vocab, dim])?;
        let (from, w_all) = (x_rows(&mut launch, &(0..rows))?, launch.read::<T>(w)?);
        let out = launch.write_at::<f32>(&mut logits, &(0..rows * vocab))?;
        launch.cuda(|gpu| {
            let (x, w) = (gpu.matrix(&from, rows, dim)?, gpu.matrix(&w_all, vocab, dim)?.t());
            gpu.multiply((T::DTYPE, 1), [x, w], (&out, DType::F32, Store::Overwrite), None)
        })?;
        launch.run(move |cpu| {
            let w = MatRef::new(w_all.slice(cpu), vocab, dim).t();
            let (x, out) =
                (MatRef::new(from.slice(cpu), rows, dim), MatMut::new(out.slice(cpu), rows, vocab));
            gemm::gemm(cpu, x, w, out, Store::Overwrite, scratch.slice(cpu));
        })?;
        let bytes = (rows * vocab * (4 + size_of::<T>())) as u64;
        let mut launch = device.launch("cross entropy", 0, bytes);
        let scratch = launch.scratch::<f32>(2 * rows)?;
        let labels = launch.read_at::<i32>(&labels, &places)?;
        let to = launch.read_at::<i32>(&positions, &places)?;
        let (seed, grad, per_row) = match upstream {
            None => (None, None, false),
            Some(Upstream::Seed(seed)) => (Some(seed), None, false),
            Some(Upstream::Loss(grad)) => (None, Some(launch.read::<f32>(grad)?), false),
            Some(Upstream::LogProbs(grad)) => (None, Some(launch.read::<f32>(grad)?), true),
        };
        let all_losses = launch.update::<f32>(&mut losses)?;
        let x_logits = launch.update_at::<f32>(&mut logits, &(0..rows * vocab))?;
        let d_logits_rows = match &mut d_logits {
            Some(d_logits) => Some(launch.write_at::<T>(d_logits, &(0..rows * vocab))?),
            None => None,
        };
        launch.cuda(|gpu| {
            let (logits, span) = (&x_logits, span.clone());
            let rows_of = RowsOfLoss { logits, labels: &labels, to: &to, span, losses: &all_losses };
            let d_logits = d_logits_rows.as_ref();
            match (seed, &grad) {
                _ if hits => Err(FormError::NoForm),
                (None, None) => rows_of.losses(gpu, loss, cap, [rows, vocab]),
                (seed, grad) => {
                    let scale = RowScales { seed, grad: grad.as_ref(), per_row };
                    rows_of.gradients(gpu, loss, cap, scale, d_logits, [rows, vocab])
                }
            }
        })?;
        launch.run(move |cpu| {
            let (x, labels, to) = (x_logits.slice(cpu), labels.slice(cpu), to.slice(cpu));
            let (losses, scales) = scratch.slice(cpu).split_at_mut(rows);
            if let Some(cap) = cap {
                cross_entropy::soft_cap(cpu, cap, x);
            }
            let scale = match grad.map(|grad| grad.slice(cpu)) {
                None => seed.map(RowScale::Uniform),
                Some(grad) if per_row => {
                    // A log-probability is a loss with the other sign.
                    scales.iter_mut().zip(to).for_each(|(scale, &row)| *scale = -grad[row as usize]);
                    Some(RowScale::PerRow(scales))
                }
                Some(grad) => Some(RowScale::Uniform(grad[0])),
            };
            match (scale, d_logits_rows) {
                (None, _) if hits => token_loss::hits(cpu, x, labels, vocab, losses)?,
                (None, _) => {
                    token_loss::token_loss(cpu, loss, x, labels, vocab, losses)?;
                }
                (Some(scale), None) => {
                    cross_entropy::cross_entropy_grad_in_place(cpu, x, labels, vocab, scale, cap, losses)?;
                }
                (Some(scale), Some(d)) => {
                    let d = d.slice(cpu);
                    token_loss::token_loss_grad(cpu, loss, x, labels, vocab, scale, cap, losses, d)?;
                }
            };
            place_rows(losses, 1, to, all_losses.slice(cpu))
        })?;
        if upstream.is_none() {
            continue;
        }
        let d_logits = d_logits.as_ref().unwrap_or(&logits);
        let sizes = [rows, vocab, dim];
        match (&mut dx, &span, &mut d_rows) {
            (Some(dx), Some(span), _) if in_its_place(group) => {
                input_grad::<T, T>([d_logits, w], sizes, (dx, span.start))?;
            }
            (Some(dx), _, Some(d_rows)) => {
                input_grad::<T, f32>([d_logits, w], sizes, (d_rows, 0))?;
                let mut launch = device.quiet_launch("head input grad");
                let from = launch.read_at::<f32>(d_rows, &(0..rows * dim))?;
                let (to, dx) = (launch.read_at::<i32>(&positions, &places)?, launch.update::<T>(dx)?);
                launch.cuda(|gpu| {
                    forms::place_rows(gpu, gpu.slice(&from)?, &to, (&dx, T::DTYPE), [rows, dim])
                })?;
                launch.run(move |cpu| place_rows(from.slice(cpu), dim, to.slice(cpu), dx.slice(cpu)))?;
            }
            _ => {}
        }
        if let Some(slot) = &mut slot {
            for block in &group.blocks {
                let k = block.len();
                let (mut launch, scratch) = product(device, "head weight grad", x.dtype(), [vocab, dim, k])?;
                let d = launch.read_at::<T>(d_logits, &(block.start * vocab..block.end * vocab))?;
                let from = x_rows(&mut launch, block)?;
                let store = if is_first { slot.store } else { Store::Add };
                let out = launch.grad_as(slot, store)?;
                launch.cuda(|gpu| {
                    let (d, x) = (gpu.matrix(&d, k, vocab)?.t(), gpu.matrix(&from, k, dim)?);
                    gpu.multiply((T::DTYPE, 1), [d, x], (&out, DType::F32, store), None)
                })?;
                launch.run(move |cpu| {
                    let d = MatRef::new(d.slice(cpu), k, vocab).t();
                    let (x, out) =
                        (MatRef::new(from.slice(cpu), k, dim), MatMut::new(out.slice(cpu), vocab, dim));
                    gemm::gemm(cpu, d, x, out, store, scratch.slice(cpu));
                })?;
                is_first = false;
            }
        }
    }
    Ok(losses)
}

/// The gradients of some rows of x, from those of their logits and from the weight, into the rows of `out` from one on.
fn input_grad<T: Float, C: Float>(
    [d_logits, w]: [&Tensor; 2],
    [rows, vocab, dim]: [usize; 3],
    (out, first): (&mut Tensor, usize),
) -> Result<()> {
    let device = w.device();
    let (mut launch, scratch) = product(device, "head input grad", w.dtype(), [rows, dim, vocab])?;
    let (d, w) = (launch.read_at::<T>(d_logits, &(0..rows * vocab))?, launch.read::<T>(w)?);
    let out = launch.write_at::<C>(out, &(first * dim..(first + rows) * dim))?;
    launch.cuda(|gpu| {
        let (d, w) = (gpu.matrix(&d, rows, vocab)?, gpu.matrix(&w, vocab, dim)?);
        gpu.multiply((T::DTYPE, 1), [d, w], (&out, C::DTYPE, Store::Overwrite), None)
    })?;
    launch.run(move |cpu| {
        let (d, w) = (MatRef::new(d.slice(cpu), rows, vocab), MatRef::new(w.slice(cpu), vocab, dim));
        let out = MatMut::new(out.slice(cpu), rows, dim);
        gemm::gemm(cpu, d, w, out, Store::Overwrite, scratch.slice(cpu));
    })
}
