//! Dims in another order, and repetition. Tensors are dense, so both are copies.

use oarlock_kernels::copy;
use oarlock_kernels::walk::Walk;
use oarlock_kernels::{Error, Result};

use crate::cuda::forms;
use crate::ints::{Int, Ints, place};
use crate::ops::binary::{broadcast_shape, spread_strides};
use crate::ops::reduce::sum_to;
use crate::ops::{dim_of, reshape, with_word, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The dims in another order: dim `d` of the result is dim `order[d]` of x.
///
/// # Errors
/// An order that does not name each dim once.
pub fn permute(x: &Tensor, order: impl Ints) -> Result<Tensor> {
    let (n_dims, given) = (x.sizes().len(), order.signed());
    let order: Vec<usize> = given.iter().filter_map(|&dim| place(dim, n_dims)).collect();
    if given.len() != n_dims || (0..n_dims).any(|d| !order.contains(&d)) {
        return Err(Error::Usage(format!("permute: {given:?} does not name each of the {n_dims} dims once")));
    }
    if order.is_sorted() {
        return Ok(x.clone());
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = reorder(x, &order)?;
    Ok(Recorder::record(recorder, y, |_| PermuteBackward { order }))
}

/// Two dims exchanged.
///
/// # Errors
/// A dim that x does not have.
pub fn transpose(x: &Tensor, a: impl Int, b: impl Int) -> Result<Tensor> {
    let (a, b) = (dim_of("transpose", x, a)?, dim_of("transpose", x, b)?);
    let mut order: Vec<usize> = (0..x.sizes().len()).collect();
    order.swap(a, b);
    permute(x, order)
}

/// A matrix transposed; a vector or a scalar as it is.
///
/// # Errors
/// More than two dims.
pub fn t(x: &Tensor) -> Result<Tensor> {
    match x.sizes().len() {
        0 | 1 => Ok(x.clone()),
        2 => transpose(x, 0, 1),
        _ => Err(wrong_shape("t", "at most two dims", x)),
    }
}

/// Dim `from` at place `to`; the others keep their order.
///
/// # Errors
/// A dim that x does not have.
pub fn movedim(x: &Tensor, from: impl Int, to: impl Int) -> Result<Tensor> {
    let (from, to) = (dim_of("movedim", x, from)?, dim_of("movedim", x, to)?);
    let mut order: Vec<usize> = (0..x.sizes().len()).collect();
    let dim = order.remove(from);
    order.insert(to, dim);
    permute(x, order)
}

/// x repeated to a shape that it broadcasts to. A size of -1 stays as it is.
///
/// # Errors
/// A shape that x does not broadcast to.
pub fn expand(x: &Tensor, shape: impl Ints) -> Result<Tensor> {
    let given = shape.signed();
    let new = given.len().saturating_sub(x.sizes().len());
    let size = |(d, &size): (usize, &isize)| match size {
        -1 => d.checked_sub(new).and_then(|d| x.sizes().get(d)).copied(),
        _ => usize::try_from(size).ok(),
    };
    let sizes: Option<Vec<usize>> = given.iter().enumerate().map(size).collect();
    let Some(sizes) = sizes else {
        let expected = format!("sizes {given:?} in which only -1 is negative and stands for a dim of x");
        return Err(wrong_shape("expand", expected, x));
    };
    let shape = Shape::new(&sizes)?;
    if broadcast_shape("expand", &shape, x.shape())? != shape {
        return Err(wrong_shape("expand", format!("a shape that broadcasts to {shape:?}"), x));
    }
    if *x.shape() == shape {
        return Ok(x.clone());
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = spread(x, &shape, "activation")?;
    Ok(Recorder::record(recorder, y, |_| ExpandBackward { shape: *x.shape() }))
}

/// Copies of x beside each other: so many along each dim, where dims may be added in front.
///
/// # Errors
/// Fewer numbers than dims, or a negative one.
pub fn repeat(x: &Tensor, counts: impl Ints) -> Result<Tensor> {
    let given = counts.signed();
    let counts: Vec<usize> = given.iter().filter_map(|&count| usize::try_from(count).ok()).collect();
    if counts.len() < given.len() || given.len() < x.sizes().len() {
        return Err(wrong_shape("repeat", format!("a count of {given:?} for each dim, at least 0"), x));
    }
    let added = counts.len() - x.sizes().len();
    let mut y = reshape(x, [&vec![1; added], x.sizes()].concat())?;
    for (dim, &count) in counts.iter().enumerate().filter(|&(_, &count)| count != 1) {
        let mut sizes = y.sizes().to_vec();
        let inner: usize = sizes[dim..].iter().product();
        let blocks = reshape(&y, [sizes[..dim].iter().product(), 1, inner])?;
        sizes[dim] = sizes[dim].saturating_mul(count);
        y = reshape(&expand(&blocks, (-1, count, -1))?, sizes)?;
    }
    Ok(y)
}

/// Each element along a dim so many times, one after the other.
///
/// # Errors
/// A dim that x does not have.
pub fn repeat_interleave(x: &Tensor, count: usize, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("repeat_interleave", x, dim)?;
    let mut sizes = x.sizes().to_vec();
    let rows = [sizes[..=dim].iter().product(), 1, sizes[dim + 1..].iter().product::<usize>()];
    sizes[dim] = sizes[dim].saturating_mul(count);
    reshape(&expand(&reshape(x, rows)?, (-1, count, -1))?, sizes)
}

/// The dims of vectors as the dims of a grid: tensor `k` of the result holds the coordinate along dim `k`, as torch's
/// `meshgrid` with `indexing="ij"`.
///
/// # Errors
/// A tensor of more than one dim.
pub fn meshgrid(axes: &[&Tensor]) -> Result<Vec<Tensor>> {
    if let Some(axis) = axes.iter().find(|axis| axis.sizes().len() > 1) {
        return Err(wrong_shape("meshgrid", "vectors or scalars", axis));
    }
    let grid: Vec<usize> = axes.iter().map(|axis| axis.n_elems()).collect();
    let spread = |(k, axis): (usize, &&Tensor)| {
        let mut sizes = vec![1; grid.len()];
        sizes[k] = grid[k];
        expand(&reshape(axis, sizes)?, &grid)
    };
    axes.iter().enumerate().map(spread).collect()
}

fn reorder(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    let sizes: Vec<usize> = order.iter().map(|&d| x.sizes()[d]).collect();
    let strides: Vec<usize> = order.iter().map(|&d| x.sizes()[d + 1..].iter().product()).collect();
    copied(x, Shape::new(&sizes)?, &strides, "activation")
}

/// x repeated to `shape`, which it broadcasts to; not recorded.
pub(crate) fn spread(x: &Tensor, shape: &Shape, what: &'static str) -> Result<Tensor> {
    copied(x, *shape, &spread_strides(x.shape(), shape), what)
}

fn copied(x: &Tensor, shape: Shape, strides: &[usize], what: &'static str) -> Result<Tensor> {
    let mut y = Tensor::uninit(shape, x.dtype(), x.device(), what)?;
    let walk = Walk::new(shape.sizes(), [strides]);
    let bytes = 2 * y.len_bytes() as u64;
    let mut launch = x.device().launch("copy", 0, bytes);
    with_word!(x.dtype(), W => {
        let dtype = x.dtype();
        let (x, y) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
        launch.cuda(|gpu| {
            let order = (shape.sizes(), strides);
            forms::strided(gpu, dtype, order, [gpu.slice(&x)?, gpu.slice(&y)?])
        })?;
        launch.run(move |cpu| copy::strided(cpu, &walk, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(y)
}

struct PermuteBackward {
    order: Vec<usize>,
}

impl Function for PermuteBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut back = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        cx.give(0, reorder(&dy, &back)?)
    }
}

struct ExpandBackward {
    shape: Shape,
}

impl Function for ExpandBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, sum_to(&dy, &self.shape)?)
    }
}
