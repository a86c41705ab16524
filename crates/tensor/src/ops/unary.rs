//! Functions of each element: sums and products with numbers, powers, logarithms, activations.

use crate::cpu::glu::Activation;
use crate::cpu::unary::{self as kernel, Unary};
use crate::error::Result;
use crate::ops::with_float;
use crate::tape::{Backward, Function, Recorder, Saved};
use crate::tensor::Tensor;

macro_rules! ops {
    ($($(#[$meta:meta])* $name:ident($($arg:ident),*) => $f:expr;)*) => {
        $(
            $(#[$meta])*
            ///
            /// # Errors
            /// A tensor of integers.
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
    /// The larger of x and `low`; the gradient passes where x is not below `low`.
    maximum(low) => Unary::Clamp { low, high: f32::INFINITY };
    /// The smaller of x and `high`; the gradient passes where x is not above `high`.
    minimum(high) => Unary::Clamp { low: f32::NEG_INFINITY, high };
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
}

fn apply(x: &Tensor, f: Unary, name: &'static str) -> Result<Tensor> {
    let recorder = Recorder::new(&[x], &[])?;
    let y = forward(x, f, "activation", name)?;
    Ok(Recorder::record(recorder, y, |recorder| {
        // An affine function needs no x for its gradient, so x is kept only where it costs nothing.
        let x = match f {
            Unary::Affine { .. } => recorder.save_recipe(x),
            _ => Some(recorder.save(x)),
        };
        UnaryBackward { f, name, x }
    }))
}

/// f(x), not recorded.
pub(crate) fn forward(x: &Tensor, f: Unary, what: &'static str, name: &'static str) -> Result<Tensor> {
    let mut y = Tensor::uninit(*x.shape(), x.dtype(), x.device(), what)?;
    let mut launch = x.device().launch(name, 0, 2 * x.len_bytes() as u64);
    with_float!(x.dtype(), name, T => {
        let (x, y) = (launch.read::<T>(x)?, launch.write::<T>(&mut y)?);
        launch.run(move |cpu| kernel::forward(cpu, f, x.slice(cpu), y.slice(cpu)))
    })?;
    Ok(y)
}

struct UnaryBackward {
    f: Unary,
    name: &'static str,
    x: Option<Saved>,
}

impl Function for UnaryBackward {
    fn backward(self: Box<Self>, dy: Tensor, cx: &mut Backward<'_>) -> Result<()> {
        let x = match (self.f, &self.x) {
            (Unary::Affine { .. }, _) | (_, None) => dy.clone(),
            (_, Some(x)) => cx.get(x)?,
        };
        let (mut dx, store) = cx.slot(0, &dy)?;
        let mut launch = dy.device().launch(self.name, 0, 3 * dy.len_bytes() as u64);
        with_float!(dy.dtype(), self.name, T => {
            let (f, x, dy) = (self.f, launch.read::<T>(&x)?, launch.read::<T>(&dy)?);
            let dx = launch.store::<T>(&mut dx, store)?;
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
            None => Err(crate::Error::Usage(format!("{}: its input was not kept", self.name))),
        }
    }
}
