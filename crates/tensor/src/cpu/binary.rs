//! Functions of two elements, with broadcasting.

use super::Cpu;
use super::isa::multiversion;
use super::pieces::TASK_ELEMS;
use super::walk::Walk;
use crate::dtype::Float;

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
}

/// `out = f(x, y)` with the operands in the order of `walk`.
pub fn binary<T: Float>(cpu: &Cpu, f: Binary, walk: &Walk<2>, x: &[T], y: &[T], out: &mut [T]) {
    let [x_step, y_step] = walk.steps();
    cpu.par.chunks_mut(out, TASK_ELEMS, |i, out| {
        walk.for_rows(i * TASK_ELEMS, out, |out, [x_start, y_start]| {
            let x = &x[x_start..][..if x_step == 0 { 1 } else { out.len() }];
            let y = &y[y_start..][..if y_step == 0 { 1 } else { out.len() }];
            row(cpu.isa, f, x, y, out);
        });
    });
}

/// Operands of one element stand for a row of them.
#[inline(always)]
fn map<T: Float>(x: &[T], y: &[T], out: &mut [T], f: impl Fn(f32, f32) -> f32) {
    let n = out.len();
    if x.len() == n && y.len() == n {
        out.iter_mut().zip(x).zip(y).for_each(|((out, x), y)| *out = T::from_f32(f(x.to_f32(), y.to_f32())));
    } else if x.len() == n {
        let y = y[0].to_f32();
        out.iter_mut().zip(x).for_each(|(out, x)| *out = T::from_f32(f(x.to_f32(), y)));
    } else {
        let x = x[0].to_f32();
        out.iter_mut().zip(y).for_each(|(out, y)| *out = T::from_f32(f(x, y.to_f32())));
    }
}

multiversion! {
    fn row[T: Float](f: Binary, x: &[T], y: &[T], out: &mut [T]) {
        match f {
            Binary::Add => map(x, y, out, |x, y| x + y),
            Binary::Sub => map(x, y, out, |x, y| x - y),
            Binary::Mul => map(x, y, out, |x, y| x * y),
            Binary::Div => map(x, y, out, |x, y| x / y),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::{same_everywhere, values};

    #[test]
    fn operands_are_spread() {
        let (rows, cols) = (141, 239);
        let (x, y) = (values::<f32>(1, rows * cols), values::<f32>(2, rows * cols));
        for (x_strides, y_strides) in [([cols, 1], [cols, 1]), ([cols, 1], [0, 1]), ([1, 0], [cols, 1]), ([0, 0], [cols, 1])]
        {
            let walk = Walk::new(&[rows, cols], [&x_strides, &y_strides]);
            let outs = same_everywhere(|cpu| {
                [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div].map(|f| {
                    let mut out = x.clone();
                    binary(cpu, f, &walk, &x, &y, &mut out);
                    out
                })
            });
            for i in 0..rows * cols {
                let at = |s: [usize; 2]| i / cols * s[0] + i % cols * s[1];
                let (x, y) = (x[at(x_strides)], y[at(y_strides)]);
                let want = [x + y, x - y, x * y, x / y].map(f32::to_bits);
                assert_eq!([0, 1, 2, 3].map(|k| outs[k][i].to_bits()), want);
            }
        }
    }
}
