//! Dims in another order, dims of size 1 that come and go, and spreading. Tensors are dense, so an order is a copy.

use crate::cpu::copy;
use crate::cpu::walk::Walk;
use crate::error::{Error, Result};
use crate::ops::binary::{broadcast_shape, spread_strides};
use crate::ops::reduce::sum_to;
use crate::ops::{check_dim, reshape, with_word};
use crate::shape::{IntoShape, Shape};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The dims in another order: dim `d` of the result is dim `order[d]` of x.
///
/// # Errors
/// An order that does not name each dim once.
pub fn permute(x: &Tensor, order: &[usize]) -> Result<Tensor> {
    let n_dims = x.sizes().len();
    if order.len() != n_dims || (0..n_dims).any(|d| !order.contains(&d)) {
        return Err(Error::Usage(format!("permute: {order:?} does not name each of the {n_dims} dims once")));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = reorder(x, order)?;
    Ok(Recorder::record(recorder, y, |_| PermuteBackward { order: order.to_vec() }))
}

/// Two dims exchanged.
///
/// # Errors
/// A dim that x does not have.
pub fn transpose(x: &Tensor, a: usize, b: usize) -> Result<Tensor> {
    check_dim("transpose", x, a)?;
    check_dim("transpose", x, b)?;
    let mut order: Vec<usize> = (0..x.sizes().len()).collect();
    order.swap(a, b);
    permute(x, &order)
}

/// Without dim `dim`, which has size 1.
///
/// # Errors
/// A dim of another size.
pub fn squeeze(x: &Tensor, dim: usize) -> Result<Tensor> {
    check_dim("squeeze", x, dim)?;
    let mut sizes = x.sizes().to_vec();
    if sizes.remove(dim) != 1 {
        return Err(crate::ops::wrong_shape("squeeze", format!("size 1 at dim {dim}"), x));
    }
    reshape(x, &sizes[..])
}

/// With a new dim of size 1 before dim `dim` (or at the end).
///
/// # Errors
/// Too many dims, or `dim` beyond the end.
pub fn unsqueeze(x: &Tensor, dim: usize) -> Result<Tensor> {
    if dim > x.sizes().len() {
        return Err(crate::ops::wrong_shape("unsqueeze", format!("at least {dim} dims"), x));
    }
    let mut sizes = x.sizes().to_vec();
    sizes.insert(dim, 1);
    reshape(x, &sizes[..])
}

/// x repeated to a shape that it broadcasts to.
///
/// # Errors
/// A shape that x does not broadcast to.
pub fn expand(x: &Tensor, shape: impl IntoShape) -> Result<Tensor> {
    let shape = shape.into_shape()?;
    if broadcast_shape("expand", &shape, x.shape())? != shape {
        return Err(crate::ops::wrong_shape("expand", format!("a shape that broadcasts to {shape:?}"), x));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = spread(x, &shape, "activation")?;
    Ok(Recorder::record(recorder, y, |_| ExpandBackward { shape: *x.shape() }))
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
        let (x, y) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
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
