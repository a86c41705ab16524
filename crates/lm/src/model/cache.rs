//! The key-value cache of one layer during generation, in pages.

use std::sync::Arc;

use oarlock_tensor::ops::{self, CachedKv};
use oarlock_tensor::{DType, Device, Error, Result, Tensor};

/// Keys and values of the positions so far. They lie in pages of 64 positions, which several caches may hold together: what is
/// shared is read where it lies and never written. On a GPU they are one piece that grows, since its kernels read no pages.
#[derive(Debug)]
pub struct LayerCache {
    /// Each is full but the last.
    pages: Vec<Arc<PageOfLayer>>,
    len: usize,
    capacity: usize,
    n_prompt: usize,
    /// Heads and their size.
    heads: [usize; 2],
    dtype: DType,
    device: Device,
}

/// The keys and values of a page of positions: `[1, n, G, D]` each.
#[derive(Debug)]
pub(crate) struct PageOfLayer {
    keys: Tensor,
    values: Tensor,
}

impl PageOfLayer {
    fn new(n: usize, [n_heads, head_dim]: [usize; 2], dtype: DType, device: &Device) -> Result<PageOfLayer> {
        let zeros = || Tensor::zeros([1, n, n_heads, head_dim], dtype, device);
        Ok(PageOfLayer { keys: zeros()?, values: zeros()? })
    }

    /// The positions that it has room for.
    fn room(&self) -> usize {
        self.keys.sizes().get(1).copied().unwrap_or(0)
    }

    /// A copy of so many of its positions from one on, with room for others.
    fn copied(&self, first: usize, n: usize, room: usize) -> Result<PageOfLayer> {
        let &[_, _, n_heads, head_dim] = self.keys.sizes() else {
            return Err(Error::Usage("a page of keys has four dims".to_owned()));
        };
        let mut copy = PageOfLayer::new(room, [n_heads, head_dim], self.keys.dtype(), self.keys.device())?;
        copy.keys.write_rows(1, 0, &ops::narrow(&self.keys, 1, first..first + n)?)?;
        copy.values.write_rows(1, 0, &ops::narrow(&self.values, 1, first..first + n)?)?;
        Ok(copy)
    }
}

impl LayerCache {
    /// The positions of a page.
    pub const PAGE: usize = ops::CACHE_PAGE;

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
        let (heads, device) = ([n_kv_heads, head_dim], device.clone());
        Ok(LayerCache { pages: Vec::new(), len: 0, capacity, n_prompt: 0, heads, dtype, device })
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

    /// What attention reads: the pages with filled positions.
    pub fn filled(&self) -> CachedKv<'_> {
        CachedKv {
            keys: self.pages.iter().map(|page| &page.keys).collect(),
            values: self.pages.iter().map(|page| &page.values).collect(),
            len: self.len,
        }
    }

    /// Forgets all but the first positions, and gives back the pages without any.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        match self.is_paged() {
            true => self.pages.truncate(self.len.div_ceil(LayerCache::PAGE)),
            false if self.len == 0 => self.pages.clear(),
            false => {}
        }
    }

    /// Adds k and v `[1, S, G, D]` behind what is there.
    ///
    /// # Errors
    /// More positions than the cache holds, or no memory.
    pub fn append(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let n = k.sizes().get(1).copied().unwrap_or(0);
        self.check_room(n)?;
        if !self.is_paged() {
            self.grow_to(self.len + n)?;
        }
        let mut done = 0;
        while done < n {
            let (at, end) = self.place(n - done);
            let page = self.page_to_write()?;
            let part = |x: &Tensor| ops::narrow(x, 1, done..done + end - at);
            page.keys.write_rows(1, at, &part(k)?)?;
            page.values.write_rows(1, at, &part(v)?)?;
            done += end - at;
            self.len += end - at;
        }
        Ok(())
    }

    /// Adds the rows of k and v `[B, 1, G, D]` from `first` on, so many.
    ///
    /// # Errors
    /// As [`LayerCache::append`].
    pub(super) fn append_rows(&mut self, k: &Tensor, v: &Tensor, first: usize, n: usize) -> Result<()> {
        let [n_heads, head_dim] = self.heads;
        let own = |x: &Tensor| ops::narrow(x, 0, first..first + n)?.reshape([1, n, n_heads, head_dim]);
        self.append(&own(k)?, &own(v)?)
    }

    /// The page of each position from `first` on, to be shared.
    ///
    /// # Errors
    /// A page that is not filled, or no memory.
    pub(crate) fn page(&self, first: usize) -> Result<Arc<PageOfLayer>> {
        let Some(page) = self.pages.get(if self.is_paged() { first / LayerCache::PAGE } else { 0 }) else {
            return Err(self.no_page(first));
        };
        if first + LayerCache::PAGE > self.len || !first.is_multiple_of(LayerCache::PAGE) {
            return Err(self.no_page(first));
        }
        match self.is_paged() {
            true => Ok(page.clone()),
            false => Ok(Arc::new(page.copied(first, LayerCache::PAGE, LayerCache::PAGE)?)),
        }
    }

    /// Adds a page behind what is there, which ends with a full page.
    ///
    /// # Errors
    /// As [`LayerCache::append`].
    pub(crate) fn append_page(&mut self, page: &Arc<PageOfLayer>) -> Result<()> {
        if !self.is_paged() || !self.len.is_multiple_of(LayerCache::PAGE) || page.room() != LayerCache::PAGE {
            return self.append(&page.keys, &page.values);
        }
        self.check_room(LayerCache::PAGE)?;
        self.pages.push(page.clone());
        self.len += LayerCache::PAGE;
        Ok(())
    }

    /// Takes a page in the place of its own, which holds the same.
    ///
    /// # Errors
    /// A page that is not filled.
    pub(crate) fn share(&mut self, first: usize, page: &Arc<PageOfLayer>) -> Result<()> {
        if self.is_paged() {
            let _filled = self.page(first)?;
            self.pages[first / LayerCache::PAGE] = page.clone();
        }
        Ok(())
    }

    /// Whether it lies in pages.
    fn is_paged(&self) -> bool {
        !self.device.is_cuda()
    }

    fn no_page(&self, first: usize) -> Error {
        Error::Usage(format!("the cache holds {} positions, no page from {first} on", self.len))
    }

    fn check_room(&self, n: usize) -> Result<()> {
        if self.len + n <= self.capacity {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "the key-value cache holds {} positions, {} are needed: the text is longer than the model allows",
            self.capacity,
            self.len + n
        )))
    }

    /// Where the next of so many positions lie in the page that they come into.
    fn place(&self, n: usize) -> (usize, usize) {
        match self.is_paged() {
            true => {
                let at = self.len % LayerCache::PAGE;
                (at, LayerCache::PAGE.min(at + n))
            }
            false => (self.len, self.len + n),
        }
    }

    /// The page that the next position comes into, as its only owner.
    fn page_to_write(&mut self) -> Result<&mut PageOfLayer> {
        let is_new = self.is_paged() && self.len.is_multiple_of(LayerCache::PAGE);
        if is_new {
            let page = PageOfLayer::new(LayerCache::PAGE, self.heads, self.dtype, &self.device)?;
            self.pages.push(Arc::new(page));
        }
        let n = if self.is_paged() { self.len % LayerCache::PAGE } else { self.len };
        let Some(last) = self.pages.last_mut() else { return Err(Error::Usage("no page".to_owned())) };
        // A page that was full and is no longer may be held by others too.
        if Arc::get_mut(last).is_none() {
            *last = Arc::new(last.copied(0, n, last.room())?);
        }
        Arc::get_mut(last).ok_or_else(|| Error::Usage("a page that is shared cannot be written".to_owned()))
    }

    /// Makes the one piece large enough.
    fn grow_to(&mut self, n: usize) -> Result<()> {
        let room = n.next_multiple_of(LayerCache::PAGE).min(self.capacity);
        match self.pages.last() {
            Some(last) if last.room() >= n => {}
            Some(last) => self.pages = vec![Arc::new(last.copied(0, self.len, room)?)],
            None => {
                self.pages = vec![Arc::new(PageOfLayer::new(room, self.heads, self.dtype, &self.device)?)];
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use oarlock_tensor::Par;
    use oarlock_tensor::cpu::Isa;

    use super::*;

    /// `n` positions, the numbers of which begin at `from`.
    fn rows(from: usize, n: usize, device: &Device) -> Tensor {
        let numbers: Vec<f32> = (0..n * 6).map(|at| (from * 6 + at) as f32).collect();
        Tensor::from_slice(&numbers, [1, n, 2, 3], device).unwrap()
    }

    /// The keys of all positions, one after the other.
    fn keys(cache: &LayerCache) -> Vec<f32> {
        let filled = cache.filled();
        let mut all: Vec<f32> = filled.keys.iter().flat_map(|page| page.to_f32_vec().unwrap()).collect();
        all.truncate(filled.len * 6);
        all
    }

    fn cache(capacity: usize, device: &Device) -> LayerCache {
        LayerCache::new(capacity, 2, 3, DType::F32, device).unwrap()
    }

    #[test]
    fn positions_lie_in_pages_however_they_come() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        for step in [1, 7, 64, 100, 200] {
            let mut cache = cache(200, &device);
            for from in (0..200).step_by(step) {
                let new = rows(from, step.min(200 - from), &device);
                cache.append(&new, &new).unwrap();
            }
            assert_eq!((cache.len(), cache.filled().keys.len()), (200, 4));
            assert_eq!(keys(&cache), rows(0, 200, &device).to_f32_vec().unwrap());
            let error = cache.append(&rows(0, 1, &device), &rows(0, 1, &device)).unwrap_err().to_string();
            assert!(error.contains("holds 200 positions, 201 are needed"), "{error}");
        }
    }

    /// What one cache writes after it has gone back is not seen by those that share a page with it.
    #[test]
    fn shared_pages_are_never_written() {
        let device = Device::cpu(Isa::detect(), Par::solo());
        let (mut first, mut second) = (cache(200, &device), cache(200, &device));
        let all = rows(0, 128, &device);
        first.append(&all, &all).unwrap();
        for from in [0, 64] {
            second.append_page(&first.page(from).unwrap()).unwrap();
        }
        assert!(std::ptr::eq(first.filled().keys[1], second.filled().keys[1]));
        second.truncate(100);
        let other = rows(500, 50, &device);
        second.append(&other, &other).unwrap();
        assert_eq!(keys(&first), all.to_f32_vec().unwrap());
        let expected = [&all.to_f32_vec().unwrap()[..600], &other.to_f32_vec().unwrap()].concat();
        assert_eq!(keys(&second), expected);
        // What is equal is held once again where it is shared.
        let mut third = cache(200, &device);
        third.append(&all, &all).unwrap();
        third.share(64, &first.page(64).unwrap()).unwrap();
        assert!(std::ptr::eq(first.filled().keys[1], third.filled().keys[1]));
        assert!(
            first.page(100).is_err()
                && first.page(128).is_err()
                && third.share(128, &first.page(0).unwrap()).is_err()
        );
        third.truncate(0);
        assert!(third.is_empty() && third.filled().keys.is_empty());
    }
}
