//! Attention without S x S storage: the entry points, their checks, and what forward and backward share.
//!
//! Keys and values are packed once per (sequence, kv head) and serve all query heads of the group. A thread takes
//! whole (sequence, kv head) tasks, so every sum has one order, whatever the number of threads.

mod backward;
mod blocks;
mod decode;
mod forward;
mod pack;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tile_avx2;
#[cfg(target_arch = "x86_64")]
mod tile_avx512;
mod workers;

use std::f32::consts::LOG2_E;

pub use self::blocks::BlockMask;
use super::Cpu;
use crate::dtype::{DType, Float, bf16, f16};
use crate::error::{Error, Result};
use crate::instances::instances;
use blocks::Rows;
use tile::{COLS, LANES, ROWS};

/// The sizes of an attention: queries and output are [batch, q_len, n_heads, head_dim], keys and values
/// [batch, kv_capacity, n_kv_heads, head_dim], log-sum-exps [batch, n_heads, q_len] in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Queries of a sequence. They stand at its end: query `i` is at position `kv_len - q_len + i`.
    pub q_len: usize,
    /// Keys of a sequence.
    pub kv_len: usize,
    /// Query heads: a multiple of `n_kv_heads`.
    pub n_heads: usize,
    /// Key and value heads; each serves `n_heads / n_kv_heads` consecutive query heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rows of storage of a sequence in keys and values, at least `kv_len`.
    pub kv_capacity: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Whether a query sees only the keys up to its own position.
    pub causal: bool,
    /// With a window of `w`, a query sees no key more than `w - 1` positions before its own.
    pub window: Option<usize>,
    /// With a cap of `c`, a score `s` becomes `c tanh(s / c)` before the softmax.
    pub logit_cap: Option<f32>,
}

impl AttentionShape {
    /// Elements of the queries and of the output; `None` if no number counts them.
    pub fn q_elems(&self) -> Option<usize> {
        self.batch.checked_mul(self.q_len)?.checked_mul(self.n_heads)?.checked_mul(self.head_dim)
    }

    /// Elements of the keys and of the values; `None` if no number counts them.
    pub fn kv_elems(&self) -> Option<usize> {
        self.batch.checked_mul(self.kv_capacity)?.checked_mul(self.n_kv_heads)?.checked_mul(self.head_dim)
    }

    /// Query heads of a kv head.
    fn group(&self) -> usize {
        self.n_heads / self.n_kv_heads.max(1)
    }

    /// (sequence, kv head) pairs: the units of parallel work.
    fn n_tasks(&self) -> usize {
        self.batch * self.n_kv_heads
    }

    /// The keys that query `i` of sequence `b` sees: `lo .. hi`, empty if `hi <= lo`.
    #[inline(always)]
    fn visible(&self, doc_start: Option<&[i32]>, b: usize, i: usize) -> (i32, i32) {
        let kv_len = self.kv_len as i32;
        let own_end = (self.kv_len + i + 1).saturating_sub(self.q_len);
        let hi = if self.causal { own_end as i32 } else { kv_len };
        let lo = doc_start.map_or(0, |starts| starts[b * self.q_len + i].clamp(0, kv_len));
        let window_start = self.window.map_or(0, |window| own_end.saturating_sub(window) as i32);
        (lo.max(window_start), hi.min(kv_len))
    }

    /// How products of queries and keys become scores.
    fn score_scale(&self) -> ScoreScale {
        match self.logit_cap {
            None => ScoreScale { factor: self.scale * LOG2_E, cap: None },
            Some(cap) => ScoreScale { factor: self.scale / cap, cap: Some(cap * LOG2_E) },
        }
    }

    fn check(&self, op: &'static str, q: usize, k: usize, v: usize, doc_start: Option<&[i32]>) -> Result<()> {
        let wrong = |expected: String| Err(Error::Shape { op, expected, got: format!("{self:?}") });
        if self.n_kv_heads == 0 || !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return wrong("query heads that are a multiple of the kv heads".into());
        }
        if self.kv_len > self.kv_capacity
            || self.kv_len > i32::MAX as usize / 2
            || self.q_len > i32::MAX as usize / 2
        {
            return wrong("at most kv_capacity keys, fewer than 2^30 keys and queries".into());
        }
        let (Some(q_elems), Some(kv_elems)) = (self.q_elems(), self.kv_elems()) else {
            return wrong("sizes whose product fits the address space".into());
        };
        len(op, "q", q_elems, q)?;
        len(op, "k", kv_elems, k)?;
        len(op, "v", kv_elems, v)?;
        doc_start.map_or(Ok(()), |starts| len(op, "doc_start", self.batch * self.q_len, starts.len()))
    }
}

/// Scores in powers of two are `factor` times the inner product of query and key; with a cap, `cap` times the
/// hyperbolic tangent of that.
#[derive(Clone, Copy)]
struct ScoreScale {
    factor: f32,
    cap: Option<f32>,
}

fn len(op: &'static str, what: &'static str, expected: usize, got: usize) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(Error::Shape { op, expected: format!("{expected} elements of {what}"), got: got.to_string() })
}

/// Bytes of scratch that [`attention_forward`] wants for this shape.
pub fn attention_forward_scratch_bytes(cpu: &Cpu, shape: &AttentionShape, dtype: DType) -> usize {
    scratch_bytes(
        cpu,
        shape,
        dtype,
        if decode::applies(shape) { decode::scratch_words } else { forward::scratch_words },
    )
}

/// Bytes of scratch that [`attention_backward`] wants for this shape.
pub fn attention_backward_scratch_bytes(cpu: &Cpu, shape: &AttentionShape, dtype: DType) -> usize {
    scratch_bytes(cpu, shape, dtype, backward::scratch_words)
}

fn scratch_bytes(
    cpu: &Cpu,
    shape: &AttentionShape,
    dtype: DType,
    words: fn(&AttentionShape, &Packed) -> usize,
) -> usize {
    let pair = match dtype {
        DType::BF16 => tile::pair::<bf16>(cpu.isa),
        DType::F16 => tile::pair::<f16>(cpu.isa),
        DType::F32 | DType::I32 => tile::pair::<f32>(cpu.isa),
    };
    workers::scratch_bytes(cpu, shape, words(shape, &Packed::new(shape, pair)))
}

instances! {
    /// `o = softmax(scale * q k^T) v` for each head, and the log-sum-exp of each query's scores.
    ///
    /// A query sees the keys of its own document: those from `doc_start[b, i]` ([batch, q_len], clamped into the
    /// sequence) on, and with `causal` none behind its own position; of these only the ones whose block a mask keeps, and
    /// time is spent on kept blocks alone. A query that sees no key gets zeros and minus infinity. Sums and softmax are in f32; in bf16 the probabilities are rounded to bf16 before the second product.
    ///
    /// # Errors
    /// When lengths do not fit `shape`, or `scratch` is shorter than [`attention_forward_scratch_bytes`].
    pub fn attention_forward[T: Float](
        cpu: &Cpu,
        shape: &AttentionShape,
        q: &[T],
        k: &[T],
        v: &[T],
        doc_start: Option<&[i32]>,
        blocks: Option<&BlockMask>,
        o: &mut [T],
        lse: &mut [f32],
        scratch: &mut [u8],
    ) -> Result<()> {
        let [k, v] = [k, v].map(Stored::Whole);
        let (inputs, outputs) = (Inputs { shape, q, k, v, doc_start, blocks }, forward::Results { o, lse });
        forward::forward(cpu, inputs, outputs, scratch)
    }
}

/// Rows of a page of keys or values.
pub const PAGE_ROWS: usize = pack::PAGE;

/// Keys and values of a sequence, as a cache holds them: in pages `[PAGE_ROWS, n_kv_heads, head_dim]`, or in a single one of any
/// number of rows.
#[derive(Clone, Copy, Debug)]
pub struct CachedSequence<'a, T> {
    /// The keys.
    pub k: &'a [&'a [T]],
    /// The values, in as many pages of the same sizes.
    pub v: &'a [&'a [T]],
    /// The rows of them that are filled.
    pub len: usize,
}

impl<'a, T> CachedSequence<'a, T> {
    /// The shape of a pass over this sequence alone.
    fn shape(&self, of_all: &AttentionShape) -> AttentionShape {
        let n_elems: usize = self.k.iter().map(|page| page.len()).sum();
        let kv_capacity = n_elems / (of_all.n_kv_heads * of_all.head_dim).max(1);
        AttentionShape { batch: 1, kv_len: self.len, kv_capacity, ..*of_all }
    }

    fn inputs<'i>(
        &self,
        shape: &'i AttentionShape,
        q: &'i [T],
        blocks: Option<&'i BlockMask>,
    ) -> Inputs<'i, T>
    where
        'a: 'i,
    {
        Inputs { shape, q, k: Stored::Pages(self.k), v: Stored::Pages(self.v), doc_start: None, blocks }
    }
}

instances! {
    /// [`attention_forward`], causal, of the last positions of a sequence in a cache.
    ///
    /// # Errors
    /// As [`attention_forward`], and more than one sequence.
    pub fn attention_of_cached[T: Float](
        cpu: &Cpu,
        shape: &AttentionShape,
        q: &[T],
        cache: &CachedSequence<T>,
        blocks: Option<&BlockMask>,
        o: &mut [T],
        lse: &mut [f32],
        scratch: &mut [u8],
    ) -> Result<()> {
        if shape.batch != 1 {
            let expected = "one sequence in a cache".to_owned();
            return Err(Error::Shape { op: forward::OP, expected, got: format!("{shape:?}") });
        }
        let shape = cache.shape(shape);
        forward::forward(cpu, cache.inputs(&shape, q, blocks), forward::Results { o, lse }, scratch)
    }
}

instances! {
    /// [`attention_forward`] of the last position of each of several sequences, whose lengths differ: `shape` has as many
    /// sequences, one query each and the keys of the longest. The bits are those of each sequence alone.
    ///
    /// # Errors
    /// As [`attention_forward`], and more than one query of a sequence.
    pub fn attention_of_each[T: Float](
        cpu: &Cpu,
        shape: &AttentionShape,
        q: &[T],
        caches: &[CachedSequence<T>],
        blocks: Option<&BlockMask>,
        o: &mut [T],
        lse: &mut [f32],
        scratch: &mut [u8],
    ) -> Result<()> {
        let row = shape.n_heads * shape.head_dim;
        let of = |cache: &CachedSequence<T>| cache.shape(shape);
        if shape.q_len != 1 || shape.batch != caches.len() || row == 0 {
            let expected = format!("one query of each of {} sequences", caches.len());
            return Err(Error::Shape { op: forward::OP, expected, got: format!("{shape:?}") });
        }
        len(forward::OP, "q", caches.len() * row, q.len())?;
        let shapes: Vec<AttentionShape> = caches.iter().map(of).collect();
        let inputs = shapes.iter().zip(caches).zip(q.chunks_exact(row));
        let inputs: Vec<Inputs<T>> = inputs
            .map(|((shape, cache), q)| cache.inputs(shape, q, blocks))
            .collect();
        forward::forward_of_each(cpu, shape, &inputs, forward::Results { o, lse }, scratch)
    }
}

instances! {
    /// The gradients of [`attention_forward`], from its inputs, its outputs and the gradient `d_o` of `o`.
    /// Overwrites `dq`, `dk` and `dv`; the rows behind `kv_len` become zero.
    ///
    /// # Errors
    /// When lengths do not fit `shape`, or `scratch` is shorter than [`attention_backward_scratch_bytes`].
    pub fn attention_backward[T: Float](
        cpu: &Cpu,
        shape: &AttentionShape,
        q: &[T],
        k: &[T],
        v: &[T],
        doc_start: Option<&[i32]>,
        blocks: Option<&BlockMask>,
        o: &[T],
        lse: &[f32],
        d_o: &[T],
        dq: &mut [T],
        dk: &mut [T],
        dv: &mut [T],
        scratch: &mut [u8],
    ) -> Result<()> {
        let [k, v] = [k, v].map(Stored::Whole);
        let inputs = Inputs { shape, q, k, v, doc_start, blocks };
        let (saved, outputs) = (backward::Saved { o, lse, d_o }, backward::Results { dq, dk, dv });
        backward::backward(cpu, inputs, saved, outputs, scratch)
    }
}

/// What forward and backward read.
struct Inputs<'a, T> {
    shape: &'a AttentionShape,
    q: &'a [T],
    k: Stored<'a, T>,
    v: Stored<'a, T>,
    doc_start: Option<&'a [i32]>,
    blocks: Option<&'a BlockMask>,
}

/// Keys or values of all sequences, one after another, or of one sequence in pages.
#[derive(Clone, Copy)]
enum Stored<'a, T> {
    Whole(&'a [T]),
    Pages(&'a [&'a [T]]),
}

impl<'a, T> Stored<'a, T> {
    fn len(&self) -> usize {
        match self {
            Stored::Whole(data) => data.len(),
            Stored::Pages(pages) => pages.iter().map(|page| page.len()).sum(),
        }
    }

    /// The rows of a head of sequence `b`.
    #[inline(always)]
    fn head(&self, shape: &AttentionShape, b: usize, kv_head: usize) -> pack::HeadRows<'a, T> {
        let (n, heads, head_dim) = (shape.kv_len, shape.n_kv_heads, shape.head_dim);
        match *self {
            Stored::Whole(data) => {
                pack::HeadRows::new(sequence(data, b, shape.batch), n, kv_head, heads, head_dim)
            }
            Stored::Pages(pages) => pack::HeadRows::in_pages(pages, n, kv_head, heads, head_dim),
        }
    }

    /// Pages are all of one size, unless there is a single one.
    fn check(&self, op: &'static str, what: &'static str, shape: &AttentionShape) -> Result<()> {
        let Stored::Pages(pages @ [_, _, ..]) = self else { return Ok(()) };
        let n = PAGE_ROWS * shape.n_kv_heads * shape.head_dim;
        pages.iter().try_for_each(|page| len(op, what, n, page.len()))
    }
}

impl<T: Float> Inputs<'_, T> {
    fn check(&self, op: &'static str) -> Result<()> {
        self.shape.check(op, self.q.len(), self.k.len(), self.v.len(), self.doc_start)?;
        self.k.check(op, "a page of k", self.shape)?;
        self.v.check(op, "a page of v", self.shape)?;
        self.blocks.map_or(Ok(()), |mask| mask.check(op, self.shape))
    }

    /// The rows of the mask, if there is one, that `n` queries from `q0` on have.
    #[inline(always)]
    fn rows(&self, head: usize, q0: usize, n: usize) -> Option<Rows<'_>> {
        self.blocks.map(|mask| Rows::new(mask, self.shape, head, q0, n))
    }
}

/// Sizes of packed operands.
#[derive(Clone, Copy)]
struct Packed {
    /// Elements of a unit.
    pair: usize,
    /// Units of the head dimension.
    units: usize,
    /// The same, rounded up to what a transposition writes.
    units_padded: usize,
    /// Panels of the head dimension.
    n_panels: usize,
    /// Columns of those panels.
    cols: usize,
    /// Keys, rounded up to whole tiles.
    keys: usize,
}

impl Packed {
    fn new(shape: &AttentionShape, pair: usize) -> Packed {
        let units = shape.head_dim.div_ceil(pair);
        let n_panels = shape.head_dim.div_ceil(COLS);
        Packed {
            pair,
            units,
            units_padded: units.next_multiple_of(LANES),
            n_panels,
            cols: n_panels * COLS,
            keys: shape.kv_len.next_multiple_of(ROWS),
        }
    }

    /// Columns of panel `p` that hold numbers: the rest is padding.
    #[inline(always)]
    fn cols_of(&self, shape: &AttentionShape, p: usize) -> usize {
        (shape.head_dim - p * COLS).min(COLS)
    }
}

/// The keys that some queries see, `lo .. hi` each.
#[derive(Clone, Copy)]
struct Span {
    lo_min: i32,
    lo_max: i32,
    hi_min: i32,
    hi_max: i32,
}

impl Span {
    #[inline(always)]
    fn of(lo: &[i32], hi: &[i32]) -> Span {
        let mut span = Span { lo_min: i32::MAX, lo_max: 0, hi_min: i32::MAX, hi_max: 0 };
        for (&lo, &hi) in lo.iter().zip(hi) {
            span.lo_max = span.lo_max.max(lo);
            span.hi_min = span.hi_min.min(hi);
            if lo < hi {
                span.lo_min = span.lo_min.min(lo);
                span.hi_max = span.hi_max.max(hi);
            }
        }
        span
    }

    /// Whether none of the queries sees one of the 8 keys from `j` on.
    #[inline(always)]
    fn skips(&self, j: usize) -> bool {
        j as i32 >= self.hi_max || (j + ROWS) as i32 <= self.lo_min
    }

    /// Whether all of the queries see all of the 8 keys from `j` on.
    #[inline(always)]
    fn sees_all(&self, j: usize) -> bool {
        self.lo_max <= j as i32 && (j + ROWS) as i32 <= self.hi_min
    }

    /// The first of its keys and the end of them, in whole tiles.
    #[inline(always)]
    fn tiles(&self) -> (usize, usize) {
        if self.hi_max == 0 {
            return (0, 0);
        }
        (self.lo_min as usize / ROWS * ROWS, (self.hi_max as usize).next_multiple_of(ROWS))
    }
}

/// Sequence `b` of a tensor whose first dimension is the batch.
#[inline(always)]
fn sequence<T>(data: &[T], b: usize, batch: usize) -> &[T] {
    let len = data.len() / batch;
    &data[b * len..][..len]
}
