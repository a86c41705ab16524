//! Attention under every mask, and of few queries as in generation.

use oarlock_reference::attention::Shape;
use oarlock_tensor::ops::{self, AttentionOptions, Mask};
use oarlock_tensor::{Result, Tensor};

use super::shapes::Sizes;
use crate::commands::gpu_check::case::{Call, Case, CaseInputs};
use oarlock_reference::formula::Array;

/// Which keys a query sees.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum MaskKind {
    Full,
    Causal,
    /// At most so many, the query's own position among them.
    Window(usize),
    Documents,
}

/// q, k and v with a mask.
pub(super) fn cases(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, tiles: s, h, g, heads: [d, other], other_heads, .. } = n;
    let case = |name: &str, [s, h, d]: [usize; 3], seen| of(name, [b, s, h, d], [b, s, g, d], seen);
    let mut cases = vec![
        case(&format!("causal, heads of {d}"), [s, h, d], MaskKind::Causal),
        case(&format!("causal, heads of {other}"), [s, h, other], MaskKind::Causal),
        // As in generation: two queries at the end of many keys.
        of("of few queries", [b, 2, h, d], [b, 4 * s, g, d], MaskKind::Causal),
        of("of one query", [b, 1, h, other], [b, 4 * s, h, other], MaskKind::Causal),
        // No multiple of a tile.
        case("causal, an odd length", [s - 5, h, d], MaskKind::Causal),
        case("full", [s, h, d], MaskKind::Full),
        case("with a window", [s, h, d], MaskKind::Window(s / 4)),
        case("of documents", [s, h, d], MaskKind::Documents),
        case("with as many heads for keys", [s, g, d], MaskKind::Causal),
    ];
    // Less of these, whose formula takes long.
    let of_dim = |&d: &usize| case(&format!("causal, heads of {d}"), [s / 2, h / 2, d], MaskKind::Causal);
    cases.extend(other_heads.iter().map(of_dim));
    cases
}

fn of(name: &str, q: [usize; 4], kv: [usize; 4], seen: MaskKind) -> Case {
    let scale = (1.0 / q[3] as f32).sqrt();
    let window = if let MaskKind::Window(window) = seen { Some(window) } else { None };
    let options = AttentionOptions { window, ..AttentionOptions::new(scale) };
    let op = move |call: &Call<'_>| {
        let [q, k, v] = [0, 1, 2].map(|i| &call.inputs[i]);
        let mask = match seen {
            MaskKind::Full => Mask::Full,
            MaskKind::Causal | MaskKind::Window(_) => Mask::Causal,
            MaskKind::Documents => documents(call)?,
        };
        ops::attention(q, k, v, &mask, &options)
    };
    let formula = move |x: &CaseInputs| attention(&x.inputs, f64::from(scale), seen);
    Case::new(format!("attention {name}"), [&q, &kv, &kv], [], op, formula)
}

/// Where the documents of positions begin: of different lengths, cut differently in each row.
fn starts([b, s]: [usize; 2]) -> Vec<i32> {
    let start = |at: usize| {
        let cut = s / (at / s + 2) + 1;
        (at % s / cut * cut) as i32
    };
    (0..b * s).map(start).collect()
}

fn documents(call: &Call<'_>) -> Result<Mask> {
    let [b, s] = [call.inputs[0].sizes()[0], call.inputs[0].sizes()[1]];
    Ok(Mask::Documents(Tensor::from_slice(&starts([b, s]), [b, s], call.place.device)?))
}

/// `softmax(scale Q K') V` of the visible keys. The last query is at the last key.
pub(super) fn attention(inputs: &[Array], scale: f64, seen: MaskKind) -> Array {
    let [q, k, v] = inputs else { panic!("three inputs") };
    let ([b, s, h, d], [_, t, g, _]) = (sizes(q), sizes(k));
    let window = if let MaskKind::Window(window) = seen { Some(window) } else { None };
    let plain = Shape { q_len: s, scale, ..Shape::causal(b, t, h, g, d) };
    let starts = (seen == MaskKind::Documents).then(|| starts([b, s]));
    Shape { causal: seen != MaskKind::Full, window, ..plain }.of_arrays([q, k, v], starts, None)
}

fn sizes(x: &Array) -> [usize; 4] {
    let [a, b, c, d] = x.sizes[..] else { panic!("four dims, not {:?}", x.sizes) };
    [a, b, c, d]
}
