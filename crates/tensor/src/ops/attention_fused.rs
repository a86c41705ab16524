//! Attention of queries, keys and values that one product has made: a GPU turns both to their positions and takes the three
//! apart in one launch, and puts their gradients together in another one.

use std::sync::Arc;

use oarlock_cuda::geometry;
use oarlock_kernels::rope::Rotation;
use oarlock_kernels::{Element, Float, Result};

use crate::cuda::FormError;
use crate::ops::attention::{Attended, AttentionOptions, Mask};
use crate::ops::rope::Rope;
use crate::ops::{with_float, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The heads of a row of queries, keys and values, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QkvHeads {
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys, and of values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl QkvHeads {
    /// The elements of queries, keys and values in a row.
    fn widths(self) -> [usize; 3] {
        [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads * self.head_dim)
    }
}

/// qkv `[B, S, (H + 2·G)·D]` → `[B, S, H, D]`: [`attention`](super::attention()) of queries and keys that
/// [`rope`](super::rope()) turns to their positions, of which the first is `first`.
///
/// # Errors
/// Shapes, dtypes or options that do not fit, or a position beyond the table.
pub fn attention_fused(
    qkv: &Tensor,
    heads: QkvHeads,
    rope: &Arc<Rope>,
    first: usize,
    mask: &Mask,
    options: &AttentionOptions,
) -> Result<Tensor> {
    let width: usize = heads.widths().iter().sum();
    if !matches!(qkv.sizes(), &[_, _, row] if row == width) || heads.head_dim < rope.rot_dim() {
        let expected = format!("[B, S, {width}] with heads of at least {}", rope.rot_dim());
        return Err(wrong_shape("attention_fused", expected, qkv));
    }
    let rows = Rows { heads, rope: rope.clone(), first: rope.offset_of(qkv, first)? };
    let recorder = Recorder::new(&[qkv], &[])?;
    let [q, k, v] = rows.split(qkv)?;
    let attended = Attended::new([&q, &k, &v], mask, options)?;
    let o = attended.output();
    Ok(Recorder::record(recorder, o, |_| AttentionFusedBackward { qkv: [q, k, v], attended, rows }))
}

/// How rows are taken apart and put together.
struct Rows {
    heads: QkvHeads,
    rope: Arc<Rope>,
    /// The position of the first row of a sequence, counted from that of the table.
    first: usize,
}

/// The number of rows of a launch, and what the kernels know of them.
fn sizes_of(qkv: &Tensor) -> Result<[usize; 2]> {
    match qkv.sizes() {
        &[batch, seq, ..] => Ok([batch, seq]),
        _ => Err(wrong_shape("attention_fused", "[B, S, (H + 2·G)·D]", qkv)),
    }
}

impl Rows {
    /// Queries, keys and values, the first two turned to their positions.
    fn split(&self, qkv: &Tensor) -> Result<[Tensor; 3]> {
        let QkvHeads { heads, kv_heads, head_dim } = self.heads;
        let ([batch, seq], device, dtype) = (sizes_of(qkv)?, qkv.device(), qkv.dtype());
        let fresh = |heads| Tensor::uninit([batch, seq, heads, head_dim], dtype, device, "activation");
        let (mut q, mut k, mut v) = (fresh(heads)?, fresh(kv_heads)?, fresh(kv_heads)?);
        let turn = self.rope.turn(self.first, seq, device)?;
        let mut launch = device.launch("rope forward", 0, 2 * qkv.len_bytes() as u64);
        let angles = turn.read(&mut launch)?;
        with_float!(dtype, "attention_fused", T => {
            let (from, n) = (launch.read::<T>(qkv)?, qkv.n_elems());
            let (q, k, v) = (launch.write::<T>(&mut q)?, launch.write::<T>(&mut k)?, launch.write::<T>(&mut v)?);
            launch.cuda(|gpu| {
                let ([cos, sin], [half, interleaved]) = (angles.ok_or(FormError::NoForm)?, turn.pairs());
                let call = gpu.kernel("rope_split", &[T::DTYPE])?.view(&from).view(&q).view(&k).view(&v);
                let call = call.view(&cos).view(&sin).u32(seq).u32(self.first).u32(batch * seq).u32(heads);
                let call = call.u32(kv_heads).u32(head_dim).u32(half).u32(interleaved);
                call.run(geometry::elements(n))
            })?;
            let widths = self.heads.widths();
            launch.run(move |cpu| {
                let parts = [q.slice(cpu), k.slice(cpu), v.slice(cpu)];
                let [q, k, _] = apart(from.slice(cpu), parts, widths);
                turn.run(cpu, Rotation::Forward, [heads, head_dim], q)?;
                turn.run(cpu, Rotation::Forward, [kv_heads, head_dim], k)
            })
        })?;
        Ok([q, k, v])
    }

    /// The gradient of rows from those of queries, keys and values, of which the first two are turned back.
    fn join(&self, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let QkvHeads { heads, kv_heads, head_dim } = self.heads;
        let ([batch, seq], device, widths) = (sizes_of(q)?, q.device(), self.heads.widths());
        let shape = Shape::new(&[batch, seq, widths.iter().sum()])?;
        let mut qkv = Tensor::uninit(shape, q.dtype(), device, "gradient")?;
        let turn = self.rope.turn(self.first, seq, device)?;
        let mut launch = device.launch("rope backward", 0, 2 * qkv.len_bytes() as u64);
        let (angles, n) = (turn.read(&mut launch)?, shape.n_elems());
        with_float!(q.dtype(), "attention_fused", T => {
            let (q, k, v) = (launch.read::<T>(q)?, launch.read::<T>(k)?, launch.read::<T>(v)?);
            let to = launch.write::<T>(&mut qkv)?;
            launch.cuda(|gpu| {
                let ([cos, sin], [half, interleaved]) = (angles.ok_or(FormError::NoForm)?, turn.pairs());
                let call = gpu.kernel("rope_join", &[T::DTYPE])?.view(&q).view(&k).view(&v).view(&to);
                let call = call.view(&cos).view(&sin).u32(seq).u32(self.first).u32(batch * seq).u32(heads);
                let call = call.u32(kv_heads).u32(head_dim).u32(half).u32(interleaved);
                call.run(geometry::elements(n))
            })?;
            launch.run(move |cpu| {
                let (mut q, mut k) = (q.slice(cpu).to_vec(), k.slice(cpu).to_vec());
                turn.run(cpu, Rotation::Inverse, [heads, head_dim], &mut q)?;
                turn.run(cpu, Rotation::Inverse, [kv_heads, head_dim], &mut k)?;
                together(to.slice(cpu), [&q, &k, v.slice(cpu)], widths);
                Ok(())
            })
        })?;
        Ok(qkv)
    }
}

/// Copies rows of three parts into memory of their own each.
fn apart<'p, T: Float>(rows: &[T], mut parts: [&'p mut [T]; 3], widths: [usize; 3]) -> [&'p mut [T]; 3] {
    for (index, row) in rows.chunks_exact(widths.iter().sum::<usize>().max(1)).enumerate() {
        let mut first = 0;
        for (part, width) in parts.iter_mut().zip(widths) {
            part[index * width..][..width].copy_from_slice(&row[first..first + width]);
            first += width;
        }
    }
    parts
}

/// The way back.
fn together<T: Float>(rows: &mut [T], parts: [&[T]; 3], widths: [usize; 3]) {
    for (index, row) in rows.chunks_exact_mut(widths.iter().sum::<usize>().max(1)).enumerate() {
        let mut first = 0;
        for (part, width) in parts.iter().zip(widths) {
            row[first..first + width].copy_from_slice(&part[index * width..][..width]);
            first += width;
        }
    }
}

struct AttentionFusedBackward {
    qkv: [Tensor; 3],
    attended: Attended,
    rows: Rows,
}

impl Function for AttentionFusedBackward {
    fn backward(self: Box<Self>, d_o: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let [q, k, v] = &self.qkv;
        let [dq, dk, dv] = self.attended.gradients([q, k, v], &d_o)?;
        cx.give(0, self.rows.join([&dq, &dk, &dv])?)
    }
}
