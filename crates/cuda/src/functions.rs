//! The functions that some kernels choose among at run time, by the numbers that the kernels know them by.

/// Those of the CPU kernels; a kernel knows them by their places in the declaration.
pub use oarlock_kernels::binary::Binary;
/// As above, of comparisons.
pub use oarlock_kernels::compare::Compare;
/// As above, of gated linear units.
pub use oarlock_kernels::glu::Activation;

/// A function of one element, `x`, and of two parameters, `a` and `b`.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `a x + b`.
    Affine,
    /// `e^x`.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
    /// `x x`.
    Square,
    /// `x^a`.
    Pow,
    /// The absolute value.
    Abs,
    /// `x` kept inside `a..=b`, with slope 1 at the bounds.
    Clamp,
    /// `x / a`.
    DividedBy,
    /// `a / x`.
    Over,
    /// `1 / sqrt(x)`.
    Rsqrt,
    /// The square root, with the slope 0 at 0.
    Root,
    /// `2^x`.
    Exp2,
    /// `e^x - 1`.
    Expm1,
    /// The logarithm to base 2.
    Log2,
    /// `log(1 + x)`.
    Log1p,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// The error function.
    Erf,
    /// Rounded down.
    Floor,
    /// Rounded up.
    Ceil,
    /// Rounded to the nearest integer, halves to the even one.
    Round,
    /// Rounded toward zero.
    Trunc,
    /// -1, 0 or 1.
    Sign,
    /// `x` above 0, else `a x`.
    LeakyRelu,
    /// `x` above 0, else `a (e^x - 1)`.
    Elu,
    /// `log(1 + e^(a x)) / a`; `x` where `a x` is above `b`.
    Softplus,
    /// `x` kept inside `a..=b`, with slope 0 at the bounds.
    Hardtanh,
    /// Scaled [`Unary::Elu`].
    Selu,
    /// `x tanh(log(1 + e^x))`.
    Mish,
    /// `x / 6 + 1 / 2`, kept inside `0..=1`.
    Hardsigmoid,
    /// `x` times its `Hardsigmoid`.
    Hardswish,
    /// The logarithm of `1 / (1 + e^-x)`.
    LogSigmoid,
    /// `x / (1 + |x|)`.
    Softsign,
    /// [`Activation::Silu`].
    Silu,
    /// [`Activation::Gelu`].
    Gelu,
    /// [`Activation::GeluTanh`].
    GeluTanh,
    /// [`Activation::Relu`].
    Relu,
    /// [`Activation::Tanh`].
    Tanh,
    /// [`Activation::Sigmoid`].
    Sigmoid,
}

/// What a label counts in the loss of its row.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenLoss {
    /// The cross-entropy.
    CrossEntropy,
    /// With smoothed labels.
    Smoothed,
    /// The cross-entropy times the probability of the label.
    ByProbability,
}

/// What an element of the input and one of the target cost; those with `beta` and `factor` are parameters of the kernels.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairLoss {
    /// `(x - t)^2`.
    Squared,
    /// `|x - t|`.
    Absolute,
    /// `factor (x - t)^2 / 2 beta` for differences below `beta`, and `factor (|x - t| - beta / 2)` for the others.
    Smooth,
    /// Binary cross-entropy of probabilities.
    Binary,
    /// `t (ln t - x)` for a log-probability x and a probability t.
    KlProbs,
    /// `e^t (t - x)` for two log-probabilities.
    KlLogProbs,
}
