//! Functions of each element: sums and products with numbers, powers, logarithms, roundings, activations.

use oarlock_cuda::{functions, geometry};
use oarlock_kernels::glu::Activation;
use oarlock_kernels::unary::{self as kernel, Unary};
use oarlock_kernels::{DType, Element, Error, Result};

use crate::cuda::{Call, Found, Kernels};
use crate::ops::{self, with_float};
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident($($arg:ident),*) => $f:expr;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Errors
            /// A tensor of integers, unless the function is `neg`, `scale`, `add_scalar`, `square`, `abs`, `sign` or `clamp`.
            pub fn $name(x: &Tensor, $($arg: f32),*) -> Result<Tensor> {
                apply(x, $f, stringify!($name))
            }
        )*
    };
}

ops! {
    /// `-x`.
    neg() => Unary::Affine { scale: -1.0, offset: 0.0 };
    /// `factor * x`.
    scale(factor) => Unary::Affine { scale: factor, offset: 0.0 };
    /// `x + offset`.
    add_scalar(offset) => Unary::Affine { scale: 1.0, offset };
    /// `e^x`.
    exp() => Unary::Exp;
    /// The natural logarithm.
    log() => Unary::Log;
    /// The square root.
    sqrt() => Unary::Sqrt;
    /// `x * x`.
    square() => Unary::Square;
    /// `x^exponent`.
    powf(exponent) => Unary::Pow(exponent);
    /// The absolute value; its gradient at 0 is 0.
    abs() => Unary::Abs;
    /// x kept inside `low..=high`; the gradient passes where x is inside.
    clamp(low, high) => Unary::Clamp { low, high };
    /// `x * sigmoid(x)`, also called swish.
    silu() => Unary::Activation(Activation::Silu);
    /// GELU with the normal distribution function.
    gelu() => Unary::Activation(Activation::Gelu);
    /// GELU in its tanh approximation, as GPT-2 has it.
    gelu_tanh() => Unary::Activation(Activation::GeluTanh);
    /// The larger of x and 0.
    relu() => Unary::Activation(Activation::Relu);
    /// The hyperbolic tangent.
    tanh() => Unary::Activation(Activation::Tanh);
    /// `1 / (1 + e^-x)`.
    sigmoid() => Unary::Activation(Activation::Sigmoid);
    /// `1 / x`.
    reciprocal() => Unary::Over(1.0);
    /// `1 / sqrt(x)`.
    rsqrt() => Unary::Rsqrt;
    /// `2^x`.
    exp2() => Unary::Exp2;
    /// `e^x - 1`, exact near 0.
    expm1() => Unary::Expm1;
    /// The logarithm to base 2.
    log2() => Unary::Log2;
    /// `log(1 + x)`, exact near 0.
    log1p() => Unary::Log1p;
    /// The sine of an angle in radians.
    sin() => Unary::Sin;
    /// The cosine of an angle in radians.
    cos() => Unary::Cos;
    /// The error function.
    erf() => Unary::Erf;
    /// Rounded down to an integer; the gradient is 0.
    floor() => Unary::Floor;
    /// Rounded up to an integer; the gradient is 0.
    ceil() => Unary::Ceil;
    /// Rounded to the nearest integer, halves to the even one; the gradient is 0.
    round() => Unary::Round;
    /// Rounded toward zero to an integer; the gradient is 0.
    trunc() => Unary::Trunc;
    /// -1, 0 or 1, and 0 for NaN; the gradient is 0.
    sign() => Unary::Sign;
    /// x above 0, else `negative_slope * x`; torch's default is 0.01.
    leaky_relu(negative_slope) => Unary::LeakyRelu(negative_slope);
    /// x above 0, else `alpha * (e^x - 1)`; torch's default is 1.
    elu(alpha) => Unary::Elu(alpha);
    /// `log(1 + e^(beta x)) / beta`, and x where `beta x` is above `threshold`; torch's defaults are 1 and 20.
    softplus(beta, threshold) => Unary::Softplus { beta, threshold };
    /// x kept inside `low..=high`; the gradient passes strictly between them. torch's defaults are -1 and 1.
    hardtanh(low, high) => Unary::Hardtanh { low, high };
    /// x kept inside `0..=6`.
    relu6() => Unary::Hardtanh { low: 0.0, high: 6.0 };
    /// The scaled exponential linear unit (Klambauer et al. 2017).
    selu() => Unary::Selu;
    /// `x * tanh(log(1 + e^x))` (Misra 2019).
    mish() => Unary::Mish;
    /// `x / 6 + 1 / 2`, kept inside `0..=1`.
    hardsigmoid() => Unary::Hardsigmoid;
    /// x times its [`hardsigmoid`].
    hardswish() => Unary::Hardswish;
    /// The logarithm of [`sigmoid`].
    logsigmoid() => Unary::LogSigmoid;
    /// `x / (1 + |x|)`.
    softsign() => Unary::Softsign;
}

/// f(x), recorded under this name.
pub(crate) fn apply(x: &Tensor, f: Unary, name: &'static str) -> Result<Tensor> {
    if x.dtype() == DType::I32 {
        return of_integers(x, f, name);
    }
    let recorder = Recorder::new(&[x], &[])?;
    let y = forward(x, f, "activation", name)?;
    Ok(Recorder::record(recorder, y, |recorder| {
        // An affine function needs no x for its gradient, so x is kept only where it costs nothing.
        let x = match f {
            Unary::Affine { .. } | Unary::DividedBy(_) => recorder.save_recipe(x),
            _ => Some(recorder.save(x)),
        };
        UnaryBackward { f, name, x }
    }))
}

/// The functions that integers have, made of those of two operands.
fn of_integers(x: &Tensor, f: Unary, name: &'static str) -> Result<Tensor> {
    match f {
        Unary::Affine { scale, offset: 0.0 } => ops::mul(x, scale),
        Unary::Affine { scale: 1.0, offset } => ops::add(x, offset),
        Unary::Square => ops::mul(x, x),
        Unary::Abs => ops::maximum(x, &ops::neg(x)?),
        Unary::Sign => ops::minimum(&ops::maximum(x, -1)?, 1),
        Unary::Clamp { low, high } => {
            let at_least = if low == f32::NEG_INFINITY { x.clone() } else { ops::maximum(x, low)? };
            if high == f32::INFINITY { Ok(at_least) } else { ops::minimum(&at_least, high) }
        }
        _ => Err(Error::DType { op: name, expected: "a float tensor", got: x.dtype() }),
    }
}

/// f(x), not recorded.
pub(crate) fn forward(x: &Tensor, f: Unary, what: &'static str, name: &'static str) -> Result<Tensor> {
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), what)?;
    let mut launch = x.device().launch(name, 0, 2 * x.len_bytes() as u64);
    with_float!(x.dtype(), name, T => {
        let n = x.n_elems();
        let (x, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.cuda(|gpu| {
            let call = of_function(gpu, "unary_forward", f, T::DTYPE)?.view(&x).view(&y);
            call.u64(n).run(geometry::elements(n))
        })?;
        launch.run(move |cpu| kernel::forward(cpu, f, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(y)
}

/// A call of a kernel that chooses among functions, with its function.
fn of_function<'l>(gpu: &Kernels<'l>, op: &'static str, f: Unary, dtype: DType) -> Found<Call<'l>> {
    let (f, a, b) = numbered(f);
    Ok(gpu.kernel(op, &[dtype])?.u32(f as usize).f32(a).f32(b))
}

/// A function as the kernels of a GPU know it, with its two parameters.
fn numbered(f: Unary) -> (functions::Unary, f32, f32) {
    use functions::Unary as Numbered;
    let plain = match f {
        Unary::Affine { scale, offset } => return (Numbered::Affine, scale, offset),
        Unary::Pow(exponent) => return (Numbered::Pow, exponent, 0.0),
        Unary::Clamp { low, high } => return (Numbered::Clamp, low, high),
        Unary::DividedBy(number) => return (Numbered::DividedBy, number, 0.0),
        Unary::Over(number) => return (Numbered::Over, number, 0.0),
        Unary::LeakyRelu(slope) => return (Numbered::LeakyRelu, slope, 0.0),
        Unary::Elu(alpha) => return (Numbered::Elu, alpha, 0.0),
        Unary::Softplus { beta, threshold } => return (Numbered::Softplus, beta, threshold),
        Unary::Hardtanh { low, high } => return (Numbered::Hardtanh, low, high),
        Unary::Exp => Numbered::Exp,
        Unary::Log => Numbered::Log,
        Unary::Sqrt => Numbered::Sqrt,
        Unary::Square => Numbered::Square,
        Unary::Abs => Numbered::Abs,
        Unary::Activation(activation) => match activation {
            Activation::Silu => Numbered::Silu,
            Activation::Gelu => Numbered::Gelu,
            Activation::GeluTanh => Numbered::GeluTanh,
            Activation::Relu => Numbered::Relu,
            Activation::Tanh => Numbered::Tanh,
            Activation::Sigmoid => Numbered::Sigmoid,
        },
        Unary::Rsqrt => Numbered::Rsqrt,
        Unary::Root => Numbered::Root,
        Unary::Exp2 => Numbered::Exp2,
        Unary::Expm1 => Numbered::Expm1,
        Unary::Log2 => Numbered::Log2,
        Unary::Log1p => Numbered::Log1p,
        Unary::Sin => Numbered::Sin,
        Unary::Cos => Numbered::Cos,
        Unary::Erf => Numbered::Erf,
        Unary::Floor => Numbered::Floor,
        Unary::Ceil => Numbered::Ceil,
        Unary::Round => Numbered::Round,
        Unary::Trunc => Numbered::Trunc,
        Unary::Sign => Numbered::Sign,
        Unary::Selu => Numbered::Selu,
        Unary::Mish => Numbered::Mish,
        Unary::Hardsigmoid => Numbered::Hardsigmoid,
        Unary::Hardswish => Numbered::Hardswish,
        Unary::LogSigmoid => Numbered::LogSigmoid,
        Unary::Softsign => Numbered::Softsign,
    };
    (plain, 0.0, 0.0)
}

struct UnaryBackward {
    f: Unary,
    name: &'static str,
    x: Option<Saved>,
}

impl Function for UnaryBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let x = match (self.f, &self.x) {
            (Unary::Affine { .. } | Unary::DividedBy(_), _) | (_, None) => dy.clone(),
            (_, Some(x)) => cx.get(x)?,
        };
        let (mut dx, store) = cx.slot(0, &dy)?;
        let mut launch = dy.device().launch(self.name, 0, 3 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), self.name, T => {
            let n = dy.n_elems();
            let (f, x, dy) = (self.f, launch.read::<T>(&x)?, launch.read::<T>(&dy)?);
            let dx = launch.store::<T>(&mut dx, store)?;
            launch.cuda(|gpu| {
                let call = of_function(gpu, "unary_backward", f, T::DTYPE)?.view(&x).view(&dy).view(&dx);
                call.added(store).u64(n).run(geometry::elements(n))
            })?;
            launch.run(move |cpu| {
                kernel::backward(cpu, f, store, x.slice(cpu), dy.slice(cpu), dx.slice(cpu));
            })
        })?;
        cx.give(0, dx)
    }

    fn can_replay(&self) -> bool {
        self.x.is_some()
    }

    fn replay(&self, cx: &mut Backward<'_>) -> Result<Tensor> {
        match &self.x {
            Some(x) => forward(&cx.get(x)?, self.f, "replayed", self.name),
            None => Err(Error::Usage(format!("{}: its input was not kept", self.name))),
        }
    }
}
