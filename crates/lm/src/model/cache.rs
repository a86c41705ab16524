//! The key-value cache of one layer during generation.

use oarlock_tensor::ops;
use oarlock_tensor::{DType, Device, Error, Result, Tensor};

/// Keys and values of the positions so far: `[1, room, G, D]` each, of which the first `len` are filled. The room grows with
/// them, in pages.
#[derive(Debug)]
pub struct LayerCache {
    keys: Tensor,
    values: Tensor,
    len: usize,
    capacity: usize,
    n_prompt: usize,
}

/// A copy of the keys and values of a page of positions: `[1, 64, G, D]` each.
#[derive(Clone, Debug)]
pub(crate) struct PageOfLayer {
    keys: Tensor,
    values: Tensor,
}

impl LayerCache {
    /// The positions of a page.
    pub const PAGE: usize = 64;

    /// An empty cache for up to `capacity` positions of `n_kv_heads` heads of size `head_dim`.
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
        let room = capacity.min(LayerCache::PAGE);
        let zeros = || Tensor::zeros([1, room, n_kv_heads, head_dim], dtype, device);
        Ok(LayerCache { keys: zeros()?, values: zeros()?, len: 0, capacity, n_prompt: 0 })
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says how long a prompt is that is read in several passes: its positions are turned as in one, where the length of a text
    /// counts.
    pub fn expect_prompt(&mut self, n: usize) {
        self.n_prompt = n;
    }

    pub(super) fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// The most positions that it holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All keys that there is room for, filled or not.
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// All values that there is room for, filled or not.
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
    /// More positions than the cache holds, or no memory.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let n = k.sizes().get(1).copied().unwrap_or(0);
        if self.len + n > self.capacity {
            return Err(Error::Usage(format!(
                "the key-value cache holds {} positions, {} are needed: the text is longer than the model allows",
                self.capacity,
                self.len + n
            )));
        }
        self.make_room(self.len + n)?;
        self.keys.write_rows(1, self.len, k)?;
        self.values.write_rows(1, self.len, v)?;
        self.len += n;
        Ok(())
    }

    /// A copy of the page from a position on.
    ///
    /// # Errors
    /// A page that is not filled, or no memory.
    pub(crate) fn page(&self, first: usize) -> Result<PageOfLayer> {
        let copy = |held: &Tensor| {
            let rows = ops::narrow(held, 1, first..first + LayerCache::PAGE)?;
            // A part that is the whole is no copy.
            let &[_, _, n_heads, head_dim] = rows.sizes() else { return Ok(rows) };
            let shape = [1, LayerCache::PAGE, n_heads, head_dim];
            let mut page = Tensor::zeros(shape, held.dtype(), held.device())?;
            page.write_rows(1, 0, &rows)?;
            Ok(page)
        };
        if first + LayerCache::PAGE > self.len {
            return Err(Error::Usage(format!(
                "the cache holds {} positions, no page from {first} on",
                self.len
            )));
        }
        Ok(PageOfLayer { keys: copy(&self.keys)?, values: copy(&self.values)? })
    }

    /// Adds a page behind what is there.
    ///
    /// # Errors
    /// As [`LayerCache::append`].
    pub(crate) fn append_page(&mut self, page: &PageOfLayer) -> Result<()> {
        self.append(&page.keys, &page.values)
    }

    fn make_room(&mut self, n: usize) -> Result<()> {
        for held in [&mut self.keys, &mut self.values] {
            let &[_, room, n_heads, head_dim] = held.sizes() else { continue };
            if room < n {
                let room = n.next_multiple_of(LayerCache::PAGE).min(self.capacity);
                let mut larger = Tensor::zeros([1, room, n_heads, head_dim], held.dtype(), held.device())?;
                larger.write_rows(1, 0, held)?;
                *held = larger;
            }
        }
        Ok(())
    }
}
