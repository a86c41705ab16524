//! Sequence parallelism over ranks (DeepSpeed-Ulysses, Jacobs et al. 2023): each rank of a group computes a part of every
//! sequence, and for attention a part of the heads over the whole sequence.
//!
//! ```text
//! [B, S/n, H, D] of this rank's tokens  --all_to_all-->  [B, S, H/n, D] of this rank's heads  (attention)
//! [B, S/n, H, D] of this rank's tokens  <--all_to_all--  [B, S, H/n, D]
//! ```
//!
//! All else in a decoder works on single tokens. Each rank has the loss of its own tokens, so gradients are summed over all
//! ranks as they are without it, and a step divides by the targets of all. Activations of a rank are about 1/n of the whole
//! sequence's.

mod exchange;

use std::ops::Range;
use std::sync::Arc;

use oarlock_comm::Communicator;
use oarlock_tensor::Tensor;
use oarlock_tensor::ops::{self, BlockMask};

use self::exchange::Exchange;
use crate::{Error, Result, nn};

/// Whether `n` ranks can divide the heads of an attention.
pub fn check_heads(n: usize, heads: usize, kv_heads: usize) -> Result<()> {
    if heads.is_multiple_of(n) && (kv_heads.is_multiple_of(n) || n.is_multiple_of(kv_heads)) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "sequence_parallel_size is {n}, but a layer has {heads} heads and {kv_heads} of keys and values; it must \
         divide the heads, and divide those of keys and values or be a multiple of them"
    )))
}

/// Whether `n` ranks can be groups of `size` that divide sequences.
pub fn check_ranks(n: usize, size: usize) -> Result<()> {
    if n.is_multiple_of(size) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "sequence_parallel_size is {size}, which does not divide the {n} ranks; start a multiple of {size}"
    )))
}

/// The ranks that divide sequences among them, as one of them sees them. Clones are the same group.
#[derive(Clone, Debug)]
pub struct SequenceParallel(Arc<Exchange>);

impl SequenceParallel {
    /// Those of a group.
    pub fn new(ranks: &Communicator) -> SequenceParallel {
        SequenceParallel(Arc::new(Exchange::new(ranks.clone())))
    }

    /// The part of a sequence that this rank has, from 0.
    pub fn rank(&self) -> usize {
        self.0.comm.rank()
    }

    /// The parts of a sequence.
    pub fn size(&self) -> usize {
        self.0.comm.world_size()
    }

    /// Whether the heads of an attention can be divided.
    ///
    /// # Errors
    /// [`Error::Usage`] that names the heads that cannot.
    pub fn check(&self, heads: usize, kv_heads: usize) -> Result<()> {
        check_heads(self.size(), heads, kv_heads)
    }

    /// The heads of `n_heads` that this rank attends with.
    pub fn heads(&self, n_heads: usize) -> Range<usize> {
        let own = n_heads / self.size();
        self.rank() * own..(self.rank() + 1) * own
    }

    /// The part of a mask that belongs to this rank's heads.
    pub fn blocks_of_heads(&self, blocks: &BlockMask, n_heads: usize) -> nn::Result<BlockMask> {
        match blocks.n_heads() {
            1 => Ok(blocks.clone()),
            _ => blocks.of_heads(self.heads(n_heads)),
        }
    }

    /// Queries `[B, S/n, H, D]`, keys and values `[B, S/n, G, D]` of this rank's tokens → `[B, S, H/n, D]`, and of keys and
    /// values the heads that those queries meet: `[B, S, G/n, D]`, or one where several ranks share it.
    ///
    /// # Errors
    /// Heads that [`SequenceParallel::check`] refuses, and a rank that failed.
    pub fn scatter_heads(&self, [q, k, v]: [&Tensor; 3]) -> nn::Result<[Tensor; 3]> {
        let n = self.size();
        let (q, k, v) = (by_rank(q, n)?, by_rank(&shared(k, n)?, n)?, by_rank(&shared(v, n)?, n)?);
        let (own_q, own_kv) = (q.sizes()[3], k.sizes()[3]);
        let packed = ops::concat(&[q, k, v], 3)?.permute([2, 0, 1, 3, 4])?;
        let received = self.0.exchange(&packed)?;
        // From [rank, B, S/n, ..]: the parts of the sequence follow each other.
        let received = received.permute([1, 0, 2, 3, 4])?;
        let &[batch, _, len, width, dim] = received.sizes() else { return Err(not_heads(&received)) };
        let whole = received.reshape([batch, n * len, width, dim])?;
        let heads = |first: usize, count: usize| ops::narrow(&whole, 2, first..first + count);
        Ok([heads(0, own_q)?, heads(own_q, own_kv)?, heads(own_q + own_kv, own_kv)?])
    }

    /// What attention gives, `[B, S, H/n, D]` of this rank's heads → `[B, S/n, H, D]` of its tokens.
    ///
    /// # Errors
    /// A rank that failed.
    pub fn gather_heads(&self, x: &Tensor) -> nn::Result<Tensor> {
        let n = self.size();
        let &[batch, len, heads, dim] = x.sizes() else { return Err(not_heads(x)) };
        let by_part = x.reshape([batch, n, len / n, heads, dim])?.permute([1, 0, 2, 3, 4])?;
        let received = self.0.exchange(&by_part)?;
        received.permute([1, 2, 0, 3, 4])?.reshape([batch, len / n, n * heads, dim])
    }
}

/// `[B, S, H, D]` → `[B, S, n, H/n, D]`: the heads of each rank.
fn by_rank(x: &Tensor, n: usize) -> nn::Result<Tensor> {
    match *x.sizes() {
        [batch, len, heads, dim] if heads.is_multiple_of(n) => x.reshape([batch, len, n, heads / n, dim]),
        _ => Err(not_heads(x)),
    }
}

/// Heads of keys and values, each as often as there are ranks that share it.
fn shared(x: &Tensor, n: usize) -> nn::Result<Tensor> {
    match *x.sizes() {
        [batch, len, heads, dim] if heads < n && n.is_multiple_of(heads) => {
            let shared = x.unsqueeze(3)?.expand([batch, len, heads, n / heads, dim])?;
            shared.reshape([batch, len, n, dim])
        }
        _ => Ok(x.clone()),
    }
}

fn not_heads(x: &Tensor) -> oarlock_tensor::Error {
    oarlock_tensor::Error::Shape {
        op: "sequence parallel attention",
        expected: "[B, S, H, D] with heads that the ranks divide".to_owned(),
        got: format!("{:?}", x.shape()),
    }
}
