//! Elements as integers of 8 or 4 bits with a scale for each block, which ranks send in their place.

use oarlock_kernels::compressed::block_int;
use oarlock_kernels::{DType, Error, Result, Store};

use crate::device::Device;
use crate::launch::Mode;
use crate::ops::optimizer::Part;
use crate::ops::with_float;

pub use oarlock_kernels::compressed::block_int::Bits;

/// Encodes floats in 32-bit words (`words` counts them), as many as [`Bits::n_words`] says.
///
/// # Errors
/// Parts that do not fit each other or their buffers, or that are in use elsewhere; a dtype that is not a float.
pub fn quantize(device: &Device, dtype: DType, bits: Bits, x: &Part<'_>, words: &Part<'_>) -> Result<()> {
    const OP: &str = "block_int::quantize";
    check(OP, bits, x, words)?;
    let mut launch = device.launch("quantize blocks", 0, bytes(dtype, x, words));
    with_float!(dtype, OP, T => {
        let x_lease = x.flat.read()?;
        let x = launch.read_flat::<T>(&x_lease, &x.range)?;
        let mut words_lease = words.flat.write()?;
        let words = launch.write_flat::<i32>(&mut words_lease, &words.range, Mode::Write)?;
        launch.run(move |cpu| block_int::quantize(cpu, bits, x.slice(cpu), words.slice(cpu)))
    })
}

/// Replaces floats by what encoded words stand for, or adds that to them.
///
/// # Errors
/// As [`quantize`].
pub fn dequantize(
    device: &Device,
    dtype: DType,
    bits: Bits,
    words: &Part<'_>,
    store: Store,
    out: &Part<'_>,
) -> Result<()> {
    const OP: &str = "block_int::dequantize";
    check(OP, bits, out, words)?;
    let mut launch = device.launch("dequantize blocks", 0, bytes(dtype, out, words));
    let mode = match store {
        Store::Overwrite => Mode::Write,
        Store::Add => Mode::Update,
    };
    with_float!(dtype, OP, T => {
        let words_lease = words.flat.read()?;
        let words = launch.read_flat::<i32>(&words_lease, &words.range)?;
        let mut out_lease = out.flat.write()?;
        let out = launch.write_flat::<T>(&mut out_lease, &out.range, mode)?;
        launch.run(move |cpu| block_int::dequantize(cpu, bits, words.slice(cpu), store, out.slice(cpu)))
    })
}

fn bytes(dtype: DType, x: &Part<'_>, words: &Part<'_>) -> u64 {
    (dtype.size() * x.range.len() + 4 * words.range.len()) as u64
}

fn check(op: &'static str, bits: Bits, x: &Part<'_>, words: &Part<'_>) -> Result<()> {
    let n = x.range.len();
    match words.range.len() == bits.n_words(n) {
        true => Ok(()),
        false => Err(Error::Shape {
            op,
            expected: format!("the {} words of {n} elements", bits.n_words(n)),
            got: format!("{:?}", words.range),
        }),
    }
}
