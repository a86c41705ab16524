//! Parts of a dim, and tensors joined along one.

use std::ops::Range;

use crate::cpu::copy::{self, Window};
use crate::cpu::{Store, elementwise};
use crate::error::{Error, Result};
use crate::ops::{check_device, check_dim, check_dtype, unsqueeze, with_float, with_word, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// The part `range` of a dim.
///
/// # Errors
/// A dim that x does not have, or a range that leaves it.
pub fn narrow(x: &Tensor, dim: usize, range: Range<usize>) -> Result<Tensor> {
    check_dim("narrow", x, dim)?;
    let size = x.sizes()[dim];
    if range.start > range.end || range.end > size {
        return Err(wrong_shape("narrow", format!("{range:?} inside dim {dim}"), x));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = read(x, dim, range.clone())?;
    Ok(Recorder::record(recorder, y, |_| NarrowBackward { shape: *x.shape(), dim, first: range.start }))
}

/// Parts of these sizes, in order; together they are the whole dim.
///
/// # Errors
/// A dim that x does not have, or sizes that do not add up to its size.
pub fn split(x: &Tensor, dim: usize, sizes: &[usize]) -> Result<Vec<Tensor>> {
    check_dim("split", x, dim)?;
    let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if total != Some(x.sizes()[dim]) {
        return Err(wrong_shape("split", format!("a size of {sizes:?} together at dim {dim}"), x));
    }
    let mut first = 0;
    let parts = sizes.iter().map(|size| {
        first += size;
        narrow(x, dim, first - size..first)
    });
    parts.collect()
}

/// Tensors one after the other along a dim; the other dims are equal.
///
/// # Errors
/// No tensor, or shapes or dtypes that do not fit.
pub fn concat(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
    let Some(&head) = tensors.first() else {
        return Err(Error::Usage("concat: no tensor was given".to_string()));
    };
    check_dim("concat", head, dim)?;
    check_device("concat", head, tensors)?;
    let mut sizes = head.sizes().to_vec();
    sizes[dim] = 0;
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        check_dtype("concat", head, tensor)?;
        let other = |s: &[usize]| s.iter().enumerate().any(|(d, &size)| d != dim && size != head.sizes()[d]);
        if tensor.sizes().len() != sizes.len() || other(tensor.sizes()) {
            return Err(wrong_shape("concat", format!("{:?} but for dim {dim}", head.shape()), tensor));
        }
        parts.push(sizes[dim]..sizes[dim] + tensor.sizes()[dim]);
        sizes[dim] += tensor.sizes()[dim];
    }
    let recorder = Recorder::new(tensors, &[])?;
    let mut y = Tensor::uninit(&sizes[..], head.dtype(), head.device(), "activation")?;
    for (tensor, part) in tensors.iter().zip(&parts) {
        let window = window(y.shape(), dim, part);
        let bytes = 2 * tensor.len_bytes() as u64;
        let mut launch = head.device().launch("copy", 0, bytes);
        with_word!(head.dtype(), W => {
            let (part, whole) = (launch.read_words::<W>(tensor)?, launch.update_words::<W>(&mut y)?);
            launch.run(move |cpu| copy::write_window(cpu, window, part.slice(cpu), whole.slice(cpu)))
        })?;
    }
    Ok(Recorder::record(recorder, y, |_| ConcatBackward { dim, parts }))
}

/// Tensors of equal shapes one after the other along a new dim before dim `dim` (or at the end).
///
/// # Errors
/// No tensor, or unequal shapes or dtypes.
pub fn stack(tensors: &[&Tensor], dim: usize) -> Result<Tensor> {
    if let [head, rest @ ..] = tensors
        && let Some(other) = rest.iter().find(|t| t.shape() != head.shape())
    {
        return Err(wrong_shape("stack", format!("{:?}", head.shape()), other));
    }
    let wider = tensors.iter().map(|t| unsqueeze(t, dim)).collect::<Result<Vec<_>>>()?;
    concat(&wider.iter().collect::<Vec<_>>(), dim)
}

fn window(whole: &Shape, dim: usize, range: &Range<usize>) -> Window {
    let sizes = whole.sizes();
    let inner: usize = sizes[dim + 1..].iter().product();
    Window { full: sizes[dim] * inner, first: range.start * inner, len: range.len() * inner }
}

fn read(x: &Tensor, dim: usize, range: Range<usize>) -> Result<Tensor> {
    let mut sizes = x.sizes().to_vec();
    sizes[dim] = range.len();
    let mut y = Tensor::uninit(&sizes[..], x.dtype(), x.device(), "activation")?;
    let bytes = 2 * y.len_bytes() as u64;
    let window = window(x.shape(), dim, &range);
    let mut launch = x.device().launch("copy", 0, bytes);
    with_word!(x.dtype(), W => {
        let (whole, part) = (launch.read_words::<W>(x)?, launch.write_words::<W>(&mut y)?);
        launch.run(move |cpu| copy::read_window(cpu, window, whole.slice(cpu), part.slice(cpu)))
    })?;
    Ok(y)
}

struct NarrowBackward {
    shape: Shape,
    dim: usize,
    first: usize,
}

impl Function for NarrowBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let device = dy.device().clone();
        let window = window(&self.shape, self.dim, &(self.first..self.first + dy.sizes()[self.dim]));
        // Many parts of one tensor add into one gradient.
        let (mut dx, store) = cx.slot_of(0, self.shape, &dy)?;
        let mut launch = device.launch("copy", 0, 2 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), "narrow", T => {
            let (part, whole) = (launch.read::<T>(&dy)?, launch.store::<T>(&mut dx, store)?);
            launch.run(move |cpu| {
                let (part, whole) = (part.slice(cpu), whole.slice(cpu));
                match store {
                    Store::Add => copy::add_window(cpu, window, part, whole),
                    Store::Overwrite => {
                        elementwise::fill(cpu, <T as bytemuck::Zeroable>::zeroed(), whole);
                        copy::write_window(cpu, window, part, whole);
                    }
                }
            })
        })?;
        cx.give(0, dx)
    }
}

struct ConcatBackward {
    dim: usize,
    parts: Vec<Range<usize>>,
}

impl Function for ConcatBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        for (index, part) in self.parts.into_iter().enumerate() {
            if cx.needs(index) {
                cx.give(index, read(&dy, self.dim, part)?)?;
            }
        }
        Ok(())
    }
}
