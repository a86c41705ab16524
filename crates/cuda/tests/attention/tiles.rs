//! The tiles of scores that the passes of attention compute, and those whose masks they look at: no more than must be.

use std::ops::Range;

use half::bf16;
use oarlock_cuda::Element;
use oarlock_cuda::attention::{AttentionShape, Tile, TiledKernel};

use super::{Inputs, documents, of_reference, passes, shape, windowed};
use crate::emulator::{in_one_order, on_emulator};

/// The tiles with a score that somebody sees, and those among them with one that somebody may not see. Heads of more than 128
/// elements have two passes for gradients of keys and values.
pub fn least(s: &AttentionShape, starts: Option<&[i32]>, tile: Tile, kernel: TiledKernel) -> [u64; 2] {
    let (n_queries, n_keys) = match kernel {
        TiledKernel::BackwardKv => (tile.walked as usize, tile.rows as usize),
        _ => (tile.rows as usize, tile.walked as usize),
    };
    let (mut all, mut masked) = (0, 0);
    let of = |from: usize, n: usize, end: usize| -> Range<usize> { from..(from + n).min(end) };
    for b in 0..s.batch {
        for q0 in (0..s.q_len).step_by(n_queries) {
            for k0 in (0..s.kv_len).step_by(n_keys) {
                let queries = of(q0, n_queries, s.q_len);
                // Keys behind the last one are in the tile, and seen by nobody.
                let pairs = queries.flat_map(|i| of(k0, n_keys, usize::MAX).map(move |j| (i, j)));
                let seen: Vec<bool> =
                    pairs.map(|(i, j)| j < s.kv_len && of_reference(s).sees(starts, b, i, j)).collect();
                all += u64::from(seen.contains(&true));
                masked += u64::from(seen.contains(&true) && seen.contains(&false));
            }
        }
    }
    let n_passes = if kernel == TiledKernel::BackwardKv && s.head_dim > 128 { 2 } else { 1 };
    [all, masked].map(|n| n * n_passes * s.heads as u64)
}

#[test]
fn only_tiles_that_are_seen_in_part_are_masked() {
    on_emulator(|library| {
        let causal = |len| shape(1, len, 2, 1, 32);
        let cases = [
            ("causal", causal(256), None),
            ("causal, partial last tiles", causal(200), None),
            ("not causal, partial last tiles", AttentionShape { causal: false, ..causal(200) }, None),
            ("a window", AttentionShape { window: Some(100), ..causal(320) }, None),
            (
                "a window longer than the sequence",
                AttentionShape { window: Some(1 << 30), ..causal(130) },
                None,
            ),
            ("packed documents", shape(2, 320, 2, 1, 32), Some(75)),
            ("documents of whole tiles", causal(256), Some(128)),
            ("documents and a window", AttentionShape { window: Some(70), ..causal(320) }, Some(160)),
            ("queries behind a cache", AttentionShape { head_dim: 32, ..windowed() }, None),
        ];
        let usual = None;
        let others = [(64, 128), (128, 32)].map(|(rows, walked)| Some(Tile::of_warps(rows, walked)));
        for (what, s, document) in cases {
            let starts = document.map(|len| documents(&s, len));
            let x = Inputs::<bf16>::new(&s, starts.clone());
            for tile in [usual, others[0], others[1]] {
                let tiles = in_one_order(library, |gpu| passes(gpu, &s, &x, tile).1);
                assert_eq!(tiles.len(), 3);
                for (kernel, tiles) in tiles {
                    let tile = tile.unwrap_or_else(|| s.usual_tile(kernel.pass(), Element::BF16));
                    let least = least(&s, starts.as_deref(), tile, kernel);
                    assert_eq!(tiles, least, "{what}: all and masked tiles of {tile} of {kernel:?}");
                }
            }
        }
    });
}
