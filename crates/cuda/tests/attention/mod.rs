//! Attention forward, backward and for few queries, against f64.

mod tiles;

use half::{bf16, f16};
use oarlock_cuda::attention::{AttentionShape, Tile, TiledKernel};
use oarlock_cuda::{Instance, table};
use oarlock_reference::attention::{Attention, Operands, Shape};
use oarlock_reference::compare::assert_near_as_a_whole as near;

use crate::emulator::{Buffer, Gpu, Library, args, in_every_order, on_emulator};
use crate::numbers::{Float, f64s, values};

/// Keys of a shape with equal lengths.
fn shape(batch: usize, len: usize, heads: usize, kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape {
        batch,
        q_len: len,
        kv_len: len,
        kv_capacity: len,
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        causal: true,
        window: None,
        logit_cap: None,
    }
}

/// Where the document of each query begins, with documents of about `len`.
fn documents(s: &AttentionShape, len: usize) -> Vec<i32> {
    (0..s.batch * s.q_len).map(|i| ((i % s.q_len + s.kv_len - s.q_len) / len * len) as i32).collect()
}

/// Few queries that see the end of the first tile of keys, all of the second and third and the beginning of the fourth.
fn windowed() -> AttentionShape {
    AttentionShape { q_len: 9, kv_len: 200, kv_capacity: 210, window: Some(150), ..shape(1, 9, 2, 1, 64) }
}

/// Inputs in the type of a kernel.
struct Inputs<T> {
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    d_o: Vec<T>,
    doc_start: Option<Vec<i32>>,
}

impl<T: Float> Inputs<T> {
    fn new(s: &AttentionShape, doc_start: Option<Vec<i32>>) -> Inputs<T> {
        let n_q = s.batch * s.q_len * s.heads * s.head_dim;
        let n_kv = s.batch * s.kv_capacity * s.kv_heads * s.head_dim;
        Inputs { q: values(1, n_q), k: values(2, n_kv), v: values(3, n_kv), d_o: values(4, n_q), doc_start }
    }

    fn reference(&self, s: &AttentionShape) -> Attention {
        let [q, k, v, d_o] = [&self.q, &self.k, &self.v, &self.d_o].map(|x| f64s(x));
        let doc_start = self.doc_start.as_deref();
        of_reference(s).attention(&Operands { q: &q, k: &k, v: &v, d_o: &d_o, doc_start, keeps: None })
    }
}

/// The same shape for the reference.
pub fn of_reference(s: &AttentionShape) -> Shape {
    Shape {
        batch: s.batch,
        q_len: s.q_len,
        kv_len: s.kv_len,
        kv_capacity: s.kv_capacity,
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        scale: f64::from(s.scale),
        causal: s.causal,
        window: s.window,
        logit_cap: s.logit_cap.map(f64::from),
    }
}

fn instance<T: Float>(op: &str, s: &AttentionShape) -> Instance {
    table::find(op).and_then(|kernel| kernel.instance(&[T::ELEMENT], s.unit_head_dim())).expect("an instance")
}

/// The arguments that describe a shape, behind those of a pass.
macro_rules! with_shape {
    ($s:expr, $($x:expr),*) => {
        args![$($x,)* $s.q_len as i32, $s.kv_len as i32, $s.kv_capacity as i32, $s.heads as i32, $s.kv_heads as i32,
            $s.head_dim as i32, i32::from($s.causal), $s.window.unwrap_or(0) as i32, $s.score_scale().0,
            $s.score_scale().1]
    };
}

/// What roundings inside of a pass may come to.
fn tolerance<T: Float>() -> f64 {
    3.0 * T::ROUNDING.max(1e-6)
}

struct Results<T> {
    o: Vec<T>,
    lse: Vec<f32>,
    grads: [Vec<T>; 3],
}

/// With this tile, or the usual one of each pass. Of each pass also the tiles of scores that it computed, and those whose masks it
/// looked at.
fn passes<T: Float>(
    gpu: Gpu,
    s: &AttentionShape,
    x: &Inputs<T>,
    tile: Option<Tile>,
) -> (Results<T>, Vec<(TiledKernel, [u64; 2])>) {
    let (q, k, v, d_o) = (gpu.buffer(&x.q), gpu.buffer(&x.k), gpu.buffer(&x.v), gpu.buffer(&x.d_o));
    let starts = x.doc_start.as_ref().map(|starts| gpu.buffer(starts));
    let starts: Option<&Buffer<i32>> = starts.as_ref();
    let n_statistics = s.batch * s.heads * s.q_len;
    let (o, lse, delta) =
        (gpu.fresh::<T>(x.q.len()), gpu.fresh::<f32>(n_statistics), gpu.fresh::<f32>(n_statistics));
    let (dq, dk, dv) = (gpu.fresh::<T>(x.q.len()), gpu.fresh::<T>(x.k.len()), gpu.fresh::<T>(x.k.len()));
    let mut tiles = vec![];
    let mut run = |kernel: TiledKernel, args: &[_]| {
        let tile = tile.unwrap_or_else(|| s.usual_tile(kernel.pass(), T::ELEMENT));
        let instance = instance::<T>(kernel.op(), s).with_tile(tile);
        gpu.launch(&instance, s.tiled(kernel, T::ELEMENT, tile), args);
        tiles.push((kernel, gpu.tiles()));
    };
    run(TiledKernel::Forward, with_shape!(s, q, k, v, starts, o, lse));
    let sizes = [s.q_len, s.heads, s.head_dim, s.batch].map(|n| n as i32);
    let delta_args = args![o, d_o, delta, sizes[0], sizes[1], sizes[2], sizes[3]];
    gpu.launch(&instance::<T>("attention_delta", s), s.delta(), delta_args);
    let (n_splits, parts) = (s.kv_splits() as i32, gpu.fresh::<f32>(s.kv_parts_bytes() / 4));
    let kv_args = with_shape!(s, q, k, v, starts, d_o, lse, delta, dk, dv, parts, n_splits, s.scale);
    run(TiledKernel::BackwardKv, kv_args);
    if n_splits > 1 {
        let (grid, n) = s.kv_join();
        gpu.launch(&instance::<T>("attention_join_kv", s), grid, args![parts, dk, dv, n_splits, n as u64]);
    }
    run(TiledKernel::BackwardQ, with_shape!(s, q, k, v, starts, d_o, lse, delta, dq, s.scale));
    (Results { o: o.read(), lse: lse.read(), grads: [dq.read(), dk.read(), dv.read()] }, tiles)
}

fn compare<T: Float>(library: &Library, s: AttentionShape, doc_start: Option<Vec<i32>>) {
    compare_tiled::<T>(library, s, doc_start, None);
}

fn compare_tiled<T: Float>(
    library: &Library,
    s: AttentionShape,
    doc_start: Option<Vec<i32>>,
    tile: Option<Tile>,
) {
    let x = Inputs::<T>::new(&s, doc_start);
    let (o, lse, grads, tiles) = in_every_order(library, |gpu| {
        let (results, tiles) = passes(gpu, &s, &x, tile);
        (results.o, results.lse, results.grads, tiles)
    });
    let want = x.reference(&s);
    let tolerance = tolerance::<T>();
    let label = |what: &str| format!("{what} of {} {s:?} in tiles of {tile:?}", T::ELEMENT);
    for (kernel, tiles) in tiles {
        let tile = tile.unwrap_or_else(|| s.usual_tile(kernel.pass(), T::ELEMENT));
        let least = tiles::least(&s, x.doc_start.as_deref(), tile, kernel);
        assert_eq!(tiles, least, "{}: all and masked tiles", label(kernel.op()));
    }
    near(&label("o"), &o, &want.o, tolerance);
    near(&label("lse"), &lse, &want.lse, 2e-6);
    for (what, (got, want)) in ["dq", "dk", "dv"].iter().zip(grads.iter().zip([&want.dq, &want.dk, &want.dv]))
    {
        near(&label(what), got, want, tolerance);
    }
}

fn decode<T: Float>(library: &Library, s: AttentionShape, doc_start: Option<Vec<i32>>, n_splits: usize) {
    let x = Inputs::<T>::new(&s, doc_start);
    let (o, lse) = in_every_order(library, |gpu| {
        let (q, k, v) = (gpu.buffer(&x.q), gpu.buffer(&x.k), gpu.buffer(&x.v));
        let starts = x.doc_start.as_ref().map(|starts| gpu.buffer(starts));
        let starts: Option<&Buffer<i32>> = starts.as_ref();
        let n_rows = s.batch * s.heads * s.q_len;
        let parts = gpu.fresh::<f32>(n_rows * n_splits * s.head_dim);
        let (maxima, sums) = (gpu.fresh::<f32>(n_rows * n_splits), gpu.fresh::<f32>(n_rows * n_splits));
        let (o, lse, n) = (gpu.fresh::<T>(x.q.len()), gpu.fresh::<f32>(n_rows), n_splits as i32);
        let split = instance::<T>("attention_decode", &s);
        gpu.launch(
            &split,
            s.decode(T::ELEMENT, n_splits),
            with_shape!(s, q, k, v, starts, parts, maxima, sums, n),
        );
        let [b, l, h, g, d] = [s.batch, s.q_len, s.heads, s.kv_heads, s.head_dim].map(|n| n as i32);
        let join = instance::<T>("attention_decode_join", &s);
        gpu.launch(&join, s.decode_join(), args![parts, maxima, sums, o, lse, n, b, l, h, g, d]);
        (o.read(), lse.read())
    });
    let want = x.reference(&s);
    near(&format!("o of {s:?}"), &o, &want.o, tolerance::<T>());
    near(&format!("lse of {s:?}"), &lse, &want.lse, 2e-6);
}

/// Every kernel of the family, with one of the shapes that each needs.
pub fn check(library: &Library) {
    let s = shape(2, 130, 4, 2, 64);
    // The second sequence is one document, so that a tile with masks is followed by one without.
    let starts =
        documents(&s, 50).into_iter().enumerate().map(|(i, start)| if i < s.q_len { start } else { 0 });
    compare::<bf16>(library, s, Some(starts.collect()));
    // So many tiles of keys that one block has all heads of a group.
    let many = shape(133, 3, 4, 2, 64);
    assert_eq!(many.kv_splits(), 1);
    compare::<bf16>(library, many, None);
    // So is the first tile of keys here.
    compare::<bf16>(library, windowed(), None);
    decode::<bf16>(library, AttentionShape { q_len: 3, kv_capacity: 140, ..s }, None, 2);
}

#[test]
fn passes_match_the_reference() {
    on_emulator(|library| {
        check(library);
        compare::<bf16>(library, shape(1, 1, 2, 2, 64), None);
        // Groups that are divided unevenly.
        let uneven = shape(3, 3600, 5, 1, 24);
        assert_eq!(uneven.kv_splits(), 3);
        compare::<bf16>(library, AttentionShape { q_len: 9, ..uneven }, None);
        compare::<bf16>(library, shape(1, 65, 2, 1, 128), None);
        compare::<f16>(library, AttentionShape { causal: false, ..shape(1, 70, 2, 1, 80) }, None);
        let windowed = AttentionShape { window: Some(20), logit_cap: Some(1.5), ..shape(1, 150, 2, 2, 64) };
        compare::<bf16>(library, windowed, None);
        // Rows that see nothing of the first tile, where products are fused with sums. The size of heads decides whether what
        // rounding leaves of the smallest maximum is above or below zero.
        for head_dim in [64, 128] {
            let unseen = shape(1, 150, 1, 1, head_dim);
            compare::<bf16>(library, AttentionShape { window: Some(20), ..unseen }, None);
            compare::<bf16>(library, unseen, Some(documents(&unseen, 30)));
        }
        let unseen = shape(1, 150, 1, 1, 192);
        compare::<f16>(library, AttentionShape { window: Some(20), ..unseen }, None);
        compare::<bf16>(library, shape(1, 70, 2, 1, 256), None);
        compare::<bf16>(library, shape(1, 70, 2, 1, 24), None);
        compare::<f16>(library, shape(1, 66, 1, 1, 192), None);
        let capped = AttentionShape { logit_cap: Some(2.0), ..shape(1, 67, 2, 1, 128) };
        compare::<f32>(library, capped, Some(documents(&capped, 30)));
    });
}

#[test]
#[ignore = "heavy"]
fn other_tiles_match_the_reference() {
    on_emulator(|library| {
        let tile = |rows, walked| Some(Tile::of_warps(rows, walked));
        let s = shape(2, 150, 4, 2, 32);
        compare_tiled::<bf16>(library, s, Some(documents(&s, 50)), tile(128, 32));
        compare_tiled::<bf16>(library, s, None, tile(64, 128));
        let cached = AttentionShape { q_len: 9, kv_len: 75, kv_capacity: 140, causal: false, ..s };
        compare_tiled::<bf16>(library, cached, None, tile(64, 128));
        let capped = AttentionShape { logit_cap: Some(2.0), window: Some(20), ..shape(1, 140, 2, 1, 24) };
        compare_tiled::<bf16>(library, capped, None, tile(128, 32));
        compare_tiled::<f32>(library, AttentionShape { head_dim: 104, ..capped }, None, tile(128, 16));
        compare_tiled::<f32>(library, AttentionShape { head_dim: 104, ..capped }, None, tile(16, 16));
    });
}

/// The kernels of warpgroups, in the same way.
pub fn check_warpgroups(library: &Library) {
    let s = shape(1, 260, 2, 1, 64);
    let tile = Some(Tile::of_warpgroups(128, 64));
    compare_tiled::<bf16>(library, s, None, tile);
    compare_tiled::<bf16>(library, s, Some(documents(&s, 70)), tile);
}

#[test]
fn tiles_of_warpgroups_match_the_reference() {
    on_emulator(|library| {
        check_warpgroups(library);
        let tile = |rows, walked| Some(Tile::of_warpgroups(rows, walked));
        let s = shape(2, 150, 4, 2, 64);
        let capped = AttentionShape { logit_cap: Some(2.0), window: Some(20), ..shape(1, 140, 2, 1, 40) };
        compare_tiled::<bf16>(library, capped, None, tile(128, 64));
        compare_tiled::<bf16>(library, shape(1, 70, 2, 1, 24), None, tile(64, 16));
        compare_tiled::<f16>(library, shape(1, 140, 2, 1, 96), None, tile(128, 32));
        let cached = AttentionShape { q_len: 9, kv_len: 75, kv_capacity: 140, causal: false, ..s };
        compare_tiled::<bf16>(library, AttentionShape { head_dim: 128, ..cached }, None, tile(64, 64));
        compare_tiled::<bf16>(library, shape(1, 140, 1, 1, 256), None, tile(64, 16));
    });
}

#[test]
fn queries_may_stand_at_the_end_of_more_keys_or_see_none() {
    on_emulator(|library| {
        let cached = AttentionShape { q_len: 9, kv_len: 75, kv_capacity: 90, ..shape(2, 75, 2, 1, 64) };
        compare::<bf16>(library, cached, None);
        let blind = AttentionShape { q_len: 70, kv_len: 66, kv_capacity: 66, ..shape(1, 70, 2, 2, 64) };
        compare::<bf16>(library, blind, None);
        compare::<bf16>(library, AttentionShape { window: Some(5), ..blind }, Some(vec![60; 70]));
    });
}

#[test]
fn few_queries_match_the_reference() {
    on_emulator(|library| {
        let s = AttentionShape { q_len: 1, kv_capacity: 210, ..shape(2, 200, 4, 2, 128) };
        decode::<bf16>(library, s, None, 3);
        let many_rows =
            AttentionShape { q_len: 5, window: Some(40), logit_cap: Some(3.0), ..shape(1, 90, 8, 2, 64) };
        decode::<bf16>(library, many_rows, Some(vec![70; 5]), 5);
        // A window in the middle of a tile, which some splits have no part of.
        let far = AttentionShape { q_len: 2, window: Some(100), ..shape(1, 410, 2, 1, 64) };
        decode::<bf16>(library, far, None, 2);
        decode::<bf16>(library, AttentionShape { q_len: 1, window: Some(3), ..far }, None, 4);
        decode::<f32>(library, AttentionShape { q_len: 2, ..shape(1, 33, 2, 2, 104) }, None, 1);
        decode::<f16>(library, AttentionShape { q_len: 1, causal: false, ..shape(1, 70, 3, 1, 96) }, None, 2);
        decode::<bf16>(library, AttentionShape { q_len: 1, ..shape(1, 50, 2, 1, 256) }, None, 2);
        decode::<bf16>(library, AttentionShape { q_len: 1, ..shape(1, 50, 2, 1, 32) }, None, 2);
        decode::<f16>(library, AttentionShape { q_len: 1, ..shape(1, 50, 2, 1, 192) }, None, 2);
    });
}
