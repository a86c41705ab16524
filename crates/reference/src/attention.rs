//! Attention: softmax over the keys that a query sees, with every mask.

use std::thread;

use crate::formula::Array;

/// Sizes and masks. Queries are the last of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Shape {
    pub batch: usize,
    pub q_len: usize,
    pub kv_len: usize,
    /// Of the memory of keys and values: the positions from one sequence to the next.
    pub kv_capacity: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub scale: f64,
    pub causal: bool,
    /// A query sees at most so many positions, its own among them.
    pub window: Option<usize>,
    /// Scores are `cap · tanh(score / cap)`.
    pub logit_cap: Option<f64>,
}

/// What a mask keeps, by head, position of the query and key.
pub type Keeps<'a> = dyn Fn(usize, usize, usize) -> bool + Sync + 'a;

/// Queries `[B, S, H, D]`, keys and values `[B, capacity, G, D]`, the gradient of the output, and masks.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Operands<'a> {
    pub q: &'a [f64],
    pub k: &'a [f64],
    pub v: &'a [f64],
    /// Empty where no gradients are wanted.
    pub d_o: &'a [f64],
    /// The first position of the document of each query.
    pub doc_start: Option<&'a [i32]>,
    pub keeps: Option<&'a Keeps<'a>>,
}

/// The output, the logarithms of the sums of exponentials `[B, H, S]`, and the gradients.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct Attention {
    pub o: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], factor: f64, x: &[f64]) {
    to.iter_mut().zip(x).for_each(|(to, x)| *to += factor * x);
}

impl Shape {
    /// Causal attention of sequences of equal lengths.
    pub fn causal(batch: usize, len: usize, heads: usize, kv_heads: usize, head_dim: usize) -> Shape {
        Shape {
            batch,
            q_len: len,
            kv_len: len,
            kv_capacity: len,
            heads,
            kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f64).sqrt(),
            causal: true,
            window: None,
            logit_cap: None,
        }
    }

    /// Whether query `i` of sequence `b` sees key `j`.
    pub fn sees(&self, doc_start: Option<&[i32]>, b: usize, i: usize, j: usize) -> bool {
        let (j, position) = (j as i64, self.kv_len as i64 - self.q_len as i64 + i as i64);
        let start = doc_start.map_or(0, |starts| i64::from(starts[b * self.q_len + i]));
        (!self.causal || j <= position) && j >= start && self.window.is_none_or(|w| j + w as i64 > position)
    }

    /// The results of one head, with rows one after the other.
    fn of_head(&self, x: &Operands<'_>, b: usize, head: usize) -> Attention {
        let d = self.head_dim;
        let kv_head = head / (self.heads / self.kv_heads);
        let at = |j: usize| ((b * self.kv_capacity + j) * self.kv_heads + kv_head) * d;
        let [queries, keys] = [self.q_len, self.kv_len].map(|n| vec![0.0; n * d]);
        let lse = Vec::with_capacity(self.q_len);
        let mut out = Attention { o: queries.clone(), lse, dq: queries, dk: keys.clone(), dv: keys };
        for i in 0..self.q_len {
            let row = ((b * self.q_len + i) * self.heads + head) * d;
            let q = &x.q[row..row + d];
            let position = (self.kv_len + i).wrapping_sub(self.q_len);
            let is_seen = |j: &usize| {
                self.sees(x.doc_start, b, i, *j) && x.keeps.is_none_or(|keeps| keeps(head, position, *j))
            };
            let keys: Vec<usize> = (0..self.kv_len).filter(is_seen).collect();
            let (mut p, mut slopes) = (vec![], vec![]);
            for &j in &keys {
                let score = self.scale * dot(q, &x.k[at(j)..][..d]);
                let tanh = self.logit_cap.map(|cap| (cap, (score / cap).tanh()));
                p.push(tanh.map_or(score, |(cap, t)| cap * t));
                slopes.push(tanh.map_or(1.0, |(_, t)| 1.0 - t * t));
            }
            let max = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = max + p.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
            out.lse.push(if keys.is_empty() { f64::NEG_INFINITY } else { lse });
            p.iter_mut().for_each(|x| *x = (*x - lse).exp());
            let to = i * d..(i + 1) * d;
            for (p, &j) in p.iter().zip(&keys) {
                add(&mut out.o[to.clone()], *p, &x.v[at(j)..][..d]);
            }
            let Some(d_o) = x.d_o.get(row..row + d) else { continue };
            let dp: Vec<f64> = keys.iter().map(|&j| dot(d_o, &x.v[at(j)..][..d])).collect();
            let delta = dot(&p, &dp);
            for (n, &j) in keys.iter().enumerate() {
                let ds = p[n] * (dp[n] - delta) * slopes[n] * self.scale;
                add(&mut out.dq[to.clone()], ds, &x.k[at(j)..][..d]);
                add(&mut out.dv[j * d..][..d], p[n], d_o);
                add(&mut out.dk[j * d..][..d], ds, q);
            }
        }
        out
    }

    /// Attention with its gradients, which are zeros where no gradient of the output is given; a query that sees no key gets
    /// zeros. Heads are divided over all cores.
    pub fn attention(&self, x: &Operands<'_>) -> Attention {
        let d = self.head_dim;
        let [queries, keys] = [x.q, x.k].map(|x| vec![0.0; x.len()]);
        let lse = vec![0.0; self.batch * self.heads * self.q_len];
        let mut out = Attention { o: queries.clone(), lse, dq: queries, dk: keys.clone(), dv: keys };
        let heads: Vec<[usize; 2]> =
            (0..self.batch).flat_map(|b| (0..self.heads).map(move |head| [b, head])).collect();
        let is_small = heads.len() * self.q_len * self.kv_len * d < 1 << 20;
        let cores = if is_small { 1 } else { thread::available_parallelism().map_or(1, usize::from) };
        let mut parts: Vec<Option<Attention>> = vec![None; heads.len()];
        let n_each = heads.len().div_ceil(cores).max(1);
        thread::scope(|scope| {
            for (heads, parts) in heads.chunks(n_each).zip(parts.chunks_mut(n_each)) {
                let work = move || {
                    for ([b, head], part) in heads.iter().zip(parts) {
                        *part = Some(self.of_head(x, *b, *head));
                    }
                };
                if is_small { work() } else { drop(scope.spawn(work)) }
            }
        });
        let rows = |n: usize| (0..n).map(move |i| (i, i * d..(i + 1) * d));
        for ([b, head], part) in heads.into_iter().zip(parts.into_iter().flatten()) {
            for (i, from) in rows(self.q_len) {
                let row = ((b * self.q_len + i) * self.heads + head) * d;
                add(&mut out.o[row..row + d], 1.0, &part.o[from.clone()]);
                add(&mut out.dq[row..row + d], 1.0, &part.dq[from]);
            }
            let first = (b * self.heads + head) * self.q_len;
            out.lse[first..first + self.q_len].copy_from_slice(&part.lse);
            let kv_head = head / (self.heads / self.kv_heads);
            for (j, from) in rows(self.kv_len) {
                let row = ((b * self.kv_capacity + j) * self.kv_heads + kv_head) * d;
                add(&mut out.dk[row..row + d], 1.0, &part.dk[from.clone()]);
                add(&mut out.dv[row..row + d], 1.0, &part.dv[from]);
            }
        }
        out
    }

    /// The same as a part of a formula.
    pub fn of_arrays(
        &self,
        [q, k, v]: [&Array; 3],
        doc_start: Option<Vec<i32>>,
        keeps: Option<Box<Keeps<'static>>>,
    ) -> Array {
        let (shape, (formula, _)) = (*self, q.node());
        let (places, given) = ([q, k, v].map(|x| x.node().1), [q, k, v].map(|x| x.values.clone()));
        let run = move |d_o: &[f64]| {
            let [q, k, v] = &given;
            let (doc_start, keeps) = (doc_start.as_deref(), keeps.as_deref());
            shape.attention(&Operands { q, k, v, d_o, doc_start, keeps })
        };
        let values = run(&[]).o;
        let back = move |dy: &[f64]| {
            let Attention { dq, dk, dv, .. } = run(dy);
            places.into_iter().zip([dq, dk, dv]).collect()
        };
        formula.made(&q.sizes, values, Box::new(back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::number::{f64s, values};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let plain = Shape { kv_len: 6, kv_capacity: 7, ..Shape::causal(1, 4, 2, 1, 3) };
        for (window, logit_cap) in [(None, None), (Some(2), None), (None, Some(0.4)), (Some(3), Some(1.5))] {
            let shape = Shape { window, logit_cap, ..plain };
            let [q, k, v, d_o] =
                [(1, 24), (2, 21), (3, 21), (4, 24)].map(|(s, n)| f64s(&values::<f32>(s, n)));
            let run = |x: &[Vec<f64>; 3]| {
                let [q, k, v] = x;
                let (doc_start, keeps): (_, Option<&Keeps<'_>>) =
                    (Some(&[0, 0, 4, 4][..]), Some(&|head, i, j| head == 0 || i != j + 1));
                shape.attention(&Operands { q, k, v, d_o: &d_o, doc_start, keeps })
            };
            let x = [q, k, v];
            let got = run(&x);
            for (which, grad) in [&got.dq, &got.dk, &got.dv].into_iter().enumerate() {
                for (i, grad) in grad.iter().enumerate() {
                    let at = |step: f64| {
                        let mut x = x.clone();
                        x[which][i] += step;
                        dot(&run(&x).o, &d_o)
                    };
                    let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!((difference - grad).abs() < 1e-8, "{which} {i}: {difference}, not {grad}");
                }
            }
        }
    }
}
