//! The passes over the logits of the head, some rows at a time, leaving out the rows without a label.
//!
//! A row that is left out had a gradient of zero, so no sum changes: the sums over rows in the weight gradient are
//! formed block by block as if all rows were there ([`gemm::sum_order`]). Where the CPU multiplies pairs of rows in one
//! instruction, a row is left out with the other one of its pair.

use std::ops::Range;

use oarlock_kernels::cross_entropy::{self, RowScale};
use oarlock_kernels::embed::{embed_forward, place_rows};
use oarlock_kernels::gemm::{self, FEW_ROWS, MatMut, MatRef, SumOrder};
use oarlock_kernels::token_loss::{self, TokenLoss};
use oarlock_kernels::{DType, Float, Result, Store};

use crate::cuda::{Unable, forms};
use crate::launch::Launch;
use crate::ops::head_form::{RowScales, RowsOfLoss};
use crate::ops::head_loss::HeadOptions;
use crate::ops::labels::{IGNORE_INDEX, Labels};
use crate::ops::linear::product;
use crate::ops::{check_dtype, with_float};
use crate::param::{GradSlot, Param};
use crate::tensor::Tensor;

/// Elements of one chunk of logits: large enough for fast products, small enough to stay in the cache.
const CHUNK_ELEMS: usize = 1 << 22;

/// Rows in a chunk of logits. Chunks have one size: a short last one would waste the packing of the weights.
pub(super) fn chunk_rows(n_rows: usize, vocab: usize) -> usize {
    let n_chunks = (n_rows * vocab).div_ceil(CHUNK_ELEMS).min(n_rows.div_ceil(32)).max(1);
    n_rows.div_ceil(n_chunks).next_multiple_of(32).clamp(1, n_rows.max(1))
}

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

/// Rows whose logits exist at one time.
struct Group {
    /// Their positions, ascending.
    rows: Vec<i32>,
    /// Parts of `rows` whose weight gradients are summed from zero.
    blocks: Vec<Range<usize>>,
    /// Of a chunk that has too few rows to join others.
    alone: bool,
}

impl Group {
    /// The positions, where they follow each other.
    fn span(&self) -> Option<Range<usize>> {
        let (first, last) = (*self.rows.first()? as usize, *self.rows.last()? as usize);
        (last - first + 1 == self.rows.len()).then_some(first..last + 1)
    }
}

/// The rows that have labels in groups of up to a chunk. `order` is that of the sums over so many rows.
fn groups(labels: &[i32], chunk: usize, order: impl Fn(usize) -> SumOrder) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for first in (0..labels.len()).step_by(chunk) {
        let labels = &labels[first..labels.len().min(first + chunk)];
        let SumOrder { block, unit } = order(labels.len());
        let mut units: Vec<bool> =
            labels.chunks(unit).map(|unit| unit.iter().any(|&label| label != IGNORE_INDEX)).collect();
        let mut n_units = units.iter().filter(|&&kept| kept).count();
        if n_units == 0 {
            continue;
        }
        // Products with few rows take another way, with other roundings.
        let alone = labels.len() <= FEW_ROWS;
        for kept in units.iter_mut().filter(|kept| !**kept) {
            if alone || (n_units - 1) * unit >= FEW_ROWS {
                break;
            }
            (*kept, n_units) = (true, n_units + 1);
        }
        let n_kept = (0..labels.len()).filter(|row| units[row / unit]).count();
        let fits = |group: &&mut Group| !alone && !group.alone && group.rows.len() + n_kept <= chunk;
        if groups.last_mut().filter(fits).is_none() {
            groups.push(Group { rows: Vec::new(), blocks: Vec::new(), alone });
        }
        let Some(group) = groups.last_mut() else { continue };
        for from in (0..labels.len()).step_by(block) {
            let begin = group.rows.len();
            let rows = from..labels.len().min(from + block);
            group.rows.extend(rows.filter(|row| units[row / unit]).map(|row| (first + row) as i32));
            if group.rows.len() > begin {
                group.blocks.push(begin..group.rows.len());
            }
        }
    }
    groups
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
    let chunk = chunk_rows(n_rows, vocab);
    let groups =
        groups(head.labels.ids(), chunk, |rows| gemm::sum_order(device.host(), vocab, dim, rows, x.dtype()));
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
    // The rows of x that have labels, where they do not follow each other, and the gradients of these rows, in f32: a sum
    // over the whole vocabulary is formed block by block, which a product with an output in 16 bits cannot do.
    let scattered = groups.iter().any(|group| group.span().is_none());
    let buffer = |wanted: bool, dtype, what| match wanted {
        true => Tensor::uninit([chunk, dim], dtype, device, what).map(Some),
        false => Ok(None),
    };
    let mut gathered = buffer(scattered, x.dtype(), "activation")?;
    let mut d_rows = buffer(dx.is_some(), DType::F32, "gradient")?;
    let mut is_first = true;
    for group in &groups {
        let rows = group.rows.len();
        let positions = Tensor::from_slice(&group.rows, [rows], device)?;
        let labels: Vec<i32> = group.rows.iter().map(|&row| head.labels.ids()[row as usize]).collect();
        let labels = Tensor::from_slice(&labels, [rows], device)?;
        let span = group.span();
        if let (None, Some(gathered)) = (&span, &mut gathered) {
            let mut launch = device.launch("head input", 0, (2 * rows * dim * size_of::<T>()) as u64);
            let (x, positions) = (launch.read::<T>(x)?, launch.read::<i32>(&positions)?);
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
        let (labels, to) = (launch.read::<i32>(&labels)?, launch.read::<i32>(&positions)?);
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
            let rows_of = RowsOfLoss { logits: &x_logits, labels: &labels, to: &to, losses: &all_losses };
            let d_logits = d_logits_rows.as_ref();
            match (seed, &grad) {
                _ if hits => Err(Unable::NoForm),
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
        if let (Some(dx), Some(d_rows)) = (&mut dx, &mut d_rows) {
            let (mut launch, scratch) = product(device, "head input grad", x.dtype(), [rows, dim, vocab])?;
            let (d, w) = (launch.read_at::<T>(d_logits, &(0..rows * vocab))?, launch.read::<T>(w)?);
            let out = launch.write_at::<f32>(d_rows, &(0..rows * dim))?;
            launch.cuda(|gpu| {
                let (d, w) = (gpu.matrix(&d, rows, vocab)?, gpu.matrix(&w, vocab, dim)?);
                gpu.multiply((T::DTYPE, 1), [d, w], (&out, DType::F32, Store::Overwrite), None)
            })?;
            launch.run(move |cpu| {
                let (d, w) = (MatRef::new(d.slice(cpu), rows, vocab), MatRef::new(w.slice(cpu), vocab, dim));
                let out = MatMut::new(out.slice(cpu), rows, dim);
                gemm::gemm(cpu, d, w, out, Store::Overwrite, scratch.slice(cpu));
            })?;
            let mut launch = device.quiet_launch("head input grad");
            let from = launch.read_at::<f32>(d_rows, &(0..rows * dim))?;
            let (positions, dx) = (launch.read::<i32>(&positions)?, launch.update::<T>(dx)?);
            launch.cuda(|gpu| {
                forms::place_rows(gpu, gpu.slice(&from)?, &positions, (&dx, T::DTYPE), [rows, dim])
            })?;
            launch.run(move |cpu| place_rows(from.slice(cpu), dim, positions.slice(cpu), dx.slice(cpu)))?;
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
