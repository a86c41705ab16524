//! Quantized weights in host memory, computed on the threads of a device: what loads and saves them uses this.

use std::ops::Range;

use oarlock_kernels::quantized::{self, Format, Layout};
use oarlock_kernels::{Error, Result};

use crate::device::Device;

/// The words of a weight of these elements.
///
/// # Errors
/// Another number of elements than the layout has, and blocks of GGUF, which are kept as files have them.
pub fn quantize(device: &Device, layout: Layout, values: &[f32]) -> Result<Vec<i32>> {
    if let Format::Blocks(kind) = layout.format {
        return Err(Error::Usage(format!("a weight in blocks of {kind} comes from a GGUF file alone")));
    }
    check("elements", values.len(), layout.n_elems())?;
    let mut words = vec![0; layout.n_words()];
    layout.quantize(device.host(), values, &mut words);
    Ok(words)
}

/// Elements of the weight in these words, in row-major order.
///
/// # Errors
/// Another number of words than the layout has, or elements that it has not.
pub fn dequantize(
    device: &Device,
    layout: Layout,
    words: &[i32],
    elements: Range<usize>,
    out: &mut [f32],
) -> Result<()> {
    check("words", words.len(), layout.n_words())?;
    check("elements", out.len(), elements.len())?;
    if elements.end > layout.n_elems() {
        return Err(Error::Usage(format!("a quantized weight has no elements {elements:?}")));
    }
    let (weight, cols, host) = (layout.weight(words), layout.cols.max(1), device.host());
    // A part of a row, whole rows, a part of a row.
    let (mut at, mut out) = (elements.start, out);
    while at < elements.end {
        let (row, col) = (at / cols, at % cols);
        let rows = if col == 0 { ((elements.end - at) / cols).max(1) } else { 1 };
        let last = (elements.end - row * cols).min(cols);
        let (now, later) = out.split_at_mut(rows * (last - col));
        quantized::dequantize(host, weight, row..row + rows, col..last, now);
        at += now.len();
        out = later;
    }
    Ok(())
}

fn check(what: &str, n: usize, expected: usize) -> Result<()> {
    match n == expected {
        true => Ok(()),
        false => Err(Error::Shape {
            op: "a quantized weight",
            expected: format!("{expected} {what}"),
            got: format!("{n}"),
        }),
    }
}
