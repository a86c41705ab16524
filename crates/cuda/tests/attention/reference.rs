//! Attention in f64, the plain way.

use oarlock_cuda::attention::AttentionShape;

/// Output and log-sum-exps, and the gradients of queries, keys and values.
pub struct Attention {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

/// Operands of one attention.
pub struct Operands<'a> {
    pub q: &'a [f64],
    pub k: &'a [f64],
    pub v: &'a [f64],
    pub d_o: &'a [f64],
    pub doc_start: Option<&'a [i32]>,
}

/// Whether query `i` of sequence `b` sees key `j`.
pub fn sees(s: &AttentionShape, doc_start: Option<&[i32]>, b: usize, i: usize, j: usize) -> bool {
    let (j, position) = (j as i64, s.kv_len as i64 - s.q_len as i64 + i as i64);
    let start = doc_start.map_or(0, |starts| i64::from(starts[b * s.q_len + i]));
    (!s.causal || j <= position) && j >= start && s.window.is_none_or(|w| j + w as i64 > position)
}

pub fn attention(s: &AttentionShape, x: &Operands) -> Attention {
    let d = s.head_dim;
    let mut out = Attention {
        o: vec![0.0; x.q.len()],
        lse: vec![f64::NEG_INFINITY; s.batch * s.heads * s.q_len],
        dq: vec![0.0; x.q.len()],
        dk: vec![0.0; x.k.len()],
        dv: vec![0.0; x.k.len()],
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let add =
        |to: &mut [f64], factor: f64, x: &[f64]| to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
    for b in 0..s.batch {
        for head in 0..s.heads {
            for i in 0..s.q_len {
                let row = ((b * s.q_len + i) * s.heads + head) * d;
                let (q, d_o) = (&x.q[row..row + d], &x.d_o[row..row + d]);
                let at =
                    |j: usize| ((b * s.kv_capacity + j) * s.kv_heads + head / (s.heads / s.kv_heads)) * d;
                let keys: Vec<usize> =
                    (0..s.kv_len).filter(|&j| sees(s, x.doc_start, b, i, j)).map(at).collect();
                let (mut p, mut slopes) = (vec![], vec![]);
                for &key in &keys {
                    let score = f64::from(s.scale) * dot(q, &x.k[key..key + d]);
                    let tanh = s.logit_cap.map(|cap| (score / f64::from(cap)).tanh());
                    p.push(tanh.map_or(score, |t| t * f64::from(s.logit_cap.unwrap())));
                    slopes.push(tanh.map_or(1.0, |t| 1.0 - t * t));
                }
                let max = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let lse = max + p.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
                if keys.is_empty() {
                    continue;
                }
                out.lse[(b * s.heads + head) * s.q_len + i] = lse;
                p.iter_mut().for_each(|x| *x = (*x - lse).exp());
                let dp: Vec<f64> = keys.iter().map(|&key| dot(d_o, &x.v[key..key + d])).collect();
                let delta = dot(&p, &dp);
                for (n, &key) in keys.iter().enumerate() {
                    let ds = p[n] * (dp[n] - delta) * slopes[n] * f64::from(s.scale);
                    add(&mut out.o[row..row + d], p[n], &x.v[key..key + d]);
                    add(&mut out.dv[key..key + d], p[n], d_o);
                    add(&mut out.dk[key..key + d], ds, q);
                    add(&mut out.dq[row..row + d], ds, &x.k[key..key + d]);
                }
            }
        }
    }
    out
}
