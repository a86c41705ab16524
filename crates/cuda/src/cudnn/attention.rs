//! The graphs of attention, forward and backward, of which cuDNN makes one kernel or a few.
//!
//! Tensors are `[batch, heads, rows, columns]`. Scores exist only between operations.

use std::sync::Arc;

use super::api::Api;
use super::graph::{DataType, Graph, Layout, Pointwise, Reduction, Tensor};
use crate::attention::AttentionShape;
use crate::element::Element;
use crate::error::Result;

/// The numbers of the tensors in memory.
pub(super) mod id {
    pub(in crate::cudnn) const Q: i64 = 1;
    pub(in crate::cudnn) const K: i64 = 2;
    pub(in crate::cudnn) const V: i64 = 3;
    pub(in crate::cudnn) const O: i64 = 4;
    pub(in crate::cudnn) const LSE: i64 = 5;
    pub(in crate::cudnn) const D_O: i64 = 6;
    pub(in crate::cudnn) const D_Q: i64 = 7;
    pub(in crate::cudnn) const D_K: i64 = 8;
    pub(in crate::cudnn) const D_V: i64 = 9;
    pub(in crate::cudnn) const DELTA: i64 = 10;
}

/// A pass of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The output, and the log-sum-exps of the scores of each query.
    Forward,
    /// The gradients of queries, keys and values.
    Backward,
}

/// Whether a graph has the meaning of this shape, so that it is worth asking for a plan.
pub fn is_supported(shape: &AttentionShape, element: Element) -> bool {
    matches!(element, Element::BF16 | Element::F16)
        && shape.logit_cap.is_none()
        && shape.q_len == shape.kv_len
        && shape.kv_len == shape.kv_capacity
        && shape.q_len > 0
        && shape.batch > 0
        && shape.heads > 0
        && (1..=128).contains(&shape.head_dim)
        && shape.head_dim.is_multiple_of(8)
        && (shape.window.is_none() || shape.causal)
}

/// Layouts and the type of the tensors in memory.
struct Sizes {
    of: DataType,
    queries: Layout,
    keys: Layout,
    /// One number of each query.
    rows: Layout,
    scores: Layout,
}

impl Sizes {
    fn new(shape: &AttentionShape, element: Element) -> Sizes {
        let [b, h, g, d] = [shape.batch, shape.heads, shape.kv_heads, shape.head_dim].map(|n| n as i64);
        let (q, k) = (shape.q_len as i64, shape.kv_len as i64);
        Sizes {
            of: if element == Element::F16 { DataType::F16 } else { DataType::BF16 },
            queries: Layout::heads_inside([b, h, q, d]),
            keys: Layout::heads_inside([b, g, k, d]),
            rows: Layout::dense([b, h, q, 1]),
            scores: Layout::dense([b, h, q, k]),
        }
    }
}

/// Minus infinity where a query does not see a key.
fn masked(graph: &mut Graph, shape: &AttentionShape, scores: Tensor) -> Result<Tensor> {
    let mut seen = scores;
    if shape.causal {
        let (query, key) = (graph.index(seen, 2)?, graph.index(seen, 3)?);
        let visible = graph.compare(Pointwise::GreaterOrEqual, query, key)?;
        let hidden = graph.value(f32::NEG_INFINITY)?;
        seen = graph.map(Pointwise::Select, seen, &[seen, hidden, visible])?;
    }
    if let Some(window) = shape.window.filter(|&window| window < shape.kv_len) {
        let (query, key) = (graph.index(seen, 2)?, graph.index(seen, 3)?);
        let window = graph.value(window as f32)?;
        let end = graph.map(Pointwise::Add, seen, &[key, window])?;
        let visible = graph.compare(Pointwise::Greater, end, query)?;
        let hidden = graph.value(f32::NEG_INFINITY)?;
        seen = graph.map(Pointwise::Select, seen, &[seen, hidden, visible])?;
    }
    Ok(seen)
}

/// `o = softmax(scale q kᵀ) v` and the log-sum-exp of each row.
pub(super) fn forward(api: &Arc<Api>, shape: &AttentionShape, element: Element) -> Result<Graph> {
    let sizes = Sizes::new(shape, element);
    let mut graph = Graph::new(api);
    let q = graph.memory(id::Q, sizes.of, sizes.queries)?;
    let k_t = graph.memory(id::K, sizes.of, sizes.keys.t())?;
    let v = graph.memory(id::V, sizes.of, sizes.keys)?;
    let o = graph.memory(id::O, sizes.of, sizes.queries)?;
    let lse = graph.memory(id::LSE, DataType::F32, sizes.rows)?;
    let scores = graph.between(DataType::F32, sizes.scores)?;
    graph.matmul(q, k_t, scores)?;
    let scale = graph.value(shape.scale)?;
    let scaled = graph.map(Pointwise::Mul, scores, &[scores, scale])?;
    let seen = masked(&mut graph, shape, scaled)?;
    let max = graph.between(DataType::F32, sizes.rows)?;
    graph.reduce(Reduction::Max, seen, max)?;
    let below = graph.map(Pointwise::Sub, seen, &[seen, max])?;
    let exp = graph.map(Pointwise::Exp, seen, &[below])?;
    let sum = graph.between(DataType::F32, sizes.rows)?;
    graph.reduce(Reduction::Sum, exp, sum)?;
    let log = graph.map(Pointwise::Log, sum, &[sum])?;
    graph.map_into(Pointwise::Add, &[max, log], lse)?;
    let p = graph.between(sizes.of, sizes.scores)?;
    graph.map_into(Pointwise::Div, &[exp, sum], p)?;
    graph.matmul(p, v, o)?;
    Ok(graph)
}

/// The gradients from those of the output. Keys of several queries' heads get the sum of what each head gives, in the order of
/// the heads; the gradients of queries are one product, without sums in memory, whose order nothing would fix.
pub(super) fn backward(api: &Arc<Api>, shape: &AttentionShape, element: Element) -> Result<Graph> {
    let sizes = Sizes::new(shape, element);
    let mut graph = Graph::new(api);
    let q = graph.memory(id::Q, sizes.of, sizes.queries)?;
    let k_t = graph.memory(id::K, sizes.of, sizes.keys.t())?;
    let v_t = graph.memory(id::V, sizes.of, sizes.keys.t())?;
    let o = graph.memory(id::O, sizes.of, sizes.queries)?;
    let lse = graph.memory(id::LSE, DataType::F32, sizes.rows)?;
    let d_o = graph.memory(id::D_O, sizes.of, sizes.queries)?;
    let d_q = graph.memory(id::D_Q, sizes.of, sizes.queries)?;
    let d_k = graph.memory(id::D_K, sizes.of, sizes.keys)?;
    let d_v = graph.memory(id::D_V, sizes.of, sizes.keys)?;
    let delta = graph.memory(id::DELTA, DataType::F32, sizes.rows)?;
    let scale = graph.value(shape.scale)?;

    let products = graph.between(DataType::F32, sizes.queries)?;
    graph.map_into(Pointwise::Mul, &[d_o, o], products)?;
    let sums = graph.between(DataType::F32, sizes.rows)?;
    graph.reduce(Reduction::Sum, products, sums)?;
    // The library looks for this product, by which others undo the scale of a dropout.
    let one = graph.value(1.0)?;
    graph.map_into(Pointwise::Mul, &[sums, one], delta)?;

    let scores = graph.between(DataType::F32, sizes.scores)?;
    graph.matmul(q, k_t, scores)?;
    let scaled = graph.map(Pointwise::Mul, scores, &[scores, scale])?;
    let below = graph.map(Pointwise::Sub, scores, &[scaled, lse])?;
    let seen = masked(&mut graph, shape, below)?;
    let p = graph.map(Pointwise::Exp, scores, &[seen])?;
    let p_t = graph.transpose(p, sizes.of)?;
    of_keys(&mut graph, shape, &sizes, (p_t, d_o), d_v)?;

    let d_p = graph.between(DataType::F32, sizes.scores)?;
    graph.matmul(d_o, v_t, d_p)?;
    let centered = graph.map(Pointwise::Sub, d_p, &[d_p, delta])?;
    let weighted = graph.map(Pointwise::Mul, d_p, &[centered, p])?;
    let d_s = graph.between(sizes.of, sizes.scores)?;
    graph.map_into(Pointwise::Mul, &[weighted, scale], d_s)?;
    let d_s_t = graph.transpose(d_s, sizes.of)?;
    of_keys(&mut graph, shape, &sizes, (d_s_t, q), d_k)?;

    let k = graph.transpose(k_t, sizes.of)?;
    graph.matmul(d_s, k, d_q)?;
    Ok(graph)
}

/// `out = a b` for each head, summed over those that share keys.
fn of_keys(
    graph: &mut Graph,
    shape: &AttentionShape,
    sizes: &Sizes,
    (a, b): (Tensor, Tensor),
    out: Tensor,
) -> Result<()> {
    if shape.heads == shape.kv_heads {
        return graph.matmul(a, b, out);
    }
    let [batch, _, rows, columns] = out.layout.dims;
    let heads = graph.between(sizes.of, Layout::dense([batch, shape.heads as i64, rows, columns]))?;
    graph.matmul(a, b, heads)?;
    graph.reduce(Reduction::Sum, heads, out)
}
