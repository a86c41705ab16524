//! Sums, means, products, maxima and minima, over dims or over all elements.

use oarlock_cuda::driver::Slice;
use oarlock_cuda::geometry;
use oarlock_kernels::reduce::{self as kernel, Dims as Middle, Extreme};
use oarlock_kernels::{DType, Element, Error, Result, Store};

use crate::cuda::{FormError, Kernels, forms, indexed};
use crate::dims::{Dims, dim_of, dims_of};
use crate::ints::Int;
use crate::ops::{beside, layout, reshape, with_float};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// The sum along the dims, which go away. The sum of integers is an integer.
///
/// # Errors
/// A dim that x does not have, or a sum of integers outside of the range of i32.
pub fn sum(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
    scaled_sum(x, &dims_of("sum", x, dims)?, 1.0)
}

/// The mean along the dims, which go away.
///
/// # Errors
/// A dim that x does not have, dims without an element, or a tensor of integers.
pub fn mean(x: &Tensor, dims: impl Dims) -> Result<Tensor> {
    let dims = dims_of("mean", x, dims)?;
    let n = count("mean", x, &dims)?;
    if !x.dtype().is_float() {
        return Err(Error::DType { op: "mean", expected: "a float tensor", got: x.dtype() });
    }
    scaled_sum(x, &dims, 1.0 / n as f32)
}

/// The largest element along a dim, which goes away. The gradient goes to the first of equals; NaN is the largest.
///
/// # Errors
/// A dim that x does not have or without an element.
pub fn max(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    extreme("max", x, dim, Extreme::Max)
}

/// The smallest element along a dim, which goes away. The gradient goes to the first of equals; NaN is the smallest.
///
/// # Errors
/// As [`max`].
pub fn min(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    extreme("min", x, dim, Extreme::Min)
}

/// The place (i32) of the largest element along a dim, which goes away: the first of equals. No gradient flows through it.
///
/// # Errors
/// As [`max`].
pub fn argmax(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("argmax", x, dim)?;
    Ok(beside(&[x], found("argmax", x, dim, Extreme::Max)?.1))
}

/// The place (i32) of the smallest element along a dim, as [`argmax`].
///
/// # Errors
/// As [`max`].
pub fn argmin(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("argmin", x, dim)?;
    Ok(beside(&[x], found("argmin", x, dim, Extreme::Min)?.1))
}

/// The product along a dim, which goes away.
///
/// # Errors
/// A dim that x does not have, or a tensor of integers.
pub fn prod(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("prod", x, dim)?;
    let recorder = Recorder::new(&[x], &[])?;
    let mut y = Tensor::uninit(without(x.shape(), &[dim])?, x.dtype(), x.device(), "activation")?;
    let dims = middle(x.shape(), dim);
    let mut launch = x.device().launch("prod", 0, x.len_bytes() as u64);
    with_float!(x.dtype(), "prod", T => {
        let (x, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.run(move |cpu| kernel::prod(cpu, dims, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(Recorder::record(recorder, y, |recorder| ProdBackward { x: recorder.save(x), dims }))
}

macro_rules! forms {
    ($($name:ident, $kept:ident, $all:ident, $Dims:ident;)*) => {
        $(
            #[doc = concat!("[`", stringify!($name), "`], where the dims stay with size 1.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "`].")]
            pub fn $kept(x: &Tensor, dims: impl $Dims) -> Result<Tensor> {
                let y = $name(x, dims)?;
                keep(stringify!($name), x, dims, &y)
            }

            #[doc = concat!("[`", stringify!($name), "`] of all elements: a scalar.")]
            ///
            /// # Errors
            #[doc = concat!("As [`", stringify!($name), "`].")]
            pub fn $all(x: &Tensor) -> Result<Tensor> {
                $name(&reshape(x, [x.n_elems()])?, 0)
            }
        )*
    };
}

forms! {
    sum, sum_keepdim, sum_all, Dims;
    mean, mean_keepdim, mean_all, Dims;
    max, max_keepdim, max_all, Int;
    min, min_keepdim, min_all, Int;
    prod, prod_keepdim, prod_all, Int;
}

/// y, the result of a reduction of x over dims that went away, with size 1 in their place.
pub(crate) fn keep(op: &'static str, x: &Tensor, dims: impl Dims, y: &Tensor) -> Result<Tensor> {
    reshape(y, ones_at(x.shape(), &dims_of(op, x, dims)?)?)
}

/// The number of elements that a reduction over these dims joins, which is not 0.
pub(crate) fn count(op: &'static str, x: &Tensor, dims: &[usize]) -> Result<usize> {
    if let Some(dim) = dims.iter().find(|dim| x.sizes()[**dim] == 0) {
        return Err(Error::Shape {
            op,
            expected: format!("at least one element along dim {dim}"),
            got: format!("{:?}", x.shape()),
        });
    }
    Ok(dims.iter().map(|dim| x.sizes()[*dim]).product())
}

fn middle(shape: &Shape, dim: usize) -> Middle {
    let sizes = shape.sizes();
    Middle { outer: sizes[..dim].iter().product(), n: sizes[dim], inner: sizes[dim + 1..].iter().product() }
}

/// The shape without these dims.
pub(crate) fn without(shape: &Shape, dims: &[usize]) -> Result<Shape> {
    let rest = shape.sizes().iter().enumerate().filter(|(d, _)| !dims.contains(d));
    Shape::new(&rest.map(|(_, size)| *size).collect::<Vec<_>>())
}

fn ones_at(shape: &Shape, dims: &[usize]) -> Result<Shape> {
    let mut sizes = shape.sizes().to_vec();
    dims.iter().for_each(|dim| sizes[*dim] = 1);
    Shape::new(&sizes)
}

fn scaled_sum(x: &Tensor, dims: &[usize], scale: f32) -> Result<Tensor> {
    let (shape, ones) = (without(x.shape(), dims)?, ones_at(x.shape(), dims)?);
    if x.dtype() == DType::I32 {
        let y = joined(x, &ones, |x, dims, shape, _| sum_ints(x, dims, shape))?;
        return Ok(beside(&[x], y.view(0, shape)));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = match *dims {
        [dim] => sum_dims(x, middle(x.shape(), dim), shape, x.dtype(), scale)?,
        _ => scaled_sum_to(x, &ones, scale)?.view(0, shape),
    };
    Ok(Recorder::record(recorder, y, |_| SumBackward { ones, shape: *x.shape(), scale }))
}

/// scale · the sum of x over the middle of `dims`, not recorded.
fn sum_dims(x: &Tensor, dims: Middle, shape: Shape, dtype: DType, scale: f32) -> Result<Tensor> {
    let mut y = Tensor::uninit(shape, dtype, x.device(), "activation")?;
    let mut launch = x.device().launch("sum", 0, x.len_bytes() as u64);
    let scratch = launch.scratch(kernel::sum_scratch(dims))?;
    with_float!(x.dtype(), "sum", T => with_float!(dtype, "sum", U => {
        let (x, y) = (launch.read::<T>(x)?, launch.write::<U>(&mut y)?);
        launch.cuda(|gpu| {
            forms::sum(gpu, (gpu.slice(&x)?, T::DTYPE), dims, scale, (gpu.slice(&y)?, U::DTYPE))
        })?;
        launch.run(move |cpu| {
            kernel::sum(cpu, dims, scale, x.slice(cpu), (y.slice(cpu), Store::Overwrite), scratch.slice(cpu));
        })
    }))?;
    Ok(y)
}

/// The most integers of 32 bits whose sum f64 holds exactly.
const MOST_SUMMED_INTS: usize = 1 << 22;

/// The same for integers.
fn sum_ints(x: &Tensor, dims: Middle, shape: Shape) -> Result<Tensor> {
    let mut y = Tensor::uninit(shape, DType::I32, x.device(), "activation")?;
    let mut launch = x.device().launch("sum", 0, x.len_bytes() as u64);
    let scratch = launch.scratch(y.n_elems())?;
    let n_sums = y.n_elems();
    let (from, to) = (launch.read::<i32>(x)?, launch.write::<i32>(&mut y)?);
    launch.cuda(|gpu| {
        let Middle { outer, n, inner } = dims;
        // What f64 holds exactly.
        if n > MOST_SUMMED_INTS {
            return Err(FormError::NoForm);
        }
        let grid = if inner == 1 { geometry::losses(outer) } else { geometry::elements(outer * inner) };
        let outside = indexed::first_position(gpu, n_sums, grid, |positions, grid| {
            let call = gpu.kernel("sum_ints", &[])?.view(&from).view(&to).slice(positions);
            call.u32(outer).u32(n).u32(inner).run(grid)
        })?;
        let outside = outside.map(|place| {
            let what = format!("sum {place} of integers is outside of the range of i32; cast to f32 first");
            Error::Usage(what).into()
        });
        outside.map_or(Ok(()), Err)
    })?;
    launch.run(move |cpu| kernel::sum_ints(cpu, dims, from.slice(cpu), to.slice(cpu), scratch.slice(cpu)))?;
    Ok(y)
}

/// The sum of `x` over what `shape` was spread over to become its shape; between two sums it is f32. Not recorded.
pub(crate) fn sum_to(x: &Tensor, shape: &Shape) -> Result<Tensor> {
    scaled_sum_to(x, shape, 1.0)
}

/// The same, times `scale`; where nothing is summed that is 1.
fn scaled_sum_to(x: &Tensor, shape: &Shape, scale: f32) -> Result<Tensor> {
    joined(x, shape, |sum, dims, less, is_last| match is_last {
        true => sum_dims(sum, dims, less, x.dtype(), scale),
        false => sum_dims(sum, dims, less, DType::F32, 1.0),
    })
}

/// Joins the elements of `x` over what `shape` was spread over to become its shape: `join` gets what has been joined so
/// far, the dims beside each other that are joined next, the shape without them, and whether they are the last ones.
fn joined(
    x: &Tensor,
    shape: &Shape,
    join: impl Fn(&Tensor, Middle, Shape, bool) -> Result<Tensor>,
) -> Result<Tensor> {
    let missing = x.sizes().len() - shape.sizes().len();
    let kept = |d: usize| d.checked_sub(missing).map_or(1, |d| shape.sizes()[d]);
    let mut sum = x.detach();
    while let Some(first) = (0..sum.sizes().len()).find(|&d| sum.sizes()[d] != kept(d)) {
        let sizes = sum.sizes().to_vec();
        let end = (first..sizes.len()).find(|&d| kept(d) != 1).unwrap_or(sizes.len());
        let product = |sizes: &[usize]| sizes.iter().product();
        let dims = Middle {
            outer: product(&sizes[..first]),
            n: product(&sizes[first..end]),
            inner: product(&sizes[end..]),
        };
        let mut less = sizes.clone();
        less[first..end].fill(1);
        let is_last = (end..sizes.len()).all(|d| sizes[d] == kept(d));
        sum = join(&sum, dims, Shape::new(&less)?, is_last)?;
    }
    Ok(sum.view(0, *shape))
}

struct SumBackward {
    /// The shape of x with size 1 for what was summed.
    ones: Shape,
    shape: Shape,
    scale: f32,
}

impl Function for SumBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let dy = match self.scale {
            1.0 => dy.detach(),
            scale => crate::ops::scale(&dy.detach(), scale)?,
        };
        cx.give(0, layout::spread(&dy.view(0, self.ones), &self.shape, "gradient")?)
    }
}

fn extreme(op: &'static str, x: &Tensor, dim: impl Int, which: Extreme) -> Result<Tensor> {
    let dim = dim_of(op, x, dim)?;
    let recorder = Recorder::new(&[x], &[])?;
    let (y, places) = found(op, x, dim, which)?;
    if !y.dtype().is_float() {
        return Ok(beside(&[x], y));
    }
    Ok(Recorder::record(recorder, y, |_| ExtremeBackward { places, dim, shape: *x.shape() }))
}

/// The extreme elements along a dim and their places.
fn found(op: &'static str, x: &Tensor, dim: usize, which: Extreme) -> Result<(Tensor, Tensor)> {
    count(op, x, &[dim])?;
    let shape = without(x.shape(), &[dim])?;
    let mut y = Tensor::uninit(shape, x.dtype(), x.device(), "activation")?;
    let mut places = Tensor::uninit(shape, DType::I32, x.device(), "indices")?;
    let dims = middle(x.shape(), dim);
    let mut launch = x.device().launch(op, 0, x.len_bytes() as u64);
    let dtype = x.dtype();
    let form = |gpu: &Kernels<'_>, x: Slice<'_>, [y, places]: [Slice<'_>; 2]| {
        let call = gpu.kernel("extreme", &[dtype])?.u32(usize::from(matches!(which, Extreme::Min)));
        let call = call.slice(x).slice(y).slice(places).u32(dims.outer).u32(dims.n).u32(dims.inner);
        call.run(geometry::elements(dims.outer * dims.inner))
    };
    if dtype == DType::I32 {
        let (x, y, places) = (launch.read(x)?, launch.write(&mut y)?, launch.write(&mut places)?);
        launch.cuda(|gpu| form(gpu, gpu.slice(&x)?, [gpu.slice(&y)?, gpu.slice(&places)?]))?;
        launch.run(move |cpu| {
            kernel::extreme_ints(cpu, which, dims, x.slice(cpu), y.slice(cpu), places.slice(cpu));
        })?;
    } else {
        with_float!(dtype, op, T => {
            let (x, y, places) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?, launch.write(&mut places)?);
            launch.cuda(|gpu| form(gpu, gpu.slice(&x)?, [gpu.slice(&y)?, gpu.slice(&places)?]))?;
            launch.run(move |cpu| {
                kernel::extreme(cpu, which, dims, x.slice(cpu), y.slice(cpu), places.slice(cpu));
            })
        })?;
    }
    Ok((y, places))
}

struct ExtremeBackward {
    places: Tensor,
    dim: usize,
    shape: Shape,
}

impl Function for ExtremeBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut dx = Tensor::zeros(self.shape, dy.dtype(), dy.device())?;
        let dims = middle(&self.shape, self.dim);
        let mut launch = dy.device().launch("max backward", 0, dx.len_bytes() as u64);
        with_float!(dy.dtype(), "max", T => {
            let (places, dy) = (launch.read::<i32>(&self.places)?, launch.read::<T>(&dy)?);
            let dx = launch.update::<T>(&mut dx)?;
            launch.cuda(|gpu| {
                let (operands, size) = ([gpu.slice(&dy)?, gpu.slice(&dx)?], [dims.outer, dims.n, dims.inner]);
                indexed::put_in_middle(gpu, T::DTYPE, &places, operands, size)
            })?;
            launch.run(move |cpu| {
                kernel::extreme_backward(dims, places.slice(cpu), dy.slice(cpu), dx.slice(cpu));
            })
        })?;
        cx.give(0, dx)
    }
}

struct ProdBackward {
    x: Saved,
    dims: Middle,
}

impl Function for ProdBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (x, dims) = (cx.get(&self.x)?, self.dims);
        let (mut dx, store) = cx.slot_of(0, *x.shape(), &dy)?;
        let mut launch = dy.device().launch("prod backward", 0, 3 * x.len_bytes() as u64);
        let scratch = launch.scratch(x.n_elems())?;
        with_float!(dy.dtype(), "prod", T => {
            let (x, dy) = (launch.read::<T>(&x)?, launch.read::<T>(&dy)?);
            let dx = launch.store::<T>(&mut dx, store)?;
            launch.run(move |cpu| {
                let dx = (dx.slice(cpu), store);
                kernel::prod_backward(cpu, dims, x.slice(cpu), dy.slice(cpu), dx, scratch.slice(cpu));
            })
        })?;
        cx.give(0, dx)
    }
}
