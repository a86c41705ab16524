//! The labels of the tokens of a batch, held by the host: the work of the head and the weight of its loss are known
//! before anything runs.

use std::sync::Arc;

use oarlock_kernels::{DType, Error, Result};

use crate::ops::wrong_shape;
use crate::tensor::Tensor;

/// Labels with this value have no loss.
pub const IGNORE_INDEX: i32 = -100;

/// One label per token, shifted already: the label of a token is what follows it, or [`IGNORE_INDEX`].
#[derive(Clone, Debug)]
pub struct Labels {
    ids: Arc<[i32]>,
    n_targets: usize,
    /// The smallest and the largest label that is not ignored, each with its position.
    extremes: [(i32, usize); 2],
}

impl Labels {
    /// The labels of some tokens, in the order of the tokens. The vocabulary is checked where it is known: by the head.
    pub fn new(ids: impl Into<Arc<[i32]>>) -> Labels {
        let ids = ids.into();
        let targets =
            || ids.iter().enumerate().filter(|&(_, &id)| id != IGNORE_INDEX).map(|(at, &id)| (id, at));
        let n_targets = targets().count();
        let [smallest, largest] = [targets().min(), targets().max()].map(Option::unwrap_or_default);
        Labels { n_targets, extremes: [smallest, largest], ids }
    }

    /// Reads labels (i32, any shape) back from their device. On a dry device every token has a label.
    ///
    /// # Errors
    /// Another dtype.
    pub fn from_tensor(labels: &Tensor) -> Result<Labels> {
        if labels.dtype() != DType::I32 {
            return Err(wrong_shape("labels", "labels of dtype i32", labels));
        }
        if labels.device().is_dry() {
            return Ok(Labels::new(vec![0; labels.n_elems()]));
        }
        Ok(Labels::new(labels.to_vec::<i32>()?))
    }

    /// The label of each token.
    pub fn ids(&self) -> &[i32] {
        &self.ids
    }

    /// The number of labels that are not [`IGNORE_INDEX`].
    pub fn n_targets(&self) -> usize {
        self.n_targets
    }

    /// Whether there is one label for each of `n_tokens` tokens, and all are inside of the vocabulary.
    pub(crate) fn check(&self, op: &'static str, n_tokens: usize, vocab: usize) -> Result<()> {
        if self.ids.len() != n_tokens {
            let (expected, got) = (format!("{n_tokens} labels"), format!("{}", self.ids.len()));
            return Err(Error::Shape { op, expected, got });
        }
        let outside = |&(id, _): &(i32, usize)| usize::try_from(id).map_or(true, |id| id >= vocab);
        match self.extremes.into_iter().filter(|_| self.n_targets > 0).find(outside) {
            Some((id, position)) => Err(Error::Index { op, index: i64::from(id), position, bound: vocab }),
            None => Ok(()),
        }
    }
}
