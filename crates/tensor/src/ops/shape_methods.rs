//! The ops of shapes, indices and products as methods of a tensor.

use std::borrow::Borrow;
use std::ops::Range;

use oarlock_kernels::Result;

use crate::ints::{Int, Ints};
use crate::ops::methods::methods;
use crate::ops::{self, SplitSizes, dim_of};
use crate::tensor::Tensor;

methods! {
    reshape(shape: impl Ints);
    flatten(first: impl Int, last: impl Int);
    unflatten(dim: impl Int, sizes: impl Ints);
    squeeze(dim: impl Int);
    squeeze_all();
    unsqueeze(dim: impl Int);
    permute(order: impl Ints);
    transpose(a: impl Int, b: impl Int);
    t();
    movedim(from: impl Int, to: impl Int);
    expand(shape: impl Ints);
    repeat(counts: impl Ints);
    repeat_interleave(count: usize, dim: impl Int);
    narrow(dim: impl Int, range: Range<usize>);
    select(dim: impl Int, index: impl Int);
    index_select(dim: impl Int, index: &Tensor);
    index_add(dim: impl Int, index: &Tensor, source: &Tensor);
    gather(dim: impl Int, index: &Tensor);
    take_along_dim(index: &Tensor, dim: impl Int);
    scatter(dim: impl Int, index: &Tensor, source: &Tensor);
    scatter_add(dim: impl Int, index: &Tensor, source: &Tensor);
    one_hot(n_classes: usize);
    nonzero();
    argsort(dim: impl Int, descending: bool);
    cumsum(dim: impl Int);
    tril(diagonal: isize);
    triu(diagonal: isize);
    diag(diagonal: isize);
    diagonal(offset: isize, a: impl Int, b: impl Int);
    pad(widths: impl Ints, value: f32);
    flip(dims: impl Ints);
    roll(shifts: impl Ints, dims: impl Ints);
    matmul(other: &Tensor);
    bmm(other: &Tensor);
}

impl Tensor {
    /// [`ops::split`]
    ///
    /// # Errors
    /// As the function.
    pub fn split(&self, sizes: impl SplitSizes, dim: impl Int) -> Result<Vec<Tensor>> {
        ops::split(self, sizes, dim)
    }

    /// [`ops::chunk`]
    ///
    /// # Errors
    /// As the function.
    pub fn chunk(&self, n: usize, dim: impl Int) -> Result<Vec<Tensor>> {
        ops::chunk(self, n, dim)
    }

    /// [`ops::unbind`]
    ///
    /// # Errors
    /// As the function.
    pub fn unbind(&self, dim: impl Int) -> Result<Vec<Tensor>> {
        ops::unbind(self, dim)
    }

    /// [`ops::concat`]
    ///
    /// # Errors
    /// As the function.
    pub fn cat<T: Borrow<Tensor>>(tensors: &[T], dim: impl Int) -> Result<Tensor> {
        ops::concat(tensors, dim)
    }

    /// [`ops::stack`]
    ///
    /// # Errors
    /// As the function.
    pub fn stack<T: Borrow<Tensor>>(tensors: &[T], dim: impl Int) -> Result<Tensor> {
        ops::stack(tensors, dim)
    }

    /// [`ops::sort`]
    ///
    /// # Errors
    /// As the function.
    pub fn sort(&self, dim: impl Int, descending: bool) -> Result<(Tensor, Tensor)> {
        ops::sort(self, dim, descending)
    }

    /// [`ops::topk`]
    ///
    /// # Errors
    /// As the function.
    pub fn topk(&self, k: usize, dim: impl Int, largest: bool) -> Result<(Tensor, Tensor)> {
        ops::topk(self, k, dim, largest)
    }

    /// The size of a dim.
    ///
    /// # Errors
    /// A dim that it does not have.
    pub fn size(&self, dim: impl Int) -> Result<usize> {
        Ok(self.sizes()[dim_of("size", self, dim)?])
    }

    /// The number of dims.
    pub fn n_dims(&self) -> usize {
        self.sizes().len()
    }

    /// The sizes of its dims, where there are `N`: `let [batch, seq, dim] = x.dims()?;`
    ///
    /// # Errors
    /// Another number of dims.
    pub fn dims<const N: usize>(&self) -> Result<[usize; N]> {
        self.sizes().try_into().map_err(|_| ops::wrong_shape("dims", format!("{N} dims"), self))
    }
}
