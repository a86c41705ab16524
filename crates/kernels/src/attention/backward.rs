//! The backward pass: blocks of queries against blocks of keys, probabilities recomputed from the log-sum-exps.
//!
//! As in the forward pass blocks are transposed, a row per key and a column per query. For query block and key block:
//! P = exp(scale K Q^T - lse), dS = P * (V dO^T - delta), dV += P dO, dK += dS Q, dQ += dS^T K; dQ and dK are
//! scaled when they are written. `delta` is the inner product of a query's output and its gradient. Where scores have
//! a cap, dS is also multiplied by its derivative.

#![expect(clippy::needless_range_loop, reason = "an index often names a lane of several arrays")]

use std::f32::consts::LOG2_E;

use super::blocks::{Rows, Tiles, Walk};
use super::pack::{self, HeadRows};
use super::tile::{self, COLS, Kernel, LANES, Left, ROWS, Task};
use super::workers::{self, Carve, Shared, Tasks, carved};
use super::{AttentionShape, Inputs, Packed, ScoreScale, Span};
use crate::Cpu;
use crate::dtype::Float;
use crate::error::Result;

/// Queries of a block.
const QUERIES: usize = 64;
/// Keys of a block.
const KEYS: usize = 64;
/// Its tiles.
const TILES: usize = KEYS / ROWS;

/// What the forward pass left behind, and the gradient of its output.
pub(super) struct Saved<'a, T> {
    pub(super) o: &'a [T],
    pub(super) lse: &'a [f32],
    pub(super) d_o: &'a [T],
}

/// What the backward pass writes.
pub(super) struct Results<'a, T> {
    pub(super) dq: &'a mut [T],
    pub(super) dk: &'a mut [T],
    pub(super) dv: &'a mut [T],
}

/// The results as tasks see them: each writes the rows of its heads.
struct Outputs<T> {
    dq: Shared<T>,
    dk: Shared<T>,
    dv: Shared<T>,
}

/// The operation, in errors.
pub(super) const OP: &str = "attention backward";

/// The backward pass.
pub(super) fn backward<T: Float>(
    cpu: &Cpu,
    inputs: Inputs<T>,
    saved: Saved<T>,
    results: Results<T>,
    scratch: &mut [u8],
) -> Result<()> {
    let shape = inputs.shape;
    inputs.check(OP)?;
    for (what, got) in [("o", saved.o.len()), ("d_o", saved.d_o.len()), ("dq", results.dq.len())] {
        super::len(OP, what, inputs.q.len(), got)?;
    }
    super::len(OP, "dk", inputs.k.len(), results.dk.len())?;
    super::len(OP, "dv", inputs.v.len(), results.dv.len())?;
    super::len(OP, "lse", shape.batch * shape.n_heads * shape.q_len, saved.lse.len())?;
    let packed = Packed::new(shape, tile::pair::<T>(cpu.isa));
    let Results { dq, dk, dv } = results;
    let outputs = &Outputs { dq: Shared::new(dq), dk: Shared::new(dk), dv: Shared::new(dv) };
    let (inputs, saved) = (&inputs, &saved);
    workers::share_out(OP, cpu, shape, scratch, scratch_words(shape, &packed), |tasks, scratch| {
        tile::dispatch::<T>(cpu.isa, Backward { inputs, packed, saved, outputs, tasks, scratch });
    })
}

/// One worker's share of the backward pass.
struct Backward<'a, T> {
    inputs: &'a Inputs<'a, T>,
    packed: Packed,
    saved: &'a Saved<'a, T>,
    outputs: &'a Outputs<T>,
    tasks: Tasks,
    scratch: &'a mut [u32],
}

fn pieces(packed: &Packed) -> [usize; 15] {
    let key_rows = packed.keys * packed.units;
    let transposed = QUERIES * packed.units_padded;
    let query_panels = QUERIES / packed.pair * packed.cols;
    let block = KEYS * QUERIES;
    let keys = packed.keys * packed.cols;
    [
        key_rows,
        key_rows,
        keys / packed.pair,
        transposed,
        transposed,
        COLS * packed.units_padded,
        query_panels,
        query_panels,
        block / packed.pair,
        block / packed.pair,
        block,
        QUERIES * packed.cols,
        keys,
        keys,
        ROWS * COLS,
    ]
}

/// Words of scratch of a worker.
pub(super) fn scratch_words(_shape: &AttentionShape, packed: &Packed) -> usize {
    carved(&pieces(packed))
}

/// The buffers of a worker.
struct Buffers<'a> {
    /// Row-major, for the whole sequence.
    k_rows: &'a mut [u32],
    v_rows: &'a mut [u32],
    /// Panels over the keys of the whole sequence.
    k_panels: &'a mut [u32],
    /// Transposed panels of 32 queries.
    q_columns: &'a mut [u32],
    do_columns: &'a mut [u32],
    staging: &'a mut [u32],
    /// Panels over the queries.
    q_panels: &'a mut [u32],
    do_panels: &'a mut [u32],
    /// Units along the queries: [key, query / PAIR].
    p: &'a mut [u32],
    ds: &'a mut [u32],
    /// Units across the keys: [key / PAIR, query]; used only where units are pairs.
    ds_across: &'a mut [u32],
    /// [query, head_dim]
    dq: &'a mut [f32],
    /// [key, head_dim], for the whole sequence and group.
    dk: &'a mut [f32],
    dv: &'a mut [f32],
    /// Of the scores of a tile, where they have a cap.
    tanhs: &'a mut [f32; ROWS * COLS],
}

/// A block of queries of one head.
struct Block<'a> {
    /// Queries in it.
    n: usize,
    /// The keys that each sees; queries behind the last repeat it.
    lo: [i32; QUERIES],
    hi: [i32; QUERIES],
    /// Log-sum-exps, in powers of two.
    lse: [f32; QUERIES],
    delta: [f32; QUERIES],
    /// Of each 32 queries.
    spans: [Span; QUERIES / COLS],
    /// Of the block mask, if there is one.
    rows: Option<Rows<'a>>,
}

impl Block<'_> {
    /// The rows of the mask that queries `from .. to` have.
    #[inline(always)]
    fn rows(&self, from: usize, to: usize) -> u8 {
        self.rows.as_ref().map_or(u8::MAX, |rows| rows.set(from, to))
    }
}

impl<T: Float> Task for Backward<'_, T> {
    #[inline(always)]
    unsafe fn run<K: Kernel>(self) {
        let (shape, packed) = (self.inputs.shape, self.packed);
        let sizes = pieces(&packed);
        let mut carve = Carve(self.scratch);
        let mut buffers = Buffers {
            k_rows: carve.units(sizes[0]),
            v_rows: carve.units(sizes[1]),
            k_panels: carve.units(sizes[2]),
            q_columns: carve.units(sizes[3]),
            do_columns: carve.units(sizes[4]),
            staging: carve.units(sizes[5]),
            q_panels: carve.units(sizes[6]),
            do_panels: carve.units(sizes[7]),
            p: carve.units(sizes[8]),
            ds: carve.units(sizes[9]),
            ds_across: carve.units(sizes[10]),
            dq: carve.floats(sizes[11]),
            dk: carve.floats(sizes[12]),
            dv: carve.floats(sizes[13]),
            tanhs: carve.array(),
        };
        for task in self.tasks {
            let (b, kv_head) = (task / shape.n_kv_heads, task % shape.n_kv_heads);
            let [k, v] = [self.inputs.k, self.inputs.v].map(|x| x.head(shape, b, kv_head));
            pack::rows::<T, K>(k, packed.units, buffers.k_rows);
            pack::rows::<T, K>(v, packed.units, buffers.v_rows);
            pack::panels::<T, K>(k, packed.keys / packed.pair, buffers.k_panels);
            buffers.dk.fill(0.0);
            buffers.dv.fill(0.0);
            for head in kv_head * shape.group()..(kv_head + 1) * shape.group() {
                for q0 in (0..shape.q_len).step_by(QUERIES) {
                    // SAFETY: the caller's contract is passed on; this task owns the rows of its heads.
                    unsafe {
                        queries::<T, K>(
                            self.inputs,
                            &packed,
                            self.saved,
                            &self.outputs.dq,
                            &mut buffers,
                            b,
                            head,
                            q0,
                        )
                    };
                }
            }
            for (out, sums, scale) in
                [(&self.outputs.dk, &*buffers.dk, shape.scale), (&self.outputs.dv, &*buffers.dv, 1.0)]
            {
                for j in 0..shape.kv_capacity {
                    let row = ((b * shape.kv_capacity + j) * shape.n_kv_heads + kv_head) * shape.head_dim;
                    // SAFETY: this task owns the rows of its kv head.
                    let out = unsafe { out.slice(row, shape.head_dim) };
                    if j < shape.kv_len {
                        scaled(out, &sums[j * packed.cols..], scale);
                    } else {
                        out.fill(T::from_f32(0.0));
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn scaled<T: Float>(out: &mut [T], x: &[f32], scale: f32) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = T::from_f32(x * scale);
    }
}

/// Inner product in 16 lanes, added in a fixed order.
#[inline(always)]
fn inner<T: Float>(a: &[T], b: &[T]) -> f32 {
    let mut sums = [0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a.to_f32() * b.to_f32();
        }
    }
    sums.iter().sum()
}

/// The queries `q0 ..` of a head, up to a block of them.
///
/// # Safety
/// As for [`Kernel`], and nobody else writes this head's gradients.
#[inline(always)]
unsafe fn queries<T: Float, K: Kernel>(
    inputs: &Inputs<T>,
    packed: &Packed,
    saved: &Saved<T>,
    dq: &Shared<T>,
    buffers: &mut Buffers,
    b: usize,
    head: usize,
    q0: usize,
) {
    let shape = inputs.shape;
    let n = QUERIES.min(shape.q_len - q0);
    let rows = |x| {
        let x = super::sequence(x, b, shape.batch);
        HeadRows::new(x, shape.q_len, head, shape.n_heads, shape.head_dim).skip(q0, n)
    };
    let (q, o, d_o) = (rows(inputs.q), rows(saved.o), rows(saved.d_o));
    // SAFETY: the buffers have the sizes of `pieces`; blocks and tiles end inside the padded keys and the block.
    unsafe {
        for p in 0..n.div_ceil(COLS) {
            let at = p * packed.units_padded * COLS;
            let (start, n) = (p * COLS, COLS.min(n - p * COLS));
            pack::transposed::<T, K>(
                q.skip(start, n),
                packed.units,
                &mut buffers.q_columns[at..],
                buffers.staging,
            );
            pack::transposed::<T, K>(
                d_o.skip(start, n),
                packed.units,
                &mut buffers.do_columns[at..],
                buffers.staging,
            );
        }
        pack::panels::<T, K>(q, QUERIES / packed.pair, buffers.q_panels);
        pack::panels::<T, K>(d_o, QUERIES / packed.pair, buffers.do_panels);
        let lse = &saved.lse[(b * shape.n_heads + head) * shape.q_len + q0..][..n];
        let mut block = Block {
            n,
            lo: [0; QUERIES],
            hi: [0; QUERIES],
            lse: [0.0; QUERIES],
            delta: [0.0; QUERIES],
            spans: [Span::of(&[], &[]); QUERIES / COLS],
            rows: inputs.rows(head, q0, n),
        };
        for c in 0..QUERIES {
            (block.lo[c], block.hi[c]) = shape.visible(inputs.doc_start, b, q0 + c.min(n - 1));
            if c < n {
                block.lse[c] = lse[c] * LOG2_E;
                block.delta[c] = inner(o.row(c), d_o.row(c));
            }
        }
        for p in 0..n.div_ceil(COLS) {
            block.spans[p] = Span::of(&block.lo[p * COLS..][..COLS], &block.hi[p * COLS..][..COLS]);
        }
        buffers.dq.fill(0.0);
        let mut walk = Walk::new(block.rows, Span::of(&block.lo, &block.hi).tiles());
        while let Some(tiles) = walk.tiles::<TILES>() {
            let scale = shape.score_scale();
            match scale.cap {
                None => score_gradients::<K, false>(scale, packed, buffers, &block, &tiles),
                Some(_) => score_gradients::<K, true>(scale, packed, buffers, &block, &tiles),
            }
            key_gradients::<K>(shape, packed, buffers, &block, &tiles);
            query_gradients::<K>(shape, packed, buffers, &block, &tiles);
        }
        for c in 0..n {
            let row = ((b * shape.q_len + q0 + c) * shape.n_heads + head) * shape.head_dim;
            scaled(dq.slice(row, shape.head_dim), &buffers.dq[c * packed.cols..], shape.scale);
        }
    }
}

/// P and dS of some tiles of keys and the queries of a block.
#[inline(always)]
unsafe fn score_gradients<K: Kernel, const CAPPED: bool>(
    scale: ScoreScale,
    packed: &Packed,
    buffers: &mut Buffers,
    block: &Block,
    tiles: &Tiles<TILES>,
) {
    for t in 0..tiles.len() {
        for p in 0..block.n.div_ceil(COLS) {
            // What no row of the panel keeps is not read either.
            if tiles.keeping(t) & block.rows(p * COLS, (p + 1) * COLS) != 0 {
                // SAFETY: the caller's contract is passed on.
                unsafe { score_gradient_tile::<K, CAPPED>(scale, packed, buffers, block, tiles, t, p) };
            }
        }
    }
}

/// P and dS of the keys of tile `t` and the 32 queries of panel `p`.
#[inline(always)]
unsafe fn score_gradient_tile<K: Kernel, const CAPPED: bool>(
    scale: ScoreScale,
    packed: &Packed,
    buffers: &mut Buffers,
    block: &Block,
    tiles: &Tiles<TILES>,
    t: usize,
    p: usize,
) {
    let j = tiles.at(t);
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        let zero = K::splat(0.0);
        let ld = QUERIES / K::PAIR;
        let at = t * ROWS * ld + p * COLS / K::PAIR;
        let (p_out, ds_out) = (buffers.p.as_mut_ptr().add(at), buffers.ds.as_mut_ptr().add(at));
        let across_out = buffers.ds_across.as_mut_ptr().add(t * ROWS / K::PAIR * QUERIES + p * COLS);
        let span = &block.spans[p];
        let mut ds = [[zero; 2]; ROWS];
        if span.skips(j) {
            for r in 0..ROWS {
                K::put_row(p_out.add(r * ld), ds[r]);
            }
        } else {
            let columns = p * packed.units_padded * COLS;
            let keeping = tiles.keeping(t);
            let partial = block.rows.filter(|rows| {
                let all = rows.set(p * COLS, (p + 1) * COLS);
                keeping & all != all
            });
            let limited = partial.map(|rows| rows.limit(keeping, &block.lo[p * COLS..][..COLS], p * COLS));
            let lo = limited.as_ref().map_or(block.lo.as_ptr().add(p * COLS), |lo| lo.as_ptr());
            let hi = block.hi.as_ptr().add(p * COLS);
            let (lse, delta) = (block.lse.as_ptr().add(p * COLS), block.delta.as_ptr().add(p * COLS));
            let lse = [K::load(lse), K::load(lse.add(LANES))];
            let delta = [K::load(delta), K::load(delta.add(LANES))];
            let k_rows = buffers.k_rows.as_ptr().add(j * packed.units);
            let v_rows = buffers.v_rows.as_ptr().add(j * packed.units);
            let q_columns = buffers.q_columns.as_ptr().add(columns);
            let do_columns = buffers.do_columns.as_ptr().add(columns);
            let sees_all = limited.is_none() && span.sees_all(j);
            let mut probs = tile::product::<K>(packed.units, k_rows, packed.units, q_columns);
            let factor = if CAPPED {
                probs.iter_mut().flatten().for_each(|x| *x = K::mul(*x, K::splat(scale.factor)));
                probs = tile::tanh::<K>(probs, &mut *buffers.tanhs);
                scale.cap.unwrap_or_default()
            } else {
                scale.factor
            };
            for (r, row) in probs.iter_mut().enumerate() {
                for w in 0..2 {
                    row[w] = K::exp2(K::sub(K::mul(row[w], K::splat(factor)), lse[w]));
                    if !sees_all {
                        row[w] = K::keep(row[w], zero, (j + r) as i32, lo.add(w * LANES), hi.add(w * LANES));
                    }
                }
                K::put_row(p_out.add(r * ld), *row);
            }
            let d_probs = tile::product::<K>(packed.units, v_rows, packed.units, do_columns);
            for r in 0..ROWS {
                for w in 0..2 {
                    ds[r][w] = K::mul(probs[r][w], K::sub(d_probs[r][w], delta[w]));
                }
            }
            if CAPPED {
                // The derivative of the cap is 1 - tanh^2.
                for (r, row) in ds.iter_mut().enumerate() {
                    for (w, ds) in row.iter_mut().enumerate() {
                        let t = K::load(buffers.tanhs.as_ptr().add(r * COLS + w * LANES));
                        *ds = K::mul(*ds, K::sub(K::splat(1.0), K::mul(t, t)));
                    }
                }
            }
        }
        for r in 0..ROWS {
            K::put_row(ds_out.add(r * ld), ds[r]);
        }
        if K::PAIR == 2 {
            for r in (0..ROWS).step_by(2) {
                K::put_across(across_out.add(r / 2 * QUERIES), QUERIES, ds[r], ds[r + 1]);
            }
        }
    }
}

/// dV += P dO and dK += dS Q for some tiles of keys.
#[inline(always)]
unsafe fn key_gradients<K: Kernel>(
    shape: &AttentionShape,
    packed: &Packed,
    buffers: &mut Buffers,
    block: &Block,
    tiles: &Tiles<TILES>,
) {
    let ld = QUERIES / K::PAIR;
    for (left, right, out) in [
        (&*buffers.p, &*buffers.do_panels, &mut *buffers.dv),
        (&*buffers.ds, &*buffers.q_panels, &mut *buffers.dk),
    ] {
        for panel in 0..packed.n_panels {
            for t in 0..tiles.len() {
                let j = tiles.at(t);
                let (mut next, end) = seeing(block, j);
                while let Some((from, to)) = kept(block, tiles.keeping(t), next, end) {
                    // SAFETY: the caller vouches for the buffers.
                    unsafe {
                        tile::accumulate::<K>(
                            (to - from) / K::PAIR,
                            left.as_ptr().add(t * ROWS * ld + from / K::PAIR),
                            Left::RowMajor { ld },
                            right.as_ptr().add(panel * ld * COLS + from / K::PAIR * COLS),
                            out.as_mut_ptr().add(j * packed.cols + panel * COLS),
                            packed.cols,
                            packed.cols_of(shape, panel),
                        );
                    }
                    next = to;
                }
            }
        }
    }
}

/// The queries of a block that see one of the 8 keys from `j` on, and perhaps some between them that do not.
#[inline(always)]
fn seeing(block: &Block, j: usize) -> (usize, usize) {
    let n_panels = block.n.div_ceil(COLS);
    let spans = &block.spans[..n_panels];
    let Some(first) = spans.iter().position(|span| !span.skips(j)) else { return (0, 0) };
    let last = spans.iter().rposition(|span| !span.skips(j)).unwrap_or(first);
    let mut from = first * COLS;
    while block.hi[from] <= j as i32 {
        from += 1;
    }
    (from & !1, (last + 1) * COLS)
}

/// The first queries of `from .. to` that follow each other and have rows among `keeping`, in groups of 8.
#[inline(always)]
fn kept(block: &Block, keeping: u8, from: usize, to: usize) -> Option<(usize, usize)> {
    let Some(rows) = &block.rows else { return (from < to).then_some((from, to)) };
    let group_end = |c: usize| ((c / ROWS + 1) * ROWS).min(to);
    let is_kept = |c: usize| rows.set(c / ROWS * ROWS, (c / ROWS + 1) * ROWS) & keeping != 0;
    let mut first = from;
    while first < to && !is_kept(first) {
        first = group_end(first);
    }
    let mut end = first;
    while end < to && is_kept(end) {
        end = group_end(end);
    }
    (first < end).then_some((first, end))
}

/// dQ += dS^T K over some tiles of keys.
#[inline(always)]
unsafe fn query_gradients<K: Kernel>(
    shape: &AttentionShape,
    packed: &Packed,
    buffers: &mut Buffers,
    block: &Block,
    tiles: &Tiles<TILES>,
) {
    let ds = if K::PAIR == 2 { &*buffers.ds_across } else { &*buffers.ds };
    let steps = packed.keys / packed.pair;
    for panel in 0..packed.n_panels {
        for i in (0..block.n).step_by(ROWS) {
            let (from, to) = Span::of(&block.lo[i..i + ROWS], &block.hi[i..i + ROWS]).tiles();
            let (rows, mut t) = (block.rows(i, i + ROWS), 0);
            while let Some((first, end)) = tiles.run(t, rows, from, to) {
                // SAFETY: the caller vouches for the buffers.
                unsafe {
                    tile::accumulate::<K>(
                        (end - first) * ROWS / K::PAIR,
                        ds.as_ptr().add(first * ROWS / K::PAIR * QUERIES + i),
                        Left::ColMajor { ld: QUERIES },
                        buffers.k_panels.as_ptr().add((panel * steps + tiles.at(first) / K::PAIR) * COLS),
                        buffers.dq.as_mut_ptr().add(i * packed.cols + panel * COLS),
                        packed.cols,
                        packed.cols_of(shape, panel),
                    );
                }
                t = end;
            }
        }
    }
}
