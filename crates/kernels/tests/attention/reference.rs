//! Attention in f64, the plain way: what the tests compare with.

use oarlock_kernels::attention::{AttentionShape, BlockMask};

/// The results of [`forward`].
pub(super) struct Forward {
    pub(super) o: Vec<f64>,
    pub(super) lse: Vec<f64>,
}

/// The results of [`backward`].
pub(super) struct Gradients {
    pub(super) dq: Vec<f64>,
    pub(super) dk: Vec<f64>,
    pub(super) dv: Vec<f64>,
}

struct Query {
    row: usize,
    stat: usize,
    keys: Vec<usize>,
    /// Softmax over the keys.
    p: Vec<f64>,
    /// Derivatives of the capped scores for the scores.
    slopes: Vec<f64>,
    lse: f64,
}

fn queries(
    shape: &AttentionShape,
    q: &[f64],
    k: &[f64],
    doc_start: Option<&[i32]>,
    blocks: Option<&BlockMask>,
) -> Vec<Query> {
    let d = shape.head_dim;
    let mut out = vec![];
    for b in 0..shape.batch {
        for i in 0..shape.q_len {
            for h in 0..shape.n_heads {
                let position = shape.kv_len as i64 - shape.q_len as i64 + i as i64;
                let start = doc_start.map_or(0, |starts| starts[b * shape.q_len + i] as i64);
                let row = ((b * shape.q_len + i) * shape.n_heads + h) * d;
                let kv_head = h / (shape.n_heads / shape.n_kv_heads);
                let keys: Vec<usize> = (0..shape.kv_len)
                    .filter(|j| (!shape.causal || *j as i64 <= position) && *j as i64 >= start)
                    .filter(|j| shape.window.is_none_or(|w| *j as i64 + w as i64 > position))
                    .filter(|j| {
                        blocks.is_none_or(|mask| {
                            let head = if mask.n_heads() == 1 { 0 } else { h };
                            mask.keeps(head, position as usize / mask.block(), j / mask.block())
                        })
                    })
                    .map(|j| ((b * shape.kv_capacity + j) * shape.n_kv_heads + kv_head) * d)
                    .collect();
                let mut scores: Vec<f64> = keys
                    .iter()
                    .map(|&key| shape.scale as f64 * dot(&q[row..row + d], &k[key..key + d]))
                    .collect();
                let mut slopes = vec![1.0; keys.len()];
                if let Some(cap) = shape.logit_cap.map(f64::from) {
                    for (score, slope) in scores.iter_mut().zip(&mut slopes) {
                        let t = (*score / cap).tanh();
                        (*score, *slope) = (cap * t, 1.0 - t * t);
                    }
                }
                let max = scores.iter().fold(f64::NEG_INFINITY, |m, x| m.max(*x));
                let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
                let lse = if keys.is_empty() { f64::NEG_INFINITY } else { max + sum.ln() };
                let p = scores.iter().map(|x| (x - lse).exp()).collect();
                let stat = (b * shape.n_heads + h) * shape.q_len + i;
                out.push(Query { row, stat, keys, p, slopes, lse });
            }
        }
    }
    out
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(out: &mut [f64], factor: f64, x: &[f64]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += factor * x);
}

pub(super) fn forward(
    shape: &AttentionShape,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    doc_start: Option<&[i32]>,
    blocks: Option<&BlockMask>,
) -> Forward {
    let d = shape.head_dim;
    let mut out =
        Forward { o: vec![0.0; q.len()], lse: vec![0.0; shape.batch * shape.n_heads * shape.q_len] };
    for query in queries(shape, q, k, doc_start, blocks) {
        out.lse[query.stat] = query.lse;
        for (&key, p) in query.keys.iter().zip(&query.p) {
            add(&mut out.o[query.row..query.row + d], *p, &v[key..key + d]);
        }
    }
    out
}

pub(super) fn backward(
    shape: &AttentionShape,
    q: &[f64],
    k: &[f64],
    v: &[f64],
    doc_start: Option<&[i32]>,
    blocks: Option<&BlockMask>,
    d_o: &[f64],
) -> Gradients {
    let d = shape.head_dim;
    let mut out = Gradients { dq: vec![0.0; q.len()], dk: vec![0.0; k.len()], dv: vec![0.0; v.len()] };
    for Query { row, keys, p, slopes, .. } in queries(shape, q, k, doc_start, blocks) {
        let d_o = &d_o[row..row + d];
        let dp: Vec<f64> = keys.iter().map(|&key| dot(d_o, &v[key..key + d])).collect();
        let delta = dot(&p, &dp);
        for (((&key, p), dp), slope) in keys.iter().zip(&p).zip(&dp).zip(&slopes) {
            let ds = p * (dp - delta) * slope * shape.scale as f64;
            add(&mut out.dv[key..key + d], *p, d_o);
            add(&mut out.dk[key..key + d], ds, &q[row..row + d]);
            add(&mut out.dq[row..row + d], ds, &k[key..key + d]);
        }
    }
    out
}
