//! The key-value cache of one layer during generation.

use oarlock_tensor::{DType, Device, Error, Result, Tensor};

/// Keys and values of the positions so far: `[1, capacity, G, D]` each, of which the first `len` are filled.
#[derive(Debug)]
pub struct LayerCache {
    keys: Tensor,
    values: Tensor,
    len: usize,
    n_prompt: usize,
}

impl LayerCache {
    /// An empty cache for `capacity` positions of `n_kv_heads` heads of size `head_dim`.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        capacity: usize,
        n_kv_heads: usize,
        head_dim: usize,
        dtype: DType,
        device: &Device,
    ) -> Result<LayerCache> {
        let zeros = || Tensor::zeros([1, capacity, n_kv_heads, head_dim], dtype, device);
        Ok(LayerCache { keys: zeros()?, values: zeros()?, len: 0, n_prompt: 0 })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says how long a prompt is that is read in several passes: its positions are turned as in one.
    pub fn expect_prompt(&mut self, n: usize) {
        self.n_prompt = n;
    }

    pub(super) fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Positions that it has room for.
    pub fn capacity(&self) -> usize {
        self.keys.sizes()[1]
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All keys, filled or not.
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// All values, filled or not.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Forgets all but the first positions.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Adds k and v `[1, S, G, D]` behind what is there.
    ///
    /// # Errors
    /// More positions than the cache holds.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let n = k.sizes().get(1).copied().unwrap_or(0);
        if self.len + n > self.capacity() {
            return Err(Error::Usage(format!(
                "the key-value cache holds {} positions, {} are needed: the text is longer than the model allows",
                self.capacity(),
                self.len + n
            )));
        }
        self.keys.write_rows(1, self.len, k)?;
        self.values.write_rows(1, self.len, v)?;
        self.len += n;
        Ok(())
    }
}
