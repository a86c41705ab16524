//! A matrix product as a value, and whether it has a meaning.

use std::fmt;

use crate::driver::Slice;
use crate::element::Element;
use crate::error::{Error, Result};

/// What the elements of the operands are, and how they are multiplied. Sums are f32 for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// bfloat16.
    BF16,
    /// IEEE half precision.
    F16,
    /// IEEE single precision.
    F32,
    /// f32 in memory, of which tensor cores multiply the first 10 bits behind the point.
    TF32,
}

impl Precision {
    /// The type of the operands' elements.
    pub fn element(self) -> Element {
        match self {
            Precision::BF16 => Element::BF16,
            Precision::F16 => Element::F16,
            Precision::F32 | Precision::TF32 => Element::F32,
        }
    }
}

/// How an operand enters a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// As it lies in memory.
    AsStored,
    /// Transposed.
    Transposed,
}

/// How matrices lie in memory, row after row, all in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Rows of a matrix.
    pub rows: usize,
    /// Elements of a row.
    pub cols: usize,
    /// From one row to the next.
    pub row_stride: usize,
    /// From one matrix of the batch to the next; 0 if the whole batch uses the same one.
    pub batch_stride: usize,
}

impl Layout {
    /// Rows without gaps between them, and matrices without gaps.
    pub fn dense(rows: usize, cols: usize) -> Layout {
        Layout { rows, cols, row_stride: cols, batch_stride: rows.saturating_mul(cols) }
    }

    /// Elements of one matrix with the gaps between its rows; none where that is not a number.
    fn span(&self) -> Option<usize> {
        (self.rows.checked_sub(1)?).checked_mul(self.row_stride)?.checked_add(self.cols)
    }

    fn spans(&self, batch: usize) -> Option<usize> {
        batch.checked_sub(1)?.checked_mul(self.batch_stride)?.checked_add(self.span()?)
    }
}

/// An operand.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Where it is.
    pub memory: Slice<'a>,
    /// How it lies there.
    pub layout: Layout,
    /// How it enters the product.
    pub form: Form,
}

/// `D = alpha op(A) op(B) + beta C + bias`, for each matrix of a batch.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The type of `A` and `B`.
    pub precision: Precision,
    /// The type of `C`, `D` and bias: that of `A` and `B`, or f32.
    pub out: Element,
    /// Matrices.
    pub batch: usize,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of `C`. With 0 it is not read.
    pub beta: f32,
    /// The left operand.
    pub a: Operand<'a>,
    /// The right operand.
    pub b: Operand<'a>,
    /// What is added, in the layout of `D`; `D` itself where it is none.
    pub c: Option<Slice<'a>>,
    /// The result.
    pub d: Slice<'a>,
    /// How it lies.
    pub d_layout: Layout,
    /// A number for each column, which is added to all rows.
    pub bias: Option<Slice<'a>>,
}

/// Rows of op(A), columns of op(B), what is summed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Dims {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

impl Product<'_> {
    /// The sizes, after everything was checked that can be without the library.
    pub(super) fn check(&self) -> Result<Dims> {
        let formed = |operand: &Operand| match operand.form {
            Form::AsStored => (operand.layout.rows, operand.layout.cols),
            Form::Transposed => (operand.layout.cols, operand.layout.rows),
        };
        let ((m, k), (inner, n)) = (formed(&self.a), formed(&self.b));
        if k != inner {
            return Err(self.wrong(format!("the inner dims {k} and {inner} differ")));
        }
        let d = &self.d_layout;
        if (d.rows, d.cols) != (m, n) {
            return Err(self.wrong(format!("the result is [{m}, {n}], and D [{}, {}]", d.rows, d.cols)));
        }
        let element = self.precision.element();
        if self.out != element && self.out != Element::F32 {
            return Err(self.wrong(format!("the result can be {element} or f32, not {}", self.out)));
        }
        // Nothing to write.
        if m == 0 || n == 0 || self.batch == 0 {
            return Ok(Dims { m: 0, n: 0, k });
        }
        if k == 0 {
            return Err(self.wrong("the inner dim is 0".into()));
        }
        self.check_memory("A", self.a.memory, &self.a.layout, element)?;
        self.check_memory("B", self.b.memory, &self.b.layout, element)?;
        self.check_memory("D", self.d, d, self.out)?;
        if let Some(c) = self.c {
            self.check_memory("C", c, d, self.out)?;
        }
        if let Some(bias) = self.bias {
            let row = Layout { rows: 1, cols: n, row_stride: n, batch_stride: 0 };
            self.check_memory("the bias", bias, &row, self.out)?;
        }
        if self.batch > 1 && d.span().is_none_or(|span| d.batch_stride < span) {
            return Err(self.wrong("the matrices of D overlap".into()));
        }
        for (what, memory) in [("A", Some(self.a.memory)), ("B", Some(self.b.memory)), ("bias", self.bias)] {
            if memory.is_some_and(|memory| memory.overlaps(&self.d)) {
                return Err(self.wrong(format!("D overlaps {what}")));
            }
        }
        if self.c.is_some_and(|c| c.address() != self.d.address() && c.overlaps(&self.d)) {
            return Err(self.wrong("D overlaps C, and does not begin where C does".into()));
        }
        Ok(Dims { m, n, k })
    }

    fn check_memory(&self, what: &str, memory: Slice<'_>, layout: &Layout, element: Element) -> Result<()> {
        let size = element.size();
        let largest = [layout.rows, layout.cols, layout.row_stride, self.batch].into_iter().max();
        if largest > Some(i32::MAX as usize) {
            return Err(self.wrong(format!("{what} has a size above 2^31 - 1: {layout:?}")));
        }
        if layout.row_stride < layout.cols {
            return Err(self.wrong(format!("the rows of {what} overlap: {layout:?}")));
        }
        let needed = layout.spans(self.batch).and_then(|elements| elements.checked_mul(size));
        if needed.is_none_or(|needed| needed > memory.bytes()) {
            let reason = format!("{what} has {} bytes, too few for {layout:?} of {element}", memory.bytes());
            return Err(self.wrong(reason));
        }
        if !memory.address().is_multiple_of(size as u64) {
            return Err(self.wrong(format!("{what} does not begin at a multiple of {size} bytes")));
        }
        Ok(())
    }

    pub(super) fn wrong(&self, reason: String) -> Error {
        Error::Product { product: self.to_string(), reason }
    }
}

impl fmt::Display for Product<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operand = |operand: &Operand| {
            let mark = if operand.form == Form::Transposed { "'" } else { "" };
            format!("[{}, {}]{mark}", operand.layout.rows, operand.layout.cols)
        };
        let Product { precision, out, batch, .. } = self;
        write!(f, "{batch} x {} {} of {precision:?} to {out}", operand(&self.a), operand(&self.b))?;
        if self.bias.is_some() { f.write_str(" with bias") } else { Ok(()) }
    }
}
