//! Weights of 4 bits in host memory, computed on the threads of a device: what loads and saves them uses this.

use std::ops::Range;

use oarlock_kernels::four_bit::{self, Layout};
use oarlock_kernels::{Error, Result};

use crate::device::Device;

/// The words of a weight of these elements.
///
/// # Errors
/// Another number of elements than the layout has.
pub fn quantize(device: &Device, layout: Layout, values: &[f32]) -> Result<Vec<i32>> {
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
        return Err(Error::Usage(format!("a weight of 4 bits has no elements {elements:?}")));
    }
    // Blocks follow the elements, whatever the rows.
    let flat = Layout { rows: 1, cols: layout.n_elems(), ..layout };
    four_bit::dequantize(device.host(), flat.weight(words), 0..1, elements, out);
    Ok(())
}

fn check(what: &str, n: usize, expected: usize) -> Result<()> {
    match n == expected {
        true => Ok(()),
        false => Err(Error::Shape {
            op: "a weight of 4 bits",
            expected: format!("{expected} {what}"),
            got: format!("{n}"),
        }),
    }
}
