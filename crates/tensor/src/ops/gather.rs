//! Elements by their index along a dim, and the way back: gather and scatter.
//!
//! Sums are made in f32, in the order of the indices, and rounded once.

use oarlock_kernels::indexed::{self as kernel, Along};
use oarlock_kernels::walk::Walk;
use oarlock_kernels::{DType, Element, Result};

use crate::cuda::{Form, Kernels, indexed};
use crate::ints::Int;
use crate::launch::View;
use crate::ops::cast::converted;
use crate::ops::{
    check_device, check_dtype, check_indices, dim_of, expand, narrow, with_float, with_word, wrong_shape,
};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// `y[i][j] = x[index[i][j]][j]` for dim 0 of a matrix, and so for each dim: an element of x for each index (i32). The
/// index has as many dims as x, none larger but `dim`.
///
/// # Errors
/// [`Error::Index`](crate::Error::Index) for an index outside of the dim; shapes or dtypes that do not fit.
pub fn gather(x: &Tensor, dim: impl Int, index: &Tensor) -> Result<Tensor> {
    gather_as("gather", x, dim, index, Indices::Given)
}

/// As [`gather`], by indices that an op has made and that are inside.
pub(crate) fn gather_made(x: &Tensor, dim: usize, index: &Tensor) -> Result<Tensor> {
    gather_as("gather", x, dim, index, Indices::Made)
}

fn gather_as(
    op: &'static str,
    x: &Tensor,
    dim: impl Int,
    index: &Tensor,
    indices: Indices,
) -> Result<Tensor> {
    let dim = check(op, x, dim, index)?;
    let recorder = Recorder::new(&[x, index], &[])?;
    let along = Places { op, dim, index: index.detach(), data: *x.shape(), indices };
    let y = along.read(x)?;
    Ok(Recorder::record(recorder, y, |_| GatherBackward { along }))
}

/// As [`gather`], where x and the index broadcast in the dims beside `dim`.
///
/// # Errors
/// As [`gather`].
pub fn take_along_dim(x: &Tensor, index: &Tensor, dim: impl Int) -> Result<Tensor> {
    let op = "take_along_dim";
    let dim = dim_of(op, x, dim)?;
    if index.sizes().len() != x.sizes().len() {
        return Err(wrong_shape(op, format!("an index with the dims of {:?}", x.shape()), index));
    }
    let spread = |tensor: &Tensor, other: &Tensor| {
        let wider =
            |(d, (&own, &other)): (usize, (&usize, &usize))| if d != dim && own == 1 { other } else { own };
        let sizes = tensor.sizes().iter().zip(other.sizes()).enumerate().map(wider);
        expand(tensor, sizes.collect::<Vec<_>>())
    };
    gather_as(op, &spread(x, index)?, dim, &spread(index, x)?, Indices::Given)
}

/// x with `source` at the places of the index, as [`gather`] reads them. Of several values for one place the last stays,
/// and it alone gets a gradient.
///
/// # Errors
/// As [`gather`]; a source that is smaller than the index.
pub fn scatter(x: &Tensor, dim: impl Int, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let dim = check("scatter", x, dim, index)?;
    let source = &fitting("scatter", x, index, source)?;
    let recorder = Recorder::new(&[x, index, source], &[])?;
    let along =
        Places { op: "scatter", dim, index: index.detach(), data: *x.shape(), indices: Indices::Given };
    let y = along.write(x, source)?;
    Ok(Recorder::record(recorder, y, |_| ScatterBackward { along }))
}

/// x plus `source` at the places of the index, as [`gather`] reads them.
///
/// # Errors
/// As [`scatter`].
pub fn scatter_add(x: &Tensor, dim: impl Int, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let dim = check("scatter_add", x, dim, index)?;
    let source = &fitting("scatter_add", x, index, source)?;
    let recorder = Recorder::new(&[x, index, source], &[])?;
    let along =
        Places { op: "scatter_add", dim, index: index.detach(), data: *x.shape(), indices: Indices::Given };
    let y = along.add(sum_from(x)?, source, x.dtype(), Indices::Given)?;
    Ok(Recorder::record(recorder, y, |_| ScatterAddBackward { along }))
}

/// A copy to add to: f32 where the elements are rounded to less.
pub(crate) fn sum_from(x: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::BF16 | DType::F16 => converted(x, DType::F32, "activation"),
        _ => x.copied("activation"),
    }
}

/// The sum that was made from a copy, in the dtype of the elements.
pub(crate) fn rounded(sum: Tensor, dtype: DType) -> Result<Tensor> {
    if sum.dtype() == dtype { Ok(sum) } else { converted(&sum, dtype, "activation") }
}

/// The dim, where x and the index fit.
fn check(op: &'static str, x: &Tensor, dim: impl Int, index: &Tensor) -> Result<usize> {
    check_indices(op, x, index)?;
    let dim = dim_of(op, x, dim)?;
    let fits = |(d, (index, x)): (usize, (&usize, &usize))| d == dim || index <= x;
    let same = index.sizes().len() == x.sizes().len();
    if !same || !index.sizes().iter().zip(x.sizes()).enumerate().all(fits) {
        let expected = format!("an index with the dims of {:?}, none larger but dim {dim}", x.shape());
        return Err(wrong_shape(op, expected, index));
    }
    Ok(dim)
}

/// The part of the source that the index is for.
fn fitting(op: &'static str, x: &Tensor, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    check_device(op, x, &[source])?;
    check_dtype(op, x, source)?;
    let same = source.sizes().len() == index.sizes().len();
    if !same || source.sizes().iter().zip(index.sizes()).any(|(source, index)| source < index) {
        return Err(wrong_shape(
            op,
            format!("a source of at least {:?}, as the index", index.shape()),
            source,
        ));
    }
    let mut parts = index.sizes().iter().enumerate();
    parts.try_fold(source.clone(), |source, (dim, &size)| narrow(&source, dim, 0..size))
}

/// Where indices come from: a GPU does not look at those again that an op has made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Indices {
    Given,
    Made,
}

/// The places in data of this shape that an index names.
struct Places {
    op: &'static str,
    dim: usize,
    index: Tensor,
    data: Shape,
    indices: Indices,
}

impl Places {
    /// How far the places lie apart along each dim of the index, but for the index's own part, and the elements from one
    /// index to the next.
    fn strides(&self) -> (Vec<usize>, usize) {
        let data = self.data.sizes();
        let mut strides: Vec<usize> = (0..data.len()).map(|d| data[d + 1..].iter().product()).collect();
        let step = std::mem::take(&mut strides[self.dim]);
        (strides, step)
    }

    /// Runs `f` on a GPU, when indices of unknown origin were looked at.
    fn form(
        &self,
        gpu: &Kernels<'_>,
        ids: &View<i32>,
        indices: Indices,
        f: impl FnOnce(indexed::Places<'_>) -> Form,
    ) -> Form {
        let (strides, step) = self.strides();
        if indices == Indices::Given {
            indexed::check(gpu, self.op, ids, self.index.n_elems(), self.data.sizes()[self.dim])?;
        }
        let sizes = self.index.sizes();
        f(indexed::Places { sizes, strides: &strides, step, n_data: self.data.n_elems() })
    }

    /// The same for kernels, which find independent blocks in the dims before `dim` where these agree.
    fn along(&self, may_be_blocks: bool) -> Along {
        let (data, index, dim) = (self.data.sizes(), self.index.sizes(), self.dim);
        let (strides, step) = self.strides();
        let outer = if may_be_blocks && data[..dim] == index[..dim] { dim } else { 0 };
        let walk = Walk::new(&index[outer..], [&strides[outer..]]);
        Along { op: self.op, n_blocks: index[..outer].iter().product(), walk, n: data[dim], step }
    }

    fn read(&self, x: &Tensor) -> Result<Tensor> {
        self.read_by(x, self.indices)
    }

    fn read_by(&self, x: &Tensor, indices: Indices) -> Result<Tensor> {
        let dtype = x.dtype();
        let mut y = Tensor::uninit(*self.index.shape(), x.dtype(), x.device(), "activation")?;
        let along = self.along(false);
        let mut launch = x.device().launch(self.op, 0, 2 * y.len_bytes() as u64);
        with_word!(x.dtype(), W => {
            let (x, ids) = (launch.read_words::<W>(x)?, launch.read::<i32>(&self.index)?);
            let y = launch.write_words::<W>(&mut y)?;
            launch.cuda(|gpu| {
                let operands = [gpu.slice(&x)?, gpu.slice(&y)?];
                self.form(gpu, &ids, indices, |places| places.gather(gpu, dtype, &ids, operands))
            })?;
            launch.run(move |cpu| kernel::gather(cpu, &along, x.slice(cpu), ids.slice(cpu), y.slice(cpu)))
        })?;
        Ok(y)
    }

    fn write(&self, x: &Tensor, source: &Tensor) -> Result<Tensor> {
        let (mut y, dtype) = (x.copied("activation")?, x.dtype());
        let along = self.along(true);
        let mut launch = x.device().launch(self.op, 0, 2 * source.len_bytes() as u64);
        with_word!(x.dtype(), W => {
            let (source, ids) = (launch.read_words::<W>(source)?, launch.read::<i32>(&self.index)?);
            let y = launch.update_words::<W>(&mut y)?;
            launch.cuda(|gpu| {
                let operands = [gpu.slice(&source)?, gpu.slice(&y)?];
                self.form(gpu, &ids, self.indices, |places| places.scatter(gpu, dtype, &ids, operands))
            })?;
            launch.run(move |cpu| kernel::scatter(cpu, &along, source.slice(cpu), ids.slice(cpu), y.slice(cpu)))
        })?;
        Ok(y)
    }

    /// `sum` with the source added, rounded to `dtype`.
    fn add(&self, mut sum: Tensor, source: &Tensor, dtype: DType, indices: Indices) -> Result<Tensor> {
        let along = self.along(true);
        let mut launch = source.device().launch(self.op, 0, 2 * source.len_bytes() as u64);
        let ids = launch.read::<i32>(&self.index)?;
        if dtype == DType::I32 {
            let (source, sum) = (launch.read::<i32>(source)?, launch.update::<i32>(&mut sum)?);
            launch.cuda(|gpu| {
                let operands = [gpu.slice(&source)?, gpu.slice(&sum)?];
                self.form(gpu, &ids, indices, |places| places.add(gpu, dtype, &ids, operands))
            })?;
            launch.run(move |cpu| {
                kernel::scatter_add_ints(cpu, &along, source.slice(cpu), ids.slice(cpu), sum.slice(cpu))
            })?;
        } else {
            with_float!(source.dtype(), self.op, T => {
                let (source, sum) = (launch.read::<T>(source)?, launch.update::<f32>(&mut sum)?);
                launch.cuda(|gpu| {
                    let operands = [gpu.slice(&source)?, gpu.slice(&sum)?];
                    self.form(gpu, &ids, indices, |places| places.add(gpu, T::DTYPE, &ids, operands))
                })?;
                launch.run(move |cpu| {
                    kernel::scatter_add(cpu, &along, source.slice(cpu), ids.slice(cpu), sum.slice(cpu))
                })
            })?;
        }
        rounded(sum, dtype)
    }
}

struct GatherBackward {
    along: Places,
}

impl Function for GatherBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let zeros = Tensor::zeros(self.along.data, DType::F32, dy.device())?;
        cx.give(0, self.along.add(zeros, &dy, dy.dtype(), Indices::Made)?)
    }
}

struct ScatterBackward {
    along: Places,
}

impl Function for ScatterBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut dx = dy.copied("gradient")?;
        let index = &self.along.index;
        let mut d_source = Tensor::uninit(*index.shape(), dy.dtype(), dy.device(), "gradient")?;
        let (along, dtype) = (self.along.along(true), dy.dtype());
        let mut launch = dy.device().launch("scatter backward", 0, 2 * d_source.len_bytes() as u64);
        with_word!(dy.dtype(), W => {
            let (ids, dx) = (launch.read::<i32>(index)?, launch.update_words::<W>(&mut dx)?);
            let d_source = launch.write_words::<W>(&mut d_source)?;
            launch.cuda(|gpu| {
                let operands = [gpu.slice(&dx)?, gpu.slice(&d_source)?];
                let f = |places: indexed::Places<'_>| places.scatter_backward(gpu, dtype, &ids, operands);
                self.along.form(gpu, &ids, Indices::Made, f)
            })?;
            launch.run(move |cpu| {
                kernel::scatter_backward(&along, ids.slice(cpu), dx.slice(cpu), d_source.slice(cpu))
            })
        })?;
        cx.give(0, dx)?;
        cx.give(2, d_source)
    }
}

struct ScatterAddBackward {
    along: Places,
}

impl Function for ScatterAddBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if cx.needs(2) {
            cx.give(2, self.along.read_by(&dy, Indices::Made)?)?;
        }
        cx.give(0, dy)
    }
}
