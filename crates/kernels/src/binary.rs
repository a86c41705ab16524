//! Functions of two elements, with broadcasting.

use crate::Cpu;
use crate::dtype::Float;
use crate::error::{Error, Result};
use crate::instances::instances;
use crate::isa::multiversion;
use crate::math::{log, pow};
use crate::pieces::TASK_ELEMS;
use crate::walk::Walk;

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `x + y`.
    Add,
    /// `x - y`.
    Sub,
    /// `x y`.
    Mul,
    /// `x / y`.
    Div,
    /// `x / y`, rounded down.
    FloorDivide,
    /// What [`Binary::FloorDivide`] leaves of `x`; it has the sign of `y`.
    Remainder,
    /// The larger one, or NaN.
    Maximum,
    /// The smaller one, or NaN.
    Minimum,
    /// `x^y`.
    Pow,
    /// The slope of [`Binary::Maximum`] along `x`: equal operands have half each.
    MaximumSlope,
    /// The slope of [`Binary::Minimum`] along `x`.
    MinimumSlope,
    /// The slope of [`Binary::Pow`] along `x`.
    PowSlope,
    /// The slope of [`Binary::Pow`] along `y`.
    PowExponentSlope,
}

instances! {
    /// `out = f(x, y)` with the operands in the order of `walk`.
    pub fn binary[T: Float](cpu: &Cpu, f: Binary, walk: &Walk<2>, x: &[T], y: &[T], out: &mut [T]) {
        rows(cpu, walk, x, y, out, |x, y, out| row(cpu.isa, f, x, y, out));
    }
}

/// The same for integers, which wrap around where they leave their range.
///
/// # Errors
/// A division by 0, or a function that integers do not have.
pub fn binary_ints(
    cpu: &Cpu,
    f: Binary,
    walk: &Walk<2>,
    x: &[i32],
    y: &[i32],
    out: &mut [i32],
) -> Result<()> {
    let f: fn(i32, i32) -> i32 = match f {
        Binary::Add => i32::wrapping_add,
        Binary::Sub => i32::wrapping_sub,
        Binary::Mul => i32::wrapping_mul,
        Binary::Maximum => i32::max,
        Binary::Minimum => i32::min,
        Binary::FloorDivide | Binary::Remainder if y.contains(&0) => {
            return Err(Error::Usage("a division of integers by 0".to_string()));
        }
        Binary::FloorDivide => |x, y| {
            let (quotient, rest) = (x.wrapping_div(y), x.wrapping_rem(y));
            if rest != 0 && (rest < 0) != (y < 0) { quotient - 1 } else { quotient }
        },
        Binary::Remainder => |x, y| {
            let rest = x.wrapping_rem(y);
            if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
        },
        _ => return Err(Error::Usage(format!("{f:?} of integers; cast them to a float dtype first"))),
    };
    rows(cpu, walk, x, y, out, |x, y, out| zip!(x, y, out, |a, b| f(a, b)));
    Ok(())
}

/// Calls `f` for rows of `out` with the operands of each; an operand of one element stands for a row of them.
pub(super) fn rows<T: Sync, U: Send>(
    cpu: &Cpu,
    walk: &Walk<2>,
    x: &[T],
    y: &[T],
    out: &mut [U],
    f: impl Fn(&[T], &[T], &mut [U]) + Sync + Send,
) {
    let [x_step, y_step] = walk.steps();
    cpu.par.chunks_mut(out, TASK_ELEMS, |i, out| {
        walk.for_rows(i * TASK_ELEMS, out, |out, [x_start, y_start]| {
            let x = &x[x_start..][..if x_step == 0 { 1 } else { out.len() }];
            let y = &y[y_start..][..if y_step == 0 { 1 } else { out.len() }];
            f(x, y, out);
        });
    });
}

/// `out = f(x, y)` for one of the rows of [`rows`]. The loops are written out in place: a closure that is not inlined is
/// compiled without the instructions of the code path.
macro_rules! zip {
    ($x:ident, $y:ident, $out:ident, |$a:ident, $b:ident| $f:expr) => {{
        let n = $out.len();
        if $x.len() == n && $y.len() == n {
            for ((out, &$a), &$b) in $out.iter_mut().zip($x).zip($y) {
                *out = $f;
            }
        } else if $x.len() == n {
            let $b = $y[0];
            for (out, &$a) in $out.iter_mut().zip($x) {
                *out = $f;
            }
        } else {
            let $a = $x[0];
            for (out, &$b) in $out.iter_mut().zip($y) {
                *out = $f;
            }
        }
    }};
}
pub(super) use zip;

/// [`zip`] of floats, in f32.
macro_rules! map {
    ($x:ident, $y:ident, $out:ident, |$a:ident, $b:ident| $f:expr) => {
        zip!($x, $y, $out, |$a, $b| {
            let ($a, $b) = ($a.to_f32(), $b.to_f32());
            T::from_f32($f)
        })
    };
}

/// `x / y` rounded down, from the exact remainder.
#[inline(always)]
fn floor_divide(x: f32, y: f32) -> f32 {
    if y == 0.0 {
        return x / y;
    }
    let rest = x % y;
    let quotient = (x - rest) / y;
    let quotient = if rest != 0.0 && (rest < 0.0) != (y < 0.0) { quotient - 1.0 } else { quotient };
    // The division of a multiple of y was rounded as well.
    let down = quotient.floor();
    let whole = if quotient - down > 0.5 { down + 1.0 } else { down };
    if whole == 0.0 { 0f32.copysign(x / y) } else { whole }
}

#[inline(always)]
fn remainder(x: f32, y: f32) -> f32 {
    let rest = x % y;
    if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
}

/// 1 where `x` was chosen, and where one of both is NaN; half where they are equal.
#[inline(always)]
fn share(chosen: bool, x: f32, y: f32) -> f32 {
    match x == y {
        true => 0.5,
        false if chosen || x.is_nan() || y.is_nan() => 1.0,
        false => 0.0,
    }
}

multiversion! {
    fn row[T: Float](f: Binary, x: &[T], y: &[T], out: &mut [T]) {
        match f {
            Binary::Add => map!(x, y, out, |a, b| a + b),
            Binary::Sub => map!(x, y, out, |a, b| a - b),
            Binary::Mul => map!(x, y, out, |a, b| a * b),
            Binary::Div => map!(x, y, out, |a, b| a / b),
            Binary::FloorDivide => map!(x, y, out, |a, b| floor_divide(a, b)),
            Binary::Remainder => map!(x, y, out, |a, b| remainder(a, b)),
            // Comparisons written so that NaN passes.
            Binary::Maximum => map!(x, y, out, |a, b| if a > b || a.is_nan() { a } else { b }),
            Binary::Minimum => map!(x, y, out, |a, b| if a < b || a.is_nan() { a } else { b }),
            Binary::Pow => map!(x, y, out, |a, b| pow(a, b)),
            Binary::MaximumSlope => map!(x, y, out, |a, b| share(a > b, a, b)),
            Binary::MinimumSlope => map!(x, y, out, |a, b| share(a < b, a, b)),
            Binary::PowSlope => map!(x, y, out, |a, b| if b == 0.0 { 0.0 } else { b * pow(a, b - 1.0) }),
            Binary::PowExponentSlope => {
                map!(x, y, out, |a, b| if a == 0.0 && b >= 0.0 { 0.0 } else { pow(a, b) * log(a) });
            }
        }
    }
}
