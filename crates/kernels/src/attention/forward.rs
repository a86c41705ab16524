//! The forward pass: 32 queries against blocks of keys, with a running softmax.
//!
//! Scores are kept transposed, a row per key and a column per query, so that the maxima and sums of a query run
//! down a vector lane and no vector is ever summed across.

#![expect(clippy::needless_range_loop, reason = "an index often names a lane of several arrays")]

use std::f32::consts::LN_2;

use super::blocks::{Rows, Tiles, Walk};
use super::decode::{self, Decode, DecodeEach};
use super::pack::{self, HeadRows};
use super::tile::{self, COLS, Kernel, LANES, Left, ROWS, Task};
use super::workers::{self, Carve, Shared, Tasks, carved};
use super::{AttentionShape, Inputs, Packed, ScoreScale, Span};
use crate::Cpu;
use crate::dtype::Float;
use crate::error::Result;

/// Keys of a block: the scores of 32 queries with them take 16 KiB.
const KEYS: usize = 128;
/// Its tiles.
const TILES: usize = KEYS / ROWS;
/// Below every finite score, and finite itself so that differences of maxima are numbers.
pub(super) const FLOOR: f32 = -1e30;

/// The operation, in errors.
pub(super) const OP: &str = "attention";

/// What the forward pass writes.
pub(super) struct Results<'a, T> {
    pub(super) o: &'a mut [T],
    pub(super) lse: &'a mut [f32],
}

/// The results as tasks see them: each writes the rows of its heads.
pub(super) struct Outputs<T> {
    pub(super) o: Shared<T>,
    pub(super) lse: Shared<f32>,
}

/// The forward pass.
pub(super) fn forward<T: Float>(
    cpu: &Cpu,
    inputs: Inputs<T>,
    results: Results<T>,
    scratch: &mut [u8],
) -> Result<()> {
    let shape = inputs.shape;
    inputs.check(OP)?;
    super::len(OP, "o", inputs.q.len(), results.o.len())?;
    super::len(OP, "lse", shape.batch * shape.n_heads * shape.q_len, results.lse.len())?;
    let packed = Packed::new(shape, tile::pair::<T>(cpu.isa));
    let (inputs, outputs) = (&inputs, &Outputs { o: Shared::new(results.o), lse: Shared::new(results.lse) });
    if decode::applies(shape) {
        workers::share_out(
            OP,
            cpu,
            shape,
            scratch,
            decode::scratch_words(shape, &packed),
            |tasks, scratch| {
                tile::dispatch::<T>(cpu.isa, Decode { inputs, packed, outputs, tasks, scratch });
            },
        )
    } else {
        workers::share_out(OP, cpu, shape, scratch, scratch_words(shape, &packed), |tasks, scratch| {
            tile::dispatch::<T>(cpu.isa, Forward { inputs, packed, outputs, tasks, scratch });
        })
    }
}

/// The pass over a query of each of several sequences.
pub(super) fn forward_of_each<T: Float>(
    cpu: &Cpu,
    shape: &AttentionShape,
    inputs: &[Inputs<T>],
    results: Results<T>,
    scratch: &mut [u8],
) -> Result<()> {
    inputs.iter().try_for_each(|inputs| inputs.check(OP))?;
    super::len(OP, "o", inputs.len() * shape.n_heads * shape.head_dim, results.o.len())?;
    super::len(OP, "lse", inputs.len() * shape.n_heads, results.lse.len())?;
    let packed = Packed::new(shape, tile::pair::<T>(cpu.isa));
    let outputs = &Outputs { o: Shared::new(results.o), lse: Shared::new(results.lse) };
    let words = decode::scratch_words(shape, &packed);
    workers::share_out(OP, cpu, shape, scratch, words, |tasks, scratch| {
        tile::dispatch::<T>(cpu.isa, DecodeEach { shape, inputs, packed, outputs, tasks, scratch });
    })
}

/// One worker's share of the forward pass.
struct Forward<'a, T> {
    inputs: &'a Inputs<'a, T>,
    packed: Packed,
    outputs: &'a Outputs<T>,
    tasks: Tasks,
    scratch: &'a mut [u32],
}

fn pieces(packed: &Packed) -> [usize; 7] {
    [
        packed.keys * packed.units,
        packed.keys / packed.pair * packed.cols,
        packed.units_padded * COLS,
        packed.units_padded * COLS,
        KEYS * COLS,
        KEYS * COLS,
        COLS * packed.cols,
    ]
}

/// Words of scratch of a worker.
pub(super) fn scratch_words(_shape: &AttentionShape, packed: &Packed) -> usize {
    carved(&pieces(packed))
}

/// The buffers of a worker.
struct Buffers<'a> {
    /// Keys, row-major.
    k_rows: &'a mut [u32],
    /// Values, in panels over the keys.
    v_panels: &'a mut [u32],
    /// The queries, transposed.
    q_panel: &'a mut [u32],
    staging: &'a mut [u32],
    /// [key, query]
    scores: &'a mut [f32],
    /// Units across keys: [key / PAIR, query].
    probs: &'a mut [u32],
    /// [query, head_dim]
    out: &'a mut [f32],
}

/// The running softmax of 32 queries, in powers of two.
struct Softmax<K: Kernel> {
    max: tile::Row<K>,
    sum: tile::Row<K>,
}

impl<T: Float> Task for Forward<'_, T> {
    #[inline(always)]
    unsafe fn run<K: Kernel>(self) {
        let (shape, packed) = (self.inputs.shape, self.packed);
        let [n0, n1, n2, n3, n4, n5, n6] = pieces(&packed);
        let mut carve = Carve(self.scratch);
        let mut buffers = Buffers {
            k_rows: carve.units(n0),
            v_panels: carve.units(n1),
            q_panel: carve.units(n2),
            staging: carve.units(n3),
            scores: carve.floats(n4),
            probs: carve.units(n5),
            out: carve.floats(n6),
        };
        for task in self.tasks {
            let (b, kv_head) = (task / shape.n_kv_heads, task % shape.n_kv_heads);
            let [k, v] = [self.inputs.k, self.inputs.v].map(|x| x.head(shape, b, kv_head));
            pack::rows::<T, K>(k, packed.units, buffers.k_rows);
            pack::panels::<T, K>(v, packed.keys / packed.pair, buffers.v_panels);
            for head in kv_head * shape.group()..(kv_head + 1) * shape.group() {
                for q0 in (0..shape.q_len).step_by(COLS) {
                    // SAFETY: the caller's contract is passed on; this task owns the rows of its heads.
                    unsafe { queries::<T, K>(self.inputs, &packed, self.outputs, &mut buffers, b, head, q0) };
                }
            }
        }
    }
}

/// The queries `q0 ..` of a head, up to 32.
///
/// # Safety
/// As for [`Kernel`], and nobody else writes this head's outputs.
#[inline(always)]
unsafe fn queries<T: Float, K: Kernel>(
    inputs: &Inputs<T>,
    packed: &Packed,
    outputs: &Outputs<T>,
    buffers: &mut Buffers,
    b: usize,
    head: usize,
    q0: usize,
) {
    let shape = inputs.shape;
    let n = COLS.min(shape.q_len - q0);
    let q = HeadRows::new(
        super::sequence(inputs.q, b, shape.batch),
        shape.q_len,
        head,
        shape.n_heads,
        shape.head_dim,
    );
    let (mut lo, mut hi) = ([0; COLS], [0; COLS]);
    for c in 0..COLS {
        // Columns behind the last query repeat it; nobody reads them.
        (lo[c], hi[c]) = shape.visible(inputs.doc_start, b, q0 + c.min(n - 1));
    }
    let span = Span::of(&lo, &hi);
    // SAFETY: the buffers have the sizes of `pieces`; blocks and tiles end inside the padded keys.
    unsafe {
        pack::transposed::<T, K>(q.skip(q0, n), packed.units, buffers.q_panel, buffers.staging);
        buffers.out.fill(0.0);
        let mut softmax = Softmax::<K> { max: [K::splat(FLOOR); 2], sum: [K::splat(0.0); 2] };
        let seen = VisibleKeys { span, lo, hi, rows: inputs.rows(head, q0, n) };
        let mut walk = Walk::new(seen.rows, span.tiles());
        while let Some(tiles) = walk.tiles::<TILES>() {
            let (scale, max) = (shape.score_scale(), softmax.max);
            let max = match scale.cap {
                None => scores::<K, false>(scale, packed, buffers, &seen, &tiles, max),
                Some(_) => scores::<K, true>(scale, packed, buffers, &seen, &tiles, max),
            };
            rescale::<K>(&mut softmax, max, packed, buffers.out);
            probabilities::<K>(&mut softmax, buffers, tiles.len() * ROWS);
            values::<K>(shape, packed, buffers, &seen, &tiles, n);
        }
        let (mut max, mut sum) = ([0f32; COLS], [0f32; COLS]);
        for w in 0..2 {
            K::store(max.as_mut_ptr().add(w * LANES), softmax.max[w]);
            K::store(sum.as_mut_ptr().add(w * LANES), softmax.sum[w]);
        }
        let lse = outputs.lse.slice((b * shape.n_heads + head) * shape.q_len + q0, n);
        for c in 0..n {
            let seen = sum[c] != 0.0;
            lse[c] = if seen { max[c] * LN_2 + libm::logf(sum[c]) } else { f32::NEG_INFINITY };
            let factor = if seen { 1.0 / sum[c] } else { 0.0 };
            let row = ((b * shape.q_len + q0 + c) * shape.n_heads + head) * shape.head_dim;
            let out = &buffers.out[c * packed.cols..][..shape.head_dim];
            for (o, x) in outputs.o.slice(row, shape.head_dim).iter_mut().zip(out) {
                *o = T::from_f32(x * factor);
            }
        }
    }
}

/// The keys that 32 queries see.
struct VisibleKeys<'a> {
    span: Span,
    lo: [i32; COLS],
    hi: [i32; COLS],
    /// Of the block mask, if there is one.
    rows: Option<Rows<'a>>,
}

/// Scores of some tiles of keys; minus infinity where masked. Returns the maxima so far.
#[inline(always)]
unsafe fn scores<K: Kernel, const CAPPED: bool>(
    scale: ScoreScale,
    packed: &Packed,
    buffers: &mut Buffers,
    seen: &VisibleKeys,
    tiles: &Tiles<TILES>,
    mut max: tile::Row<K>,
) -> tile::Row<K> {
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        let masked = K::splat(f32::NEG_INFINITY);
        let all = seen.rows.as_ref().map_or(u8::MAX, |rows| rows.set(0, COLS));
        for t in 0..tiles.len() {
            let (j, keeping) = (tiles.at(t), tiles.keeping(t));
            let k_rows = buffers.k_rows.as_ptr().add(j * packed.units);
            let mut acc = tile::product::<K>(packed.units, k_rows, packed.units, buffers.q_panel.as_ptr());
            let factor = if CAPPED {
                acc.iter_mut().flatten().for_each(|x| *x = K::mul(*x, K::splat(scale.factor)));
                acc = tile::tanh::<K>(acc, &mut [0.0; ROWS * COLS]);
                scale.cap.unwrap_or_default()
            } else {
                scale.factor
            };
            let (lo, sees_all) = match &seen.rows {
                Some(rows) if keeping & all != all => (rows.limit(keeping, &seen.lo, 0), false),
                _ => (seen.lo, seen.span.sees_all(j)),
            };
            for (r, row) in acc.iter().enumerate() {
                for w in 0..2 {
                    let mut x = K::mul(row[w], K::splat(factor));
                    if !sees_all {
                        let (lo, hi) = (lo.as_ptr().add(w * LANES), seen.hi.as_ptr().add(w * LANES));
                        x = K::keep(x, masked, (j + r) as i32, lo, hi);
                    }
                    max[w] = K::max(x, max[w]);
                    K::store(buffers.scores.as_mut_ptr().add((t * ROWS + r) * COLS + w * LANES), x);
                }
            }
        }
        max
    }
}

/// Moves the running softmax and the output to new maxima.
#[inline(always)]
unsafe fn rescale<K: Kernel>(softmax: &mut Softmax<K>, max: tile::Row<K>, packed: &Packed, out: &mut [f32]) {
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        let mut factors = [0f32; COLS];
        for w in 0..2 {
            let factor = K::exp2(K::sub(softmax.max[w], max[w]));
            softmax.sum[w] = K::mul(softmax.sum[w], factor);
            K::store(factors.as_mut_ptr().add(w * LANES), factor);
        }
        softmax.max = max;
        for (row, factor) in out.chunks_exact_mut(packed.cols).zip(factors) {
            if factor != 1.0 {
                row.iter_mut().for_each(|x| *x *= factor);
            }
        }
    }
}

/// Turns the scores of `n` keys into probabilities, still to be divided by their sum.
#[inline(always)]
unsafe fn probabilities<K: Kernel>(softmax: &mut Softmax<K>, buffers: &mut Buffers, n: usize) {
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        for j in (0..n).step_by(2) {
            let mut rows = [softmax.max; 2];
            for (r, row) in rows.iter_mut().enumerate() {
                for w in 0..2 {
                    let x = K::load(buffers.scores.as_ptr().add((j + r) * COLS + w * LANES));
                    row[w] = K::exp2(K::sub(x, softmax.max[w]));
                    softmax.sum[w] = K::add(softmax.sum[w], row[w]);
                }
            }
            K::put_across(buffers.probs.as_mut_ptr().add(j / K::PAIR * COLS), COLS, rows[0], rows[1]);
        }
    }
}

/// Adds the values of some tiles of keys to the output of `n` queries.
#[inline(always)]
unsafe fn values<K: Kernel>(
    shape: &AttentionShape,
    packed: &Packed,
    buffers: &mut Buffers,
    seen: &VisibleKeys,
    tiles: &Tiles<TILES>,
    n: usize,
) {
    // SAFETY: the caller vouches for the buffers.
    unsafe {
        for panel in 0..packed.n_panels {
            let v_panel = buffers.v_panels.as_ptr().add(panel * (packed.keys / packed.pair) * COLS);
            for i in (0..n).step_by(ROWS) {
                let (from, to) = Span::of(&seen.lo[i..i + ROWS], &seen.hi[i..i + ROWS]).tiles();
                let rows = seen.rows.as_ref().map_or(u8::MAX, |rows| rows.set(i, i + ROWS));
                let mut t = 0;
                while let Some((first, end)) = tiles.run(t, rows, from, to) {
                    tile::accumulate::<K>(
                        (end - first) * ROWS / K::PAIR,
                        buffers.probs.as_ptr().add(first * ROWS / K::PAIR * COLS + i),
                        Left::ColMajor { ld: COLS },
                        v_panel.add(tiles.at(first) / K::PAIR * COLS),
                        buffers.out.as_mut_ptr().add(i * packed.cols + panel * COLS),
                        packed.cols,
                        packed.cols_of(shape, panel),
                    );
                    t = end;
                }
            }
        }
    }
}
