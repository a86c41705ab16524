//! Functions of two tensors, or of a tensor and a number, with broadcasting.
//!
//! Shapes are aligned at their last dims; a missing dim or one of size 1 is spread over the other's. The gradient of a
//! spread operand is the sum over what it was spread over, in the order of the sums over dims.
//!
//! Of two float dtypes, the result has the wider one, and f32 for bf16 with f16. A number takes the dtype of the tensor.
//! Integers wrap around where they leave their range, and have no gradients.

use oarlock_cuda::geometry;
use oarlock_kernels::binary::{self as kernel, Binary};
use oarlock_kernels::unary::Unary;
use oarlock_kernels::walk::Walk;
use oarlock_kernels::{DType, Element, Error, Result};

use crate::cuda::{FormError, forms};
use crate::ops::reduce::sum_to;
use crate::ops::{Operand, beside, check_device, check_dtype, unary, with_float};
use crate::shape::Shape;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident => $f:ident;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Errors
            /// Shapes that do not broadcast, integers with floats, or two numbers.
            pub fn $name<'a, 'b>(a: impl Into<Operand<'a>>, b: impl Into<Operand<'b>>) -> Result<Tensor> {
                apply(a.into(), b.into(), Binary::$f)
            }
        )*
    };
}

ops! {
    /// a + b.
    add => Add;
    /// a - b.
    sub => Sub;
    /// a · b, element by element.
    mul => Mul;
    /// a / b; integers are divided as f32.
    div => Div;
    /// a / b, rounded down; no gradient flows through it.
    floor_divide => FloorDivide;
    /// What [`floor_divide`] leaves of a; it has the sign of b.
    remainder => Remainder;
    /// The larger of both, NaN if one is NaN. Equal tensors share the gradient; of a number and x that are equal, x has it.
    maximum => Maximum;
    /// The smaller of both, as [`maximum`].
    minimum => Minimum;
    /// `a^b`.
    pow => Pow;
}

fn name(f: Binary) -> &'static str {
    match f {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::FloorDivide => "floor_divide",
        Binary::Remainder => "remainder",
        Binary::Maximum | Binary::MaximumSlope => "maximum",
        Binary::Minimum | Binary::MinimumSlope => "minimum",
        Binary::Pow | Binary::PowSlope | Binary::PowExponentSlope => "pow",
    }
}

fn apply(a: Operand<'_>, b: Operand<'_>, f: Binary) -> Result<Tensor> {
    let of_one = match (a, b) {
        (Operand::Tensor(x), Operand::Number(number)) => of_left(f, number as f32).map(|f| (x, f)),
        (Operand::Number(number), Operand::Tensor(x)) => of_right(f, number as f32).map(|f| (x, f)),
        _ => None,
    };
    match (of_one, a, b) {
        // Computed in f32 without a rounding of the number to the dtype of x.
        (Some((x, of_one)), ..) if x.dtype().is_float() => unary::apply(x, of_one, name(f)),
        (_, Operand::Tensor(x), _) => of_tensors(x, &b.tensor(name(f), x)?, f),
        (_, _, Operand::Tensor(y)) => of_tensors(&a.tensor(name(f), y)?, y, f),
        _ => Err(Error::Usage(format!("{}: expected at least one tensor, got two numbers", name(f)))),
    }
}

/// `f(x, number)` as a function of x.
fn of_left(f: Binary, number: f32) -> Option<Unary> {
    Some(match f {
        Binary::Add => Unary::Affine { scale: 1.0, offset: number },
        Binary::Sub => Unary::Affine { scale: 1.0, offset: -number },
        Binary::Mul => Unary::Affine { scale: number, offset: 0.0 },
        Binary::Div => Unary::DividedBy(number),
        Binary::Maximum => Unary::Clamp { low: number, high: f32::INFINITY },
        Binary::Minimum => Unary::Clamp { low: f32::NEG_INFINITY, high: number },
        Binary::Pow => Unary::Pow(number),
        _ => return None,
    })
}

/// `f(number, x)` as a function of x.
fn of_right(f: Binary, number: f32) -> Option<Unary> {
    Some(match f {
        Binary::Add | Binary::Mul | Binary::Maximum | Binary::Minimum => return of_left(f, number),
        Binary::Sub => Unary::Affine { scale: -1.0, offset: number },
        Binary::Div => Unary::Over(number),
        _ => return None,
    })
}

fn of_tensors(a: &Tensor, b: &Tensor, f: Binary) -> Result<Tensor> {
    let both = |is: fn(DType) -> bool| is(a.dtype()) && is(b.dtype());
    if (a.dtype() != b.dtype() && both(DType::is_float)) || (f == Binary::Div && both(|d| !d.is_float())) {
        // As torch promotes: the wider of two floats, f32 for bf16 with f16 and for a quotient of integers.
        return of_tensors(&a.cast(DType::F32)?, &b.cast(DType::F32)?, f);
    }
    let recorder = Recorder::new(&[a, b], &[])?;
    let y = forward(a, b, f)?;
    if f == Binary::FloorDivide || !y.dtype().is_float() {
        return Ok(beside(&[a, b], y));
    }
    Ok(Recorder::record(recorder, y, |recorder| {
        // Each of a and b is kept only for the gradients that need it.
        let (da, db) = (recorder.needs_input(0), recorder.needs_input(1));
        let (keep_a, keep_b) = match f {
            Binary::Add | Binary::Sub => (false, false),
            Binary::Mul => (db, da),
            Binary::Div => (db, true),
            Binary::Remainder => (db, db),
            _ => (true, true),
        };
        let save = |tensor, keep: bool| keep.then(|| recorder.save(tensor));
        BinaryBackward { f, a: save(a, keep_a), b: save(b, keep_b), a_shape: *a.shape(), b_shape: *b.shape() }
    }))
}

/// f(a, b), not recorded.
fn forward(a: &Tensor, b: &Tensor, f: Binary) -> Result<Tensor> {
    check_device(name(f), a, &[b])?;
    check_dtype(name(f), a, b)?;
    let (shape, walk) = together(name(f), a, b)?;
    let mut y = Tensor::uninit(shape, a.dtype(), a.device(), "activation")?;
    let bytes = (a.len_bytes() + b.len_bytes() + y.len_bytes()) as u64;
    let mut launch = a.device().launch(name(f), 0, bytes);
    if a.dtype() == DType::I32 {
        let (shapes, n) = ([*a.shape(), *b.shape()], y.n_elems());
        let (a, b, y) = (launch.read::<i32>(a)?, launch.read::<i32>(b)?, launch.write::<i32>(&mut y)?);
        launch.cuda(|gpu| {
            // Divisors may be 0, and other functions are refused.
            if !matches!(f, Binary::Add | Binary::Sub | Binary::Mul | Binary::Maximum | Binary::Minimum) {
                return Err(FormError::NoForm);
            }
            let [of_a, of_b] = shapes.map(|operand| spread_strides(&operand, &shape));
            let walk = forms::walk(shape.sizes(), [&of_a, &of_b])?;
            let call = gpu.kernel("binary_ints", &[])?.u32(f as usize).walk(&walk);
            call.view(&a).view(&b).view(&y).u64(n).run(geometry::elements(n))
        })?;
        launch
            .run(move |cpu| kernel::binary_ints(cpu, f, &walk, a.slice(cpu), b.slice(cpu), y.slice(cpu)))?;
    } else {
        with_float!(a.dtype(), name(f), T => {
            let (shapes, n) = ([*a.shape(), *b.shape()], y.n_elems());
            let (a, b, y) = (launch.read::<T>(a)?, launch.read::<T>(b)?, launch.write::<T>(&mut y)?);
            launch.cuda(|gpu| {
                let [of_a, of_b] = shapes.map(|operand| spread_strides(&operand, &shape));
                let walk = forms::walk(shape.sizes(), [&of_a, &of_b])?;
                let call = gpu.kernel("binary", &[T::DTYPE])?.u32(f as usize).walk(&walk);
                call.view(&a).view(&b).view(&y).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| kernel::binary(cpu, f, &walk, a.slice(cpu), b.slice(cpu), y.slice(cpu)))
        })?;
    }
    Ok(y)
}

/// The shape of a function of a and b, and the order in which it reads them.
pub(crate) fn together(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Shape, Walk<2>)> {
    let shape = broadcast_shape(op, a.shape(), b.shape())?;
    let strides = [a, b].map(|t| spread_strides(t.shape(), &shape));
    Ok((shape, Walk::new(shape.sizes(), [&strides[0], &strides[1]])))
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
        let missing = || Error::Usage(format!("{}: its inputs were not kept", name(self.f)));
        let times = |b: &Option<Tensor>, f| forward(&dy, b.as_ref().ok_or_else(missing)?, f);
        // dy times a function of a and b.
        let along = |slope, a: &Option<Tensor>, b: &Option<Tensor>| {
            let (a, b) = (a.as_ref().ok_or_else(missing)?, b.as_ref().ok_or_else(missing)?);
            forward(&dy, &forward(a, b, slope)?, Binary::Mul)
        };
        let of_a = match self.f {
            Binary::Mul if cx.needs(0) => times(&b, Binary::Mul)?,
            Binary::Div => times(&b, Binary::Div)?,
            Binary::Maximum if cx.needs(0) => along(Binary::MaximumSlope, &a, &b)?,
            Binary::Minimum if cx.needs(0) => along(Binary::MinimumSlope, &a, &b)?,
            Binary::Pow if cx.needs(0) => along(Binary::PowSlope, &a, &b)?,
            _ => dy.clone(),
        };
        if cx.needs(1) {
            let of_b = match (self.f, &a, &b) {
                (Binary::Sub, ..) => negative(&dy)?,
                (Binary::Mul, ..) => times(&a, Binary::Mul)?,
                // -(dy / b) · (a / b)
                (Binary::Div, Some(a), Some(b)) => {
                    negative(&forward(&of_a, &forward(a, b, Binary::Div)?, Binary::Mul)?)?
                }
                (Binary::Div, ..) => return Err(missing()),
                (Binary::Remainder, ..) => negative(&along(Binary::FloorDivide, &a, &b)?)?,
                (Binary::Maximum, ..) => along(Binary::MaximumSlope, &b, &a)?,
                (Binary::Minimum, ..) => along(Binary::MinimumSlope, &b, &a)?,
                (Binary::Pow, ..) => along(Binary::PowExponentSlope, &a, &b)?,
                _ => dy.clone(),
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
