//! The ops that are checked, and their shapes.

use std::sync::Arc;

use oarlock_tensor::cpu::rope::RopeStyle;
use oarlock_tensor::ops::{self, AttentionOptions, HeadOptions, Labels, Mask, Reduction, Rope, WeightLayout};
use oarlock_tensor::{DType, Result, RopeScaling, Tensor};

use super::case::{Call, Case};

/// Sizes: B sequences of S tokens (or as many as attention needs for more than one tile), H heads and G for keys, heads of D elements, hidden size I, vocabulary V.
struct Sizes {
    b: usize,
    s: usize,
    tiles: usize,
    h: usize,
    g: usize,
    heads: [usize; 2],
    i: usize,
    v: usize,
}

const FULL: Sizes = Sizes { b: 2, s: 512, tiles: 512, h: 8, g: 2, heads: [64, 128], i: 512, v: 4096 };
/// With the sizes of heads that the fake libraries of the tests have.
const QUICK: Sizes = Sizes { b: 2, s: 20, tiles: 72, h: 2, g: 1, heads: [64, 32], i: 40, v: 72 };

/// Of norms: large enough that errors show where it is.
const EPS: f32 = 0.1;

/// All cases.
pub(super) fn all(quick: bool) -> Vec<Case> {
    let sizes = if quick { QUICK } else { FULL };
    let mut cases = attention(&sizes);
    cases.extend(products(&sizes));
    cases.extend(of_decoders(&sizes));
    cases.extend(losses(&sizes));
    cases.extend(elementwise(&sizes));
    cases.extend(reductions_and_moves(&sizes));
    cases
}

/// q, k and v with a mask.
fn attention(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, tiles: s, h, g, heads: [d, other], .. } = n;
    let case =
        |name: &str, [s, g, d]: [usize; 3], window: Option<usize>, mask: fn(&Call<'_>) -> Result<Mask>| {
            let (q, kv) = ([b, s, h, d], [b, s, g, d]);
            let options = AttentionOptions { window, ..AttentionOptions::new((1.0 / d as f32).sqrt()) };
            Case::new(format!("attention {name}"), [&q, &kv, &kv], [], move |call| {
                let [q, k, v] = [0, 1, 2].map(|i| &call.inputs[i]);
                ops::attention(q, k, v, &mask(call)?, &options)
            })
        };
    vec![
        case(&format!("causal, heads of {d}"), [s, h, d], None, |_| Ok(Mask::Causal)),
        case(&format!("causal, heads of {other}"), [s, h, other], None, |_| Ok(Mask::Causal)),
        few_queries(n),
        // No multiple of a tile.
        case("causal, an odd length", [s - 5, h, d], None, |_| Ok(Mask::Causal)),
        case("full", [s, h, d], None, |_| Ok(Mask::Full)),
        case("with a window", [s, h, d], Some(s / 4), |_| Ok(Mask::Causal)),
        case("of documents", [s, h, d], None, documents),
        case("with grouped heads", [s, g, d], None, |_| Ok(Mask::Causal)),
    ]
}

/// As in generation: two queries at the end of many keys.
fn few_queries(n: &Sizes) -> Case {
    let &Sizes { b, tiles: s, h, g, heads: [d, _], .. } = n;
    Case::new(
        "attention of few queries",
        [&[b, 2, h, d], &[b, 4 * s, g, d], &[b, 4 * s, g, d]],
        [],
        move |call| {
            let [q, k, v] = [0, 1, 2].map(|i| &call.inputs[i]);
            ops::attention(q, k, v, &Mask::Causal, &AttentionOptions::new((1.0 / d as f32).sqrt()))
        },
    )
}

/// Documents of different lengths, cut differently in each row.
fn documents(call: &Call<'_>) -> Result<Mask> {
    let [b, s] = [call.inputs[0].sizes()[0], call.inputs[0].sizes()[1]];
    let start = |row: usize, i: usize| {
        let cut = s / (row + 2) + 1;
        (i / cut * cut) as i32
    };
    let starts: Vec<i32> = (0..b * s).map(|at| start(at / s, at % s)).collect();
    Ok(Mask::Documents(Tensor::from_slice(&starts, [b, s], call.place.device)?))
}

fn products(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let (x, wide) = ([b, s, i], 2 * i + 8);
    let weight = [wide, i];
    vec![
        Case::new("linear", [&x], [&weight], |call| {
            ops::linear(&call.inputs[0], &call.params[0], None, WeightLayout::OutIn)
        }),
        Case::new("linear with a bias", [&x], [&weight, &[wide]], |call| {
            ops::linear(&call.inputs[0], &call.params[0], Some(&call.params[1]), WeightLayout::OutIn)
        }),
        Case::new("linear, weight [in, out]", [&x], [&[i, wide]], |call| {
            ops::linear(&call.inputs[0], &call.params[0], None, WeightLayout::InOut)
        }),
        Case::new("matmul", [&x, &[b, i, s]], [], |call| ops::matmul(&call.inputs[0], &call.inputs[1])),
        Case::new("matmul, transposed", [&x, &[b, s + 8, i]], [], |call| {
            ops::matmul_transposed(&call.inputs[0], &call.inputs[1], ops::Transposed::Right)
        }),
    ]
}

fn of_decoders(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, h, heads: [d, _], i, v, .. } = n;
    let x = [b, s, i];
    let rope = |name: &str, style: RopeStyle| {
        Case::new(name, [&[b, s, h, d]], [], move |call| {
            let table = Arc::new(Rope::new(1e4, d, style, RopeScaling::None, s + 3)?);
            ops::rope(&call.inputs[0], &table, 3)
        })
    };
    vec![
        Case::new("rms_norm", [&x], [&[i]], |call| ops::rms_norm(&call.inputs[0], &call.params[0], EPS)),
        Case::new("layer_norm", [&x], [&[i], &[i]], |call| {
            ops::layer_norm(&call.inputs[0], &call.params[0], Some(&call.params[1]), EPS)
        }),
        rope("rope", RopeStyle::Half),
        rope("rope, interleaved", RopeStyle::Interleaved),
        Case::new("gated silu", [&x, &x], [], |call| {
            ops::gated(&call.inputs[0], &call.inputs[1], ops::Activation::Silu)
        }),
        Case::new("add_residual", [&x, &x], [], |call| {
            ops::add_residual(&ops::cast(&call.inputs[0], DType::F32)?, &call.inputs[1])
        }),
        Case::new("embedding", [], [&[v, i]], move |call| {
            let ids = call.tape.input(&call.place.ints(&[b, s], v)?);
            ops::embedding(&ids, &call.params[0])
        }),
        Case::new("dropout", [&x], [], |call| ops::dropout(&call.inputs[0], 0.1, 5, 3)),
    ]
}

fn losses(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, v, .. } = n;
    let (x, logits) = ([b, s, i], [b, s, v]);
    // Every fifth has no target.
    let labels = move |call: &Call<'_>| -> Result<Tensor> {
        let ids = (0..b * s).map(|at| if at % 5 == 0 { -100 } else { (at * 31 % v) as i32 });
        Tensor::from_slice(&ids.collect::<Vec<_>>(), [b, s], call.place.device)
    };
    let head = move |name: &str| {
        Case::new(name, [&x[..]], [&[v, i][..]], move |call| {
            let labels = Labels::from_tensor(&labels(call)?)?;
            let loss = ops::head_loss(&call.inputs[0], &call.params[0], &labels, HeadOptions::default())?;
            Ok(loss.loss)
        })
    };
    vec![
        Case::new("cross entropy", [&logits], [], move |call| {
            ops::cross_entropy(&call.inputs[0], &labels(call)?, -100, Reduction::Mean)
        }),
        head("head loss"),
        head("head loss, gradients at once").seeded(),
        Case::new("softmax", [&logits], [], |call| ops::softmax(&call.inputs[0], -1)),
        Case::new("log_softmax", [&logits], [], |call| ops::log_softmax(&call.inputs[0], -1)),
    ]
}

fn elementwise(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let (x, row) = ([b, s, i], [i]);
    let unary = |name: &str, op: fn(&Tensor) -> Result<Tensor>| {
        Case::new(name, [&x], [], move |call| op(&call.inputs[0]))
    };
    let binary = |name: &str, op: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        Case::new(name, [&x, &x], [], move |call| op(&call.inputs[0], &call.inputs[1]))
    };
    let cast = |dtype: DType| {
        let name = format!("cast to {dtype}");
        Case::new(name, [&x], [], move |call| ops::cast(&call.inputs[0], dtype))
    };
    let spread = |name: &str, op: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        Case::new(name, [&x[..], &row[..]], [], move |call| op(&call.inputs[0], &call.inputs[1]))
    };
    vec![
        unary("gelu", ops::gelu),
        unary("silu", ops::silu),
        unary("tanh", ops::tanh),
        unary("exp", ops::exp),
        unary("square", ops::square),
        binary("add", |a, b| ops::add(a, b)),
        binary("mul", |a, b| ops::mul(a, b)),
        binary("maximum", |a, b| ops::maximum(a, b)),
        spread("add, broadcast", |a, b| ops::add(a, b)),
        spread("mul, broadcast", |a, b| ops::mul(a, b)),
        cast(DType::F32),
        cast(DType::BF16),
        cast(DType::F16),
    ]
}

fn reductions_and_moves(n: &Sizes) -> Vec<Case> {
    let &Sizes { b, s, i, .. } = n;
    let x = [b, s, i];
    let case = |name: &str, op: fn(&Tensor) -> Result<Tensor>| {
        Case::new(name, [&x], [], move |call| op(&call.inputs[0]))
    };
    // Indices of the middle dim, each several times.
    let indexed = |name: &str, op: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        Case::new(name, [&x], [], move |call| {
            let index = call.tape.input(&call.place.ints(&[b, s + 3, i], s)?);
            op(&call.inputs[0], &index)
        })
    };
    vec![
        indexed("gather", |x, index| ops::gather(x, 1, index)),
        indexed("scatter_add", |x, index| {
            ops::scatter_add(x, 1, &ops::narrow(index, 1, 0..x.sizes()[1])?, x)
        }),
        indexed("index_select", |x, index| {
            ops::index_select(x, 1, &ops::select(&ops::select(index, 0, 0)?, 1, 0)?)
        }),
        case("sum of the last dim", |x| ops::sum(x, -1)),
        case("mean of a middle dim", |x| ops::mean(x, 1)),
        case("max", |x| ops::max(x, -1)),
        case("sum of all", ops::sum_all),
        case("cumsum", |x| ops::cumsum(x, 1)),
        case("sort", |x| Ok(ops::sort(x, 1, true)?.0)),
        case("topk", |x| Ok(ops::topk(x, 5, -1, true)?.0)),
        case("flip", |x| ops::flip(x, [1])),
        case("tril", |x| ops::tril(x, 1)),
        case("masked_fill", |x| ops::masked_fill(x, &ops::gt(x, 0.5)?, -1.0)),
        case("transpose", |x| ops::transpose(x, 1, 2)),
        case("narrow and concat", |x| {
            let half = x.sizes()[2] / 2;
            let (left, right) = (ops::narrow(x, 2, 0..half)?, ops::narrow(x, 2, half..2 * half)?);
            ops::concat(&[right, left], 2)
        }),
    ]
}
