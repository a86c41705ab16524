//! How tensors print: `Display` as torch prints them, `Debug` on one line.

use std::fmt::{self, Write};
use std::ops::Range;

use oarlock_kernels::{DType, Result};

use crate::tensor::Tensor;

/// A tensor with more elements than this shows only those at the edges of each dim.
const THRESHOLD: usize = 1000;
/// The elements at each edge.
const EDGE: usize = 3;
/// The characters of a line.
const LINE: usize = 80;
const PREFIX: &str = "tensor(";

/// As torch prints it. `{:.2}` prints two decimals instead of four.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = PREFIX.to_string();
        let mut suffixes = Vec::new();
        match self.shown() {
            Ok(values) if values.is_empty() => {
                text += "[]";
                if self.sizes().len() != 1 {
                    suffixes.push(size_suffix(self));
                }
            }
            Ok(values) => {
                let format = NumberFormat::of(&values, self.dtype().is_float(), f.precision().unwrap_or(4));
                Rows { tensor: self, format, values: values.into_iter() }.write(0, PREFIX.len(), &mut text);
            }
            Err(error) => {
                let _ = write!(text, "<{error}>");
                suffixes.push(size_suffix(self));
            }
        }
        if self.dtype() != DType::F32 {
            suffixes.push(format!("dtype={}", self.dtype()));
        }
        let mut last_line = text.len() - text.rfind('\n').map_or(0, |at| at + 1) + 2;
        for suffix in suffixes {
            if last_line + suffix.len() + 2 > LINE {
                let _ = write!(text, ",\n{:indent$}{suffix}", "", indent = PREFIX.len());
                last_line = PREFIX.len() + suffix.len();
            } else {
                let _ = write!(text, ", {suffix}");
                last_line += suffix.len() + 2;
            }
        }
        write!(f, "{text})")
    }
}

/// Its shape, its dtype and its first elements.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?}, {}, ", self.shape(), self.dtype())?;
        let first = 0..self.n_elems().min(2 * EDGE);
        let more = if self.n_elems() > first.end { ", ..." } else { "" };
        let text = |values: Vec<String>| format!("[{}{more}])", values.join(", "));
        let values = match self.dtype() {
            DType::I32 => {
                self.elements::<i32>("print", first).map(|x| text(x.iter().map(i32::to_string).collect()))
            }
            _ => self.elements::<f32>("print", first).map(|x| text(x.iter().map(f32::to_string).collect())),
        };
        match values {
            Ok(values) => f.write_str(&values),
            Err(error) => write!(f, "<{error}>)"),
        }
    }
}

fn size_suffix(tensor: &Tensor) -> String {
    let sizes: Vec<String> = tensor.sizes().iter().map(usize::to_string).collect();
    format!("size=({}{})", sizes.join(", "), if sizes.len() == 1 { "," } else { "" })
}

impl Tensor {
    /// Whether elements in the middle of a dim of this size are left out.
    fn leaves_out(&self, size: usize) -> bool {
        self.n_elems() > THRESHOLD && size > 2 * EDGE
    }

    /// The places along a dim of this size that are shown.
    fn places(&self, size: usize) -> Vec<Range<usize>> {
        if self.leaves_out(size) { vec![0..EDGE, size - EDGE..size] } else { vec![0..size; 1] }
    }

    /// The elements that are shown, in order. Only these are read.
    fn shown(&self) -> Result<Vec<f64>> {
        let Some((&columns, outer)) = self.sizes().split_last() else {
            return self.elements("print", 0..1);
        };
        let mut rows = vec![0];
        for &size in outer {
            let places: Vec<usize> = self.places(size).into_iter().flatten().collect();
            rows = rows.iter().flat_map(|row| places.iter().map(move |place| row * size + place)).collect();
        }
        let mut values = Vec::new();
        for row in rows {
            for part in self.places(columns) {
                values.extend(
                    self.elements::<f64>("print", row * columns + part.start..row * columns + part.end)?,
                );
            }
        }
        Ok(values)
    }
}

/// How all numbers of a tensor are printed: in one style and with one width.
struct NumberFormat {
    style: Style,
    width: usize,
    precision: usize,
}

#[derive(Clone, Copy)]
enum Style {
    Integer,
    /// Floats without a fraction: `2.`
    Whole,
    Decimal,
    Scientific,
}

impl NumberFormat {
    fn of(values: &[f64], is_float: bool, precision: usize) -> NumberFormat {
        let counted = |x: &&f64| !is_float || (x.is_finite() && **x != 0.0);
        let counted: Vec<f64> = values.iter().filter(counted).copied().collect();
        let largest = counted.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        let least = counted.iter().fold(f64::INFINITY, |m: f64, x| m.min(x.abs()));
        let style = if !is_float {
            Style::Integer
        } else if largest / least > 1000.0 || largest > 1e8 || least < 1e-4 {
            Style::Scientific
        } else if counted.iter().all(|x| x.fract() == 0.0) {
            Style::Whole
        } else {
            Style::Decimal
        };
        let mut format = NumberFormat { style, width: 1, precision };
        format.width = counted.iter().map(|x| format.text(*x).len()).max().unwrap_or(1);
        format
    }

    /// The number as Python writes it.
    fn text(&self, x: f64) -> String {
        let precision = self.precision;
        if x.is_nan() {
            return "nan".to_string();
        }
        match self.style {
            _ if x.is_infinite() => format!("{x:.0}"),
            Style::Integer => format!("{x:.0}"),
            Style::Whole => format!("{x:.0}."),
            Style::Decimal => format!("{x:.precision$}"),
            Style::Scientific => {
                let text = format!("{x:.precision$e}");
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
                format!("{digits}e{sign}{exponent:0>2}")
            }
        }
    }
}

/// A tensor's rows in brackets.
struct Rows<'a> {
    tensor: &'a Tensor,
    format: NumberFormat,
    /// What has not been written yet of the elements that are shown.
    values: std::vec::IntoIter<f64>,
}

impl Rows<'_> {
    /// Writes one entry of dim `dim - 1`, whose first character is at column `indent`.
    fn write(&mut self, dim: usize, indent: usize, out: &mut String) {
        let sizes = self.tensor.sizes();
        let Some(&size) = sizes.get(dim) else {
            *out += &self.number();
            return;
        };
        let left_out = self.tensor.leaves_out(size);
        let shown = if left_out { 2 * EDGE } else { size };
        let is_last = dim + 1 == sizes.len();
        let per_line = ((LINE - indent.min(LINE)) / (self.format.width + 2)).max(1);
        let new_line = |lines: usize| format!(",{}{:width$}", "\n".repeat(lines), "", width = indent + 1);
        *out += "[";
        // The dots take a place as well.
        for (i, place) in (0..shown + usize::from(left_out)).enumerate() {
            match is_last {
                _ if i == 0 => {}
                true if i % per_line == 0 => *out += &new_line(1),
                true => *out += ", ",
                false => *out += &new_line(sizes.len() - 1 - dim),
            }
            match is_last {
                true if left_out && place == EDGE => *out += " ...",
                false if left_out && place == EDGE => *out += "...",
                true => *out += &self.number(),
                false => self.write(dim + 1, indent + 1, out),
            }
        }
        *out += "]";
    }

    fn number(&mut self) -> String {
        let text = self.format.text(self.values.next().unwrap_or(f64::NAN));
        format!("{text:>width$}", width = self.format.width)
    }
}

#[cfg(test)]
mod tests {
    use oarlock_kernels::Isa;

    use crate::{DType, Device, Par, Tensor};

    fn steps(end: f64, shape: &[usize], dtype: DType) -> Tensor {
        let steps = Tensor::arange(0, end, 1, dtype, &Device::default()).unwrap();
        steps.reshape(shape).unwrap()
    }

    #[track_caller]
    fn check(tensor: &Tensor, text: &str) {
        assert_eq!(tensor.to_string(), text);
    }

    /// The texts are torch's, with the names of dtypes exchanged.
    #[test]
    fn tensors_print_as_in_torch() {
        let device = Device::default();
        let of = |x: &[f32]| Tensor::from_slice(x, [x.len()], &device).unwrap();
        let square = of(&[1.5, -2.25, 0.1, 3.0]).reshape([2, 2]).unwrap();
        check(&square, "tensor([[ 1.5000, -2.2500],\n        [ 0.1000,  3.0000]])");
        check(
            &square.cast(DType::BF16).unwrap(),
            "tensor([[ 1.5000, -2.2500],\n        [ 0.1001,  3.0000]], dtype=bf16)",
        );
        assert_eq!(format!("{square:.1}"), "tensor([[ 1.5, -2.2],\n        [ 0.1,  3.0]])");
        check(&of(&[1.0, -2.0, 0.0, 30.0]), "tensor([ 1., -2.,  0., 30.])");
        check(
            &steps(6.0, &[2, 3], DType::I32).mul(-7).unwrap(),
            "tensor([[  0,  -7, -14],\n        [-21, -28, -35]], dtype=i32)",
        );
        check(&Tensor::full([], 2.5, DType::F32, &device).unwrap(), "tensor(2.5000)");
        check(&Tensor::full([], 3, DType::I32, &device).unwrap(), "tensor(3, dtype=i32)");
        check(&of(&[]), "tensor([])");
        check(&Tensor::zeros([2, 0], DType::F16, &device).unwrap(), "tensor([], size=(2, 0), dtype=f16)");
        check(&of(&[1e-5, 1.0, -123456.0]), "tensor([ 1.0000e-05,  1.0000e+00, -1.2346e+05])");
        check(&of(&[1.0, 1e9]), "tensor([1.0000e+00, 1.0000e+09])");
        check(&of(&[f32::NAN, 1.0, f32::INFINITY, -f32::INFINITY]), "tensor([nan, 1., inf, -inf])");
        check(&of(&[f32::NAN, 1.5, -f32::INFINITY]), "tensor([   nan, 1.5000,   -inf])");
        check(
            &steps(12.0, &[2, 3, 2], DType::F32).div(4).unwrap(),
            "tensor([[[0.0000, 0.2500],\n         [0.5000, 0.7500],\n         [1.0000, 1.2500]],\n\n        \
             [[1.5000, 1.7500],\n         [2.0000, 2.2500],\n         [2.5000, 2.7500]]])",
        );
        check(
            &steps(30.0, &[30], DType::F32).div(8).unwrap(),
            "tensor([0.0000, 0.1250, 0.2500, 0.3750, 0.5000, 0.6250, 0.7500, 0.8750, 1.0000,\n        \
             1.1250, 1.2500, 1.3750, 1.5000, 1.6250, 1.7500, 1.8750, 2.0000, 2.1250,\n        \
             2.2500, 2.3750, 2.5000, 2.6250, 2.7500, 2.8750, 3.0000, 3.1250, 3.2500,\n        \
             3.3750, 3.5000, 3.6250])",
        );
    }

    #[test]
    fn large_tensors_show_their_edges() {
        check(
            &steps(2000.0, &[2000], DType::I32),
            "tensor([   0,    1,    2,  ..., 1997, 1998, 1999], dtype=i32)",
        );
        check(
            &steps(1001.0, &[1001], DType::F32).div(64).unwrap().cast(DType::BF16).unwrap(),
            "tensor([ 0.0000,  0.0156,  0.0312,  ..., 15.6250, 15.6250, 15.6250],\n       dtype=bf16)",
        );
        let text = steps(5000.0, &[50, 100], DType::F32).to_string();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[0], "tensor([[0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 9.7000e+01, 9.8000e+01,");
        assert_eq!(rows[1], "         9.9000e+01],");
        assert_eq!((rows[6], rows.len()), ("        ...,", 13));
        assert_eq!(rows[12], "         4.9990e+03]])");
        let text = steps(1600.0, &[8, 2, 100], DType::F32).div(8).unwrap().to_string();
        assert!(
            text.contains("2.5000e+00,  ...")
                || text.contains("2.5000e-01,  ..., 1.2125e+01,\n          1.2250e+01")
        );
        assert!(
            text.contains("]],\n\n        ...,\n\n        [[1.2500e+02, 1.2512e+02, 1.2525e+02,  ..."),
            "{text}"
        );
    }

    #[test]
    fn debug_is_one_line_and_nothing_is_lost_without_values() {
        let device = Device::default();
        let x = Tensor::from_slice(&[0.1f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], [2, 4], &device).unwrap();
        assert_eq!(format!("{x:?}"), "Tensor([2, 4], f32, [0.1, 2, 3, 4, 5, 6, ...])");
        assert_eq!(format!("{:?}", steps(2.0, &[2], DType::I32)), "Tensor([2], i32, [0, 1])");
        let dry = Tensor::zeros([2, 4], DType::BF16, &device.as_dry()).unwrap();
        assert!(dry.to_string().starts_with("tensor(<a dry device holds no values"), "{dry}");
        assert!(dry.to_string().contains("size=(2, 4)") && dry.to_string().ends_with("dtype=bf16)"), "{dry}");
        let strict = Device::strict(Isa::detect(), Par::solo());
        let y = Tensor::ones([2], DType::F32, &strict).unwrap().add(1).unwrap();
        assert_eq!(
            (y.to_string(), format!("{y:?}")),
            ("tensor([2., 2.])".into(), "Tensor([2], f32, [2, 2])".into())
        );
    }
}
