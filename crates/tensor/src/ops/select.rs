//! Choices by a mask of integers: 0 is false, everything else true.

use oarlock_cuda::geometry;
use oarlock_kernels::{DType, Element, Error, Result, copy};

use crate::ops::binary::broadcast_shape;
use crate::ops::layout::spread;
use crate::ops::operand::check_number;
use crate::ops::{Number, Operand, beside, check_device, check_dtype, expand, with_element, wrong_shape};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder};
use crate::tensor::Tensor;

/// a where the mask (i32) is true, else b. All three broadcast; one of a and b may be a number.
///
/// # Errors
/// Shapes or dtypes that do not fit, or two numbers.
pub fn where_cond<'a, 'b>(
    mask: &Tensor,
    a: impl Into<Operand<'a>>,
    b: impl Into<Operand<'b>>,
) -> Result<Tensor> {
    let op = "where_cond";
    let (a, b) = (a.into(), b.into());
    let tensors: Vec<&Tensor> = [a, b].iter().filter_map(Operand::as_tensor).collect();
    let [x, others @ ..] = &tensors[..] else {
        return Err(Error::Usage("where_cond: expected at least one tensor, got two numbers".to_string()));
    };
    check_device(op, x, &[mask])?;
    let mut shape = broadcast_shape(op, x.shape(), mask.shape())?;
    for other in others {
        check_device(op, x, &[other])?;
        check_dtype(op, x, other)?;
        shape = broadcast_shape(op, &shape, other.shape())?;
    }
    let mask = mask_for(op, mask, &shape)?;
    let spread = |operand| match operand {
        Operand::Tensor(x) if *x.shape() == shape => Ok(Choice::Tensor(x.clone())),
        Operand::Tensor(x) => expand(x, shape).map(Choice::Tensor),
        Operand::Number(number) => check_number(op, number, x.dtype()).map(|()| Choice::Number(number)),
    };
    choose(mask, spread(a)?, spread(b)?)
}

/// x with `value` where the mask (i32) is true. The mask broadcasts to x.
///
/// # Errors
/// Shapes or dtypes that do not fit, or a fraction for a tensor of integers.
pub fn masked_fill(x: &Tensor, mask: &Tensor, value: impl Number) -> Result<Tensor> {
    let (op, value) = ("masked_fill", value.number());
    check_device(op, x, &[mask])?;
    let is_mask = mask.dtype() == DType::I32;
    if is_mask && broadcast_shape(op, x.shape(), mask.shape())? != *x.shape() {
        return Err(wrong_shape(op, format!("a mask that broadcasts to {:?}", x.shape()), mask));
    }
    check_number(op, value, x.dtype())?;
    choose(mask_for(op, mask, x.shape())?, Choice::Number(value), Choice::Tensor(x.clone()))
}

fn mask_for(op: &'static str, mask: &Tensor, shape: &Shape) -> Result<Tensor> {
    if mask.dtype() != DType::I32 {
        return Err(Error::DType { op, expected: "an i32 mask", got: mask.dtype() });
    }
    if mask.shape() == shape { Ok(mask.detach()) } else { spread(mask, shape, "mask") }
}

/// What is chosen: elements of the shape of the mask, or a number.
enum Choice {
    Tensor(Tensor),
    Number(f64),
}

impl Choice {
    fn tensor(&self) -> Option<&Tensor> {
        match self {
            Choice::Tensor(x) => Some(x),
            Choice::Number(_) => None,
        }
    }
}

/// a where the mask is true, else b. At least one is a tensor.
fn choose(mask: Tensor, a: Choice, b: Choice) -> Result<Tensor> {
    let inputs: Vec<&Tensor> = [&a, &b].into_iter().filter_map(Choice::tensor).collect();
    let recorder = Recorder::new(&inputs, &[])?;
    let y = chosen(&mask, &a, &b, "activation")?;
    if !y.dtype().is_float() {
        return Ok(beside(&inputs, y));
    }
    let is_input = [&a, &b].map(|x| x.tensor().is_some());
    Ok(Recorder::record(recorder, y, |_| SelectBackward { mask, is_input }))
}

/// The same, not recorded.
fn chosen(mask: &Tensor, a: &Choice, b: &Choice, what: &'static str) -> Result<Tensor> {
    let (mut value, mut dtype) = (0.0, DType::F32);
    for choice in [a, b] {
        match choice {
            Choice::Tensor(x) => dtype = x.dtype(),
            Choice::Number(number) => value = *number,
        }
    }
    let mut y = Tensor::uninit(*mask.shape(), dtype, mask.device(), what)?;
    let bytes = 3 * y.len_bytes() as u64;
    let mut launch = mask.device().launch("select", 0, bytes);
    with_element!(dtype, T => {
        let mask = launch.read::<i32>(mask)?;
        let mut read = |x: &Choice| x.tensor().map(|x| launch.read::<T>(x)).transpose();
        let (a, b) = (read(a)?, read(b)?);
        let n = y.n_elems();
        let y = launch.write::<T>(&mut y)?;
        launch.cuda(|gpu| {
            let call = gpu.kernel("select", &[T::DTYPE])?.view(&mask).optional(a.as_ref()).optional(b.as_ref());
            call.value(value).view(&y).u64(n).run(geometry::elements(n))
        })?;
        launch.run(move |cpu| {
            let (a, b) = (a.map(|a| a.slice(cpu)), b.map(|b| b.slice(cpu)));
            copy::select(cpu, mask.slice(cpu), a, b, T::from_number(value), y.slice(cpu));
        })
    })?;
    Ok(y)
}

struct SelectBackward {
    mask: Tensor,
    /// Whether there is an input where the mask is true, and one where it is false.
    is_input: [bool; 2],
}

impl Function for SelectBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let (zero, otherwise) = (Choice::Number(0.0), usize::from(self.is_input[0]));
        if self.is_input[0] && cx.needs(0) {
            cx.give(0, chosen(&self.mask, &Choice::Tensor(dy.clone()), &zero, "gradient")?)?;
        }
        if self.is_input[1] && cx.needs(otherwise) {
            cx.give(otherwise, chosen(&self.mask, &zero, &Choice::Tensor(dy), "gradient")?)?;
        }
        Ok(())
    }
}
