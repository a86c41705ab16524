//! Attention from products and a softmax, for what the fused kernel cannot: masks of elements, biases, dropout.
//!
//! Shape legend: B batch, S queries, K keys, H heads, G heads of keys and values, D head size.

use oarlock_tensor::ops::{self, BlockMask, Mask, Transposed};
use oarlock_tensor::{Device, Error, Result, Tensor};

use crate::nn::dropout::Dropout;

/// What [`MultiHeadAttention::attend`](super::MultiHeadAttention::attend) is given besides its inputs. A mask of integers
/// hides what is not 0 in it, as a mask of booleans does in torch; one of floats is added to the scores.
///
/// A query that sees no key gives NaN, as in torch.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttentionMasks<'a> {
    /// Of the keys: `[B, K]`.
    pub key_padding_mask: Option<&'a Tensor>,
    /// Of pairs of a query and a key: `[S, K]`, or `[B · H, S, K]` with one for each head.
    pub attn_mask: Option<&'a Tensor>,
}

impl AttentionMasks<'_> {
    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.key_padding_mask.is_none() && self.attn_mask.is_none()
    }
}

/// q `[B, S, H, D]`, k and v `[B, K, G, D]` → `[B, S, H, D]`.
pub(super) fn attend(
    [q, k, v]: [&Tensor; 3],
    (mask, blocks): (&Mask, Option<&BlockMask>),
    masks: &AttentionMasks<'_>,
    scale: f32,
    dropout: Option<&Dropout>,
) -> Result<Tensor> {
    let (&[batch, n_queries, n_heads, _], &[_, n_keys, ..]) = (q.sizes(), k.sizes()) else {
        return Err(wrong("q of shape [B, S, H, D]", q));
    };
    if k.shape() != v.shape() || k.sizes()[0] != batch {
        return Err(wrong(format!("keys and values of equal shapes, for a batch of {batch}"), v));
    }
    let heads = |x: &Tensor| x.permute([0, 2, 1, 3]);
    let (q, k, v) = (heads(q)?, repeated(heads(k)?, n_heads)?, repeated(heads(v)?, n_heads)?);
    let mut scores = ops::matmul_transposed(&q, &k, Transposed::Right)?.scale(scale)?;
    if let Some(later) = structure(mask, [batch, n_queries, n_keys], q.device())? {
        scores = scores.masked_fill(&later, f32::NEG_INFINITY)?;
    }
    if let Some(blocks) = blocks {
        let hidden = outside(blocks, [n_heads, n_queries, n_keys], q.device())?;
        scores = scores.masked_fill(&hidden, f32::NEG_INFINITY)?;
    }
    if let Some(mask) = masks.key_padding_mask {
        if mask.sizes() != [batch, n_keys] {
            return Err(wrong(format!("a key_padding_mask of shape [{batch}, {n_keys}]"), mask));
        }
        scores = masked(&scores, &mask.reshape([batch, 1, 1, n_keys])?)?;
    }
    if let Some(mask) = masks.attn_mask {
        let of_heads = [batch, n_heads, n_queries, n_keys];
        scores = match *mask.sizes() {
            [s, k] if [s, k] == of_heads[2..] => masked(&scores, mask)?,
            [n, s, k] if n == batch * n_heads && [s, k] == of_heads[2..] => {
                masked(&scores, &mask.reshape(of_heads)?)?
            }
            _ => {
                let heads = batch * n_heads;
                let expected = format!(
                    "an attn_mask of shape [{n_queries}, {n_keys}] or [{heads}, {n_queries}, {n_keys}]"
                );
                return Err(wrong(expected, mask));
            }
        };
    }
    let mut weights = scores.softmax(-1)?;
    if weights.dtype() != v.dtype() {
        weights = weights.cast(v.dtype())?;
    }
    if let Some(dropout) = dropout {
        weights = dropout.forward(&weights)?;
    }
    weights.matmul(&v)?.permute([0, 2, 1, 3])
}

/// Each head as often as queries share it.
fn repeated(x: Tensor, n_heads: usize) -> Result<Tensor> {
    let &[batch, own, n_keys, dim] = x.sizes() else { return Ok(x) };
    if own == n_heads {
        return Ok(x);
    }
    let shared = x.unsqueeze(2)?.expand([batch, own, n_heads / own, n_keys, dim])?;
    shared.reshape([batch, n_heads, n_keys, dim])
}

fn masked(scores: &Tensor, mask: &Tensor) -> Result<Tensor> {
    if mask.dtype().is_float() { scores.add(mask) } else { scores.masked_fill(mask, f32::NEG_INFINITY) }
}

/// What the mask of the fused kernel hides, not 0 where it does.
fn structure(mask: &Mask, [batch, n_queries, n_keys]: [usize; 3], device: &Device) -> Result<Option<Tensor>> {
    // The queries are the last positions.
    let Some(before) = n_keys.checked_sub(n_queries).filter(|_| !matches!(mask, Mask::Full)) else {
        return match mask {
            Mask::Full => Ok(None),
            _ => Err(Error::Usage(format!(
                "MultiHeadAttention: a causal mask needs a key for each query, got {n_queries} queries and {n_keys} keys"
            ))),
        };
    };
    let later = |i: usize, j: usize| j > before + i;
    let pairs = || (0..n_queries * n_keys).map(|at| (at / n_keys, at % n_keys));
    match mask {
        Mask::Documents(starts) if !device.is_dry() => {
            let starts = starts.to_vec::<i32>()?;
            let hidden: Vec<i32> = starts
                .chunks(n_queries.max(1))
                .flat_map(|starts| pairs().map(|(i, j)| i32::from(later(i, j) || (j as i32) < starts[i])))
                .collect();
            Tensor::from_slice(&hidden, [batch, 1, n_queries, n_keys], device).map(Some)
        }
        _ => {
            let hidden: Vec<i32> = pairs().map(|(i, j)| i32::from(later(i, j))).collect();
            Tensor::from_slice(&hidden, [n_queries, n_keys], device).map(Some)
        }
    }
}

/// What a block mask hides, not 0 where it does: `[H or 1, S, K]`.
fn outside(blocks: &BlockMask, [n_heads, n_queries, n_keys]: [usize; 3], device: &Device) -> Result<Tensor> {
    let (of_mask, block) = (blocks.n_heads(), blocks.block());
    let before = n_keys.checked_sub(n_queries).filter(|_| n_keys <= blocks.positions());
    let Some(before) = before.filter(|_| of_mask == 1 || of_mask == n_heads) else {
        return Err(Error::Usage(format!(
            "MultiHeadAttention: a mask of blocks for {of_mask} heads and {} positions does not fit {n_heads} heads, \
             {n_queries} queries and {n_keys} keys",
            blocks.positions()
        )));
    };
    let rows = (0..of_mask).flat_map(|head| (0..n_queries).map(move |i| (head, (before + i) / block)));
    let hidden = |(head, row)| (0..n_keys).map(move |j| i32::from(!blocks.keeps(head, row, j / block)));
    let hidden: Vec<i32> = rows.flat_map(hidden).collect();
    Tensor::from_slice(&hidden, [of_mask, n_queries, n_keys], device)
}

fn wrong(expected: impl Into<String>, got: &Tensor) -> Error {
    Error::Shape { op: "MultiHeadAttention", expected: expected.into(), got: format!("{:?}", got.shape()) }
}
