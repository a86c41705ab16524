//! Which algorithms were measured to be the fastest: the entries of matrix products in [`tables`].
//!
//! ```text
//! bf16 f32 1 768 2048 8192 tn - : 66 20 1 0 0 0 9 0 3
//! ```
//!
//! These are the precision, the type of the result, the batch, rows, columns, the inner dim, whether each operand is
//! transposed, and `b` for a bias; then the attributes of an algorithm of cuBLASLt.

use std::collections::HashMap;
use std::fmt;

use super::algorithm::Algorithm;
use super::plan::Key;
use super::product::{Dims, Form, Layout, Precision, Product};
use crate::driver::Device;
use crate::element::Element;
use crate::error::Result;
use crate::tables::{self, Kind, Take};

/// Algorithms may need their operands to begin at such addresses.
const ALIGNMENT: u32 = 16;

/// What a table knows of a product. Matrices lie without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The type of the operands.
    pub precision: Precision,
    /// The type of the result.
    pub out: Element,
    /// Matrices.
    pub batch: usize,
    /// Rows, columns, and what is summed over.
    pub dims: [usize; 3],
    /// How the operands enter.
    pub forms: [Form; 2],
    /// Whether a bias is added.
    pub has_bias: bool,
}

impl Shape {
    /// None for products with gaps in their memory, or with memory that is little aligned.
    pub(super) fn of(key: &Key) -> Option<Shape> {
        let is_dense = key.layouts.iter().all(|layout| {
            let dense = Layout::dense(layout.rows, layout.cols);
            layout.row_stride == dense.row_stride
                && (key.batch == 1 || layout.batch_stride == dense.batch_stride)
        });
        let [.., bias] = key.alignments;
        let is_aligned =
            key.alignments[..4].iter().chain((bias != 0).then_some(&bias)).all(|&n| n >= ALIGNMENT);
        let Dims { m, n, k } = key.dims;
        (is_dense && is_aligned).then_some(Shape {
            precision: key.precision,
            out: key.out,
            batch: key.batch,
            dims: [m, n, k],
            forms: key.forms,
            has_bias: bias != 0,
        })
    }

    /// How its matrices lie: A, B and D.
    pub fn layouts(&self) -> [Layout; 3] {
        let [m, n, k] = self.dims;
        let stored = |form, rows, cols| match form {
            Form::AsStored => Layout::dense(rows, cols),
            Form::Transposed => Layout::dense(cols, rows),
        };
        [stored(self.forms[0], m, k), stored(self.forms[1], k, n), Layout::dense(m, n)]
    }
}

const PRECISIONS: [(&str, Precision); 4] =
    [("bf16", Precision::BF16), ("f16", Precision::F16), ("f32", Precision::F32), ("tf32", Precision::TF32)];
const OUTS: [Element; 3] = [Element::BF16, Element::F16, Element::F32];
const FORMS: [(char, Form); 2] = [('n', Form::AsStored), ('t', Form::Transposed)];

impl fmt::Display for Shape {
    /// As a table has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let precision =
            PRECISIONS.iter().find(|(_, own)| *own == self.precision).map_or("", |(name, _)| name);
        let [m, n, k] = self.dims;
        let form = |form: Form| if form == Form::Transposed { 't' } else { 'n' };
        let [a, b] = self.forms.map(form);
        let bias = if self.has_bias { 'b' } else { '-' };
        write!(f, "{precision} {} {} {m} {n} {k} {a}{b} {bias}", self.out, self.batch)
    }
}

/// The algorithms of a GPU by shape.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned(HashMap<Shape, Algorithm>);

impl Tuned {
    /// Those of the program for a GPU, and those of the file that `OARLOCK_CUDA_TUNED` names, which come first.
    ///
    /// # Errors
    /// [`Error::Table`](crate::Error::Table), or the driver's own.
    pub fn of(device: &Device) -> Result<Tuned> {
        let mut tuned = Tuned::default();
        tables::read(device, Kind::Product, &mut tuned.taking())?;
        Ok(tuned)
    }

    /// Takes over the entries for this GPU, before which those go that were there.
    fn taking(&mut self) -> Box<Take<'_>> {
        Box::new(|line, is_ours| {
            let (shape, algorithm) = entry(line)?;
            if !algorithm.is_exact() {
                return Err("the algorithm sums in the type of the result".to_owned());
            }
            if is_ours {
                self.0.insert(shape, algorithm);
            }
            Ok(())
        })
    }

    /// Puts in or replaces what is known of a shape.
    pub fn insert(&mut self, shape: Shape, algorithm: Algorithm) {
        self.0.insert(shape, algorithm);
    }

    /// How many shapes it knows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get(&self, shape: &Shape) -> Option<Algorithm> {
        self.0.get(shape).copied()
    }

    /// As the lines of a table.
    pub fn lines(&self) -> String {
        let mut lines: Vec<String> =
            self.0.iter().map(|(shape, algorithm)| format!("{shape} : {algorithm}\n")).collect();
        lines.sort();
        lines.concat()
    }
}

fn entry(line: &str) -> std::result::Result<(Shape, Algorithm), &'static str> {
    let (shape, algorithm) = line.split_once(':').ok_or("there is no `:`")?;
    let words: Vec<&str> = shape.split_whitespace().collect();
    let [precision, out, batch, m, n, k, forms, bias] = words[..] else {
        return Err("a shape has eight words");
    };
    let number = |word: &str| word.parse::<usize>().map_err(|_| "a size is not a number");
    let precision =
        PRECISIONS.iter().find(|(name, _)| *name == precision).ok_or("there is no such precision")?;
    let out =
        OUTS.into_iter().find(|own| own.to_string() == out).ok_or("there is no such type of results")?;
    let form = |c: Option<char>| FORMS.iter().find(|(own, _)| Some(*own) == c).map(|(_, form)| *form);
    let mut chars = forms.chars();
    let forms = [form(chars.next()), form(chars.next())];
    let [Some(a), Some(b)] = forms else { return Err("forms are two of n and t") };
    let has_bias = match bias {
        "b" => true,
        "-" => false,
        _ => return Err("a bias is b or -"),
    };
    let numbers =
        algorithm.split_whitespace().map(|word| word.parse().map_err(|_| "an attribute is not a number"));
    let numbers = numbers.collect::<std::result::Result<Vec<u32>, _>>()?;
    let attributes = numbers.try_into().map_err(|_| "an algorithm has nine attributes")?;
    let dims = [number(m)?, number(n)?, number(k)?];
    let shape = Shape { precision: precision.1, out, batch: number(batch)?, dims, forms: [a, b], has_bias };
    Ok((shape, Algorithm::new(attributes)))
}

/// The products of a shape: its operands in memory that begins there.
impl Shape {
    /// Bytes of A, B, D and the bias.
    pub fn bytes(&self) -> [usize; 4] {
        let [a, b, d] = self.layouts().map(|layout| self.batch * layout.batch_stride);
        let (input, out) = (self.precision.element().size(), self.out.size());
        [a * input, b * input, d * out, if self.has_bias { self.dims[1] * out } else { 0 }]
    }

    /// It, with memory of these bytes. A result in f32 of shorter operands is added to, as gradients of weights are.
    pub fn product<'a>(&self, [a, b, d, bias]: [crate::driver::Slice<'a>; 4]) -> Product<'a> {
        let [of_a, of_b, of_d] = self.layouts();
        let operand = |memory, layout, form| super::product::Operand { memory, layout, form };
        let adds = self.out != self.precision.element();
        Product {
            precision: self.precision,
            out: self.out,
            batch: self.batch,
            alpha: 1.0,
            beta: if adds { 1.0 } else { 0.0 },
            a: operand(a, of_a, self.forms[0]),
            b: operand(b, of_b, self.forms[1]),
            c: None,
            d,
            d_layout: of_d,
            bias: self.has_bias.then_some(bias),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::Gpu;

    const LINE: &str = "bf16 f32 1 768 2048 8192 tn - : 66 20 1 0 0 0 9 0 3\n";

    fn read(text: &str) -> Result<Tuned> {
        let mut tuned = Tuned::default();
        let gpu = Gpu { name: "NVIDIA H200", arch: "sm_90a" };
        tables::read_text(("a table", text), &gpu, Kind::Product, &mut *tuned.taking())?;
        Ok(tuned)
    }

    #[test]
    fn a_table_is_read_as_it_is_written_and_only_for_its_gpu() {
        let all = read(&format!("# a remark\narch sm_90\n{LINE}")).expect("a table");
        assert_eq!(all.len(), 1);
        assert_eq!(all.lines(), LINE);
        for other in ["arch sm_80\n", "arch sm_90\ndevice NVIDIA H100\n", ""] {
            assert!(read(&format!("{other}{LINE}")).expect("a table").is_empty(), "{other}");
        }
        let own = "bf16 f32 1 768 2048 8192 tn - : 67 20 1 0 0 0 9 0 3\n";
        let both = read(&format!("arch sm_90\n{LINE}device NVIDIA H200\n{own}")).expect("a table");
        assert!(both.lines().contains(" : 67 "));
    }

    #[test]
    fn a_line_that_is_none_is_an_error_that_names_it() {
        for (line, says) in [
            ("bf16 f32 1 768", "line 2: there is no `:`"),
            ("bf16 f32 1 768 : 1", "eight words"),
            ("bf16 f32 1 a 2 3 nn - : 0 0 0 0 0 0 0 0 0", "not a number"),
            ("i8 f32 1 1 2 3 nn - : 0 0 0 0 0 0 0 0 0", "no such precision"),
            ("bf16 f32 1 1 2 3 nx - : 0 0 0 0 0 0 0 0 0", "n and t"),
            ("bf16 f32 1 1 2 3 nn - : 0 0", "nine attributes"),
            ("bf16 bf16 1 1 2 3 nn - : 0 0 2 4 0 0 0 0 0", "sums in the type of the result"),
        ] {
            let error = read(&format!("arch sm_90\n{line}")).expect_err(line).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
