//! Sums, means and maxima, over one dim or over all elements.

use crate::cpu::Store;
use crate::cpu::reduce::{self as kernel, Dims};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::{check_dim, layout, reshape, unsqueeze, with_float};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The sum along a dim, which goes away.
///
/// # Errors
/// A dim that x does not have, or a tensor of integers.
pub fn sum(x: &Tensor, dim: usize) -> Result<Tensor> {
    check_dim("sum", x, dim)?;
    scaled_sum(x, dim, 1.0)
}

/// The sum along a dim, which stays with size 1.
///
/// # Errors
/// As [`sum`].
pub fn sum_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    unsqueeze(&sum(x, dim)?, dim)
}

/// The sum of all elements: a scalar.
///
/// # Errors
/// A tensor of integers.
pub fn sum_all(x: &Tensor) -> Result<Tensor> {
    sum(&flat(x)?, 0)
}

/// The mean along a dim, which goes away.
///
/// # Errors
/// As [`sum`], and a dim of size 0.
pub fn mean(x: &Tensor, dim: usize) -> Result<Tensor> {
    check_dim("mean", x, dim)?;
    not_empty("mean", x, dim)?;
    scaled_sum(x, dim, 1.0 / x.sizes()[dim] as f32)
}

/// The mean along a dim, which stays with size 1.
///
/// # Errors
/// As [`mean`].
pub fn mean_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    unsqueeze(&mean(x, dim)?, dim)
}

/// The mean of all elements: a scalar.
///
/// # Errors
/// As [`mean`].
pub fn mean_all(x: &Tensor) -> Result<Tensor> {
    mean(&flat(x)?, 0)
}

/// The largest element along a dim, which goes away. The gradient goes to the first of equals; NaN is the largest.
///
/// # Errors
/// As [`mean`].
pub fn max(x: &Tensor, dim: usize) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let (y, places) = largest("max", x, dim)?;
    Ok(Recorder::record(recorder, y, |_| MaxBackward { places, dim, shape: *x.shape() }))
}

/// The largest element along a dim, which stays with size 1.
///
/// # Errors
/// As [`mean`].
pub fn max_keepdim(x: &Tensor, dim: usize) -> Result<Tensor> {
    unsqueeze(&max(x, dim)?, dim)
}

/// The largest of all elements: a scalar.
///
/// # Errors
/// As [`mean`].
pub fn max_all(x: &Tensor) -> Result<Tensor> {
    max(&flat(x)?, 0)
}

/// The place (i32) of the largest element along a dim, which goes away: the first of equals. Not recorded.
///
/// # Errors
/// As [`mean`].
pub fn argmax(x: &Tensor, dim: usize) -> Result<Tensor> {
    Ok(largest("argmax", x, dim)?.1)
}

fn flat(x: &Tensor) -> Result<Tensor> {
    reshape(x, [x.n_elems()])
}

fn not_empty(op: &'static str, x: &Tensor, dim: usize) -> Result<()> {
    if x.sizes()[dim] > 0 {
        return Ok(());
    }
    Err(Error::Shape {
        op,
        expected: format!("at least one element along dim {dim}"),
        got: format!("{:?}", x.shape()),
    })
}

fn dims_of(shape: &Shape, dim: usize) -> Dims {
    let sizes = shape.sizes();
    Dims { outer: sizes[..dim].iter().product(), n: sizes[dim], inner: sizes[dim + 1..].iter().product() }
}

fn without(shape: &Shape, dim: usize) -> Result<Shape> {
    let mut sizes = shape.sizes().to_vec();
    sizes.remove(dim);
    Shape::new(&sizes)
}

fn scaled_sum(x: &Tensor, dim: usize, scale: f32) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let y = sum_dims(x, dims_of(x.shape(), dim), without(x.shape(), dim)?, x.dtype(), scale)?;
    Ok(Recorder::record(recorder, y, |_| SumBackward { dim, shape: *x.shape(), scale }))
}

/// scale · the sum of x over the middle of `dims`, not recorded.
fn sum_dims(x: &Tensor, dims: Dims, shape: Shape, dtype: DType, scale: f32) -> Result<Tensor> {
    let mut y = Tensor::uninit(shape, dtype, x.device(), "activation")?;
    let mut launch = x.device().launch("sum", 0, x.len_bytes() as u64);
    let scratch = launch.scratch(kernel::sum_scratch(dims))?;
    with_float!(x.dtype(), "sum", T => with_float!(dtype, "sum", U => {
        let (x, y) = (launch.read::<T>(x)?, launch.write::<U>(&mut y)?);
        launch.run(move |cpu| {
            kernel::sum(cpu, dims, scale, x.slice(cpu), (y.slice(cpu), Store::Overwrite), scratch.slice(cpu));
        })
    }))?;
    Ok(y)
}

/// The sum of `x` over what `shape` was spread over to become its shape; between two sums it is f32. Not recorded.
pub(crate) fn sum_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    let missing = x.sizes().len() - shape.sizes().len();
    let kept = |d: usize| d.checked_sub(missing).map_or(1, |d| shape.sizes()[d]);
    let mut sum = x.detach();
    while let Some(first) = (0..sum.sizes().len()).find(|&d| sum.sizes()[d] != kept(d)) {
        let sizes = sum.sizes().to_vec();
        let end = (first..sizes.len()).find(|&d| kept(d) != 1).unwrap_or(sizes.len());
        let product = |sizes: &[usize]| sizes.iter().product();
        let dims = Dims {
            outer: product(&sizes[..first]),
            n: product(&sizes[first..end]),
            inner: product(&sizes[end..]),
        };
        let mut less = sizes.clone();
        less[first..end].fill(1);
        let last = (end..sizes.len()).all(|d| sizes[d] == kept(d));
        let dtype = if last { x.dtype() } else { DType::F32 };
        sum = sum_dims(&sum, dims, Shape::new(&less)?, dtype, 1.0)?;
    }
    Ok(sum.view(0, *shape))
}

struct SumBackward {
    dim: usize,
    shape: Shape,
    scale: f32,
}

impl Function for SumBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, spread(&dy, self.dim, &self.shape, self.scale)?)
    }
}

/// scale · dy, repeated along `dim` of `shape`.
fn spread(dy: &Tensor, dim: usize, shape: &Shape, scale: f32) -> Result<Tensor> {
    let mut sizes = shape.sizes().to_vec();
    sizes[dim] = 1;
    let dy = match scale {
        1.0 => dy.detach(),
        _ => crate::ops::scale(&dy.detach(), scale)?,
    };
    layout::spread(&dy.view(0, Shape::new(&sizes)?), shape, "gradient")
}

fn largest(op: &'static str, x: &Tensor, dim: usize) -> Result<(Tensor, Tensor)> {
    check_dim(op, x, dim)?;
    not_empty(op, x, dim)?;
    let shape = without(x.shape(), dim)?;
    let mut y = Tensor::uninit(shape, x.dtype(), x.device(), "activation")?;
    let mut places = Tensor::uninit(shape, DType::I32, x.device(), "indices")?;
    let dims = dims_of(x.shape(), dim);
    let mut launch = x.device().launch(op, 0, x.len_bytes() as u64);
    with_float!(x.dtype(), op, T => {
        let (x, y, places) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?, launch.write::<i32>(&mut places)?);
        launch.run(move |cpu| kernel::max(cpu, dims, x.slice(cpu), y.slice(cpu), places.slice(cpu)))
    })?;
    Ok((y, places))
}

struct MaxBackward {
    places: Tensor,
    dim: usize,
    shape: Shape,
}

impl Function for MaxBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut dx = Tensor::zeros(self.shape, dy.dtype(), dy.device())?;
        let dims = dims_of(&self.shape, self.dim);
        let mut launch = dy.device().launch("max backward", 0, dx.len_bytes() as u64);
        with_float!(dy.dtype(), "max", T => {
            let (places, dy) = (launch.read::<i32>(&self.places)?, launch.read::<T>(&dy)?);
            let dx = launch.update::<T>(&mut dx)?;
            launch.run(move |cpu| kernel::max_backward(dims, places.slice(cpu), dy.slice(cpu), dx.slice(cpu)))
        })?;
        cx.give(0, dx)
    }
}
