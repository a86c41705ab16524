//! The forward pass for few queries, as in generation: keys and values are read once, unpacked. Sequences of different
//! lengths go through it together, each with the bits that it has alone.

use std::f32::consts::LN_2;

use super::blocks::Rows;
use super::forward::{FLOOR, Outputs};
use super::pack::HeadRows;
use super::tile::{Kernel, LANES, Task};
use super::workers::{Carve, Tasks, carved};
use super::{AttentionShape, Inputs, Packed};
use crate::dtype::Float;
use crate::math;

/// Keys of a block: their scores fit four vectors.
const KEYS: usize = 64;
/// With fewer queries than this, tiles of 32 would be too empty to pay for packing.
const TILES_FROM: usize = 8;

/// Whether this pass is the faster one.
pub(super) fn applies(shape: &AttentionShape) -> bool {
    shape.q_len < TILES_FROM
}

/// One worker's share of the pass.
pub(super) struct Decode<'a, T> {
    pub(super) inputs: &'a Inputs<'a, T>,
    pub(super) packed: Packed,
    pub(super) outputs: &'a Outputs<T>,
    pub(super) tasks: Tasks,
    pub(super) scratch: &'a mut [u32],
}

/// Keys that are converted at once.
const AT_ONCE: usize = 4;
/// Keys that belong to the same block of a mask, from a multiple of it on.
const UNIT: usize = LANES;

fn pieces(shape: &AttentionShape, packed: &Packed) -> [usize; 5] {
    let rows = shape.group() * shape.q_len;
    [
        rows * packed.cols,
        rows * packed.cols,
        rows * KEYS,
        AT_ONCE * packed.cols,
        rows * size_of::<Query>() / 4,
    ]
}

/// Words of scratch of a worker.
pub(super) fn scratch_words(shape: &AttentionShape, packed: &Packed) -> usize {
    carved(&pieces(shape, packed))
}

/// A query of one of the heads of a group: what it sees, and its running softmax in powers of two.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Query {
    lo: i32,
    hi: i32,
    max: f32,
    sum: f32,
}

/// The buffers of a worker; a row is a query of a head, padded with zeros.
struct Buffers<'a> {
    q: &'a mut [f32],
    out: &'a mut [f32],
    /// [query, key]
    scores: &'a mut [f32],
    /// Some keys or values.
    rows: &'a mut [f32],
    queries: &'a mut [Query],
}

impl<T: Float> Task for Decode<'_, T> {
    #[inline(always)]
    unsafe fn run<K: Kernel>(self) {
        let (shape, packed) = (self.inputs.shape, self.packed);
        let mut buffers = Buffers::new(shape, &packed, self.scratch);
        for task in self.tasks {
            let (b, kv_head) = (task / shape.n_kv_heads, task % shape.n_kv_heads);
            // SAFETY: the caller's contract is passed on; this task owns the rows of its heads.
            unsafe { group::<T, K>(self.inputs, &packed, self.outputs, &mut buffers, b, kv_head) };
        }
    }
}

/// One worker's share of a pass over sequences of different lengths: a query of each.
pub(super) struct DecodeEach<'a, T> {
    /// Of all sequences, as long as the longest.
    pub(super) shape: &'a AttentionShape,
    /// Of each.
    pub(super) inputs: &'a [Inputs<'a, T>],
    pub(super) packed: Packed,
    pub(super) outputs: &'a Outputs<T>,
    pub(super) tasks: Tasks,
    pub(super) scratch: &'a mut [u32],
}

impl<T: Float> Task for DecodeEach<'_, T> {
    #[inline(always)]
    unsafe fn run<K: Kernel>(self) {
        let (shape, packed) = (self.shape, self.packed);
        let (row, n_heads) = (shape.n_heads * shape.head_dim, shape.n_heads);
        let mut buffers = Buffers::new(shape, &packed, self.scratch);
        for task in self.tasks {
            let (b, kv_head) = (task / shape.n_kv_heads, task % shape.n_kv_heads);
            let outputs = Outputs {
                o: self.outputs.o.part(b * row, row),
                lse: self.outputs.lse.part(b * n_heads, n_heads),
            };
            // SAFETY: the caller's contract is passed on; this task owns the rows of its heads.
            unsafe { group::<T, K>(&self.inputs[b], &packed, &outputs, &mut buffers, 0, kv_head) };
        }
    }
}

impl<'a> Buffers<'a> {
    #[inline(always)]
    fn new(shape: &AttentionShape, packed: &Packed, scratch: &'a mut [u32]) -> Buffers<'a> {
        let [n0, n1, n2, n3, n4] = pieces(shape, packed);
        let mut carve = Carve(scratch);
        let buffers = Buffers {
            q: carve.floats(n0),
            out: carve.floats(n1),
            scores: carve.floats(n2),
            rows: carve.floats(n3),
            queries: bytemuck::cast_slice_mut(carve.units(n4)),
        };
        buffers.q.fill(0.0);
        buffers.rows.fill(0.0);
        buffers
    }
}

/// All queries of the heads that share a kv head.
///
/// # Safety
/// As for [`Kernel`], and nobody else writes the outputs of these heads.
#[inline(always)]
unsafe fn group<T: Float, K: Kernel>(
    inputs: &Inputs<T>,
    packed: &Packed,
    outputs: &Outputs<T>,
    buffers: &mut Buffers,
    b: usize,
    kv_head: usize,
) {
    let (shape, cols, scale) = (inputs.shape, packed.cols, inputs.shape.score_scale());
    let (k, v) = (inputs.k.head(shape, b, kv_head), inputs.v.head(shape, b, kv_head));
    let head_and_query = |r: usize| (kv_head * shape.group() + r / shape.q_len, r % shape.q_len);
    let (mut first, mut end) = (shape.kv_len, 0);
    for (r, query) in buffers.queries.iter_mut().enumerate() {
        let (head, i) = head_and_query(r);
        let (lo, hi) = shape.visible(inputs.doc_start, b, i);
        *query = Query { lo, hi, max: FLOOR, sum: 0.0 };
        if lo < hi {
            (first, end) = (first.min(lo as usize), end.max(hi as usize));
        }
        let q = ((b * shape.q_len + i) * shape.n_heads + head) * shape.head_dim;
        for (x, q) in buffers.q[r * cols..].iter_mut().zip(&inputs.q[q..q + shape.head_dim]) {
            *x = q.to_f32() * scale.factor;
        }
    }
    buffers.out.fill(0.0);
    let rows = |r: usize| {
        let (head, i) = head_and_query(r);
        inputs.rows(head, i, 1)
    };
    let kept =
        |j: usize| inputs.blocks.is_none() || (0..shape.group() * shape.q_len).any(|r| keeps(rows(r), j));
    if inputs.blocks.is_some() {
        first = first / KEYS * KEYS;
    }
    for k0 in (first..end).step_by(KEYS) {
        let k1 = end.min(k0 + KEYS);
        if !(k0..k1).step_by(UNIT).any(kept) {
            continue;
        }
        // SAFETY: the buffers have the sizes of `pieces`.
        unsafe {
            for j in (k0..k1).step_by(AT_ONCE) {
                if kept(j) {
                    convert(k, j, k1, cols, buffers.rows);
                    scores::<K>(buffers, cols, j - k0);
                }
            }
            if let Some(cap) = scale.cap {
                buffers.scores.iter_mut().for_each(|x| *x = math::tanh(*x) * cap);
            }
            if inputs.blocks.is_some() {
                hide(buffers, k0, &rows);
            }
            softmax::<K>(buffers, cols, k0);
            for j in (k0..k1).step_by(AT_ONCE) {
                if kept(j) {
                    convert(v, j, k1, cols, buffers.rows);
                    values::<K>(buffers, cols, j - k0);
                }
            }
        }
    }
    for (r, query) in buffers.queries.iter().enumerate() {
        let (head, i) = head_and_query(r);
        let seen = query.sum != 0.0;
        let factor = if seen { 1.0 / query.sum } else { 0.0 };
        let row = ((b * shape.q_len + i) * shape.n_heads + head) * shape.head_dim;
        // SAFETY: this task owns the outputs of its heads.
        unsafe {
            for (o, x) in outputs.o.slice(row, shape.head_dim).iter_mut().zip(&buffers.out[r * cols..]) {
                *o = T::from_f32(x * factor);
            }
            let lse = outputs.lse.slice((b * shape.n_heads + head) * shape.q_len + i, 1);
            lse[0] = if seen { query.max * LN_2 + libm::logf(query.sum) } else { f32::NEG_INFINITY };
        }
    }
}

/// Whether the row of a query keeps key `j`.
#[inline(always)]
fn keeps(rows: Option<Rows<'_>>, j: usize) -> bool {
    rows.is_none_or(|rows| rows.keeping(j) != 0)
}

/// Minus infinity as the score of each query with the keys of the block from `k0` on that its row does not keep.
#[inline(always)]
fn hide<'a>(buffers: &mut Buffers, k0: usize, rows: &impl Fn(usize) -> Option<Rows<'a>>) {
    for (r, scores) in buffers.scores.chunks_exact_mut(KEYS).enumerate() {
        let rows = rows(r);
        for (u, scores) in scores.chunks_exact_mut(UNIT).enumerate() {
            let j = k0 + u * UNIT;
            if rows.as_ref().is_some_and(|rows| j >= rows.positions() || rows.keeping(j) == 0) {
                scores.fill(f32::NEG_INFINITY);
            }
        }
    }
}

/// The rows `j ..` as f32; zero from `end` on.
#[inline(always)]
fn convert<T: Float>(src: HeadRows<T>, j: usize, end: usize, cols: usize, rows: &mut [f32]) {
    for (r, row) in rows.chunks_exact_mut(cols).enumerate() {
        if j + r < end {
            for (x, y) in row.iter_mut().zip(src.row(j + r)) {
                *x = y.to_f32();
            }
        } else {
            row.fill(0.0);
        }
    }
}

/// The scores of the converted keys, which are those from `at` on in the block.
#[inline(always)]
unsafe fn scores<K: Kernel>(buffers: &mut Buffers, cols: usize, at: usize) {
    for r in 0..buffers.queries.len() {
        // SAFETY: the caller vouches for the buffers.
        unsafe {
            let mut sums = [K::splat(0.0); AT_ONCE];
            for c in (0..cols).step_by(LANES) {
                let q = K::load(buffers.q.as_ptr().add(r * cols + c));
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = K::fma(q, K::load(buffers.rows.as_ptr().add(j * cols + c)), *sum);
                }
            }
            buffers.scores[r * KEYS + at..][..AT_ONCE].copy_from_slice(&K::sums(sums));
        }
    }
}

/// Turns the scores of the block that starts at key `k0` into probabilities, still to be divided by their sum.
#[inline(always)]
unsafe fn softmax<K: Kernel>(buffers: &mut Buffers, cols: usize, k0: usize) {
    for (r, query) in buffers.queries.iter_mut().enumerate() {
        let scores = &mut buffers.scores[r * KEYS..][..KEYS];
        if k0 < query.lo as usize || query.hi < (k0 + KEYS) as i32 {
            for (j, x) in scores.iter_mut().enumerate() {
                let key = (k0 + j) as i32;
                *x = if query.lo <= key && key < query.hi { *x } else { f32::NEG_INFINITY };
            }
        }
        // SAFETY: a row of scores is four vectors.
        unsafe {
            let scores = scores.as_mut_ptr();
            let mut lanes = [0f32; LANES];
            let mut max = K::load(scores);
            for j in (LANES..KEYS).step_by(LANES) {
                max = K::max(K::load(scores.add(j)), max);
            }
            K::store(lanes.as_mut_ptr(), max);
            let max = lanes.iter().fold(query.max, |max, x| if *x > max { *x } else { max });
            K::store(lanes.as_mut_ptr(), K::exp2(K::splat(query.max - max)));
            let factor = lanes[0];
            let mut p = [K::splat(0.0); KEYS / LANES];
            for (j, p) in p.iter_mut().enumerate() {
                *p = K::exp2(K::sub(K::load(scores.add(j * LANES)), K::splat(max)));
                K::store(scores.add(j * LANES), *p);
            }
            let sums = K::sums(p);
            query.sum = query.sum * factor + ((sums[0] + sums[1]) + (sums[2] + sums[3]));
            query.max = max;
            if factor != 1.0 {
                buffers.out[r * cols..][..cols].iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
}

/// Adds the converted values, which are those from `at` on in the block, to the outputs.
#[inline(always)]
unsafe fn values<K: Kernel>(buffers: &mut Buffers, cols: usize, at: usize) {
    for r in 0..buffers.queries.len() {
        let p = &buffers.scores[r * KEYS + at..][..AT_ONCE];
        for c in (0..cols).step_by(LANES) {
            // SAFETY: the caller vouches for the buffers.
            unsafe {
                let out = buffers.out.as_mut_ptr().add(r * cols + c);
                let mut x = K::load(out);
                for (j, p) in p.iter().enumerate() {
                    x = K::fma(K::splat(*p), K::load(buffers.rows.as_ptr().add(j * cols + c)), x);
                }
                K::store(out, x);
            }
        }
    }
}
