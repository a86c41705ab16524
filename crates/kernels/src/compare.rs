//! Comparisons of two elements, with broadcasting: 1 where they hold, 0 elsewhere.

use crate::Cpu;
use crate::binary::{rows, zip};
use crate::dtype::Float;
use crate::instances::instances;
use crate::isa::multiversion;
use crate::walk::Walk;

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

instances! {
    /// `out = f(x, y)` with the operands in the order of `walk`.
    pub fn compare[T: Float](cpu: &Cpu, f: Compare, walk: &Walk<2>, x: &[T], y: &[T], out: &mut [i32]) {
        rows(cpu, walk, x, y, out, |x, y, out| floats(cpu.isa, f, x, y, out));
    }
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
