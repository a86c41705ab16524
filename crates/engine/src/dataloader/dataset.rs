//! What a loader reads: data sets with a length and an index, and streams that can only be iterated over.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::Result;

/// A data set whose samples have numbers: torch's map-style `Dataset`. Vectors are data sets.
pub trait Dataset: Send + Sync + 'static {
    /// A sample.
    type Item: Send + 'static;

    /// The number of samples.
    fn len(&self) -> usize;

    /// A sample by its number, from 0. Workers call it at the same time from several threads.
    ///
    /// # Errors
    /// Whatever kept it from being read; the loop gets the error in the place of the batch.
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Clone + Send + Sync + 'static> Dataset for Vec<T> {
    type Item = T;

    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: usize) -> Result<T> {
        item(self, index)
    }
}

impl<T: Clone + Send + Sync + 'static> Dataset for &'static [T] {
    type Item = T;

    fn len(&self) -> usize {
        <[T]>::len(self)
    }

    fn get(&self, index: usize) -> Result<T> {
        item(self, index)
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Item = D::Item;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Result<D::Item> {
        (**self).get(index)
    }
}

fn item<T: Clone>(all: &[T], index: usize) -> Result<T> {
    all.get(index).cloned().ok_or_else(|| {
        crate::Error::Usage(format!("a sampler gave the sample {index} of a data set of {}", all.len()))
    })
}

/// A data set that computes its samples: `f` is given a number below `len`.
pub fn from_fn<I, F>(len: usize, f: F) -> impl Dataset<Item = I>
where
    I: Send + 'static,
    F: Fn(usize) -> Result<I> + Send + Sync + 'static,
{
    FromFn { len, f, item: PhantomData }
}

struct FromFn<I, F> {
    len: usize,
    f: F,
    item: PhantomData<fn() -> I>,
}

impl<I, F> Dataset for FromFn<I, F>
where
    I: Send + 'static,
    F: Fn(usize) -> Result<I> + Send + Sync + 'static,
{
    type Item = I;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<I> {
        (self.f)(index)
    }
}

/// The samples of an iterable data set in their order.
pub type Items<I> = Box<dyn Iterator<Item = Result<I>> + Send>;

/// A data set that can only be iterated over: torch's `IterableDataset`.
pub trait IterableDataset: Send + Sync + 'static {
    /// A sample.
    type Item: Send + 'static;

    /// The samples of an epoch from the first on. Every rank that reads sees the same samples in the same order; where
    /// the last batch is filled up, its repeats are read in a second iteration.
    ///
    /// # Errors
    /// Whatever kept it from being opened.
    fn iter(&self, epoch: u64) -> Result<Items<Self::Item>>;

    /// The samples after the first `n`, for a run that goes on. A data set that can jump there does so here; by default
    /// they are read and dropped.
    ///
    /// # Errors
    /// As [`IterableDataset::iter`].
    fn iter_from(&self, epoch: u64, n: usize) -> Result<Items<Self::Item>> {
        let mut items = self.iter(epoch)?;
        for item in items.by_ref().take(n) {
            item?;
        }
        Ok(items)
    }

    /// The number of samples, where it is known.
    fn length(&self) -> Option<usize> {
        None
    }

    /// The part of a rank, where the data set can divide itself, as one of many files can: then no rank reads what is
    /// not its own. Parts may differ in length; all ranks end with the shortest. By default every rank reads all, or
    /// rank 0 for all, and keeps what is its own.
    fn shard(&self, _rank: usize, _world: usize) -> Option<Arc<dyn IterableDataset<Item = Self::Item>>> {
        None
    }
}

/// An iterable data set from a function that begins an epoch.
pub fn stream<I, N, F>(f: F) -> impl IterableDataset<Item = I::Item>
where
    I: IntoIterator<IntoIter = N> + 'static,
    I::Item: Send,
    N: Iterator<Item = I::Item> + Send + 'static,
    F: Fn(u64) -> I + Send + Sync + 'static,
{
    Stream { f, items: PhantomData }
}

struct Stream<I, F> {
    f: F,
    items: PhantomData<fn() -> I>,
}

impl<I, N, F> IterableDataset for Stream<I, F>
where
    I: IntoIterator<IntoIter = N> + 'static,
    I::Item: Send,
    N: Iterator<Item = I::Item> + Send + 'static,
    F: Fn(u64) -> I + Send + Sync + 'static,
{
    type Item = I::Item;

    fn iter(&self, epoch: u64) -> Result<Items<I::Item>> {
        Ok(Box::new((self.f)(epoch).into_iter().map(Ok)))
    }
}

/// Either kind.
pub(super) enum Data<I> {
    Map(Arc<dyn Dataset<Item = I>>),
    Stream(Arc<dyn IterableDataset<Item = I>>),
}

impl<I> Clone for Data<I> {
    fn clone(&self) -> Data<I> {
        match self {
            Data::Map(dataset) => Data::Map(dataset.clone()),
            Data::Stream(dataset) => Data::Stream(dataset.clone()),
        }
    }
}
