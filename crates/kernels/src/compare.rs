//! Comparisons of two elements, with broadcasting: 1 where they hold, 0 elsewhere.

use super::Cpu;
use super::binary::{rows, zip};
use super::isa::multiversion;
use super::walk::Walk;
use crate::dtype::Float;

/// A comparison, or a logical function that takes every number but 0 as true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `x == y`.
    Eq,
    /// `x != y`.
    Ne,
    /// `x < y`.
    Lt,
    /// `x <= y`.
    Le,
    /// `x > y`.
    Gt,
    /// `x >= y`.
    Ge,
    /// Both are true.
    And,
    /// At least one is true.
    Or,
    /// Exactly one is true.
    Xor,
}

/// `out = f(x, y)` with the operands in the order of `walk`.
pub fn compare<T: Float>(cpu: &Cpu, f: Compare, walk: &Walk<2>, x: &[T], y: &[T], out: &mut [i32]) {
    rows(cpu, walk, x, y, out, |x, y, out| floats(cpu.isa, f, x, y, out));
}

/// The same for integers.
pub fn compare_ints(cpu: &Cpu, f: Compare, walk: &Walk<2>, x: &[i32], y: &[i32], out: &mut [i32]) {
    rows(cpu, walk, x, y, out, |x, y, out| ints(cpu.isa, f, x, y, out));
}

multiversion! {
    fn floats[T: Float](f: Compare, x: &[T], y: &[T], out: &mut [i32]) {
        each(f, x, y, out, T::to_f32);
    }
}

multiversion! {
    fn ints(f: Compare, x: &[i32], y: &[i32], out: &mut [i32]) {
        each(f, x, y, out, |x| x);
    }
}

#[inline(always)]
fn each<T: Copy, V: PartialOrd + Default>(
    f: Compare,
    x: &[T],
    y: &[T],
    out: &mut [i32],
    value: impl Fn(T) -> V,
) {
    let is_true = |x: T| value(x) != V::default();
    match f {
        Compare::Eq => zip!(x, y, out, |a, b| i32::from(value(a) == value(b))),
        Compare::Ne => zip!(x, y, out, |a, b| i32::from(value(a) != value(b))),
        Compare::Lt => zip!(x, y, out, |a, b| i32::from(value(a) < value(b))),
        Compare::Le => zip!(x, y, out, |a, b| i32::from(value(a) <= value(b))),
        Compare::Gt => zip!(x, y, out, |a, b| i32::from(value(a) > value(b))),
        Compare::Ge => zip!(x, y, out, |a, b| i32::from(value(a) >= value(b))),
        Compare::And => zip!(x, y, out, |a, b| i32::from(is_true(a) & is_true(b))),
        Compare::Or => zip!(x, y, out, |a, b| i32::from(is_true(a) | is_true(b))),
        Compare::Xor => zip!(x, y, out, |a, b| i32::from(is_true(a) ^ is_true(b))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{same_everywhere, values};
    use crate::dtype::bf16;

    #[test]
    fn comparisons_hold_where_they_should_and_never_for_nan() {
        use Compare::*;
        let n = 141 * 239;
        let walk = Walk::new(&[n], [&[1], &[1]]);
        let (mut x, y) = (values::<bf16>(1, n), values::<bf16>(2, n));
        (0..n).step_by(3).for_each(|i| x[i] = y[i]);
        (x[5], x[7]) = (bf16::NAN, bf16::ZERO);
        let ints = |x: &[bf16]| x.iter().map(|x| (x.to_f32() * 2.0) as i32).collect::<Vec<_>>();
        let (xs, ys) = (ints(&x), ints(&y));
        for f in [Eq, Ne, Lt, Le, Gt, Ge, And, Or, Xor] {
            let holds = |x: f32, y: f32| match f {
                Eq => x == y,
                Ne => x != y,
                Lt => x < y,
                Le => x <= y,
                Gt => x > y,
                Ge => x >= y,
                And => x != 0.0 && y != 0.0,
                Or => x != 0.0 || y != 0.0,
                Xor => (x != 0.0) != (y != 0.0),
            };
            let (floats, of_ints) = same_everywhere(|cpu| {
                let (mut floats, mut of_ints) = (vec![9; n], vec![9; n]);
                compare(cpu, f, &walk, &x, &y, &mut floats);
                compare_ints(cpu, f, &walk, &xs, &ys, &mut of_ints);
                (floats, of_ints)
            });
            for i in 0..n {
                assert_eq!(floats[i], i32::from(holds(x[i].to_f32(), y[i].to_f32())), "{f:?} {i}");
                assert_eq!(of_ints[i], i32::from(holds(xs[i] as f32, ys[i] as f32)), "{f:?} {i}");
            }
        }
    }
}
