//! The elements of safetensors files as a model holds them: weights in f32, buffers as floats or integers.

use oarlock_tensor::{Result, Scalar, bf16, f16};
use safetensors::Dtype;

use crate::nn::BufferValues;

/// Whether weights may be stored in a dtype. Integers are refused: those of a quantized model are not weights without
/// their scales.
pub fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F64 | Dtype::BF16 | Dtype::F16)
}

/// Whether a buffer of such values can be read from a dtype.
pub(crate) fn fits(values: &BufferValues, dtype: Dtype) -> bool {
    match values {
        BufferValues::Floats(_) => is_float(dtype),
        BufferValues::Ints(_) => matches!(dtype, Dtype::I32 | Dtype::I64 | Dtype::U8 | Dtype::BOOL),
    }
}

/// As [`to_f32`], for a tensor of any dtype; the text says what is wrong with it.
pub fn floats(name: &str, dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> std::result::Result<(), String> {
    match is_float(dtype) {
        true => to_f32(name, dtype, bytes, out).map_err(|error| error.to_string()),
        false => Err(format!("\"{name}\" is of the dtype {dtype:?}; weights are floats")),
    }
}

/// What is wrong with weights of a file that are not numbers.
pub fn not_finite(name: &str, n: usize, n_elems: usize) -> String {
    format!(
        "\"{name}\" holds {n} of {n_elems} elements that are NaN or infinite; the model is damaged or its training had \
         diverged: take another copy or an earlier checkpoint"
    )
}

/// Reads floats as f32; those of F64 are rounded.
///
/// # Errors
/// A finite number beyond the range of f32.
pub fn to_f32(name: &str, dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    match dtype {
        Dtype::F32 => widen(bytes, out, f32::from_le_bytes),
        Dtype::BF16 => widen(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F64 => out.copy_from_slice(&f64::store_all(name, &read(bytes, f64::from_le_bytes))?),
        _ => widen(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
    }
    Ok(())
}

/// The elements of a dtype that [`fits`], as values of the kind of a buffer's.
///
/// # Errors
/// A number outside of the range of what the buffer holds.
pub(crate) fn like(name: &str, values: &BufferValues, dtype: Dtype, bytes: &[u8]) -> Result<BufferValues> {
    let ints = match (values, dtype) {
        (BufferValues::Floats(values), _) => {
            let mut floats = vec![0.0; values.len()];
            to_f32(name, dtype, bytes, &mut floats)?;
            return Ok(BufferValues::Floats(floats));
        }
        (BufferValues::Ints(_), Dtype::I64) => i64::store_all(name, &read(bytes, i64::from_le_bytes))?,
        (BufferValues::Ints(_), Dtype::U8) => u8::store_all(name, bytes)?,
        (BufferValues::Ints(_), Dtype::BOOL) => read(bytes, |[byte]: [u8; 1]| i32::from(byte != 0)),
        (BufferValues::Ints(_), _) => read(bytes, i32::from_le_bytes),
    };
    Ok(BufferValues::Ints(ints))
}

fn read<const N: usize, T>(bytes: &[u8], from_le_bytes: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks().0.iter().map(|chunk| from_le_bytes(*chunk)).collect()
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
    let (chunks, _) = bytes.as_chunks::<N>();
    out.iter_mut().zip(chunks).for_each(|(out, chunk)| *out = to_f32(*chunk));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_fill_buffers_of_integers() {
        let ints = BufferValues::Ints(vec![0; 3]);
        let of = |dtype, bytes: &[u8]| like("ids", &ints, dtype, bytes);
        let wide: Vec<u8> = [3i64, -1, 7].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(of(Dtype::I64, &wide).unwrap(), BufferValues::Ints(vec![3, -1, 7]));
        assert_eq!(of(Dtype::U8, &[0, 200, 1]).unwrap(), BufferValues::Ints(vec![0, 200, 1]));
        assert_eq!(of(Dtype::BOOL, &[0, 1, 1]).unwrap(), BufferValues::Ints(vec![0, 1, 1]));
        assert!(!fits(&ints, Dtype::F32));
        let far: Vec<u8> = [0i64, 1 << 31, 0].iter().flat_map(|x| x.to_le_bytes()).collect();
        assert_eq!(
            of(Dtype::I64, &far).unwrap_err().to_string(),
            "ids: 2147483648 at index 1 is outside the range of i32, which tensors keep i64 in"
        );
    }

    #[test]
    fn doubles_are_rounded_and_those_beyond_f32_refused() {
        let bytes = |values: [f64; 2]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut out = [0.0; 2];
        to_f32("w", Dtype::F64, &bytes([0.1, f64::INFINITY]), &mut out).unwrap();
        assert_eq!(out, [0.1f32, f32::INFINITY]);
        let text = to_f32("w", Dtype::F64, &bytes([0.0, -1e39]), &mut out).unwrap_err().to_string();
        assert!(text.starts_with("w: -1e39 at index 1 is outside the range of f32"), "{text}");
        let floats = BufferValues::Floats(vec![0.0; 2]);
        let want = BufferValues::Floats(vec![0.5, 2.0]);
        assert_eq!(like("b", &floats, Dtype::F64, &bytes([0.5, 2.0])).unwrap(), want);
    }
}
