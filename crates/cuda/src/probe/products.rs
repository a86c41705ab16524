//! The own kernels of matrix products, which nothing else runs where cuBLASLt is there.

use super::{Probe, u32s, whole, words_of};
use crate::blas::{Blas, Form, Layout, Operand, Precision, Product};
use crate::element::Element;
use crate::error::Result;

/// Rows, columns and the inner dim: more than a tile along one side, and no multiple of one.
const TALL: [usize; 3] = [130, 24, 40];
const WIDE: [usize; 3] = [24, 136, 40];

impl Probe {
    /// A product of whole numbers into f32, which has no rounding in any order of its sums.
    pub(super) fn own_product(&self, of: Element, forms: [Form; 2]) -> Result<(Vec<u32>, Vec<u32>)> {
        let [m, n, k] = if forms[1] == Form::AsStored { TALL } else { WIDE };
        let precision = match of {
            Element::BF16 => Precision::BF16,
            Element::F16 => Precision::F16,
            _ => Precision::F32,
        };
        let stored = |form, rows, cols| match form {
            Form::AsStored => Layout::dense(rows, cols),
            Form::Transposed => Layout::dense(cols, rows),
        };
        let layouts = [stored(forms[0], m, k), stored(forms[1], k, n)];
        let [xs, ys] = [whole(1, (m * k) as u32), whole(3, (k * n) as u32)];
        let upload = |x: &[f32]| if of == Element::F32 { self.floats(x) } else { self.halves(of, x) };
        let (a, b, d) = (upload(&xs)?, upload(&ys)?, self.floats(&vec![f32::NAN; m * n])?);
        let operand = |memory, at: usize| Operand { memory, layout: layouts[at], form: forms[at] };
        Blas::own(&self.stream, &self.modules)?.multiply(&Product {
            precision,
            out: Element::F32,
            batch: 1,
            alpha: 1.0,
            beta: 0.0,
            a: operand(a.all(), 0),
            b: operand(b.all(), 1),
            c: None,
            d: d.all(),
            d_layout: Layout::dense(m, n),
            bias: None,
        })?;
        let mut got = vec![0; 4 * m * n];
        self.stream.read_now(d.all(), &mut got)?;
        let at = |layout: &Layout, form, row, col| {
            let (row, col) = if form == Form::Transposed { (col, row) } else { (row, col) };
            row * layout.row_stride + col
        };
        let sum = |i: usize| {
            let (row, col) = (i / n, i % n);
            let term = |k| xs[at(&layouts[0], forms[0], row, k)] * ys[at(&layouts[1], forms[1], k, col)];
            (0..k).map(term).sum::<f32>()
        };
        Ok((u32s(&got), words_of(&(0..m * n).map(sum).collect::<Vec<_>>())))
    }
}
