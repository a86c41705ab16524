//! The same elements under other dims: no copy, and gradients take the way back.

use oarlock_kernels::{Error, Result};

use crate::ints::{Int, Ints};
use crate::ops::{dim_of, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// The same elements in another shape, in which one size may be -1: what is left over for it.
///
/// # Errors
/// Another number of elements, or more than one unknown size.
pub fn reshape(x: &Tensor, shape: impl Ints) -> Result<Tensor> {
    let shape = inferred("reshape", x, &shape.signed(), x.n_elems())?;
    if shape.n_elems() != x.n_elems() {
        return Err(wrong_shape("reshape", format!("{} elements for {shape:?}", shape.n_elems()), x));
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = x.view(0, shape);
    let from = *x.shape();
    Ok(Recorder::record(recorder, y, |recorder| ReshapeBackward {
        x: recorder.save_recipe(x),
        from,
        to: shape,
    }))
}

/// The shape that `sizes` mean for `n` elements of `x`.
fn inferred(op: &'static str, x: &Tensor, sizes: &[isize], n: usize) -> Result<Shape> {
    let wrong = || wrong_shape(op, format!("sizes {sizes:?} that {n} elements fill, with at most one -1"), x);
    let known = sizes
        .iter()
        .filter(|&&size| size != -1)
        .try_fold(1usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    let known = known.ok_or_else(wrong)?;
    let unknown = match sizes.iter().filter(|&&size| size == -1).count() {
        0 => 0,
        1 if known > 0 && n.is_multiple_of(known) => n / known,
        _ => return Err(wrong()),
    };
    let sizes: Vec<usize> = sizes.iter().map(|&size| usize::try_from(size).unwrap_or(unknown)).collect();
    Shape::new(&sizes)
}

/// The dims `first..=last` as one; those of a scalar are one of size 1.
///
/// # Errors
/// A dim that x does not have, or `first` after `last`.
pub fn flatten(x: &Tensor, first: impl Int, last: impl Int) -> Result<Tensor> {
    if x.sizes().is_empty() {
        return reshape(x, [1]);
    }
    let (first, last) = (dim_of("flatten", x, first)?, dim_of("flatten", x, last)?);
    if first > last {
        return Err(wrong_shape("flatten", format!("a first dim {first} up to the last dim {last}"), x));
    }
    let mut sizes = x.sizes().to_vec();
    let product = sizes.drain(first..=last).product();
    sizes.insert(first, product);
    reshape(x, sizes)
}

/// One dim as several of these sizes, of which one may be -1.
///
/// # Errors
/// A dim that x does not have, or sizes that do not fill it.
pub fn unflatten(x: &Tensor, dim: impl Int, sizes: impl Ints) -> Result<Tensor> {
    let dim = dim_of("unflatten", x, dim)?;
    let (n, sizes) = (x.sizes()[dim], sizes.signed());
    let parts = inferred("unflatten", x, &sizes, n)?;
    if parts.n_elems() != n {
        return Err(wrong_shape("unflatten", format!("{} elements at dim {dim}", parts.n_elems()), x));
    }
    reshape(x, [&x.sizes()[..dim], parts.sizes(), &x.sizes()[dim + 1..]].concat())
}

/// Without dim `dim`, which has size 1.
///
/// # Errors
/// A dim of another size, which torch leaves as it is.
pub fn squeeze(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim_of("squeeze", x, dim)?;
    let mut sizes = x.sizes().to_vec();
    if sizes.remove(dim) != 1 {
        return Err(wrong_shape("squeeze", format!("size 1 at dim {dim}"), x));
    }
    reshape(x, sizes)
}

/// Without any dim of size 1.
///
/// # Errors
/// As [`reshape`].
pub fn squeeze_all(x: &Tensor) -> Result<Tensor> {
    let sizes: Vec<usize> = x.sizes().iter().copied().filter(|&size| size != 1).collect();
    reshape(x, sizes)
}

/// With a new dim of size 1 before dim `dim` (or at the end; -1 is the end).
///
/// # Errors
/// Too many dims, or `dim` beyond the end.
pub fn unsqueeze(x: &Tensor, dim: impl Int) -> Result<Tensor> {
    let dim = dim.signed();
    let place = crate::ints::place(dim, x.sizes().len() + 1);
    let place = place.ok_or_else(|| {
        let needed = if dim < 0 { dim.unsigned_abs() - 1 } else { dim.unsigned_abs() };
        wrong_shape("unsqueeze", format!("at least {needed} dims"), x)
    })?;
    let mut sizes = x.sizes().to_vec();
    sizes.insert(place, 1);
    reshape(x, sizes)
}

struct ReshapeBackward {
    x: Option<Saved>,
    from: Shape,
    to: Shape,
}

impl Function for ReshapeBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        cx.give(0, dy.view(0, self.from))
    }

    fn can_replay(&self) -> bool {
        self.x.is_some()
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        match &self.x {
            Some(x) => Ok(cx.get(x)?.view(0, self.to)),
            None => Err(Error::Usage("reshape: its input was not kept".to_string())),
        }
    }
}
