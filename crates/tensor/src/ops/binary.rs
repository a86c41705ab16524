//! Sum, difference, product and quotient of two tensors, with broadcasting.
//!
//! Shapes are aligned at their last dims; a missing dim or one of size 1 is spread over the other's. The gradient of a
//! spread operand is the sum over what it was spread over, in the order of the sums over dims.

use crate::cpu::binary::{self as kernel, Binary};
use crate::cpu::unary::Unary;
use crate::cpu::walk::Walk;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::reduce::sum_to;
use crate::ops::{check_device, check_dtype, unary, with_float};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

/// a + b. Of two float dtypes, the result has the wider one, and f32 for bf16 with f16.
///
/// # Errors
/// Shapes that do not broadcast, or integers with floats.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply(a, b, Binary::Add)
}

/// a - b.
///
/// # Errors
/// As [`add`].
pub fn sub(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply(a, b, Binary::Sub)
}

/// a · b, element by element.
///
/// # Errors
/// As [`add`].
pub fn mul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply(a, b, Binary::Mul)
}

/// a / b.
///
/// # Errors
/// As [`add`].
pub fn div(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply(a, b, Binary::Div)
}

fn name(f: Binary) -> &'static str {
    match f {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
    }
}

fn apply(a: &Tensor, b: &Tensor, f: Binary) -> Result<Tensor> {
    if a.dtype() != b.dtype() && a.dtype().is_float() && b.dtype().is_float() {
        // As torch promotes: the wider of the two, and f32 for bf16 with f16.
        let wide = |x: &Tensor| if x.dtype() == DType::F32 { Ok(x.clone()) } else { x.cast(DType::F32) };
        return apply(&wide(a)?, &wide(b)?, f);
    }
    let recorder = Recorder::new(&[a, b], &[])?;
    let y = forward(a, b, f)?;
    Ok(Recorder::record(recorder, y, |recorder| {
        // Each of a and b is kept only for the gradients that need it.
        let (da, db) = (recorder.needs_input(0), recorder.needs_input(1));
        let (keep_a, keep_b) = match f {
            Binary::Add | Binary::Sub => (false, false),
            Binary::Mul => (db, da),
            Binary::Div => (db, true),
        };
        let save = |tensor, keep: bool| keep.then(|| recorder.save(tensor));
        BinaryBackward { f, a: save(a, keep_a), b: save(b, keep_b), a_shape: *a.shape(), b_shape: *b.shape() }
    }))
}

/// f(a, b), not recorded.
fn forward(a: &Tensor, b: &Tensor, f: Binary) -> Result<Tensor> {
    check_device(name(f), a, &[b])?;
    check_dtype(name(f), a, b)?;
    let shape = broadcast_shape(name(f), a.shape(), b.shape())?;
    let strides = [a, b].map(|t| spread_strides(t.shape(), &shape));
    let walk = Walk::new(shape.sizes(), [&strides[0], &strides[1]]);
    let mut y = Tensor::uninit(shape, a.dtype(), a.device(), "activation")?;
    let bytes = (a.len_bytes() + b.len_bytes() + y.len_bytes()) as u64;
    let mut launch = a.device().launch(name(f), 0, bytes);
    with_float!(a.dtype(), name(f), T => {
        let (a, b, y) = (launch.read::<T>(a)?, launch.read::<T>(b)?, launch.write::<T>(&mut y)?);
        launch.run(move |cpu| kernel::binary(cpu, f, &walk, a.slice(cpu), b.slice(cpu), y.slice(cpu)))
    })?;
    Ok(y)
}

/// The shape that both spread to.
pub(crate) fn broadcast_shape(op: &'static str, a: &Shape, b: &Shape) -> Result<Shape> {
    let (long, short) = if a.sizes().len() >= b.sizes().len() { (a, b) } else { (b, a) };
    let mut sizes = long.sizes().to_vec();
    let missing = sizes.len() - short.sizes().len();
    for (size, &other) in sizes[missing..].iter_mut().zip(short.sizes()) {
        *size = match (*size, other) {
            (x, y) if x == y => x,
            (1, x) | (x, 1) => x,
            _ => {
                return Err(Error::Shape {
                    op,
                    expected: format!("a shape that broadcasts with {a:?}"),
                    got: format!("{b:?}"),
                });
            }
        };
    }
    Shape::new(&sizes)
}

/// How far a dense tensor of shape `from` moves along each dim of `to`, 0 where it is spread.
pub(crate) fn spread_strides(from: &Shape, to: &Shape) -> Vec<usize> {
    let (sizes, mut strides) = (from.sizes(), vec![0; to.sizes().len()]);
    let missing = strides.len() - sizes.len();
    let mut step = 1;
    for d in (0..sizes.len()).rev() {
        strides[missing + d] = if sizes[d] == 1 { 0 } else { step };
        step *= sizes[d];
    }
    strides
}

struct BinaryBackward {
    f: Binary,
    a: Option<Saved>,
    b: Option<Saved>,
    a_shape: Shape,
    b_shape: Shape,
}

impl Function for BinaryBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let mut get = |saved: &Option<Saved>| saved.as_ref().map(|saved| cx.get(saved)).transpose();
        let (a, b) = (get(&self.a)?, get(&self.b)?);
        let times = |b: &Option<Tensor>, f| match b {
            Some(b) => forward(&dy, b, f),
            None => Ok(dy.clone()),
        };
        let of_a = match self.f {
            Binary::Add | Binary::Sub => dy.clone(),
            Binary::Mul => times(&b, Binary::Mul)?,
            Binary::Div => times(&b, Binary::Div)?,
        };
        if cx.needs(1) {
            let of_b = match (self.f, &a, &b) {
                (Binary::Add, ..) => dy.clone(),
                (Binary::Sub, ..) => negative(&dy)?,
                (Binary::Mul, ..) => times(&a, Binary::Mul)?,
                // -(dy / b) · (a / b)
                (Binary::Div, Some(a), Some(b)) => {
                    negative(&forward(&of_a, &forward(a, b, Binary::Div)?, Binary::Mul)?)?
                }
                (Binary::Div, ..) => return Err(Error::Usage("div: its inputs were not kept".to_string())),
            };
            cx.give(1, sum_to(&of_b, &self.b_shape)?)?;
        }
        if cx.needs(0) {
            cx.give(0, sum_to(&of_a, &self.a_shape)?)?;
        }
        Ok(())
    }
}

fn negative(x: &Tensor) -> Result<Tensor> {
    unary::forward(x, Unary::Affine { scale: -1.0, offset: 0.0 }, "gradient", "neg")
}
