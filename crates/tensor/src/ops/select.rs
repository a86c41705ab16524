//! Choices by a mask of integers: 0 is false, everything else true.

use crate::cpu::copy;
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::ops::layout::spread;
use crate::ops::{binary, check_device, check_dtype, with_float, wrong_shape};
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// a where the mask (i32) is true, else b. a and b have equal shapes, which the mask broadcasts to.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn where_cond(mask: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    check_device("where_cond", a, &[mask, b])?;
    check_dtype("where_cond", a, b)?;
    if a.shape() != b.shape() {
        return Err(wrong_shape("where_cond", format!("{:?}", a.shape()), b));
    }
    let mask = mask_for("where_cond", mask, a)?;
    let recorder = Recorder::new(&[a, b], &[])?;
    let y = choose(&mask, Some(a), Some(b), 0.0, "activation")?;
    Ok(Recorder::record(recorder, y, |_| SelectBackward { mask, both: true }))
}

/// x with `value` where the mask (i32) is true. The mask broadcasts to x.
///
/// # Errors
/// Shapes or dtypes that do not fit.
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: f32) -> Result<Tensor> {
    check_device("masked_fill", x, &[mask])?;
    let mask = mask_for("masked_fill", mask, x)?;
    let recorder = Recorder::new(&[x], &[])?;
    let y = choose(&mask, None, Some(x), value, "activation")?;
    Ok(Recorder::record(recorder, y, |_| SelectBackward { mask, both: false }))
}

fn mask_for(op: &'static str, mask: &Tensor, x: &Tensor) -> Result<Tensor> {
    if mask.dtype() != DType::I32 {
        return Err(Error::DType { op, expected: "an i32 mask", got: mask.dtype() });
    }
    if mask.shape() == x.shape() {
        return Ok(mask.detach());
    }
    if binary::broadcast_shape(op, x.shape(), mask.shape())? != *x.shape() {
        return Err(wrong_shape(op, format!("a mask that broadcasts to {:?}", x.shape()), mask));
    }
    spread(mask, x.shape(), "mask")
}

/// a where the mask is true, else b; an absent one is `value`. Not recorded.
fn choose(
    mask: &Tensor,
    a: Option<&Tensor>,
    b: Option<&Tensor>,
    value: f32,
    what: &'static str,
) -> Result<Tensor> {
    let dtype = a.or(b).map_or(DType::F32, Tensor::dtype);
    let mut y = Tensor::uninit(*mask.shape(), dtype, mask.device(), what)?;
    let bytes = 3 * y.len_bytes() as u64;
    let mut launch = mask.device().launch("select", 0, bytes);
    with_float!(dtype, "select", T => {
        let mask = launch.read::<i32>(mask)?;
        let mut read = |x: Option<&Tensor>| x.map(|x| launch.read::<T>(x)).transpose();
        let (a, b) = (read(a)?, read(b)?);
        let y = launch.write::<T>(&mut y)?;
        launch.run(move |cpu| {
            let (a, b) = (a.map(|a| a.slice(cpu)), b.map(|b| b.slice(cpu)));
            copy::select(cpu, mask.slice(cpu), a, b, T::from_f32(value), y.slice(cpu));
        })
    })?;
    Ok(y)
}

struct SelectBackward {
    mask: Tensor,
    /// Whether there is an input where the mask is true, before the one where it is false.
    both: bool,
}

impl Function for SelectBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let otherwise = usize::from(self.both);
        if self.both && cx.needs(0) {
            cx.give(0, choose(&self.mask, Some(&dy), None, 0.0, "gradient")?)?;
        }
        if cx.needs(otherwise) {
            cx.give(otherwise, choose(&self.mask, None, Some(&dy), 0.0, "gradient")?)?;
        }
        Ok(())
    }
}
