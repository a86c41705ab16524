//! Rows of a tensor by index, and sums of rows at an index; for a table of parameters there is
//! [`embedding`](crate::ops::embedding).

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::indexed as kernel;
use oarlock_kernels::reduce::Dims;
use oarlock_kernels::{DType, Element, Result};

use crate::cuda::{Form, Kernels, indexed};
use crate::ints::Int;
use crate::launch::View;
use crate::ops::gather::{rounded, sum_from};
use crate::ops::{check_device, check_dtype, check_indices, dim_of, with_float, with_word, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// What lies at each index (i32) of a dim, in the order of the indices. The dim becomes the dims of the index; a scalar
/// counts as one index. Gradients of what is taken more than once are added in the order of the indices, in f32.
///
/// # Errors
/// [`Error::Index`](crate::Error::Index) for an index outside of the dim; a dim that x does not have.
pub fn index_select(x: &Tensor, dim: impl Int, index: &Tensor) -> Result<Tensor> {
    let op = "index_select";
    check_indices(op, x, index)?;
    let dim = dim_of(op, x, dim)?;
    let recorder = Recorder::new(&[x, index], &[])?;
    let rows = Rows { op, dim, index: index.detach(), data: *x.shape() };
    let y = rows.read(x)?;
    Ok(Recorder::record(recorder, y, |_| IndexSelectBackward { rows }))
}

/// x with `source[j]` added at the index `index[j]` of a dim, for each j, in order and in f32.
///
/// # Errors
/// As [`index_select`]; a source of another shape than [`index_select`] would give.
pub fn index_add(x: &Tensor, dim: impl Int, index: &Tensor, source: &Tensor) -> Result<Tensor> {
    let op = "index_add";
    check_indices(op, x, index)?;
    check_device(op, x, &[source])?;
    check_dtype(op, x, source)?;
    let dim = dim_of(op, x, dim)?;
    let rows = Rows { op, dim, index: index.detach(), data: *x.shape() };
    let shape = rows.shape()?;
    if *source.shape() != shape {
        return Err(wrong_shape(op, format!("a source of shape {shape:?}"), source));
    }
    let recorder = Recorder::new(&[x, index, source], &[])?;
    let y = rows.add(sum_from(x)?, source, x.dtype())?;
    Ok(Recorder::record(recorder, y, |_| IndexAddBackward { rows }))
}

/// The rows of data of this shape that an index names.
struct Rows {
    op: &'static str,
    dim: usize,
    index: Tensor,
    data: Shape,
}

impl Rows {
    /// The shape of the rows.
    fn shape(&self) -> Result<Shape> {
        let (before, after) = (&self.data.sizes()[..self.dim], &self.data.sizes()[self.dim + 1..]);
        let index = if self.index.sizes().is_empty() { &[1] } else { self.index.sizes() };
        Shape::new(&[before, index, after].concat())
    }

    fn dims(&self) -> Dims {
        let sizes = self.data.sizes();
        let product = |sizes: &[usize]| sizes.iter().product();
        Dims {
            outer: product(&sizes[..self.dim]),
            n: sizes[self.dim],
            inner: product(&sizes[self.dim + 1..]),
        }
    }

    fn read(&self, x: &Tensor) -> Result<Tensor> {
        let mut y = Tensor::uninit(self.shape()?, x.dtype(), x.device(), "activation")?;
        let (op, dims, dtype) = (self.op, self.dims(), x.dtype());
        let mut launch = x.device().launch(op, 0, 2 * y.len_bytes() as u64);
        with_word!(dtype, W => {
            let (x, ids) = (launch.read_words::<W>(x)?, launch.read::<i32>(&self.index)?);
            let y = launch.write_words::<W>(&mut y)?;
            launch.cuda(|gpu| {
                let Dims { outer, n, inner } = dims;
                let n_ids = self.index.n_elems();
                indexed::check(gpu, op, &ids, n_ids, n)?;
                let call = gpu.kernel("select_rows", &[dtype])?.view(&x).view(&ids).view(&y);
                let call = call.u32(outer).u32(n).u32(n_ids).u32(inner);
                call.run(geometry::elements(outer * n_ids * inner.next_multiple_of(8)))
            })?;
            launch.run(move |cpu| {
                kernel::select_rows(cpu, op, dims, x.slice(cpu), ids.slice(cpu), y.slice(cpu))
            })
        })?;
        Ok(y)
    }

    /// The same on a GPU, without the rounding.
    fn add_form(&self, gpu: &Kernels<'_>, dtype: DType, ids: &View<i32>, operands: [Slice<'_>; 2]) -> Form {
        let (Dims { outer, n, inner }, n_ids) = (self.dims(), self.index.n_elems());
        indexed::check(gpu, self.op, ids, n_ids, n)?;
        indexed::add_at(gpu, dtype, ids, operands, [outer, n, n_ids, inner])
    }

    /// `sum` with the rows of the source added, rounded to `dtype`.
    fn add(&self, mut sum: Tensor, source: &Tensor, dtype: DType) -> Result<Tensor> {
        let (op, dims) = (self.op, self.dims());
        let mut launch = source.device().launch(op, 0, 2 * source.len_bytes() as u64);
        let ids = launch.read::<i32>(&self.index)?;
        if dtype == DType::I32 {
            let (source, sum) = (launch.read::<i32>(source)?, launch.update::<i32>(&mut sum)?);
            launch.cuda(|gpu| self.add_form(gpu, dtype, &ids, [gpu.slice(&source)?, gpu.slice(&sum)?]))?;
            launch.run(move |cpu| {
                kernel::add_rows_ints(cpu, op, dims, source.slice(cpu), ids.slice(cpu), sum.slice(cpu))
            })?;
        } else {
            with_float!(source.dtype(), op, T => {
                let (source, sum) = (launch.read::<T>(source)?, launch.update::<f32>(&mut sum)?);
                launch.cuda(|gpu| self.add_form(gpu, T::DTYPE, &ids, [gpu.slice(&source)?, gpu.slice(&sum)?]))?;
                launch.run(move |cpu| {
                    kernel::add_rows(cpu, op, dims, source.slice(cpu), ids.slice(cpu), sum.slice(cpu))
                })
            })?;
        }
        rounded(sum, dtype)
    }
}

struct IndexSelectBackward {
    rows: Rows,
}

impl Function for IndexSelectBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let zeros = Tensor::zeros(self.rows.data, DType::F32, dy.device())?;
        cx.give(0, self.rows.add(zeros, &dy, dy.dtype())?)
    }
}

struct IndexAddBackward {
    rows: Rows,
}

impl Function for IndexAddBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        if cx.needs(2) {
            cx.give(2, self.rows.read(&dy)?)?;
        }
        cx.give(0, dy)
    }
}
